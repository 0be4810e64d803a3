"""The plot of reuse distances: how far apart the touches of a block are, with the cache sizes beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

from kvblocks.report.figures import BLUE, GREY, PINK, VERMILLION, Figure, axis, figure, spaced
from kvblocks.report.values import Data, count, short

TICKS = 0.07
"""Labels closer than this share of the axis are left out."""


def reuse_distances(reuse: Data | None, runs: Sequence[Data]) -> Figure | None:
    """A histogram, the cumulative share of all touches and the cache sizes; None when nothing came twice.

    A cache of n usable blocks holds what comes back after fewer than n others, so its line stands at n.
    """
    if not reuse or not any(reuse["counts"]):
        return None
    counts = reuse["counts"]
    total = sum(counts) + (reuse.get("cold") or 0)
    first = next(i for i, n in enumerate(counts) if n)
    edges = reuse["edges"][first : len(counts) + 1]
    counts = counts[first : len(edges) - 1 + first]
    places = [_place(edge) for edge in edges]
    shares = [100 * n / total for n in accumulate(counts, initial=0)]
    bars: Figure = {
        "type": "bar",
        "name": "touches",
        "x": [(low + high) / 2 for low, high in pairwise(places)],
        "width": [0.92 * (high - low) for low, high in pairwise(places)],
        "y": counts,
        "marker": {"color": BLUE, "opacity": 0.92},
        "customdata": [_bin(low, high) for low, high in pairwise(edges)],
        "hovertemplate": "%{y:,.0f} touches came back after %{customdata}<extra></extra>",
    }
    cumulative: Figure = {
        "type": "scatter",
        "name": "share of all touches that came back so soon",
        "x": places,
        "y": [round(share, 3) for share in shares],
        "yaxis": "y2",
        "mode": "lines",
        "line": {"color": VERMILLION, "width": 2},
        "customdata": [count(edge) for edge in edges],
        "hovertemplate": "%{y:.1f} % of all touches came back after fewer than %{customdata} others<extra></extra>",
    }
    sizes = [run["num_blocks"] for run in runs]
    at = [_place(size - 1) for size in sizes]  # one block is the null block
    low, high = min([*places, *at]), max([*places, *at])

    def ticks(gap: float) -> Figure:
        shown = spaced(list(zip(places, edges, strict=True)), places, gap)
        return {"tickvals": [place for place, _ in shown], "ticktext": [short(edge) for _, edge in shown]}

    def labels(gap: float) -> list[Figure]:
        room = gap * (high - low) / ((at[-1] - at[0] if at else 0) or 1)
        return [_label(place, short(size)) for place, size in spaced(list(zip(at, sizes, strict=True)), at, room)]

    drawn = figure(
        [bars, cumulative],
        hovermode="closest",
        margin={"l": 60, "r": 60, "t": 20, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.1, "x": 0},
        shapes=[
            {
                "type": "line",
                "x0": place,
                "x1": place,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": PINK, "width": 1.2, "dash": "dot"},
            }
            for place in at
        ],
        annotations=labels(TICKS),
        xaxis=axis(
            "other blocks in between",
            **ticks(TICKS),
            tickangle=0,
            showgrid=False,
            zeroline=False,
            range=[low - 0.3, high + 0.5],
        ),
        yaxis=axis("touches", tickformat=",d", rangemode="tozero"),
        yaxis2={
            "title": {"text": "share of all touches"},
            "overlaying": "y",
            "side": "right",
            "ticksuffix": " %",
            "range": [0, 102],
            "dtick": 25,
            "showgrid": False,
            "automargin": True,
        },
    )
    drawn["narrow"] = {"xaxis": ticks(3 * TICKS), "annotations": labels(2.4 * TICKS)}
    return drawn


def _label(place: float, text: str) -> Figure:
    """A label above the plot."""
    at: Figure = {"x": place, "y": 1.0, "yref": "paper", "yanchor": "bottom"}
    return at | {"text": text, "showarrow": False, "font": {"size": 11, "color": GREY}}


def _place(distance: float) -> float:
    """On an axis of powers of two; 0 stands one step before 1."""
    return math.log2(distance) if distance else -1.0


def _bin(low: float, high: float) -> str:
    """Distances from low to below high, in words."""
    if high - low <= 1:
        return "1 other block" if low == 1 else f"{count(low)} other blocks"
    return f"{count(low)} to {count(high - 1)} other blocks"
