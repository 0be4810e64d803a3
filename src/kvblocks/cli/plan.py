"""`kvblocks plan`: how many tokens fit, how many requests at once, and which flag changes that."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console

from kvblocks import __version__
from kvblocks.cli import printable
from kvblocks.cli.engine_flags import device_of, environment, flag_words
from kvblocks.cli.output import check_outputs, plain_console, write_file, write_json
from kvblocks.cli.plan_view import print_comparison, print_plan, print_search
from kvblocks.cli.sizes import number, parse_bytes, whole_number
from kvblocks.errors import UsageError
from kvblocks.sizing import EngineFlags, Plan, Setting
from kvblocks.sizing.batch import answer_batch
from kvblocks.sizing.catalogue import find_model, names
from kvblocks.sizing.effects import Effect, count_steps, effects
from kvblocks.sizing.search import fewest_gpus

HELP = """Plan a KV cache: how many tokens fit, how many requests at once, and which flag changes that.

Reads a Hugging Face config.json (a file, its folder, or a name of the built-in catalogue) and answers what vLLM 0.32
computes at start-up, without a GPU. Nothing is fetched from the network.

\b
  kvblocks plan qwen3-8b --gpu h100
  kvblocks plan DIR --available 35.57GiB --kv-cache-dtype fp8 --max-model-len 32768
  kvblocks plan llama-3.3-70b-instruct --gpu h100 --gpus --requests 64 --length 8192
  kvblocks plan qwen3-8b --gpu l4 --compare "--kv-cache-dtype fp8" "--max-num-batched-tokens 8192"
  kvblocks plan qwen3-8b --gpu h100 --report plan.html
  kvblocks plan --from-log vllm.log
  kvblocks plan --batch questions.jsonl --models configs/

Memory: --gpu (or --memory) estimates what is left for the cache and says how; --available takes the figure of vLLM's
log line "Available KV cache memory" and is exact. Flags have vLLM's names.

Exit codes: 0 fits, 1 does not fit (or a log that does not add up), 2 refused or bad input, 130 interrupted.
"""


def command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="config.json, the folder that holds it, or a name of the catalogue."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU to run on: h100, a100-80gb, l4, mi300x ...")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each GPU, in place of --gpu: 80GiB.")
    ] = None,
    available: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory available for the cache of each GPU, as vLLM logs it: exact."),
    ] = None,
    max_model_len: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Longest request; auto takes the longest that fits.")
    ] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(metavar="FORMAT", help="auto, fp8, nvfp4 ...")] = None,
    kv_cache_dtype_skip_layers: Annotated[
        list[str] | None,
        typer.Option(metavar="N|sliding_window", help="Layers that keep the model's dtype; may be repeated."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="What the model computes in.")] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option("--tensor-parallel-size", "-tp", parser=whole_number, metavar="N", help="GPUs per layer."),
    ] = None,
    pipeline_parallel_size: Annotated[
        int | None, typer.Option("--pipeline-parallel-size", "-pp", parser=whole_number, metavar="N", help="Stages.")
    ] = None,
    decode_context_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--decode-context-parallel-size", "-dcp", parser=whole_number, metavar="N", help="GPUs that share tokens."
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Tokens per block of attention.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(parser=number, metavar="X", help="Share of the GPU's memory that vLLM may take; 0.92."),
    ] = None,
    kv_cache_memory_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the cache, taken as it is: exact.")
    ] = None,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Blocks, whatever the memory.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Tokens per step.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Requests per step.")
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Keep prefixes findable.")
    ] = None,
    async_scheduling: Annotated[
        bool | None, typer.Option("--async-scheduling/--no-async-scheduling", help="Schedule one step ahead.")
    ] = None,
    disable_hybrid_kv_cache_manager: Annotated[
        bool, typer.Option("--disable-hybrid-kv-cache-manager", help="Treat windows as full attention.")
    ] = False,
    mamba_cache_dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Of a state's convolution.")] = None,
    mamba_ssm_cache_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Of a state's recurrent part.")
    ] = None,
    mamba_block_size: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Tokens per block of states.")
    ] = None,
    mamba_cache_mode: Annotated[str | None, typer.Option(metavar="none|align", help="Which states are kept.")] = None,
    speculative_config: Annotated[
        str | None, typer.Option(metavar="JSON", help='Speculation, as for vLLM: \'{"method": "mtp", ...}\'.')
    ] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.")] = False,
    enable_expert_parallel: Annotated[
        bool, typer.Option("--enable-expert-parallel", help="Experts over GPUs.")
    ] = False,
    language_model_only: Annotated[
        bool, typer.Option("--language-model-only", help="Leave out the encoders of images and sound.")
    ] = False,
    quantization: Annotated[str | None, typer.Option(metavar="METHOD", help="How the weights are quantised.")] = None,
    attention_backend: Annotated[str | None, typer.Option(metavar="NAME", help="vLLM's attention kernels.")] = None,
    hf_overrides: Annotated[str | None, typer.Option(metavar="JSON", help="Fields in place of the config's.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A VLLM_... variable of the server; may be repeated."),
    ] = None,
    assume: Annotated[
        Literal["full-attention"] | None,
        typer.Option(help="What an unknown kind of model keeps; without it such a model is refused."),
    ] = None,
    what_if: Annotated[bool, typer.Option("--what-if/--no-what-if", help="Try each flag one step up and down.")] = True,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="FLAGS FLAGS", help='Two settings side by side: "--kv-cache-dtype fp8" "-tp 2"; "" is none.'
        ),
    ] = None,
    gpus: Annotated[
        bool, typer.Option("--gpus", help="Find the fewest GPUs that hold the model and --requests of --length.")
    ] = False,
    requests: Annotated[int, typer.Option(parser=whole_number, metavar="N", help="With --gpus: requests at once.")] = 1,
    length: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="With --gpus: tokens of each request.")
    ] = None,
    from_log: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Read a vLLM start-up log, explain and check its numbers.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE.jsonl|-", help='Answer many: {"model", "flags", "env", "mem_gib"} on each line.'),
    ] = None,
    models: Annotated[
        str | None, typer.Option(metavar="DIR", help="With --batch: where relative model paths start.")
    ] = None,
    list_models: Annotated[bool, typer.Option("--list-models", help="List the catalogue and exit.")] = False,
    list_gpus: Annotated[bool, typer.Option("--list-gpus", help="List the known GPUs and exit.")] = False,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the answer as JSON; - is standard output.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write an HTML page with charts; needs no network.")
    ] = None,
) -> None:
    if list_models or list_gpus:
        _list(list_models, json_path)
        return
    inputs = [path for path in (model, from_log, batch) if path is not None]
    if model is not None:
        inputs.append(str(Path(model) / "config.json"))
    check_outputs({"--json": json_path, "--report": report}, inputs)
    if report is not None:
        _check_report(report, batch, from_log)
    if batch is not None:
        _batch(batch, models, json_path)
        return
    given = {
        "max_model_len": _length(max_model_len),
        "kv_cache_dtype": kv_cache_dtype,
        "kv_cache_dtype_skip_layers": kv_cache_dtype_skip_layers or None,
        "dtype": dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "decode_context_parallel_size": decode_context_parallel_size,
        "block_size": block_size,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_memory_bytes": None
        if kv_cache_memory_bytes is None
        else parse_bytes(kv_cache_memory_bytes, "--kv-cache-memory-bytes"),
        "num_gpu_blocks_override": num_gpu_blocks_override,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "enable_prefix_caching": enable_prefix_caching,
        "async_scheduling": async_scheduling,
        "disable_hybrid_kv_cache_manager": disable_hybrid_kv_cache_manager or None,
        "mamba_cache_dtype": mamba_cache_dtype,
        "mamba_ssm_cache_dtype": mamba_ssm_cache_dtype,
        "mamba_block_size": mamba_block_size,
        "mamba_cache_mode": mamba_cache_mode,
        "speculative_config": _object(speculative_config, "--speculative-config"),
        "enforce_eager": enforce_eager or None,
        "enable_expert_parallel": enable_expert_parallel or None,
        "language_model_only": language_model_only or None,
        "quantization": quantization,
        "attention_backend": attention_backend,
        "hf_overrides": _object(hf_overrides, "--hf-overrides"),
    }
    place = {"gpu": gpu, "memory": memory, "available": available}
    if from_log is not None:
        _from_log(from_log, model, given, place, environment(env), json_path)
        return
    if model is None:
        raise UsageError(
            "no model is named: give a config.json, its folder, or a name of the catalogue (--list-models), "
            "for instance: kvblocks plan qwen3-8b --gpu h100"
        )
    config = find_model(model)
    folders = (config.path, config.path.parent) if config.path else ()
    setting = Setting(
        config=config,
        flags=EngineFlags.from_mapping({name: value for name, value in given.items() if value is not None}),
        env=environment(env),
        device=device_of(gpu, memory),
        available_bytes=None if available is None else parse_bytes(available, "--available"),
        assume_full_attention=assume is not None,
        folders=folders,
    )
    console = plain_console(stderr=json_path == "-")
    if compare is not None:
        _compare(console, setting, compare, json_path, report)
    elif gpus:
        _search(console, setting, requests, length, json_path, report)
    else:
        _plan(console, setting, what_if, json_path, report)


# -- What to do -------------------------------------------------------------------------------------------------------


def _plan(console: Console, setting: Setting, what_if: bool, json_path: str | None, report: Path | None) -> None:
    plan = setting.plan()
    wanted = plan.status != "refused" and what_if
    found: list[Effect] = []
    if wanted:
        with _progress("trying flags", count_steps(setting, plan)) as on_step:
            found = effects(setting, plan, on_step)
    data = {**_about(setting), **plan.to_dict()}
    if wanted:
        data["effects"] = [effect.to_dict() for effect in found]
    if json_path is not None:
        write_json(data, json_path)
    if json_path != "-" and plan.status != "refused":
        print_plan(console, setting, plan, found)
    _report(console, data, report)
    _exit(plan)


def _compare(
    console: Console, setting: Setting, flags: tuple[str, str], json_path: str | None, report: Path | None
) -> None:
    settings = [setting.changed(**flag_words(text, "--compare")) for text in flags]
    plans = [one.plan() for one in settings]
    labels = [text.strip() or "as given" for text in flags]
    sides = [{"setting": label, **plan.to_dict()} for label, plan in zip(labels, plans, strict=True)]
    data = {**_about(setting), "compare": sides}
    if json_path is not None:
        write_json(data, json_path)
    if json_path != "-":
        print_comparison(console, labels, plans)
    _report(console, data, report)
    _exit(max(plans, key=lambda plan: ("ok", "does_not_fit", "refused").index(plan.status)))


def _search(
    console: Console, setting: Setting, requests: int, length: int | None, json_path: str | None, report: Path | None
) -> None:
    tokens = length or setting.flags.max_model_len or setting.lay_out().engine.max_model_len
    with _progress("trying GPUs", None) as on_step:
        found = fewest_gpus(setting, requests=requests, length=tokens, on_try=lambda gpus: on_step())
    data = {**_about(setting), **found.to_dict()}
    if json_path is not None:
        write_json(data, json_path)
    if json_path != "-":
        print_search(console, setting, found)
    _report(console, data, report)
    if found.found is None:
        raise typer.Exit(1)


def _about(setting: Setting) -> dict[str, Any]:
    """What was asked, and of which version."""
    flags, device = setting.flags, setting.device
    count = flags.tensor_parallel_size * flags.pipeline_parallel_size
    return {
        "kvblocks": __version__,
        "model": setting.config.name,
        "gpu": None if device is None else {"name": device.name, "total_bytes": device.total_bytes, "count": count},
        "flags": flags.given(),
    }


def _check_report(report: Path, batch: str | None, from_log: str | None) -> None:
    if str(report) == "-":
        raise UsageError("--report -: a page is for a browser, not for standard output; name a file such as plan.html")
    for option, given in (("--batch", batch), ("--from-log", from_log)):
        if given is not None:
            raise UsageError(f"--report {report}: a page is of one plan, a comparison or a search, not of {option}")
    import kvblocks.report  # noqa: F401 - a missing package is told before the work, not after it


def _report(console: Console, data: Mapping[str, Any], report: Path | None) -> None:
    if report is None:
        return
    from kvblocks.report import plan_page

    command = shlex.join(["kvblocks", *sys.argv[1:]])
    write_file(plan_page({**data, "command": command}).encode(), report, "--report")
    console.print(f"Report: {printable(str(report))}")


def _batch(path: str, models: str | None, json_path: str | None) -> None:
    """Answers in order, each on a line as soon as it is known."""
    if json_path not in (None, "-"):
        raise UsageError("--batch writes its answers to standard output; redirect that in place of --json FILE")
    lines = _lines(path, "--batch")
    start = Path(models) if models is not None else (Path() if path == "-" else Path(path).parent)
    if models is not None and not start.is_dir():
        raise UsageError(f"--models {models}: is no folder")
    for answer in answer_batch(lines, start, environment(None)):
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.flush()


def _from_log(
    path: str,
    model: str | None,
    given: Mapping[str, Any],
    place: Mapping[str, str | None],
    env: Mapping[str, str],
    json_path: str | None,
) -> None:
    from kvblocks.sizing.from_log import read_and_check

    flags = {name: value for name, value in given.items() if value is not None}
    device = device_of(place["gpu"], place["memory"])
    available = None if place["available"] is None else parse_bytes(place["available"], "--available")
    found = read_and_check(_lines(path, "--from-log"), path, model, flags, device, available, env)
    if json_path is not None:
        write_json({"kvblocks": __version__, **found.to_dict()}, json_path)
    if json_path != "-":
        from kvblocks.cli.log_view import print_log

        print_log(plain_console(), found)
    if any(finding.verdict == "disagrees" for finding in found.findings):
        raise typer.Exit(1)


def _list(of_models: bool, json_path: str | None) -> None:
    from kvblocks.sizing.devices import DEVICES

    rows: list[str] = names() if of_models else [device.name for device in DEVICES]
    if json_path is not None:
        write_json(rows, json_path)
    else:
        typer.echo("\n".join(rows))


def _exit(plan: Plan) -> None:
    if plan.status == "refused":
        raise UsageError(plan.error or "refused")
    if not plan.ok:
        raise typer.Exit(1)


# -- What was given ---------------------------------------------------------------------------------------------------


def _length(text: str | None) -> int | None:
    if text is None:
        return None
    if text in ("auto", "-1"):
        return -1
    lengths = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}
    try:
        return int(float(text[:-1]) * lengths[text[-1]]) if text[-1:] in lengths else int(text)
    except ValueError:
        raise UsageError(
            f"--max-model-len {text!r} is no length; give a number such as 32768 or 32K, or auto"
        ) from None


def _object(text: str | None, option: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{option} {text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option} {text!r} must be a JSON object")
    return value


def _lines(path: str, option: str) -> Iterator[bytes]:
    try:
        with Path(path).open("rb") if path != "-" else nullcontext(sys.stdin.buffer) as file:
            yield from file
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be read: {error.strerror}") from error


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Any]:
    """A line of progress on a terminal, when it lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    with console.status(what) as status:
        done = 0

        def on_step() -> None:
            nonlocal done
            done += 1
            status.update(f"{what}: {done}" + (f" of {total}" if total else ""))

        yield on_step
