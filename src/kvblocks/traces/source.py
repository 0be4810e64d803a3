"""Where a trace's bytes come from: a file or standard input, plain or gzip, read once from the front."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvblocks.errors import TraceError

MAX_LINE_BYTES = 256 * 2**20
"""Longer lines are refused: such a file is not a trace of lines."""


class Source:
    """A stream of bytes with a name for messages and a position for progress bars."""

    def __init__(self, path: str) -> None:
        """Open it. Raises TraceError for what cannot be opened."""
        self.path = "standard input" if path == "-" else path
        self.total_bytes: int | None = None
        if path == "-":
            self._raw: IO[bytes] = sys.stdin.buffer
        else:
            try:
                if Path(path).is_dir():
                    raise TraceError(path, "is a directory; name a trace file in it")
                self._raw = open(path, "rb")  # noqa: SIM115 - closed by close()
                size = os.fstat(self._raw.fileno()).st_size
                self.total_bytes = size or None
            except OSError as error:
                raise TraceError(
                    path, f"cannot be opened: {error.strerror}; check the path and its permissions"
                ) from error
        self._counted = _Counted(self._raw)
        buffered = io.BufferedReader(self._counted, 1 << 16)
        self._stream: IO[bytes] = buffered
        if buffered.peek(2)[:2] == b"\x1f\x8b":
            self._stream = io.BufferedReader(gzip.GzipFile(fileobj=buffered), 1 << 16)

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the file so far, compressed ones where it is compressed."""
        return self._counted.count

    def head(self, size: int = 1 << 16) -> bytes:
        """The first bytes, without consuming them; fewer at the end of the file."""
        with self._guard():
            return self._stream.peek(size)[:size]  # type: ignore[attr-defined,no-any-return]

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers from 1, and lines without their ends. A byte order mark and empty lines are passed over."""
        number = 0
        while True:
            with self._guard():
                line = self._stream.readline(MAX_LINE_BYTES)
            if not line:
                return
            number += 1
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
            if len(line) >= MAX_LINE_BYTES:
                raise TraceError(
                    self.path, f"is longer than {MAX_LINE_BYTES} bytes; this is not a line of a trace", line=number
                )
            line = line.strip()
            if line:
                yield number, line

    def read(self) -> bytes:
        """All that is left."""
        with self._guard():
            return self._stream.read()

    def close(self) -> None:
        if self._raw is not sys.stdin.buffer:
            self._raw.close()

    def _guard(self) -> _Guard:
        return _Guard(self.path)


class _Counted(io.RawIOBase):
    """Counts what passes."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._raw.read1(len(buffer)) if hasattr(self._raw, "read1") else self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)


class _Guard:
    """Turns failures of reading into TraceErrors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError):
            raise TraceError(self._path, "the gzip stream ends early; the file is cut off, fetch it again") from error
        if isinstance(error, gzip.BadGzipFile | zlib.error):
            raise TraceError(self._path, f"the gzip stream is damaged ({error}); fetch it again") from error
        if isinstance(error, OSError):
            raise TraceError(self._path, f"cannot be read: {error.strerror or error}") from error
