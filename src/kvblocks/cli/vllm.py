"""`kvblocks vllm`: what the plugin would do in the installed vLLM, and its settings."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from kvblocks.cli.output import check_outputs, plain_console, write_json
from kvblocks.integrations.vllm.settings import SETTINGS, read_settings

app = typer.Typer(
    help="kvblocks as vLLM's KV-cache manager: whether it would be active, and its settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CHECK_HELP = """Say whether kvblocks would manage the cache of the installed vLLM, without starting a server.

\b
  kvblocks vllm check
  kvblocks vllm check --model ./my-model
  kvblocks vllm check --model ./my-model --json - -- --enable-prefix-caching --block-size 32
  kvblocks vllm check --model ./my-model && vllm serve ./my-model

What comes after -- are arguments of `vllm serve`. The model's layers are built without memory or weights: only its
config.json is needed.

Exit code 0: kvblocks would be active. 1: vLLM's own manager would stay, for the reasons given. 2: an error.
"""

SETTINGS_HELP = """List the settings, which are environment variables, with the values that they have now.

\b
  kvblocks vllm settings
  KVBLOCKS=off kvblocks vllm settings --json -

Exit code 2: a variable has a value that it cannot have, or a name that begins with KVBLOCKS_ and is not a setting.
"""

JsonOption = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON; - is standard output.")]


@app.command("check", help=CHECK_HELP)
def check_command(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- VLLM ARGUMENTS...]")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="A model's folder (or a name that vLLM resolves offline).")
    ] = None,
    json_path: JsonOption = None,
) -> None:
    from kvblocks.integrations.vllm.outlook import outlook

    check_outputs({"--json": json_path}, [os.path.join(model, "config.json")] if model else ())
    with _quiet_vllm():
        answer = outlook(model, arguments or [], os.environ)
    if json_path is not None:
        write_json(asdict(answer), json_path)
    if json_path != "-":
        verdict = "kvblocks would be active" if answer.active else "vLLM's own manager would stay"
        print(f"{verdict} (kvblocks {answer.kvblocks_version}, vLLM {answer.vllm_version})")
        if answer.groups:
            caching = "on" if answer.prefix_caching else "off"
            print(f"  groups: {', '.join(answer.groups)}; prefix caching {caching}")
        for reason in answer.reasons:
            print(f"  because: {reason}")
    raise typer.Exit(0 if answer.active else 1)


class _quiet_vllm:  # noqa: N801
    """vLLM and torch write to standard output while they are asked; only the answer belongs there."""

    def __enter__(self) -> None:
        sys.stdout.flush()
        self._kept = os.dup(1)
        os.dup2(2, 1)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self._kept, 1)
        os.close(self._kept)


@app.command("settings", help=SETTINGS_HELP)
def settings_command(json_path: JsonOption = None) -> None:
    check_outputs({"--json": json_path})
    read_settings(os.environ)
    rows: list[dict[str, Any]] = [
        {**asdict(setting), "value": os.environ.get(setting.name, "").strip() or setting.default}
        for setting in SETTINGS
    ]
    if json_path is not None:
        write_json(rows, json_path)
    if json_path != "-":
        table = Table(box=None, pad_edge=False)
        for column in ("setting", "now", "may be", "meaning"):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(row["name"], row["value"] or "-", row["values"], row["meaning"])
        plain_console(soft_wrap=False).print(table)
