"""`kvblocks trace`: look at a trace, or make one up."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvblocks.cli import printable
from kvblocks.cli.output import check_writable, write_json
from kvblocks.cli.sizes import number, whole_number
from kvblocks.errors import UsageError
from kvblocks.traces import KINDS, TraceSummary, describe, generate, open_traces, write_trace

app = typer.Typer(help="Look at a recorded request trace, or make one up.", no_args_is_help=True, rich_markup_mode=None)

DESCRIBE_HELP = """Say what a trace holds: requests, lengths, times, and how much of it a cache could save.

\b
  kvblocks trace describe trace.jsonl
  kvblocks trace describe sessions/ --json -

The reusable share is what an unbounded cache would hit, in whole content units of the trace.
"""

GENERATE_HELP = """Make up a workload: chat, agent or rag. The same seed gives the same trace.

\b
  chat    conversations that share a system prompt; each prompt holds the conversation so far
  agent   long sessions whose context grows with tool results
  rag     a system prompt, documents of a common corpus, a question
\b
  kvblocks trace generate chat --requests 2000 --seed 7 --output chat.jsonl
  kvblocks trace generate rag --documents 500 --zipf 0.8 --output rag.jsonl.gz
  kvblocks trace generate agent | kvblocks replay - --num-blocks 20000
"""


@app.command("describe", help=DESCRIBE_HELP)
def describe_command(
    paths: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Trace files or directories of them; - is standard input.")
    ],
    trace_format: Annotated[str | None, typer.Option("--format", help="Trace format; detected when left out.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="FILE|DIR", help="tokenizer.json for traces that hold text.")
    ] = None,
    skip_bad_lines: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Leave out lines that cannot be read, and count them.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Read this many requests at most.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is standard output.")
    ] = None,
) -> None:
    check_writable(json_path, "--json")
    with open_traces(paths, format=trace_format, tokenizer=tokenizer, skip_bad_lines=skip_bad_lines) as trace:
        summary = describe(islice(trace, limit))
    skipped = trace.skipped
    if json_path is not None:
        data = {"paths": paths, "format": trace.format, "skipped_lines": skipped.count, **summary.to_dict()}
        write_json(data, json_path)
    if json_path != "-":
        _print(Console(highlight=False), trace.format, skipped.count, summary)


def _print(console: Console, name: str, skipped: int, summary: TraceSummary) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()

    def row(label: str, value: str) -> None:
        table.add_row(label, printable(value))

    row("format", name)
    row("requests", f"{summary.requests:,}" + (f" ({skipped:,} bad lines left out)" if skipped else ""))
    if summary.sessions:
        row("sessions", f"{summary.sessions:,}")
    if summary.duration_s is not None:
        rate = f", {summary.requests_per_s:,.2f} requests per second" if summary.requests_per_s else ""
        row("duration", f"{summary.duration_s:,.1f} s{rate}")
    row("content", ", ".join(f"{how}: {count:,}" for how, count in summary.content.items()))
    for label, spread in (("prompt tokens", summary.prompt_tokens), ("output tokens", summary.output_tokens)):
        parts = ", ".join(f"{key} {spread[key]:,.0f}" for key in ("mean", "p50", "p90", "p99", "max"))
        row(label, f"{spread['total']:,.0f} ({parts})")
    row("reusable", f"{summary.reusable_tokens:,} tokens, {100 * summary.reusable_share:.1f} % of the prompts")
    for prefix in summary.shared_prefixes:
        row("shared prefix", f"{prefix['tokens']:,} tokens by {prefix['requests']:,} requests")
    console.print(table)


@app.command("generate", help=GENERATE_HELP)
def generate_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="chat, agent or rag.")],
    output: Annotated[
        str, typer.Option(metavar="FILE|-", help="Where to write; .gz compresses; - is standard output.")
    ] = "-",
    requests: Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help="How many requests.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="Another seed gives another trace of the same kind."),
    ] = None,
    sessions_per_s: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="Conversations (rag: questions) per second.")
    ] = None,
    turns: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="Mean turns of a conversation.")
    ] = None,
    think_time_s: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help="Mean seconds between answer and next turn.")
    ] = None,
    system_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Length of the shared system prompt.")
    ] = None,
    user_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Mean tokens that a turn adds.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Mean tokens of an answer.")
    ] = None,
    documents: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="rag: documents in the corpus.")
    ] = None,
    document_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="rag: mean length of a document.")
    ] = None,
    documents_per_request: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="rag: documents in a prompt.")
    ] = None,
    zipf: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="rag: how unequally popular documents are; 0 is equally."),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="No prompt is longer.")
    ] = None,
) -> None:
    given = {name: value for name, value in locals().items() if name not in ("kind", "output") and value is not None}
    if kind not in KINDS:
        raise UsageError(f"workload {printable(kind)!r} is unknown: choose one of {', '.join(KINDS)}")
    workload = replace(KINDS[kind][1], **given)
    check_writable(output, "--output")
    if output == "-":
        write_trace(generate(kind, workload), sys.stdout)
        sys.stdout.flush()
        return
    try:
        with _create(output) as file:
            written = write_trace(generate(kind, workload), file)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error.strerror}") from error
    print(f"{written:,} {kind} requests written to {printable(output)}", file=sys.stderr)


def _create(path: str) -> IO[Any]:
    if Path(path).suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8")
    return open(path, "w", encoding="utf-8")
