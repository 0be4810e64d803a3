"""The longest shared prefixes: as boxes that continue each other, and as a table that reads without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvblocks.report.figures import Figure, figure
from kvblocks.report.values import NONE, Data, count, escape, percent, plot_text

ROOT = "#4A5460"
SHADES = ("#005A8D", "#0072B2", "#5BA3D0", "#8ABEDF", "#B5D5EA")
LIGHT_FROM = 2
"""Shades from this one on need dark text."""
LEVELS = 5
"""Levels drawn at once; a click on a box goes deeper."""
MOST_INDENTS = 12

Row = tuple[int, Data]
"""Depth, and the prefix itself."""


def in_order(prefixes: Sequence[Data]) -> Iterator[Row]:
    """The tree from the top; parents first, the largest of siblings first."""
    below: dict[str, list[Data]] = {}
    for row in prefixes:
        below.setdefault(row["parent"] or "", []).append(row)
    for rows in below.values():
        rows.sort(key=lambda row: row["hit_tokens"])  # taken from the end
    pending = [(0, row) for row in below.get("", [])]
    while pending:
        depth, row = pending.pop()
        yield depth, row
        pending += [(depth + 1, child) for child in below.get(row["id"], [])]


def shared_prefixes(prefixes: Sequence[Data]) -> Figure | None:
    """Boxes from left to right, each the continuation of the one to its left. None when nothing is shared.

    A box is as tall as the tokens that it and its continuations save.
    """
    rows = list(in_order(prefixes))
    if not any(row["hit_tokens"] for _, row in rows):
        return None
    tops = sum(depth == 0 for depth, _ in rows)
    shades = [SHADES[min(depth, len(SHADES) - 1)] for depth, _ in rows]
    icicle: Figure = {
        "type": "icicle",
        "ids": [row["id"] for _, row in rows],
        "parents": [row["parent"] or "" for _, row in rows],
        "labels": [plot_text(row["label"]) for _, row in rows],
        # A parent's own value comes on top of those of its children, hence "remainder".
        "branchvalues": "remainder",
        "values": [row["hit_tokens"] for _, row in rows],
        "text": [count(row["requests"], "request") for _, row in rows],
        "texttemplate": "%{label} · %{text}",
        "hovertext": [_words(row) for _, row in rows],
        "hoverinfo": "text",
        "tiling": {"orientation": "h", "pad": 1},
        "maxdepth": LEVELS,
        "root": {"color": "rgba(0,0,0,0)"},
        "marker": {"colors": shades, "line": {"width": 0}},
        "textfont": {"color": ["#ffffff" if SHADES.index(shade) < LIGHT_FROM else "#0d2c40" for shade in shades]},
    }
    if tops > 1:  # several trees need a common root, or plotly makes one without a name
        everything = {"ids": "all", "parents": "", "labels": "all prompts", "values": 0, "text": f"{tops} beginnings"}
        for key, value in everything.items():
            icicle[key] = [value, *icicle[key]]
        icicle["parents"] = ["", *(parent or "all" for parent in icicle["parents"][1:])]
        icicle["hovertext"] = [f"all prompts<br>{tops} beginnings", *icicle["hovertext"]]
        icicle["marker"]["colors"] = [ROOT, *shades]
        icicle["textfont"]["color"] = ["#ffffff", *icicle["textfont"]["color"]]
    parents = {row["parent"] for _, row in rows}
    leaves = sum(row["id"] not in parents for _, row in rows)
    return figure(
        [icicle],
        hovermode="closest",
        showlegend=False,
        height=min(720, max(320, 24 * leaves)),
        margin={"l": 4, "r": 4, "t": 8, "b": 8},
        uniformtext={"minsize": 10, "mode": "hide"},
    )


def prefix_table(prefixes: Sequence[Data]) -> str:
    """The same tree as an HTML table, indented by depth."""
    lines = []
    rows = list(in_order(prefixes))
    total = sum(row["hit_tokens"] for _, row in rows)
    for depth, row in rows:
        indent = 0.9 * min(depth, MOST_INDENTS)
        saved = row["hit_tokens"]
        share = percent(saved / total) if total else NONE
        cells = (count(row["tokens"]), count(row["requests"]), count(saved), share)
        lines.append(
            f'<tr><th scope="row" style="padding-left:{indent:g}em">{escape(row["label"])}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>"
        )
    return (
        '<div class="scroll"><table class="tree"><thead><tr><th scope="col">prefix</th><th scope="col">tokens</th>'
        '<th scope="col">requests</th><th scope="col">tokens to save</th>'
        '<th scope="col">of all listed</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _words(row: Data) -> str:
    return (
        f"{plot_text(row['label'])}<br>{count(row['requests'], 'request')} share {count(row['tokens'], 'token')}<br>"
        f"{count(row['hit_tokens'], 'token')} to save"
    )
