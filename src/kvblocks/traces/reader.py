"""One trace being read: format detection, bad lines, time order."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from kvblocks.errors import TraceError, UsageError
from kvblocks.traces import azure, kv_cache_tester, mooncake, own  # noqa: F401 - they register themselves
from kvblocks.traces.formats import FORMATS, Format, ReadOptions, TextEncoder
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.source import BOM, Source
from kvblocks.traces.values import BadValue, shown

NUM_EXAMPLES = 5


class Skipped:
    """Lines that were left out: how many, and the messages of the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, error: TraceError) -> None:
        self.count += 1
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append(str(error))


class Trace:
    """One trace, streamed: iterate over it once. Requests come in time order; a line that breaks it is a bad line.

    Bad lines raise TraceError, or are counted in `skipped`. `bytes_read` and `total_bytes` (None for what has no size,
    such as standard input) tell how far it is. Made by `open_trace`.
    """

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,  # noqa: A002 - the command line's name
        encoder: TextEncoder | None = None,
        tokens_per_id: int | None = None,
        skip_bad_lines: bool = False,
        skipped: Skipped | None = None,
        needs_timestamps: bool = False,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise UsageError(f"--format {shown(format)} is unknown: choose one of {', '.join(FORMATS)}")
        self._given_path = path
        self._source = Source(path)
        self.path = self._source.path
        self.skipped = Skipped() if skipped is None else skipped
        self.total_bytes = self._source.total_bytes
        self._skip = skip_bad_lines
        self._options = ReadOptions(self.path, encoder, tokens_per_id)
        self._needs_timestamps = needs_timestamps
        self._started = False
        try:
            self._format = _detect(self._source) if format is None else FORMATS[format]
        except BaseException:
            self.close()
            raise
        self.format = self._format.name
        if self._format.document is not None and self._source.is_regular_file:
            self._source.close()  # many small files may be opened at once; this one is read in one go later

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def close(self) -> None:
        """Close the file; safe to call again."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[TraceRequest]:
        """Read the requests. Raises TraceError for a bad line, and for a trace without any request."""
        if self._started:
            raise UsageError(f"{self.path}: a trace is read once; open it again to read it again")
        self._started = True
        return self._requests()

    def _requests(self) -> Iterator[TraceRequest]:
        num_requests = 0
        order = _Order(self.path, self._format, self._needs_timestamps)
        try:
            for line, item in self._items():
                if isinstance(item, BadValue):
                    error = TraceError(self.path, str(item), line=line, field=item.field)
                elif (fault := order.fault(item, line)) is not None:
                    error = fault
                else:
                    num_requests += 1
                    yield item
                    continue
                if not self._skip:
                    raise error
                self.skipped.add(error)
        finally:
            self.close()
        if not num_requests:
            left_out = f" that can be read ({self.skipped.count} bad lines were left out)" if self.skipped.count else ""
            raise TraceError(self.path, f"has no request{left_out}; a trace has at least one")

    def _items(self) -> Iterator[tuple[int | None, TraceRequest | BadValue]]:
        if self._format.document is not None:
            if self._source.closed:
                self._source = Source(self._given_path)
            data = self._source.read()
            self._source.close()
            try:
                for item in self._format.document(data, self._options):
                    yield None, item
            except BadValue as error:  # about the file as a whole, so there is nothing to go on with
                raise TraceError(self.path, str(error), field=error.field) from error
            return
        assert self._format.lines is not None
        parse = self._format.lines(self._options)
        for number, line in self._source.lines():
            if isinstance(line, BadValue):
                yield number, line
                continue
            try:
                request = parse(line, number)
            except BadValue as error:
                yield number, error
            else:
                if request is not None:
                    yield number, request


class _Order:
    """Holds that a trace is in time order, and where several are merged, that every request has a time."""

    def __init__(self, path: str, found: Format, needs_timestamps: bool) -> None:
        self._path = path
        self._format = found
        self._needs_timestamps = needs_timestamps
        self._last_s = float("-inf")
        self._last_line: int | None = None

    def fault(self, request: TraceRequest, line: int | None) -> TraceError | None:
        """What is wrong with the request's time. One without fault is what the next is compared with."""
        time_s = request.timestamp_s
        if time_s is None:
            if not self._needs_timestamps:
                return None
            message = "is missing, but several traces are merged by time; add it, or read one trace at a time"
        elif time_s < self._last_s:
            before = "the request before" if self._last_line is None else f"line {self._last_line}"
            message = (
                f"is {time_s:.12g} s, before the {self._last_s:.12g} s of {before}; "
                f"sort the trace by time, as in: {self._format.sort_command}"
            )
        else:
            self._last_s, self._last_line = time_s, line
            return None
        return TraceError(self._path, message, line=line, field="timestamp")


def _detect(source: Source) -> Format:
    """The format that a file's beginning speaks for."""
    head = source.head()
    if not head.removeprefix(BOM).strip():
        raise TraceError(source.path, "is empty; a trace has at least one request")
    for found in FORMATS.values():
        if found.looks_like(head):
            return found
    start = shown(head[:60].decode("utf-8", "replace"))
    raise TraceError(
        source.path,
        f"begins with {start}, which is none of the known formats ({', '.join(FORMATS)}); name the format with "
        "--format, and if only the first line is damaged add --skip-bad-lines",
    )
