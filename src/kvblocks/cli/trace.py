"""`kvblocks trace`: look at a trace, or make one up."""

from __future__ import annotations

import gzip
import io
import sys
from dataclasses import replace
from itertools import islice
from typing import IO, Annotated, Any

import typer
from rich.text import Text

from kvblocks.cli import printable
from kvblocks.cli.output import check_outputs, counted, plain_console, write_json
from kvblocks.cli.sizes import number, whole_number
from kvblocks.errors import UsageError
from kvblocks.files import written_whole
from kvblocks.traces import (
    KINDS,
    Skipped,
    TraceSummary,
    describe,
    generate,
    open_traces,
    trace_files,
    write_trace,
)

app = typer.Typer(help="Look at a recorded request trace, or make one up.", no_args_is_help=True, rich_markup_mode=None)

DESCRIBE_HELP = """Say what a trace holds: requests, lengths, times, and how much of it a cache could save.

\b
  kvblocks trace describe trace.jsonl
  kvblocks trace describe sessions/ --json -
  kvblocks trace describe chat.jsonl.gz --tokenizer tokenizer.json --skip-bad-lines
  kvblocks trace generate rag | kvblocks trace describe -

The format is detected: mooncake (JSONL with hash_ids), kv-cache-tester (session JSON), azure (CSV of lengths) or
kvblocks (our own JSONL); plain or gzip. Several traces are merged by time.

The reusable share is what an unbounded cache would hit, in whole content units of the trace: one id's tokens, or 16
where the trace has token ids. No cache of these requests hits more, at blocks of that size.
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
    tokens_per_id: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help="mooncake: tokens that a hash id stands for; 512 when left out."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Read this many requests at most.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is standard output.")
    ] = None,
) -> None:
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: must be at least 1; leave it out to read all")
    check_outputs({"--json": json_path}, [*trace_files(paths), *([tokenizer] if tokenizer else [])])
    with open_traces(
        paths,
        format=trace_format,
        tokenizer=tokenizer,
        tokens_per_id=tokens_per_id,
        skip_bad_lines=skip_bad_lines,
    ) as trace:
        summary = describe(islice(trace, limit))
    skipped = trace.skipped
    if json_path is not None:
        about: dict[str, Any] = {
            "paths": [printable(path) for path in paths],
            "format": trace.format,
            "skipped_lines": skipped.count,
            "skipped_examples": [printable(example) for example in skipped.examples],
        }
        write_json(about | summary.to_dict(), json_path)
    if json_path != "-":
        _print(trace.format, skipped, summary)


def _print(name: str, skipped: Skipped, summary: TraceSummary) -> None:
    console = plain_console()

    def row(label: str, value: str) -> None:  # what a trace says must not steer the terminal
        console.print(Text.assemble((f"{label:<15}", "bold"), printable(value)))

    row("format", name)
    row(
        "requests",
        f"{summary.requests:,}" + (f" ({counted(skipped.count, 'bad line')} left out)" * bool(skipped.count)),
    )
    if summary.sessions:
        row("sessions", f"{summary.sessions:,}")
    if summary.duration_s is not None:
        rate = f", {summary.requests_per_s:,.2f} requests per second" if summary.requests_per_s else ""
        row("duration", f"{summary.duration_s:,.1f} s{rate}")
    if 0 < summary.without_timestamp < summary.requests:
        row("no timestamp", counted(summary.without_timestamp, "request"))
    row("content", ", ".join(f"{how}: {count:,}" for how, count in summary.content.items()))
    row("also given", ", ".join(summary.fields) or "nothing")
    for label, spread in (("prompt tokens", summary.prompt_tokens), ("output tokens", summary.output_tokens)):
        parts = ", ".join(f"{key} {spread[key]:,.0f}" for key in ("mean", "p50", "p90", "p99", "max"))
        row(label, f"{spread['total']:,.0f} ({parts})")
    row("distinct", f"{counted(summary.distinct_tokens, 'token')} in {counted(summary.distinct_units, 'content unit')}")
    row("reusable", f"{counted(summary.reusable_tokens, 'token')}, {100 * summary.reusable_share:.1f} % of the prompts")
    for prefix in summary.shared_prefixes:
        row("shared prefix", f"{counted(prefix['tokens'], 'token')} by {counted(prefix['requests'], 'request')}")
    for example in skipped.examples[:1]:
        console.print(f"The first bad line: {printable(example)}")


def _help(field: str, text: str) -> str:
    """An option's help with its default for each kind of workload."""
    defaults = {kind: f"{getattr(workload, field):,g}" for kind, (_, workload) in KINDS.items()}
    if len(set(defaults.values())) == 1:
        return f"{text} [default: {defaults['chat']}]"
    return f"{text} [default: {', '.join(f'{value} ({kind})' for kind, value in defaults.items())}]"


@app.command("generate", help=GENERATE_HELP)
def generate_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="chat, agent or rag.")],
    output: Annotated[
        str, typer.Option(metavar="FILE|-", help="Where to write; .gz compresses; - is standard output.")
    ] = "-",
    requests: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help=_help("requests", "How many requests."))
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help=_help("seed", "Another seed gives another trace of the same kind.")
        ),
    ] = None,
    sessions_per_s: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="X", help=_help("sessions_per_s", "Conversations (rag: questions) per second.")
        ),
    ] = None,
    turns: Annotated[
        float | None, typer.Option(parser=number, metavar="X", help=_help("turns", "Mean turns of a conversation."))
    ] = None,
    think_time_s: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="X", help=_help("think_time_s", "Mean seconds between answer and next turn.")
        ),
    ] = None,
    system_tokens: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help=_help("system_tokens", "Length of the shared system prompt.")
        ),
    ] = None,
    user_tokens: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help=_help("user_tokens", "Mean tokens that a turn adds.")),
    ] = None,
    output_tokens: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help=_help("output_tokens", "Mean tokens of an answer.")),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help=_help("documents", "rag: documents in the corpus.")),
    ] = None,
    document_tokens: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help=_help("document_tokens", "rag: mean length of a document.")
        ),
    ] = None,
    documents_per_request: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help=_help("documents_per_request", "rag: documents in a prompt.")
        ),
    ] = None,
    zipf: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="X", help=_help("zipf", "rag: how unequally popular documents are; 0 is equally.")
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help=_help("max_prompt_tokens", "No prompt is longer.")),
    ] = None,
) -> None:
    given = {name: value for name, value in locals().items() if name not in ("kind", "output") and value is not None}
    if kind not in KINDS:
        raise UsageError(f"workload {printable(kind)!r} is unknown: choose one of {', '.join(KINDS)}")
    workload = replace(KINDS[kind][1], **given)
    check_outputs({"--output": output})
    if output == "-":
        write_trace(generate(kind, workload), sys.stdout)
        sys.stdout.flush()
        return
    try:
        with written_whole(output) as file, _as_text(file, packed=output.endswith(".gz")) as text:
            written = write_trace(generate(kind, workload), text)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot be written: {error.strerror}; name another file") from error
    print(f"{counted(written, f'{kind} request')} written to {printable(output)}", file=sys.stderr)


def _as_text(file: IO[bytes], packed: bool) -> IO[str]:
    """Text into the file. Neither name nor time are in a packed file's header: the same seed gives the same bytes."""
    raw: Any = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if packed else file
    return io.TextIOWrapper(raw, encoding="utf-8")
