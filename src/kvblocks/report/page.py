"""The page around the plots: words, a table, and everything that is needed to show it, in one file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kvblocks.report import figures
from kvblocks.report.words import flattens_at, summary

Data = Mapping[str, Any]

STYLE = """
:root { --ink: #1b1f24; --quiet: #5a6472; --paper: #ffffff; --line: #d9dee5; --accent: #0072B2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #a3acb8; --paper: #15181c; --line: #343a42; --accent: #56B4E9; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 1040px; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); overflow-wrap: anywhere; }
.lead { font-size: 1.08rem; border-left: 4px solid var(--accent); padding: .2rem 0 .2rem .9rem; margin: 1.2rem 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--quiet); } td:first-child, th:first-child { text-align: left; }
.plot { width: 100%; } select { font: inherit; padding: .15rem .4rem; color: inherit; background: var(--paper);
  border: 1px solid var(--line); border-radius: 4px; } [hidden] { display: none; }
ul.tree { list-style: none; padding-left: 1.1rem; border-left: 1px solid var(--line); margin: .3rem 0; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .9rem; }
"""

SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = getComputedStyle(document.body).color;
  for (const [id, figure] of Object.entries(FIGURES)) {
    const place = document.getElementById(id);
    if (place.hidden) continue;
    const layout = Object.assign({}, figure.layout, { font: Object.assign({}, figure.layout.font, { color: ink }) });
    Plotly.react(place, figure.data, layout, { responsive: true, displayModeBar: false });
  }
}
document.querySelectorAll("select[data-plots]").forEach(select => select.addEventListener("change", () => {
  document.querySelectorAll("[data-choice=" + select.dataset.plots + "]").forEach(
    place => { place.hidden = place.id !== select.value; });
  draw();
}));
dark.addEventListener("change", draw);
draw();
"""

COLUMNS = (
    ("blocks", "num_blocks", "{:,}"),
    ("hit rate", "hit_rate", "{:.1%}"),
    ("later half", "hit_rate_last_half", "{:.1%}"),
    ("hit tokens", "hit_tokens", "{:,}"),
    ("prompt tokens", "prompt_tokens", "{:,}"),
    ("output tokens", "output_tokens", "{:,}"),
    ("evicted blocks", "evicted_blocks", "{:,}"),
    ("peak live", "peak_live_blocks", "{:,}"),
    ("requests", "requests", "{:,}"),
    ("rejected", "rejected", "{:,}"),
    ("preemptions", "preemptions", "{:,}"),
    ("recomputed tokens", "recomputed_tokens", "{:,}"),
)


def replay_page(data: Data) -> str:
    """The whole page. The same data gives the same bytes."""
    runs: Sequence[Data] = data["runs"]
    drawn: dict[str, go.Figure] = {}
    parts = [f"<p class=lead>{html.escape(summary(data))}</p>", "<h2>Runs</h2>", _table(runs)]
    parts += _section(
        drawn,
        "Hit rate by cache size",
        "Prompt tokens that were in the cache, as a share of all. Where the line is flat, more memory buys nothing. "
        + flattens_at(runs),
        {"by-size": figures.hit_rate_by_size(runs)},
        "No prompt was admitted at any size, so there is no hit rate.",
    )
    parts += _section(
        drawn,
        "What the blocks hold",
        "Blocks over the course of a run. Cached blocks are free: a hit takes them back, an allocation gives up the "
        "oldest. Only live blocks are in use.",
        {f"occupancy-{i}": figures.occupancy(run) for i, run in enumerate(runs)},
        "The run was too short for a series.",
        [f"{run['num_blocks']:,} blocks" for run in runs],
    )
    parts += _section(
        drawn,
        "Hit rate over time",
        "The same share, over stretches of each run. A rise at the start is the cache filling up.",
        {"over-time": figures.hit_rate_over_time(runs)},
        "No prompt was admitted, so there is nothing to show.",
    )
    reuse = data.get("reuse")
    cold = f" {reuse['cold']:,} touches were of content not seen before; no cache hits those." if reuse else ""
    parts += _section(
        drawn,
        "Reuse distance",
        "How many other blocks were touched between two touches of the same one. An LRU cache larger than the distance "
        "keeps it; the dotted lines are the sizes of this replay." + cold,
        {"reuse": figures.reuse_distances(reuse, runs)},
        "No content of this trace came twice, so no cache can hit.",
    )
    prefixes: Sequence[Data] = data.get("prefixes") or ()
    parts += _section(
        drawn,
        "Longest shared prefixes",
        "Beginnings that prompts have in common: each box continues the one above it; its size is the tokens that an "
        "unbounded cache would save on it.",
        {"prefixes": figures.shared_prefixes(prefixes)},
        "No two prompts share a beginning of 512 tokens.",
    )
    if prefixes:
        parts.append(f"<details><summary>The same as a list</summary>{_tree(prefixes)}</details>")
    trace, settings = data["trace"], data["settings"]
    paths = ", ".join(trace["paths"])
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items() if value is not None)
    plots = {name: json.loads(figure.to_json()) for name, figure in drawn.items()}
    return (
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
        "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
        "<meta name=color-scheme content='light dark'>\n"
        f"<title>kvblocks replay: {html.escape(paths)}</title>\n<style>{STYLE}</style>\n"
        f"<h1>Replay of {trace['requests']:,} requests</h1>\n"
        f"<p class=quiet>{html.escape(paths)} ({html.escape(str(trace['format']))})</p>\n"
        + "\n".join(parts)
        + f"\n<footer>kvblocks {html.escape(str(data['kvblocks']))}; {html.escape(facts)}</footer>\n"
        f"<script>{get_plotlyjs()}</script>\n<script>const FIGURES = {_script_json(plots)};{SCRIPT}</script>\n</html>\n"
    )


def _section(
    drawn: dict[str, go.Figure],
    title: str,
    words: str,
    plots: Mapping[str, go.Figure | None],
    otherwise: str,
    choices: Sequence[str] = (),
) -> list[str]:
    """A heading, a sentence and its plots (with several, a choice of one); or why there is none."""
    parts = [f"<h2>{html.escape(title)}</h2>"]
    shown = {name: figure for name, figure in plots.items() if figure is not None}
    if not shown:
        return [*parts, f"<p>{html.escape(otherwise)}</p>"]
    drawn.update(shown)
    parts.append(f"<p class=quiet>{html.escape(words)}</p>")
    group = next(iter(plots)).split("-")[0]
    if len(plots) > 1:
        last = list(shown)[-1]
        options = [
            f"<option value={name}{' selected' if name == last else ''}>{html.escape(choice)}</option>"
            for name, choice in zip(plots, choices, strict=True)
            if name in shown
        ]
        parts.append(f"<p><label>Cache size <select data-plots={group}>{''.join(options)}</select></label></p>")
        parts += [
            f"<div class=plot id={name} data-choice={group}{'' if name == last else ' hidden'}></div>" for name in shown
        ]
    else:
        parts += [f"<div class=plot id={name}></div>" for name in shown]
    return parts


def _table(runs: Sequence[Data]) -> str:
    columns = list(COLUMNS)
    if any("ttft_s" in run for run in runs):
        columns += [("TTFT p50", "p50", "{:,.2f} s"), ("TTFT p99", "p99", "{:,.2f} s")]
    head = "".join(f"<th>{name}</th>" for name, _, _ in columns)
    rows = []
    for run in runs:
        values = {**run, **run.get("ttft_s", {})}
        cells = ("-" if values.get(key) is None else form.format(values[key]) for _, key, form in columns)
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _tree(prefixes: Sequence[Data]) -> str:
    below: dict[str | None, list[Data]] = {}
    for row in prefixes:
        below.setdefault(row["parent"], []).append(row)

    def items(parent: str | None, depth: int) -> str:
        rows = sorted(below.get(parent, ()), key=lambda row: -row["hit_tokens"])
        if not rows or depth > 50:
            return ""
        lines = (
            f"<li>{html.escape(row['label'])}: {row['requests']:,} requests, {row['hit_tokens']:,} tokens to save"
            f"{items(row['id'], depth + 1)}</li>"
            for row in rows
        )
        return f"<ul class=tree>{''.join(lines)}</ul>"

    return items(None, 0)


def _script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
