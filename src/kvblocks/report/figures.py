"""The plots of a replay, one function each: plotly figures as JSON, None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import plotly.graph_objects as go

from kvblocks.report.chart import BLUE, GREY, ORANGE, RUN_COLOURS, Data, chart


def _blocks(run: Data) -> str:
    return f"{run['num_blocks']:,} blocks"


def hit_rate_by_size(runs: Sequence[Data]) -> go.Figure | None:
    """Hit rate against cache size."""
    if not any(run["prompt_tokens"] for run in runs):
        return None
    sizes = [run["num_blocks"] for run in runs]
    tokens = [f"{(run['num_blocks'] - 1) * run['block_size']:,} tokens" for run in runs]
    lines = [
        go.Scatter(
            x=sizes,
            y=[run[key] for run in runs],
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"size": 8},
            customdata=tokens,
            hovertemplate="%{y:.1%} (%{customdata})",
        )
        for key, name, colour, dash in (
            ("hit_rate", "all requests", BLUE, "solid"),
            ("hit_rate_last_half", "later half (warm cache)", ORANGE, "dot"),
        )
    ]
    top = max(max(run["hit_rate"], run["hit_rate_last_half"]) for run in runs)
    return chart(
        *lines,
        xaxis={
            "type": "log",
            "title": "cache size in blocks",
            "tickvals": sizes,
            "ticktext": [f"{n:,}" for n in sizes],
        },
        yaxis={"title": "prompt tokens hit", "tickformat": ".0%", "range": [0, min(1.0, top * 1.15 or 0.1)]},
    )


def occupancy(run: Data) -> go.Figure | None:
    """Live, cached and blank blocks over the course of one run."""
    series = run["series"]
    if not series["x"]:
        return None
    areas = [
        go.Scatter(
            x=series["x"],
            y=series[key],
            name=name,
            stackgroup="blocks",
            mode="lines",
            line={"width": 0.5, "color": colour},
            hovertemplate="%{y:,} " + key,
        )
        for key, name, colour in (
            ("live", "live: held by requests", ORANGE),
            ("cached", "cached: free, can be hit", BLUE),
            ("blank", "blank: free, empty", GREY),
        )
    ]
    return chart(*areas, xaxis={"title": _x_title(series)}, yaxis={"title": "blocks", "tickformat": ",d"})


def hit_rate_over_time(runs: Sequence[Data]) -> go.Figure | None:
    """Hit rate of the requests in each stretch of a run."""
    lines = []
    for i, run in enumerate(runs):
        series = run["series"]
        window = max(1, len(series["x"]) // 60)
        lines.append(
            go.Scatter(
                x=series["x"],
                y=_smooth(series["hit_rate"], window),
                name=_blocks(run),
                mode="lines",
                connectgaps=True,
                line={"color": RUN_COLOURS[i % len(RUN_COLOURS)], "width": 2},
                hovertemplate="%{y:.1%}",
            )
        )
    if not any(y is not None for line in lines for y in line.y or ()):
        return None
    return chart(
        *lines,
        xaxis={"title": _x_title(runs[0]["series"])},
        yaxis={"title": "prompt tokens hit", "tickformat": ".0%", "rangemode": "tozero"},
    )


def reuse_distances(reuse: Data | None, runs: Sequence[Data]) -> go.Figure | None:
    """How far apart the touches of one block are, with the cache sizes beside it."""
    if not reuse or not any(reuse["counts"]):
        return None
    first = next(i for i, count in enumerate(reuse["counts"]) if count)
    edges, counts = reuse["edges"][first:], reuse["counts"][first:]
    total = sum(counts)
    labels = [f"{low:,}-{high - 1:,}" if high - low > 1 else f"{low:,}" for low, high in pairwise(edges)]
    running, shares = 0, []
    for count in counts:
        running += count
        shares.append(running / total)
    figure = chart(
        go.Bar(x=labels, y=counts, name="touches", marker={"color": BLUE}, hovertemplate="%{y:,} touches"),
        go.Scatter(
            x=labels,
            y=shares,
            name="share at most so far apart",
            yaxis="y2",
            mode="lines+markers",
            line={"color": ORANGE, "width": 2},
            hovertemplate="%{y:.1%}",
        ),
        xaxis={"title": "other blocks in between", "tickangle": -40},
        yaxis={"title": "touches", "tickformat": ",d"},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "tickformat": ".0%",
            "range": [0, 1.05],
            "dtick": 0.25,
            "showgrid": False,
        },
        margin={"l": 60, "r": 60, "t": 20, "b": 110},
    )
    marked: dict[int, list[str]] = {}
    for run in runs:
        at = next((i for i, edge in enumerate(edges[1:]) if run["num_blocks"] < edge), None)
        if at is not None:
            marked.setdefault(at, []).append(f"{run['num_blocks']:,}")
    for at, names in marked.items():
        figure.add_vline(x=at, line={"color": GREY, "dash": "dot"})
        figure.add_annotation(
            x=at,
            y=1.0,
            yref="paper",
            text="cache: " + ", ".join(names),
            showarrow=False,
            textangle=-90,
            xanchor="right",
            yanchor="top",
            font={"size": 11, "color": GREY},
        )
    return figure


def shared_prefixes(prefixes: Sequence[Data]) -> go.Figure | None:
    """The shared beginnings of prompts as an icicle: what stands below begins with what stands above."""
    if not prefixes:
        return None
    words = [
        f"{row['label']}<br>{row['requests']:,} requests share {row['tokens']:,} tokens<br>"
        f"{row['hit_tokens']:,} tokens to save"
        for row in prefixes
    ]
    return chart(
        go.Icicle(
            ids=[row["id"] for row in prefixes],
            parents=[row["parent"] or "" for row in prefixes],
            labels=[row["label"] for row in prefixes],
            values=[row["hit_tokens"] for row in prefixes],
            text=[f"{row['requests']:,} requests" for row in prefixes],
            hovertext=words,
            hoverinfo="text",
            branchvalues="remainder",
            tiling={"orientation": "v"},
            maxdepth=8,
            textfont={"color": ["white" if depth < 2 else "#0d2c40" for depth in _depths(prefixes)]},
            marker={"colors": [_SHADES[min(depth, len(_SHADES) - 1)] for depth in _depths(prefixes)]},
        ),
        hovermode="closest",
        height=420,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
    )


_SHADES = ("#0072B2", "#3D8FC1", "#6BA9CF", "#96C1DD", "#BFD9EA")


def _depths(prefixes: Sequence[Data]) -> list[int]:
    """How many rows stand above each; parents come before their children."""
    depth: dict[str, int] = {}
    for row in prefixes:
        depth[row["id"]] = 0 if row["parent"] is None else depth[row["parent"]] + 1
    return [depth[row["id"]] for row in prefixes]


def _x_title(series: Data) -> str:
    return "simulated seconds" if series["x_unit"] == "s" else "requests"


def _smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """A moving mean over the known values."""
    smoothed: list[float | None] = []
    for i in range(len(values)):
        known = [value for value in values[max(0, i - window + 1) : i + 1] if value is not None]
        smoothed.append(sum(known) / len(known) if known else None)
    return smoothed
