"""Opening traces: one, or several as one in time order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kvblocks.errors import TraceError, UsageError
from kvblocks.traces.formats import TextEncoder
from kvblocks.traces.reader import Skipped, Trace
from kvblocks.traces.request import TraceRequest

TRACE_SUFFIXES = (".json", ".jsonl", ".csv", ".gz")
"""What counts as a trace in a directory."""


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

    def close(self) -> None:
        """Close all files; safe to call again."""
        for trace in self._traces:
            trace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_trace(
    path: str,
    *,
    format: str | None = None,  # noqa: A002 - the command line's name
    tokenizer: str | None = None,
    tokens_per_id: int | None = None,
    skip_bad_lines: bool = False,
) -> Trace:
    """Open one trace file, or standard input ("-"). See `open_traces` for the options and errors."""
    encoder = _encoder(tokenizer, tokens_per_id)
    return Trace(path, format=format, encoder=encoder, tokens_per_id=tokens_per_id, skip_bad_lines=skip_bad_lines)


def open_traces(
    paths: Iterable[str],
    *,
    format: str | None = None,  # noqa: A002 - the command line's name
    tokenizer: str | None = None,
    tokens_per_id: int | None = None,
    skip_bad_lines: bool = False,
) -> MergedTraces:
    """Open traces as one; "-" is standard input, a directory stands for the trace files in it, by name.

    Several traces are merged by time, so each request needs a timestamp then; times count on each trace's own clock.
    `format` overrides detection. `tokenizer` is the path of a tokenizer.json, or of its directory, for traces of text.
    `tokens_per_id` is the run length of content ids where the format leaves it open (mooncake).
    Raises TraceError or UsageError naming the path, the line, the field and the fix.
    """
    names = trace_files(paths)
    if not names:
        raise UsageError("no trace is given; name a file, a directory of traces, or - for standard input")
    for name in names:
        if names.count(name) > 1 and not Path(name).is_file():
            shown = "standard input (-)" if name == "-" else name
            raise UsageError(f"{shown} can be read once; name it once")
    encoder = _encoder(tokenizer, tokens_per_id)
    skipped = Skipped()
    traces: list[Trace] = []
    try:
        traces.extend(
            Trace(
                name,
                format=format,
                encoder=encoder,
                tokens_per_id=tokens_per_id,
                skip_bad_lines=skip_bad_lines,
                skipped=skipped,
                needs_timestamps=len(names) > 1,
            )
            for name in names
        )
    except BaseException:
        for trace in traces:
            trace.close()
        raise
    return MergedTraces(traces, skipped)


def _encoder(tokenizer: str | None, tokens_per_id: int | None) -> TextEncoder | None:
    if tokens_per_id is not None and not 1 <= tokens_per_id < 2**31:
        raise UsageError(f"tokens_per_id={tokens_per_id} must be at least 1; it is 512 for Mooncake's traces")
    if tokenizer is None:
        return None
    from kvblocks.traces.text import load_encoder

    return load_encoder(tokenizer)


def trace_files(paths: Iterable[str]) -> list[str]:
    """The paths, each directory replaced by the trace files in it, by name. Raises TraceError or UsageError."""
    return [name for path in paths for name in _expand(path)]


def _expand(path: str) -> list[str]:
    if not path:
        raise UsageError("the name of a trace is empty; name a file, a directory of traces, or - for standard input")
    if path == "-" or not Path(path).is_dir():
        return [path]
    try:
        found = sorted(str(entry) for entry in Path(path).iterdir() if entry.suffix in TRACE_SUFFIXES)
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror}; check its permissions") from error
    found = [entry for entry in found if Path(entry).is_file()]
    if not found:
        raise TraceError(
            path,
            f"this directory holds no trace files ({', '.join('*' + suffix for suffix in TRACE_SUFFIXES)}); name the "
            "files themselves",
        )
    return found
