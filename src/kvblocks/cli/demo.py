"""`kvblocks demo`: the cache at work, on a real model."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kvblocks import __version__
from kvblocks.cli import model as options
from kvblocks.cli.output import check_outputs, plain_console, print_table, write_file, write_json
from kvblocks.cli.streams import printable
from kvblocks.errors import UsageError
from kvblocks.observe import REASONS

HELP = """Serve some dozens of chats with a real model, once with the prefix cache and once without.

The chats share a system prompt and ask about three documents. For each request: how many of its prompt tokens the cache
held, and the time to the first token; then the totals of both runs, why the rest had to be computed, and whether all
answers are the same.

\b
  kvblocks demo
  kvblocks demo --chats 6 --turns 2 --kv-memory 64MiB
  kvblocks demo --report demo.html --json demo.json

Exit codes: 0 done, 2 bad input or usage, 130 interrupted.
"""


def command(
    chats: Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Chats.")] = 12,
    turns: Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Questions of each.")] = 3,
    at_once: Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Chats at a time.")] = 2,
    max_tokens: options.MaxTokens = 24,
    model: options.ModelPath = None,
    kv_memory: options.KVMemory = "96MiB",
    block_size: options.BlockSize = 16,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the results as JSON; - is standard output.")
    ] = None,
    report: Annotated[str | None, typer.Option(metavar="FILE.html", help="Write an HTML page with plots.")] = None,
) -> None:
    from kvblocks.engine.workload import ServedRequest, pairs, serve_chats

    for name, value in (("chats", chats), ("turns", turns), ("at-once", at_once)):
        if value < 1:
            raise UsageError(f"--{name} {value} must be at least 1")
    if report == "-":
        raise UsageError("--report -: a page is for a browser, not for standard output; name a file such as page.html")
    check_outputs({"--json": json_path, "--report": report})
    if report is not None:
        import kvblocks.report  # a missing package is told before the work, not after it
    loaded = options.load(model)
    console, notes = plain_console(stderr=json_path == "-"), plain_console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=notes, transient=True,
        disable=not notes.is_terminal,
    )  # fmt: skip
    runs = []
    with bar:
        for caching in (True, False):
            task = bar.add_task("with the cache" if caching else "without", total=chats * turns)

            def advance(_: ServedRequest, task: object = task) -> None:
                bar.advance(task)  # type: ignore[arg-type]

            settings = options.settings_of(kv_memory, block_size=block_size, enable_caching=caching)
            runs.append(
                serve_chats(
                    loaded,
                    settings,
                    chats=chats,
                    turns=turns,
                    at_once=at_once,
                    max_tokens=max_tokens,
                    on_served=advance,
                )
            )
    on, off = runs
    both = pairs(on, off)
    equal = sum(a.answer == b.answer for a, b in both)
    data = {
        "kvblocks": __version__,
        "model": loaded.name,
        "runs": [run.to_dict() for run in runs],
        "equal_answers": equal,
    }
    if json_path is not None:
        write_json(data, json_path)
    if json_path != "-":
        console.print(
            f"{len(both)} requests of {chats} chats, {loaded.name}, {on.num_blocks - 1} blocks of {block_size}"
        )
        print_table(
            console,
            ("chat", "turn", "about", "prompt\ntokens", "cached\ntokens", "TTFT\nms", "TTFT ms,\nno cache"),
            [
                (
                    str(a.chat), str(a.turn), a.document, f"{a.prompt_tokens:,}", f"{a.cached_tokens:,}",
                    f"{a.ttft_s * 1000:,.0f}", f"{b.ttft_s * 1000:,.0f}",
                )
                for a, b in both
            ],
        )  # fmt: skip
        print_table(
            console,
            ("", "hit\nrate", "computed\ntokens", "evicted\nblocks", "pre-\nempted", "TTFT\np50", "TTFT\np90", "s"),
            [
                (
                    "with the cache" if run.caching else "without", f"{run.hit_rate:.1%}",
                    f"{run.stats['computed_tokens']:,}", f"{run.evicted_blocks:,}", f"{run.stats['preemptions']:,}",
                    f"{run.ttft_s(0.5) * 1000:,.0f}", f"{run.ttft_s(0.9) * 1000:,.0f}", f"{run.duration_s:.1f}",
                )
                for run in runs
            ],
        )  # fmt: skip
        console.print("Why the rest of the prompts was computed, in tokens:")
        for reason, tokens in sorted(on.missed_tokens.items(), key=lambda pair: -pair[1]):
            words = f"{reason.replace('_', ' ')}: {REASONS[reason]}"  # type: ignore[index]
            console.print(f"{tokens:>9,} {words}")
        console.print(f"{equal} of {len(both)} answers are the same with and without the cache")
    if report is not None:
        write_file(kvblocks.report.demo_page(data).encode(), report, "--report")
        console.print(f"Report: {printable(report)}")
