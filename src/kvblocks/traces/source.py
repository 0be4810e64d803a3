"""Where a trace's bytes come from: a file or standard input, plain or gzip, read once from the front."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from kvblocks.errors import TraceError
from kvblocks.traces.values import BadValue

MAX_LINE_BYTES = 64 * 2**20
"""Longer lines are bad: a prompt of some million tokens fits several times."""
HEAD_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


class Source:
    """A stream of bytes with a name for messages and a position for progress bars.

    Every method raises TraceError for what cannot be read: damaged gzip, a disk that fails.
    """

    def __init__(self, path: str) -> None:
        """Open it. Raises TraceError for what cannot be opened."""
        self.path = "standard input" if path == "-" else path
        self.total_bytes: int | None = None
        self.is_regular_file = False
        """Whether it can be opened a second time with the same content."""
        self.closed = False
        self._is_ours = path != "-"
        self._raw: IO[bytes] = self._open(path) if self._is_ours else sys.stdin.buffer
        try:
            with _Guard(self.path):
                self._counted = _Counted(self._raw)
                # A pipe may give less than was asked for; what was looked at is put back in front.
                start = _read(self._counted, len(_GZIP), lambda data: False)
                plain = _joined(start, self._counted)
                unpacked = gzip.GzipFile(fileobj=plain) if start == _GZIP else plain
                self._head = _read(unpacked, HEAD_BYTES, _tells_the_format)
                self._stream = _joined(self._head, unpacked)
        except BaseException:
            self.close()
            raise

    def _open(self, path: str) -> IO[bytes]:
        try:
            if Path(path).is_dir():
                raise TraceError(path, "is a directory; name a trace file in it")
            raw = open(path, "rb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise TraceError(path, f"cannot be opened: {error.strerror}; check the path and its permissions") from error
        except ValueError as error:  # a null character in the path
            raise TraceError(path, f"cannot be opened: {error}; check the path") from error
        status = os.fstat(raw.fileno())
        self.is_regular_file = stat.S_ISREG(status.st_mode)
        self.total_bytes = status.st_size if self.is_regular_file else None
        return raw

    @property
    def bytes_read(self) -> int:
        """Bytes taken from the file so far, compressed ones where it is compressed."""
        return self._counted.count

    def head(self) -> bytes:
        """The first bytes: at least the first line, or 64 KiB of it. Consumes nothing."""
        return self._head

    def lines(self) -> Iterator[tuple[int, bytes | BadValue]]:
        """Line numbers from 1, and lines without their ends. A byte order mark and empty lines are passed over.

        A line that is too long comes as the BadValue that says so.
        """
        number = 0
        while True:
            with _Guard(self.path):
                line = self._stream.readline(MAX_LINE_BYTES)
            if not line:
                return
            number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                self._skip_line()
                yield number, BadValue(None, f"is longer than {MAX_LINE_BYTES:,} bytes, which no line of a trace is")
                continue
            if number == 1:
                line = line.removeprefix(BOM)
            line = line.strip()
            if line:
                yield number, line

    def _skip_line(self) -> None:
        """Pass over the rest of a line without keeping it."""
        with _Guard(self.path):
            while (part := self._stream.readline(1 << 20)) and not part.endswith(b"\n"):
                pass

    def read(self) -> bytes:
        """All that is left, without a byte order mark."""
        with _Guard(self.path):
            return self._stream.read().removeprefix(BOM)

    def close(self) -> None:
        """Close the file; standard input stays open. Safe to call again."""
        self.closed = True
        if self._is_ours:
            self._raw.close()


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def _read(stream: _Readable, size: int, enough: Callable[[bytes], bool]) -> bytes:
    """So many bytes, or until they are enough, or all there are."""
    data = b""
    while len(data) < size and not (data and enough(data)):
        part = stream.read1(size - len(data))
        if not part:
            break
        data += part
    return data


def _tells_the_format(data: bytes) -> bool:
    """Whether the first line is whole (no object goes on after it), so that a live pipe need not be waited for."""
    line, end, _ = data.removeprefix(BOM).lstrip().partition(b"\n")
    return bool(end) and (line[:1] not in b"{[" or line.rstrip().endswith((b"}", b"]")))


def _joined(start: bytes, rest: _Readable) -> io.BufferedReader:
    return io.BufferedReader(_Joined(start, rest), HEAD_BYTES)


class _Joined(io.RawIOBase):
    """Some bytes, and then a stream."""

    def __init__(self, start: bytes, rest: _Readable) -> None:
        self._start = start
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        size = len(buffer)
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
        else:
            data = self._rest.read1(size)
        buffer[: len(data)] = data
        return len(data)


class _Counted:
    """Counts what passes."""

    def __init__(self, raw: IO[bytes]) -> None:
        # Standard input may have been replaced by something that only reads in full.
        self._read: Callable[[int], bytes] = getattr(raw, "read1", raw.read)
        self.count = 0

    def read1(self, size: int, /) -> bytes:
        data = self._read(size)
        self.count += len(data)
        return data


class _Guard:
    """Turns failures of reading into TraceErrors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, EOFError):
            raise TraceError(self._path, "the gzip stream ends early: the file is cut off; fetch it again") from error
        if isinstance(error, gzip.BadGzipFile | zlib.error):
            raise TraceError(
                self._path, f"the gzip stream is damaged ({error}); fetch the file again, or unpack what is whole"
            ) from error
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            raise TraceError(self._path, "is closed; pipe or redirect a trace into it, or name a file") from error
        if isinstance(error, OSError):
            raise TraceError(self._path, f"cannot be read: {error.strerror or error}; check the disk") from error
