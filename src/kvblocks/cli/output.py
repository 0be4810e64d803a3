"""Where results go: checked before long work, written whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from kvblocks.errors import UsageError
from kvblocks.files import written_whole


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled; rich itself would exit with 1


def plain_console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """A console that takes text as it is: no markup, and with `soft_wrap` no line is cut or broken."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)


def print_table(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Right-justified columns, as wide as their figures need; no blanks at line ends. A heading may have two lines."""
    heads = [name.split("\n") for name in header]
    depth = max(map(len, heads))
    lines = [*zip(*([""] * (depth - len(head)) + head for head in heads), strict=True), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for at, line in enumerate(lines):
        text = " ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        console.print(Text(text.rstrip(), style="bold" if at < depth else ""))


def counted(count: int, what: str) -> str:
    """`1 request`, `2,000 requests`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def check_outputs(outputs: Mapping[str, str | Path | None], inputs: Iterable[str] = ()) -> None:
    """Raise UsageError now for a file that could not be written later, is given twice, or is also read.

    `outputs` are paths by option, with "-" for standard output; `inputs` are files, with "-" for standard input.
    """
    read = {_identity(path): path for path in inputs}
    written: dict[object, str] = {}
    if (target := _identity(1)) is not None:
        if target in read:
            raise UsageError(f"standard output goes to {read[target]!r}, which is also read; redirect it elsewhere")
        written[target] = "standard output"
    for option, path in outputs.items():
        if path is None or str(path) == "-":
            continue
        _check_writable(path, option)
        target = _identity(path)
        if target is None:
            if os.path.exists(path):
                continue  # a device takes several outputs, a pipe too
            target = os.path.realpath(path)
        if target in read:
            raise UsageError(f"{option} {path}: is also read, and would be overwritten; name another file")
        if target in written:
            raise UsageError(f"{option} {path}: is also where {written[target]} goes; name another file")
        written[target] = option


def _identity(path: str | Path | int) -> object:
    """What tells a regular file from every other, under whatever name; None for all else."""
    try:
        status = os.fstat(path) if isinstance(path, int) else os.fstat(0) if path == "-" else os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _check_writable(path: str | Path, option: str) -> None:
    if not str(path):
        raise UsageError(f"{option} '' is empty; name a file")
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise UsageError(f"{option} {path}: is a directory; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{option} {path}: the folder {target.parent} does not exist; make it first")
    is_special = target.exists() and not target.is_file()
    if not os.access(target if is_special else target.parent, os.W_OK):
        where = "it" if is_special else f"the folder {target.parent}"
        raise UsageError(f"{option} {path}: {where} cannot be written to; choose another")


def write_file(data: bytes, path: str | Path, option: str) -> None:
    """Write a file whole or not at all. Raises UsageError naming the option."""
    try:
        with written_whole(path) as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written: {error.strerror}; name another file") from error


def write_json(data: Any, path: str) -> None:
    """Write data as indented JSON to the file, or to standard output for "-"."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"
    if path != "-":
        write_file(text, path, "--json")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
