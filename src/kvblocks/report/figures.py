"""The plots of a replay's runs, one function each: plotly figures as plain data, None where there is nothing to draw.

Colours that depend on the reader's light or dark theme are set by the page's script, all others here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvblocks.report.values import Data, count, short

Figure = dict[str, Any]

# A palette that colour-blind readers can tell apart (Okabe and Ito, 2008), here in the order of use.
BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#8A929C"
RUN_COLOURS = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY)
SHOWN_RUNS = 6
"""With more runs than this, only some are drawn at first; the legend shows the others."""
SMOOTH_OVER = 60
"""A hit rate over time is averaged so that about so many independent stretches remain."""


def figure(data: list[Figure], **layout: Any) -> Figure:
    """A figure in the style of the page. What it has under "narrow" replaces parts of its layout on a phone."""
    base: Figure = {
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "height": 380,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "x unified",
        "separators": ".,",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "showlegend": True,
    }
    return {"data": data, "layout": base | layout}


def axis(title: str, **settings: Any) -> Figure:
    """An axis in the style of the page."""
    base: Figure = {
        "title": {"text": title, "standoff": 8},
        "gridcolor": "rgba(128,128,128,0.22)",
        "zerolinecolor": "rgba(128,128,128,0.45)",
        "automargin": True,
    }
    return base | settings


def percent_axis(title: str, top: float, **settings: Any) -> Figure:
    """An axis from 0 to a little above `top` percent."""
    return axis(title, ticksuffix=" %", range=[0, min(102.0, top * 1.12 or 10.0)], **settings)


def hit_rate_by_size(runs: Sequence[Data]) -> Figure | None:
    """Hit rate against cache size; None for a single size, which is no curve."""
    runs = [run for run in runs if run["prompt_tokens"] and run["hit_rate"] is not None]
    if len(runs) < 2:
        return None
    sizes = [run["num_blocks"] for run in runs]
    lines = [
        {
            "type": "scatter",
            "x": sizes,
            "y": _percents(run.get(key) for run in runs),
            "name": name,
            "mode": "lines+markers",
            "line": {"color": colour, "dash": dash, "width": 2},
            "marker": {"size": 8, "symbol": symbol},
            "hovertemplate": "%{y:.1f} %",
        }
        for key, name, colour, dash, symbol in (
            ("hit_rate", "all requests", BLUE, "solid", "circle"),
            ("hit_rate_last_half", "later half (warm cache)", VERMILLION, "dot", "diamond"),
        )
    ]
    lines[0]["customdata"] = [f"{count(run['capacity_tokens'])} tokens" for run in runs]
    lines[0]["hovertemplate"] = "%{y:.1f} %, room for %{customdata}"
    places = [math.log(size) for size in sizes]
    top = max((y for line in lines for y in line["y"] if y is not None), default=0.0)
    drawn = figure(
        lines,
        xaxis=axis(
            "cache size in blocks, and in tokens",
            type="log",
            tickangle=0,
            **_size_ticks(spaced(runs, places, 0.11)),
            hoverformat=",d",
            unifiedhovertitle={"text": "%{x:,d} blocks"},
        ),
        yaxis=percent_axis("prompt tokens hit", top),
    )
    drawn["narrow"] = {"xaxis": _size_ticks(spaced(runs, places, 0.3))}
    return drawn


def _size_ticks(runs: Sequence[Data]) -> Figure:
    return {
        "tickvals": [run["num_blocks"] for run in runs],
        "ticktext": [f"{short(run['num_blocks'])}<br>{short(run['capacity_tokens'])} tok" for run in runs],
    }


def occupancy(run: Data) -> Figure | None:
    """Live, cached and blank blocks over the course of one run; None with fewer than two moments."""
    series = run.get("series") or {}
    if len(series.get("x", ())) < 2:
        return None
    areas = [
        {
            "type": "scatter",
            "x": series["x"],
            "y": series[key],
            "name": name,
            "stackgroup": "blocks",
            "mode": "lines",
            "line": {"width": 1, "color": colour},
            "fillcolor": fill,
            "hovertemplate": "%{y:,.0f}",
        }
        for key, name, colour, fill in (
            ("live", "live: held by requests", VERMILLION, "rgba(213,94,0,0.85)"),
            ("cached", "cached: free, can be hit", BLUE, "rgba(0,114,178,0.72)"),
            ("blank", "blank: free, empty", GREY, "rgba(138,146,156,0.22)"),
        )
    ]
    return figure(
        areas,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        xaxis=_time_axis(series),
        yaxis=axis("blocks", tickformat=",d", rangemode="tozero"),
    )


def hit_rate_over_time(runs: Sequence[Data]) -> Figure | None:
    """Hit rate of the requests in each stretch of a run, all runs together; None with fewer than two stretches."""
    shown = _spread(len(runs), SHOWN_RUNS)
    look = {i: place for place, i in enumerate([*shown, *(i for i in range(len(runs)) if i not in shown)])}
    lines = []
    for i, run in enumerate(runs):
        series = run.get("series") or {}
        rates = series.get("hit_rate") or ()
        if sum(rate is not None for rate in rates) < 2:
            continue
        lines.append(
            {
                "type": "scatter",
                "x": series["x"],
                "y": _percents(smooth(rates, smoothing(series))),
                "name": f"{count(run['num_blocks'])} blocks",
                "mode": "lines",
                "connectgaps": True,
                "visible": True if i in shown else "legendonly",
                "line": {
                    "color": RUN_COLOURS[look[i] % len(RUN_COLOURS)],
                    "dash": ("solid", "dash", "dot")[look[i] // len(RUN_COLOURS) % 3],
                    "width": 1.8,
                },
                "hovertemplate": "%{y:.1f} %",
            }
        )
    if not lines:
        return None
    top = max((y for line in lines for y in line["y"] if y is not None), default=0.0)
    return figure(
        lines,
        xaxis=_time_axis(runs[0].get("series") or {}),
        yaxis=percent_axis("prompt tokens hit", top),
    )


def smoothing(series: Data) -> int:
    """Over how many intervals the hit rate is averaged."""
    return max(1, len(series["x"]) // SMOOTH_OVER)


def smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """The mean of the known values among the last `window`."""
    smoothed: list[float | None] = []
    for i in range(len(values)):
        known = [value for value in values[max(0, i - window + 1) : i + 1] if value is not None]
        smoothed.append(sum(known) / len(known) if known else None)
    return smoothed


def spaced(items: Sequence[Any], places: Sequence[float], gap: float) -> list[Any]:
    """The items whose places are at least `gap` of the whole range apart; the last one is always among them."""
    room = gap * (places[-1] - places[0]) if places else 0.0
    kept: list[int] = []
    for i in range(len(items) - 1, -1, -1):
        if not kept or places[kept[-1]] - places[i] >= room:
            kept.append(i)
    return [items[i] for i in reversed(kept)]


def _time_axis(series: Data) -> Figure:
    timed = series.get("x_unit") == "s"
    return axis(
        "simulated seconds" if timed else "requests so far",
        tickformat=",",
        hoverformat=",.1f" if timed else ",d",
        unifiedhovertitle={"text": "after %{x:,.1f} s" if timed else "after %{x:,d} requests"},
        showgrid=False,
    )


def _percents(shares: Any) -> list[float | None]:
    return [None if share is None else round(100 * share, 3) for share in shares]


def _spread(n: int, most: int) -> list[int]:
    """At most `most` of the first n numbers, evenly spread, with both ends."""
    return list(range(n)) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]
