"""The look of every plot: colours, axes, and bars under their labels."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

# A palette that colour-blind readers can tell apart (Okabe and Ito, 2008).
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#999999"
RUN_COLOURS = (BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#D55E00", GREY)

Data = Mapping[str, Any]


def chart(*traces: Any, **layout: Any) -> go.Figure:
    figure = go.Figure(data=list(traces))
    figure.update_layout(
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        height=380,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        hovermode="x unified",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        template="none",
    )
    figure.update_layout(**layout)
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)", "automargin": True}
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    return figure


def bars(
    labels: Sequence[tuple[str, str]],
    parts: Sequence[tuple[str | Sequence[str], Sequence[float], Sequence[str]]],
    *,
    title: str,
    mark: tuple[float, str] | None = None,
) -> go.Figure:
    """Horizontal bars of one or more parts, each under its label, so that both have the width of a narrow screen.

    labels: what stands above each bar, from the top: a figure in bold, and words.
    parts: colour (or one for each bar), lengths, and what is said of each when it is pointed at.
    title: of the axis.
    mark: where a line goes through all bars, and its label.
    """
    places = list(range(len(labels) - 1, -1, -1))
    figure = chart(
        *(
            go.Bar(
                orientation="h",
                x=list(lengths),
                y=places,
                width=0.42,
                marker={"color": colour},
                hovertext=[html.escape(text) for text in told],
                hovertemplate="%{hovertext}<extra></extra>",
            )
            for colour, lengths, told in parts
        ),
        barmode="stack",
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        height=46 * len(labels) + (110 if mark else 86),
        margin={"l": 10, "r": 10, "t": 30 if mark else 6, "b": 60},
        xaxis={"title": title, "fixedrange": True, "nticks": 6, "rangemode": "tozero"},
        yaxis={"visible": False, "fixedrange": True, "range": [-0.4, len(labels) - 0.2]},
    )
    for place, (figures, words) in zip(places, labels, strict=True):
        bold = f"<b>{html.escape(figures)}</b>  " if figures else ""
        figure.add_annotation(
            xref="paper",
            x=0,
            xanchor="left",
            y=place + 0.2,
            yanchor="bottom",
            text=bold + html.escape(words),
            align="left",
            showarrow=False,
            font={"size": 12},
        )
    if mark is not None:
        at, words = mark
        longest = max(sum(lengths) for lengths in zip(*(lengths for _, lengths, _ in parts), strict=True))
        figure.add_vline(x=at, line={"color": GREY, "dash": "dot"})
        figure.add_annotation(
            x=at,
            yref="paper",
            y=1,
            yanchor="bottom",
            xanchor="right" if at > longest / 2 else "left",
            text=html.escape(words),
            showarrow=False,
            font={"size": 12},
        )
    return figure
