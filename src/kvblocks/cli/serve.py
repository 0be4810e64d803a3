"""`kvblocks serve`: an OpenAI-compatible server on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvblocks import __version__
from kvblocks.cli import model as options
from kvblocks.cli.output import check_outputs, plain_console, write_json
from kvblocks.cli.sizes import parse_bytes
from kvblocks.errors import UsageError

if TYPE_CHECKING:
    from kvblocks.engine import LoadedModel
    from kvblocks.manager import Observer

HELP = """Serve a model on the CPU to OpenAI clients.

\b
  kvblocks serve
  kvblocks serve --model folder --port 8000 --kv-memory 1GiB
  kvblocks serve --host 0.0.0.0 --api-key KEY

Routes: /v1/chat/completions, /v1/completions, /v1/models, /metrics, /reset_prefix_cache, /health, and the live page at
/ (with a key: /#key=KEY). It listens on this machine only, unless --host says otherwise; then --api-key (or
KVBLOCKS_API_KEY) is needed. SIGINT and SIGTERM end it, after running requests are answered or ten seconds are over.

Exit codes: 0 ended by a signal, 2 bad input or usage.
"""


def command(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(parser=options.whole_number, metavar="N", help="Port to listen on.")] = 8000,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="KVBLOCKS_API_KEY", help="What clients must bring.")
    ] = None,
    served_model_name: Annotated[str | None, typer.Option(metavar="NAME", help="How clients call the model.")] = None,
    model: options.ModelPath = None,
    kv_memory: options.KVMemory = None,
    num_blocks: options.NumBlocks = None,
    block_size: options.BlockSize = 16,
    kv_dtype: options.KVDtype = "float32",
    max_model_len: options.MaxModelLen = None,
    max_num_batched_tokens: options.MaxBatchedTokens = 256,
    max_num_seqs: options.MaxSeqs = 32,
    caching: options.Caching = True,
    num_draft_tokens: options.DraftTokens = 0,
    max_requests: Annotated[
        int, typer.Option(parser=options.whole_number, metavar="N", help="Requests waiting or running at once.")
    ] = 256,
    max_output_tokens: Annotated[
        int, typer.Option(parser=options.whole_number, metavar="N", help="Tokens of an answer at most.")
    ] = 1024,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Largest request body.")] = "4MiB",
    request_timeout_s: Annotated[
        float, typer.Option("--request-timeout", parser=options.number, metavar="S", help="Seconds for an answer.")
    ] = 300.0,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Let the live page show how prompts and prefixes begin.")
    ] = False,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write where it listens and with what, as JSON.")
    ] = None,
) -> None:
    from kvblocks.engine.loop import EngineLoop
    from kvblocks.live import LiveView
    from kvblocks.serving import ServerLimits, check_address, create_app, serve

    check_outputs({"--json": json_path})
    if not 1 <= port <= 65535:
        raise UsageError(f"--port {port} must be from 1 to 65535")
    check_address(host, port, api_key)
    limits = ServerLimits(
        max_body_bytes=parse_bytes(max_body, "--max-body"),
        max_requests=max_requests,
        max_output_tokens=max_output_tokens,
        request_timeout_s=request_timeout_s,
    )
    settings = options.settings_of(
        kv_memory,
        num_blocks=num_blocks,
        block_size=block_size,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_caching=caching,
        num_draft_tokens=num_draft_tokens,
    )
    views: list[LiveView] = []

    def observe(loaded: LoadedModel) -> Sequence[Observer]:
        decode = loaded.tokenizer.decode if show_text else None
        views.append(LiveView(title=served_model_name or loaded.name, decode=decode))
        return views[0].observers

    loaded, engine = options.start(model, settings, observe)
    name = served_model_name or loaded.name
    app = create_app(EngineLoop(engine), loaded.tokenizer, name, views[0], limits=limits, api_key=api_key)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    facts = {
        "url": url,
        "model": name,
        "num_blocks": engine.manager.block_pool.num_blocks,
        "kv_memory_bytes": engine.storage.nbytes,
        "max_request_tokens": engine.max_request_tokens,
    }
    if json_path is not None:
        write_json({"kvblocks": __version__, **facts}, json_path)
    plain_console(stderr=True).print(
        f"{name} on {url} ({facts['num_blocks']:,} blocks, requests of {engine.max_request_tokens:,} tokens at most)"
    )
    serve(app, host, port)
