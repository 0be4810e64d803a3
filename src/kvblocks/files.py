"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary file that appears under its name when all of it is written.

    On an error or an interrupt nothing is left of it, and what was there before stays. A link stays a link: what it
    points to is replaced. A device or a pipe cannot be replaced, and is written as it is. Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
