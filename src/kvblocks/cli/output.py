"""Where results go: checked before long work, written whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvblocks.errors import UsageError


def check_writable(path: str | Path | None, option: str) -> None:
    """Raise UsageError now if the file could not be written later."""
    if path is None or str(path) == "-":
        return
    folder = Path(path).parent
    if Path(path).is_dir():
        raise UsageError(f"{option} {path}: is a directory; name a file in it")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written to; choose another")


def check_outputs(outputs: Mapping[str, str | Path | None], inputs: Iterable[str] = ()) -> None:
    """Raise UsageError now for a file that could not be written later, is given twice, or is also read.

    `outputs` are paths by option, with "-" for standard output; `inputs` are files, with "-" for standard input.
    """
    read = {_identity(path) for path in inputs} - {None}
    written: dict[object, str] = {}
    for option, path in outputs.items():
        if path is None or str(path) == "-":
            continue
        check_writable(path, option)
        target = _identity(path) or os.path.realpath(path)
        if target in read:
            raise UsageError(f"{option} {path}: is also read, and would be overwritten; name another file")
        if target in written:
            raise UsageError(f"{option} {path}: is also where {written[target]} goes; name another file")
        written[target] = option


def _identity(path: str | Path) -> object:
    """What tells a regular file from every other, under whatever name; None for all else."""
    try:
        status = os.fstat(0) if path == "-" else os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def write_json(data: Any, path: str) -> None:
    """Write data as indented JSON to the file, or to standard output for "-"."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    if path == "-":
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        return
    try:
        part = Path(f"{path}.part")
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
