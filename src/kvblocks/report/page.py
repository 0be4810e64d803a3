"""The page of a replay: words, a table, and the plots."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from kvblocks.report import figures
from kvblocks.report.document import document, paragraph, section, table
from kvblocks.report.words import flattens_at, summary

Data = Mapping[str, Any]

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
    parts = [paragraph(summary(data), "lead"), "<h2>Runs</h2>", _table(runs)]
    parts += section(
        drawn,
        "Hit rate by cache size",
        "Prompt tokens that were in the cache, as a share of all. Where the line is flat, more memory buys nothing. "
        + flattens_at(runs),
        {"by-size": figures.hit_rate_by_size(runs)},
        "No prompt was admitted at any size, so there is no hit rate.",
    )
    parts += section(
        drawn,
        "What the blocks hold",
        "Blocks over the course of a run. Cached blocks are free: a hit takes them back, an allocation gives up the "
        "oldest. Only live blocks are in use.",
        {f"occupancy-{i}": figures.occupancy(run) for i, run in enumerate(runs)},
        "The run was too short for a series.",
        [f"{run['num_blocks']:,} blocks" for run in runs],
    )
    parts += section(
        drawn,
        "Hit rate over time",
        "The same share, over stretches of each run. A rise at the start is the cache filling up.",
        {"over-time": figures.hit_rate_over_time(runs)},
        "No prompt was admitted, so there is nothing to show.",
    )
    reuse = data.get("reuse")
    cold = f" {reuse['cold']:,} touches were of content not seen before; no cache hits those." if reuse else ""
    parts += section(
        drawn,
        "Reuse distance",
        "How many other blocks were touched between two touches of the same one. An LRU cache larger than the distance "
        "keeps it; the dotted lines are the sizes of this replay." + cold,
        {"reuse": figures.reuse_distances(reuse, runs)},
        "No content of this trace came twice, so no cache can hit.",
    )
    prefixes: Sequence[Data] = data.get("prefixes") or ()
    parts += section(
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
    return document(
        title=f"kvblocks replay: {paths}",
        heading=f"Replay of {trace['requests']:,} requests",
        subtitle=f"{paths} ({trace['format']})",
        parts_html=parts,
        footer=f"kvblocks {data['kvblocks']}; {facts}",
        drawn=drawn,
    )


def _table(runs: Sequence[Data]) -> str:
    columns = list(COLUMNS)
    if any("ttft_s" in run for run in runs):
        columns += [("TTFT p50", "p50", "{:,.2f} s"), ("TTFT p99", "p99", "{:,.2f} s")]
    rows = []
    for run in runs:
        values = {**run, **run.get("ttft_s", {})}
        rows.append(["-" if values.get(key) is None else form.format(values[key]) for _, key, form in columns])
    return table([name for name, _, _ in columns], rows)


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
