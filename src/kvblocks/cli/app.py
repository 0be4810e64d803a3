"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from kvblocks import __version__
from kvblocks.cli import chat, demo, generate, plan, replay, serve, top, trace, vllm

app = typer.Typer(
    name="kvblocks",
    help="KV-cache management for language-model serving.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("replay", help=replay.HELP)(replay.command)
app.command("plan", help=plan.HELP)(plan.command)
app.command("demo", help=demo.HELP)(demo.command)
app.command("generate", help=generate.HELP)(generate.command)
app.command("chat", help=chat.HELP)(chat.command)
app.command("serve", help=serve.HELP)(serve.command)
app.command("top", help=top.HELP)(top.command)
app.add_typer(trace.app, name="trace")
app.add_typer(vllm.app, name="vllm")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvblocks {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """KV-cache management for language-model serving."""
