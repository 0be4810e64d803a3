"""The page of a replay: the answer in words, a table of the runs, and the plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvblocks.report.document import Section, document
from kvblocks.report.figures import hit_rate_by_size, hit_rate_over_time, occupancy, smoothing
from kvblocks.report.prefixes import prefix_table, shared_prefixes
from kvblocks.report.reuse import reuse_distances
from kvblocks.report.values import Data, count, escape, percent, seconds, short
from kvblocks.report.words import more_memory, rejections, reuse_words, summary

COLUMNS: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("blocks", lambda run: count(run["num_blocks"])),
    ("hit rate", lambda run: percent(run["hit_rate"])),
    ("later half", lambda run: percent(run["hit_rate_last_half"])),
    ("hit tokens", lambda run: _short(run["hit_tokens"])),
    ("prompt tokens", lambda run: _short(run["prompt_tokens"])),
    ("output tokens", lambda run: _short(run["output_tokens"])),
    ("requests", lambda run: count(run["requests"])),
    ("rejected", lambda run: count(run["rejected"])),
    ("evicted blocks", lambda run: _short(run["evicted_blocks"])),
    ("peak live blocks", lambda run: _short(run["peak_live_blocks"])),
)
TIMED_COLUMNS: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("pre-emptions", lambda run: count(run["preemptions"])),
    ("computed again", lambda run: _short(run["recomputed_tokens"])),
    ("first token p50", lambda run: seconds(run["ttft_s"]["p50"])),
    ("first token p99", lambda run: seconds(run["ttft_s"]["p99"])),
)


def _short(value: int) -> str:
    """Few digits to read, all of them where the pointer rests."""
    return f"<span title='{count(value)}'>{short(value)}</span>"


def page(data: Data, plotly_js: str) -> str:
    """The whole page, for clean data (see `values.clean`) and the source of plotly.js."""
    trace: Data = data["trace"]
    paths = ", ".join(trace["paths"])
    sections = _sections(data)
    body = [
        f"<div class='lead'>{''.join(f'<p>{escape(words)}</p>' for words in summary(data))}</div>",
        f"<h2>Runs</h2>\n{_table(data['runs'])}",
        *(section.html("Cache size") for section in sections),
        f"<h2>What was run</h2>\n{_facts(data['settings'])}",
    ]
    return document(
        title=f"kvblocks replay: {paths}",
        heading=f"Replay of {count(trace['requests'], 'request')}",
        subtitle=f"{paths} ({trace['format']})",
        body_html=body,
        footer=f"kvblocks {data['kvblocks']}. Drag on a figure to enlarge a part of it, double-click to see all of it "
        "again.",
        figures={name: figure for section in sections for name, figure in section.drawn.items()},
        plotly_js=plotly_js,
    )


def _sections(data: Data) -> list[Section]:
    runs: Sequence[Data] = data["runs"]
    admitted = any(run["prompt_tokens"] for run in runs)
    nothing = "No prompt was admitted at any size, so there is no hit rate."
    reuse: Data | None = data.get("reuse")
    prefixes: Sequence[Data] = data.get("prefixes") or ()
    return [
        Section(
            title="Hit rate by cache size",
            reading="Prompt tokens that were in the cache, as a share of all. Where the line climbs, more memory pays; "
            f"where it is flat, it buys nothing. {more_memory(data)}",
            figures={"by-size": hit_rate_by_size(runs)},
            otherwise="A curve needs at least two cache sizes: give several, as in --num-blocks 4096,16384."
            if admitted
            else nothing,
        ),
        Section(
            title="What the blocks hold",
            reading="The height of each colour is a number of blocks. Only live blocks are in use; cached ones are "
            "free, and are either hit again or given up, the least recently used first, once no blank block is left.",
            figures={f"occupancy-{i}": occupancy(run) for i, run in enumerate(runs)},
            otherwise="The replay was too short to show a course.",
            choices={f"occupancy-{i}": f"{count(run['num_blocks'])} blocks" for i, run in enumerate(runs)},
        ),
        Section(
            title="Hit rate over time",
            reading="The hit rate of the requests in each stretch of a run: a rise at the start is the cache filling "
            f"up, a later fall is traffic that changed. {_smoothed(runs)}",
            figures={"over-time": hit_rate_over_time(runs)},
            otherwise="The replay was too short to show a course." if admitted else nothing,
        ),
        Section(
            title="Reuse distance",
            reading="How many other blocks were touched between two touches of the same one: a cache of least recently "
            "used blocks still holds it when it has more blocks than that. The dotted lines are the sizes of this "
            f"replay; bars to the right of a line are hits that this size loses. {reuse_words(reuse) if reuse else ''}",
            figures={"reuse": reuse_distances(reuse, runs)},
            otherwise="Reuse distances are measured for caches of one group; this one has several."
            if reuse is None
            else "No content of this trace came twice, so no cache can hit.",
        ),
        Section(
            title="Longest shared prefixes",
            reading="Beginnings that prompts have in common, read from left to right: each box continues the one to "
            "its left, and is as tall as the tokens that an unbounded cache saves on it and on what continues it. "
            "Click on a box to go into it.",
            figures={"prefixes": shared_prefixes(prefixes)},
            otherwise="No two prompts share a beginning of 512 tokens.",
            after=f"<details open><summary>The same as a table</summary>{prefix_table(prefixes)}</details>"
            if prefixes
            else "",
        ),
    ]


def _smoothed(runs: Sequence[Data]) -> str:
    window = max((smoothing(run["series"]) for run in runs), default=1)
    return f"Each point is the mean of the last {window} stretches." if window > 1 else ""


def _table(runs: Sequence[Data]) -> str:
    columns = COLUMNS + (TIMED_COLUMNS if any(run["mode"] == "timed" for run in runs) else ())
    head = "".join(f"<th scope='col'>{name}</th>" for name, _ in columns)
    rows = []
    for run in runs:
        size, *others = (cell(run) for _, cell in columns)
        rows.append(f"<tr><th scope='row'>{size}</th>{''.join(f'<td>{cell}</td>' for cell in others)}</tr>")
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>"
    why = "".join(f"<li>{escape(words)}</li>" for run in runs for words in rejections(run))
    return f"<div class='scroll' tabindex='0' role='region' aria-label='Runs'>{table}</div>" + (
        f"<details><summary>Why requests were rejected</summary><ul>{why}</ul></details>" if why else ""
    )


def _facts(settings: Data) -> str:
    """The settings as names and values."""
    lines = (
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in settings.items()
        if value is not None
    )
    return f"<dl>{''.join(lines)}</dl>"


def _plain(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, (int, float)) and abs(value) < 1e6 else str(value)
