"""What the commands that run a model share: its options, and loading it with progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, TextColumn

from kvblocks.cli.output import plain_console
from kvblocks.cli.sizes import number, parse_bytes, whole_number

if TYPE_CHECKING:
    from kvblocks.engine import Engine, EngineSettings, LoadedModel
    from kvblocks.manager import Observer

ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FILE|DIR",
        help="A .gguf file, or a folder with config.json, *.safetensors and tokenizer.json; else the demo model.",
    ),
]
KVMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory of the cache (512MiB); else up to half of what is free."),
]
NumBlocks = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="N", help="Blocks of the cache, in place of --kv-memory.")
]
BlockSize = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Tokens per block.")]
KVDtype = Annotated[Literal["float32", "float16"], typer.Option(help="Numbers of the cache.")]
MaxModelLen = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="N", help="Longest request; else what the model allows.")
]
MaxBatchedTokens = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Tokens per step.")]
MaxSeqs = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Requests running at once.")]
Caching = Annotated[bool, typer.Option("--caching/--no-caching", help="Whether prompts find what is cached.")]
DraftTokens = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Tokens to guess ahead from the request's own text.")
]
MaxTokens = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Tokens of an answer at most.")]
Temperature = Annotated[float, typer.Option(parser=number, metavar="X", help="0 takes the likeliest token.")]
TopP = Annotated[float, typer.Option(parser=number, metavar="X", help="Keep the likeliest tokens of so much.")]
Seed = Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help="The same seed, the same answer.")]


def settings_of(kv_memory: str | None, **settings: Any) -> EngineSettings:
    """The engine's settings from its options. Raises UsageError naming the option."""
    from kvblocks.engine import EngineSettings

    memory = None if kv_memory is None else parse_bytes(kv_memory, "--kv-memory")
    return EngineSettings(kv_memory_bytes=memory, **settings)


def load(path: str | None) -> LoadedModel:
    """Load a model, with a bar on standard error where that is a terminal."""
    from kvblocks.engine import load_model

    console = plain_console(stderr=True)
    bar = Progress(
        TextColumn("loading the model"), BarColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    with bar:
        task = bar.add_task("layers", total=None)
        return load_model(path, lambda done, total: bar.update(task, completed=done, total=total))


def start(
    path: str | None, settings: EngineSettings, observe: Callable[[LoadedModel], Sequence[Observer]] = lambda _: ()
) -> tuple[LoadedModel, Engine]:
    """Load a model and take the memory of its cache; `observe` makes observers of the cache."""
    from kvblocks.engine import Engine

    model = load(path)
    return model, Engine(model.shape, model.weights, model.tokenizer, settings, observers=observe(model))
