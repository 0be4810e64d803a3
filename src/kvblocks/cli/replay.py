"""`kvblocks replay`: run a recorded trace through the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvblocks import __version__
from kvblocks.cli import printable
from kvblocks.cli.output import check_outputs, plain_console, write_file, write_json
from kvblocks.cli.replay_cache import Caches, model_caches, named_caches
from kvblocks.cli.replay_view import interruption, print_replay
from kvblocks.cli.sizes import number, whole_number
from kvblocks.errors import UsageError
from kvblocks.replay import Replay, ReplaySettings, StepCost, replay
from kvblocks.scheduling import SchedulerConfig
from kvblocks.traces import MergedTraces, TraceRequest, open_traces, trace_files

HELP = """Run a recorded request trace through scheduler and KV cache, without a model.

Prints how many prompt tokens the cache would have held, at one or several cache sizes.

\b
  kvblocks trace generate chat --output chat.jsonl
  kvblocks replay chat.jsonl --num-blocks 1024,4096,16384
  kvblocks replay trace.jsonl --kv-memory 40GiB --bytes-per-token 131072
  kvblocks replay trace.jsonl --model qwen3-8b --gpu l4,a100-80gb,h100
  kvblocks replay trace.jsonl --serial --num-blocks 8193 --json -
  zcat trace.jsonl.gz | kvblocks replay - --num-blocks 8193 --report replay.html

By default requests arrive when the trace says and the scheduler batches them against a simulated clock. With --serial
each request runs alone, in trace order: what remains is the cache and its eviction order.

Exit codes: 0 done, 2 bad input or usage, 130 interrupted (what was known so far has been printed).
"""

_TIMED_ONLY = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "chunked_prefill",
    "scheduling_policy",
    "full_sequence_must_fit",
    "watermark",
    "prefill_tokens_per_s",
    "decode_step_ms",
)


def command(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Trace files or directories of them; - is standard input.")
    ],
    num_blocks: Annotated[
        list[str] | None,
        typer.Option(
            "--num-blocks",
            metavar="N[,N...]",
            help="Blocks of the cache, the null block included. Repeat it or separate by commas for several sizes.",
        ),
    ] = None,
    kv_memory: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE", help="Cache size as memory (40GiB), with --bytes-per-token or --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="config.json, its folder or a name of `plan --list-models`: its groups and limits."
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[,NAME...]", help="With --model: the cache that this GPU has room for, as `plan`."),
    ] = None,
    flags: Annotated[
        str | None,
        typer.Option(metavar="FLAGS", help='With --model: vLLM\'s flags, such as "--kv-cache-dtype fp8 -tp 2".'),
    ] = None,
    bytes_per_token: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="KV-cache bytes of one token, all layers together."),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Tokens per block; 16, or the model's.")
    ] = None,
    hash_algorithm: Annotated[
        Literal["sha256", "xxh3_128", "blake3"], typer.Option(help="How blocks are hashed.")
    ] = "sha256",
    serial: Annotated[bool, typer.Option("--serial", help="One request at a time, in trace order; no clock.")] = False,
    outputs: Annotated[
        bool, typer.Option("--outputs/--no-outputs", help="Whether generated tokens take blocks.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Read this many requests at most.")
    ] = None,
    trace_format: Annotated[str | None, typer.Option("--format", help="Trace format; detected when left out.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE|DIR", help="tokenizer.json for traces that hold text."),
    ] = None,
    tokens_per_id: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="mooncake: tokens that a content id stands for; 512."),
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option("--skip-bad-lines", help="Leave out lines that cannot be read, and count them."),
    ] = False,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Refuse requests that get longer; else the model's limit, or only the cache's.",
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Tokens per step; 8192, or the model's.")
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="Requests running at once; 256, or the model's."),
    ] = None,
    chunked_prefill: Annotated[bool, typer.Option(help="Whether long prompts are cut into chunks.")] = True,
    scheduling_policy: Annotated[Literal["fcfs", "priority"], typer.Option(help="Who goes first.")] = "fcfs",
    full_sequence_must_fit: Annotated[bool, typer.Option(help="Admit a request only when all of it fits.")] = True,
    watermark: Annotated[
        float,
        typer.Option(parser=number, metavar="X", help="Share of blocks that admissions leave free while others run."),
    ] = 0.0,
    prefill_tokens_per_s: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Prompt tokens computed per second.")
    ] = 20_000.0,
    decode_step_ms: Annotated[
        float, typer.Option(parser=number, metavar="X", help="Milliseconds of any step, before its prompt tokens.")
    ] = 20.0,
    json_path: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the results as JSON; - is standard output."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(metavar="FILE.html", help="Write an HTML page with plots; needs no network."),
    ] = None,
) -> None:
    if serial:
        _refuse_timed_flags(context)
    if not 0 < decode_step_ms <= 1e9:
        raise UsageError(f"--decode-step-ms {decode_step_ms:g} must be above 0 and at most 1e9")
    caches = _caches(num_blocks, kv_memory, bytes_per_token, block_size, model, gpu, flags)
    plan = caches.plan
    settings = ReplaySettings(
        block_size=caches.block_size,
        layout=caches.layout,
        serial=serial,
        outputs=outputs,
        hash_algorithm=hash_algorithm,
        limit=limit,
        max_model_len=plan.max_model_len if max_model_len is None and plan is not None else max_model_len,
        watermark=watermark,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=_first(max_num_batched_tokens, plan.max_num_batched_tokens if plan else None, 8192),
            max_num_seqs=_first(max_num_seqs, plan.max_num_seqs if plan else None, 256),
            chunked_prefill=chunked_prefill,
            policy=scheduling_policy,
            full_sequence_must_fit=full_sequence_must_fit,
        ),
        cost=StepCost(prefill_tokens_per_s=prefill_tokens_per_s, decode_step_s=decode_step_ms / 1000),
    )
    sizes = caches.sizes
    if report == "-":
        raise UsageError("--report -: a page is for a browser, not for standard output; name a file such as page.html")
    check_outputs({"--json": json_path, "--report": report}, [*trace_files(paths), *([tokenizer] if tokenizer else [])])
    if report is not None:
        import kvblocks.report  # a missing package is told before the replay, not after it
    source = _Source(paths, trace_format, tokenizer, tokens_per_id, skip_bad_lines, keep=not serial and len(sizes) > 1)
    with _progress(source, len(sizes) if not serial else 1, limit) as on_progress:
        found = replay(source.open, sizes, settings, analyse=report is not None, on_progress=on_progress)
    trace = source.describe(found)
    if trace is None or not found.runs:
        raise KeyboardInterrupt  # nothing is known yet
    # Files come first, since standard output may be closed by a reader that has enough; but no file that fails may
    # take the figures with it.
    failures = []
    if report is not None:
        data = {"kvblocks": __version__, "trace": trace, **found.to_dict(series=True)}
        page = kvblocks.report.replay_page(data)
        failures += _attempt(lambda: write_file(page.encode(), report, "--report"))
    if json_path is not None:
        data = {"kvblocks": __version__, "trace": trace, **found.to_dict()}
        failures += _attempt(lambda: write_json(data, json_path))
    console = plain_console(stderr=json_path == "-")
    if json_path != "-":
        print_replay(console, trace, found, caches.words, caches.bytes_per_block)
    elif found.interrupted:
        console.print(interruption(found))
    if failures:
        raise failures[0]
    if report is not None:
        console.print(f"Report: {printable(report)}")
    if found.interrupted:
        raise typer.Exit(130)


def _caches(
    num_blocks: list[str] | None,
    kv_memory: list[str] | None,
    bytes_per_token: int | None,
    block_size: int | None,
    model: str | None,
    gpu: list[str] | None,
    flags: str | None,
) -> Caches:
    if model is None:
        for option, given in (("--gpu", gpu), ("--flags", flags)):
            if given is not None:
                raise UsageError(
                    f"{option} needs --model, whose cache it sizes; `kvblocks plan --list-models` lists some"
                )
        return named_caches(num_blocks, kv_memory, bytes_per_token, 16 if block_size is None else block_size)
    for option, number_given in (("--block-size", block_size), ("--bytes-per-token", bytes_per_token)):
        if number_given is not None:
            fix = '; write it as --flags "--block-size N"' if option == "--block-size" else "; leave it out"
            raise UsageError(f"{option} {number_given} has no effect with --model, which says it{fix}")
    return model_caches(model, gpu, kv_memory, num_blocks, flags)


def _first(*choices: int | None) -> int:
    return next(choice for choice in choices if choice is not None)


def _attempt(write: Callable[[], None]) -> list[UsageError]:
    try:
        write()
    except UsageError as error:
        return [error]
    return []


def _refuse_timed_flags(context: typer.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in _TIMED_ONLY and source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"{parameter.opts[0]} has no effect with --serial, where each request runs alone; leave one of them out"
            )


class _Source:
    """The trace, opened anew for each pass; what can be read once only is kept for the passes after the first."""

    def __init__(
        self,
        paths: list[str],
        trace_format: str | None,
        tokenizer: str | None,
        tokens_per_id: int | None,
        skip_bad_lines: bool,
        keep: bool,
    ) -> None:
        self._open: Callable[[], MergedTraces] = lambda: open_traces(
            paths,
            format=trace_format,
            tokenizer=tokenizer,
            tokens_per_id=tokens_per_id,
            skip_bad_lines=skip_bad_lines,
        )
        self._paths = paths
        self._keep = keep
        self._kept: list[TraceRequest] = []
        self.trace: MergedTraces | None = None

    def open(self) -> Iterable[TraceRequest]:
        if self.trace is not None and self.trace.total_bytes is None:
            return self._kept
        self.trace = self._open()
        return self._keeping(self.trace) if self._keep and self.trace.total_bytes is None else self.trace

    def _keeping(self, trace: MergedTraces) -> Iterator[TraceRequest]:
        """The first pass over standard input or a pipe. Every pass reads as far as this one."""
        for request in trace:
            self._kept.append(request)
            yield request

    def describe(self, found: Replay) -> dict[str, Any] | None:
        """What was read; None when an interrupt came before the trace was open."""
        if self.trace is None:
            return None
        skipped = self.trace.skipped
        return {
            "paths": [printable(path) for path in self._paths],
            "format": self.trace.format,
            "requests": found.num_read,
            "skipped_lines": skipped.count,
            "skipped_examples": [printable(example) for example in skipped.examples],
        }


@contextmanager
def _progress(source: _Source, runs: int, limit: int | None) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]:,}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=runs, done=0)

        def show(run: int, done: int) -> None:
            trace = source.trace
            share = done / limit if limit else 0.0
            if trace is not None and trace.total_bytes:
                share = max(share, trace.bytes_read / trace.total_bytes)
            bar.update(task, completed=run + min(share, 1.0), done=done)

        yield show
