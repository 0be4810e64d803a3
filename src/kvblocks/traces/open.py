"""Opening traces: format detection, bad lines, time order, several files as one."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kvblocks.errors import TraceError, UsageError
from kvblocks.traces import azure, kv_cache_tester, mooncake, own  # noqa: F401 - they register themselves
from kvblocks.traces.formats import FORMATS, Format, ReadOptions, TextEncoder
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.source import Source
from kvblocks.traces.values import BadValue, shown

TRACE_SUFFIXES = (".json", ".jsonl", ".csv", ".gz")
"""What counts as a trace in a directory."""


class Skipped:
    """Lines that were left out, with the first few messages."""

    def __init__(self) -> None:
        self.count = 0
        self.examples: list[str] = []

    def add(self, error: TraceError) -> None:
        self.count += 1
        if len(self.examples) < 5:
            self.examples.append(str(error))


class Trace:
    """One trace, streamed: iterate over it once. Requests come in time order; a line that breaks it is a bad line.

    Bad lines raise TraceError, or are counted in `skipped`. `bytes_read` and `total_bytes` (None for standard input)
    tell how far it is.
    """

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,  # noqa: A002 - the command line's name
        encoder: TextEncoder | None = None,
        skip_bad_lines: bool = False,
        skipped: Skipped | None = None,
    ) -> None:
        self._source = Source(path)
        self.path = self._source.path
        self.skipped = skipped or Skipped()
        self._skip = skip_bad_lines
        self._options = ReadOptions(self.path, encoder)
        try:
            self._format = _choose(self._source, format)
        except BaseException:
            self._source.close()
            raise
        self.format = self._format.name
        self.total_bytes = self._source.total_bytes

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def __iter__(self) -> Iterator[TraceRequest]:
        last: tuple[float, int | None] | None = None
        requests = 0
        try:
            for line, item in self._items():
                error = None
                if isinstance(item, BadValue):
                    error = TraceError(self.path, str(item), line=line, field=item.field)
                elif item.timestamp_s is not None and last is not None and item.timestamp_s < last[0]:
                    error = TraceError(
                        self.path,
                        f"{item.timestamp_s} s comes after {last[0]} s; sort the trace by time first",
                        line=line,
                        field="timestamp",
                    )
                if error is not None:
                    if not self._skip:
                        raise error
                    self.skipped.add(error)
                    continue
                assert isinstance(item, TraceRequest)
                if item.timestamp_s is not None:
                    last = (item.timestamp_s, line)
                requests += 1
                yield item
        finally:
            self.close()
        if not requests:
            raise TraceError(
                self.path,
                f"has no request that can be read ({self.skipped.count} bad lines were left out)"
                if self.skipped.count
                else "has no request",
            )

    def _items(self) -> Iterator[tuple[int | None, TraceRequest | BadValue]]:
        if self._format.document is not None:
            try:
                for item in self._format.document(self._source.read(), self._options):
                    yield None, item
            except BadValue as error:  # about the file as a whole, so there is nothing to go on with
                raise TraceError(self.path, str(error), field=error.field) from error
            return
        assert self._format.lines is not None
        parse = self._format.lines(self._options)
        for number, line in self._source.lines():
            try:
                request = parse(line, number)
            except BadValue as error:
                yield number, error
            else:
                if request is not None:
                    yield number, request


def _choose(source: Source, name: str | None) -> Format:
    if name is not None:
        if name not in FORMATS:
            raise UsageError(f"--format {shown(name)} is unknown: choose one of {', '.join(FORMATS)}")
        return FORMATS[name]
    head = source.head()
    if not head.strip():
        raise TraceError(source.path, "is empty; a trace has at least one request")
    for found in FORMATS.values():
        if found.looks_like(head):
            return found
    start = shown(head[:60].decode("utf-8", "replace"))
    raise TraceError(
        source.path,
        f"begins with {start}, which is none of the known formats ({', '.join(FORMATS)}); name one with --format, "
        "or leave out a damaged first line with it and --skip-bad-lines",
    )


class MergedTraces:
    """Several traces as one, in time order; see `Trace` for the attributes."""

    def __init__(self, traces: Sequence[Trace], skipped: Skipped) -> None:
        self._traces = traces
        self.skipped = skipped
        self.path = ", ".join(trace.path for trace in traces)
        self.format = "+".join(dict.fromkeys(trace.format for trace in traces))
        sizes = [trace.total_bytes for trace in traces]
        self.total_bytes = None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def bytes_read(self) -> int:
        return sum(trace.bytes_read for trace in self._traces)

    def __iter__(self) -> Iterator[TraceRequest]:
        if len(self._traces) == 1:
            return iter(self._traces[0])
        return heapq.merge(*self._traces, key=lambda request: request.timestamp_s or 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._traces:
            one.close()


def open_traces(
    paths: Iterable[str],
    *,
    format: str | None = None,  # noqa: A002 - the command line's name
    tokenizer: str | None = None,
    skip_bad_lines: bool = False,
) -> MergedTraces:
    """Open traces; "-" is standard input, a directory stands for the trace files in it, by name.

    `format` overrides detection; `tokenizer` is the path of a tokenizer.json, or of its directory, for traces of text.
    Raises TraceError or UsageError naming the path, the line, the field and the fix.
    """
    names = [name for path in paths for name in _expand(path)]
    if not names:
        raise UsageError("no trace is given; name a file, a directory of traces, or - for standard input")
    if names.count("-") > 1:
        raise UsageError("standard input (-) can be read once; name it once")
    encoder = None
    if tokenizer is not None:
        from kvblocks.traces.text import load_encoder

        encoder = load_encoder(tokenizer)
    skipped = Skipped()
    traces: list[Trace] = []
    try:
        traces.extend(
            Trace(name, format=format, encoder=encoder, skip_bad_lines=skip_bad_lines, skipped=skipped)
            for name in names
        )
    except BaseException:
        for trace in traces:
            trace.close()
        raise
    return MergedTraces(traces, skipped)


def open_trace(path: str, **options: object) -> MergedTraces:
    """One trace; see `open_traces`."""
    return open_traces([path], **options)  # type: ignore[arg-type]


def _expand(path: str) -> list[str]:
    if path == "-" or not Path(path).is_dir():
        return [path]
    found = sorted(str(entry) for entry in Path(path).iterdir() if entry.is_file() and entry.suffix in TRACE_SUFFIXES)
    if not found:
        raise TraceError(path, f"this directory holds no trace files ({', '.join('*' + s for s in TRACE_SUFFIXES)})")
    return found
