"""The command line: one file per command, no logic.

`main` turns every error of kvblocks into one line on standard error and exit code 2; an interrupted run exits with
130, after it has printed what it knows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from kvblocks.cli import streams
from kvblocks.cli.streams import fail, printable
from kvblocks.errors import KVBlocksError, MissingExtraError, TraceError

__all__ = ["main", "printable"]


def main() -> None:
    """Entry point of the `kvblocks` command."""
    try:
        sys.exit(streams.finish(_run(sys.argv[1:])))
    except KeyboardInterrupt:  # wherever it comes, also while packages are imported
        sys.exit(streams.finish(fail("interrupted", 130)))


def _run(arguments: list[str]) -> int:
    """Run the command; its exit code."""
    streams.prepare()
    command: Any = None
    try:
        from typer.main import get_command

        from kvblocks.cli.app import app

        command = get_command(app)
        with command.make_context("kvblocks", arguments) as context:
            command.invoke(context)
    except KVBlocksError as error:
        return fail(str(error) if isinstance(error, TraceError) else _with_flags(str(error), command))
    except ImportError as error:
        if not error.name or error.name.split(".")[0] not in ("typer", "rich", "msgspec", "numpy"):
            raise
        return fail(str(MissingExtraError(error.name, "cli", "the command line")))
    except MemoryError:
        return fail("there is not enough memory for this; give fewer or smaller sizes, or a shorter trace")
    except OSError as error:
        if error.filename is not None:
            return fail(f"{error.filename}: {error.strerror}")
        return streams.output_failed(error)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        if hasattr(error, "show"):  # typer's own errors show themselves; its exits do not
            error.show()
        return int(code)
    return 0


def _with_flags(message: str, command: Any) -> str:
    """The message with settings named as the command line names them: `block_size=0` becomes `--block-size 0`."""
    flags = dict(_flags(command)) if command is not None else {}
    return re.sub(r"(^|\bexceeds? )([a-z_]+)=", lambda m: f"{m[1]}{flags[m[2]]} " if m[2] in flags else m[0], message)


def _flags(command: Any) -> Iterator[tuple[str, str]]:
    """Settings and their flags, of the command and of those below it."""
    for parameter in command.params:
        if parameter.opts[0].startswith("--"):
            yield parameter.name, parameter.opts[0]
    for below in getattr(command, "commands", {}).values():
        yield from _flags(below)
