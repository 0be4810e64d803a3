"""The command line: one file per command, no logic.

`main` turns every error of kvblocks into one line on standard error and exit code 2; an interrupted run exits with
130, after it has printed what it knows.
"""

from __future__ import annotations

import os
import sys

from kvblocks.errors import KVBlocksError, MissingExtraError


def main() -> None:
    """Entry point of the `kvblocks` command."""
    try:
        from kvblocks.cli.app import app

        app(prog_name="kvblocks")
    except KVBlocksError as error:
        _fail(error)
    except ImportError as error:
        if not error.name or error.name.split(".")[0] not in ("typer", "rich", "msgspec", "numpy"):
            raise
        _fail(MissingExtraError(error.name, "cli", "the command line"))
    except BrokenPipeError:
        # Whoever read our output has enough. Nothing may be written on exit any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(error: KVBlocksError) -> None:
    print(f"kvblocks: {printable(str(error))}", file=sys.stderr)
    sys.exit(2)


def printable(text: str) -> str:
    """The text with control characters escaped, so that what a file says cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
