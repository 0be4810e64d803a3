"""Horizontal bars, each under its label, so that both have the whole width of a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence

from kvblocks.report.figures import GREY, Figure, axis, figure
from kvblocks.report.values import plot_text

_ROW, _ABOVE, _BELOW = 46, 30, 60
"""Pixels of a bar with its label, of the marked line's label, and of the axis."""


def bars(
    labels: Sequence[tuple[str, str]],
    parts: Sequence[tuple[str | Sequence[str], Sequence[float], Sequence[str]]],
    *,
    title: str,
    mark: tuple[float, str] | None = None,
) -> Figure:
    """A figure of bars that have one or more parts.

    labels: what stands above each bar, from the top: a number in bold, and words.
    parts: colour (or one for each bar), lengths, and what is said of each when it is pointed at.
    title: of the axis.
    mark: where a line goes through all bars, and its label.
    """
    places = list(range(len(labels) - 1, -1, -1))
    traces: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": list(lengths),
            "y": places,
            "width": 0.42,
            "marker": {"color": colour if isinstance(colour, str) else list(colour)},
            "hovertext": [plot_text(text) for text in told],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
        for colour, lengths, told in parts
    ]
    notes: list[Figure] = [
        {
            "xref": "paper",
            "x": 0,
            "xanchor": "left",
            "y": place + 0.2,
            "yanchor": "bottom",
            "text": f"<b>{plot_text(number)}</b>  {plot_text(words)}",
            "align": "left",
            "showarrow": False,
            "font": {"size": 12},
        }
        for place, (number, words) in zip(places, labels, strict=True)
    ]
    top = 6
    lines: list[Figure] = []
    if mark is not None:
        at, words = mark
        top = _ABOVE
        longest = max(sum(lengths) for lengths in zip(*(lengths for _, lengths, _ in parts), strict=True))
        lines.append(
            {
                "type": "line",
                "x0": at,
                "x1": at,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": GREY, "width": 2, "dash": "dot"},
            }
        )
        notes.append(
            {
                "x": at,
                "xanchor": "right" if at > longest / 2 else "left",
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "text": plot_text(words),
                "showarrow": False,
                "font": {"size": 12},
            }
        )
    return figure(
        traces,
        barmode="stack",
        showlegend=False,
        hovermode="closest",
        height=_ROW * len(labels) + top + _BELOW + 20,
        margin={"l": 10, "r": 10, "t": top, "b": _BELOW},
        annotations=notes,
        shapes=lines,
        xaxis=axis(title, fixedrange=True, nticks=6, rangemode="tozero"),
        yaxis={"visible": False, "fixedrange": True, "range": [-0.4, len(labels) - 0.2]},
    )
