"""Where results go: checked before long work, written whole or not at all."""

from __future__ import annotations

import os
import sys
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
