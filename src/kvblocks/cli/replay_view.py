"""Replays on a terminal: a table, a curve of the hit rate, and why requests were rejected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from kvblocks.cli import printable
from kvblocks.cli.output import counted, print_table
from kvblocks.cli.sizes import short
from kvblocks.replay import Replay, RunResult
from kvblocks.units import size

_COMMON = ("hit\nrate", "last\nhalf", "hit\ntokens", "evicted\nblocks")
_COLUMNS = {
    "serial": (*_COMMON, "peak\nlive", "re-\njected"),
    "timed": (*_COMMON, "re-\njected", "pre-\nempted", "recom-\nputed", "TTFT\np50", "TTFT\np99"),
}


def print_replay(
    console: Console, trace: dict[str, Any], found: Replay, words: Sequence[str], bytes_per_block: int | None
) -> None:
    """The results as a table, and with several sizes a curve; `words` say how the sizes came about."""
    mode, block_size = found.settings.mode, found.settings.block_size
    console.print(
        f"{counted(trace['requests'], 'request')} of {', '.join(map(printable, trace['paths']))} ({trace['format']}), "
        f"{mode} replay, blocks of {counted(block_size, 'token')}"
    )
    for line in words:
        console.print(line)
    if trace["skipped_lines"]:
        lines = counted(trace["skipped_lines"], "bad line")
        were = "was" if trace["skipped_lines"] == 1 else "were"
        console.print(f"{lines} {were} left out, the first: {printable(trace['skipped_examples'][0])}")
    if found.interrupted:
        console.print(interruption(found))
    columns = ("blocks", "tokens" if bytes_per_block is None else "memory", *_COLUMNS[mode])
    cells = [_cells(run, found.settings.tokens_per_block, bytes_per_block) for run in found.runs]
    print_table(console, columns, [[row[column] for column in columns] for row in cells])
    if len(found.runs) > 1:
        console.print()
        for line in _curve(found.runs):
            console.print(line)
    for run in found.runs:
        for reason, count in run.reject_reasons.items():
            first = printable(run.reject_examples[reason])
            console.print(f"{run.num_blocks:,} blocks: {count:,} rejected, {reason}; the first: {first}")


def interruption(found: Replay) -> str:
    """What the figures of an interrupted replay are, and which sizes have none."""
    stopped = [f"{run.num_blocks:,}" for run in found.runs if run.interrupted]
    told = f"Interrupted at {', '.join(stopped)} blocks" if stopped else "Interrupted"
    if found.settings.serial:
        told = "Interrupted"
    told += ": the figures are those so far."
    if found.not_run:
        told += f" Not run: {', '.join(f'{blocks:,}' for blocks in found.not_run)} blocks."
    return told


def _cells(run: RunResult, tokens_per_block: float, bytes_per_block: int | None) -> dict[str, str]:
    usable = run.num_blocks - 1
    return {
        "blocks": f"{run.num_blocks:,}",
        "tokens": short(int(usable * tokens_per_block)),
        "memory": "" if bytes_per_block is None else size(usable * bytes_per_block),
        "hit\nrate": f"{100 * run.hit_rate:.1f}%",
        "last\nhalf": f"{100 * run.hit_rate_last_half:.1f}%",
        "hit\ntokens": short(run.hit_tokens),
        "evicted\nblocks": short(run.evicted_blocks),
        "peak\nlive": short(run.peak_live_blocks),
        "re-\njected": short(run.rejected),
        "pre-\nempted": short(run.preemptions),
        "recom-\nputed": short(run.recomputed_tokens),
        "TTFT\np50": seconds(run.ttft_s["p50"]),
        "TTFT\np99": seconds(run.ttft_s["p99"]),
    }


def seconds(value: float | None) -> str:
    """A time in about six characters: 49.5ms, 1.52s, 119s, 2.78h."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{1000 * value:.3g}ms"
    if value < 9999.5:
        return f"{value:.0f}s" if value >= 99.95 else f"{value:.3g}s"
    return f"{value / 3600:.3g}h" if value < 3.6e6 else f"{short(round(value / 86400))}d"


def _curve(runs: list[RunResult]) -> Iterator[str]:
    """Hit rate against cache size, as bars."""
    width = max(len(f"{run.num_blocks:,}") for run in runs)
    yield "hit rate by blocks"
    for run in runs:
        bar = "█" * round(50 * run.hit_rate) or "▏"
        yield f"{run.num_blocks:>{width},} {bar} {100 * run.hit_rate:.1f}%"
