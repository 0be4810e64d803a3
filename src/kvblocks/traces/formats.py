"""The trace formats: how each is recognised, and how a line (or a file) of it becomes requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, shown

JSON = msgspec.json.Decoder()


class TextEncoder(Protocol):
    """Turns text into token ids; see `text.py`."""

    def encode_prompt(self, prompt: str) -> list[int]: ...

    def encode_messages(self, messages: list[Any]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a format may want to know. `name` is the trace's path, for namespaces and ids."""

    name: str
    encoder: TextEncoder | None = None


LineParser = Callable[[bytes, int], TraceRequest | None]
"""One line and its number to one request, or None for a line that is none (a header). Raises BadValue."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format: either one request a line, or a whole file at once."""

    name: str
    looks_like: Callable[[bytes], bool]
    """Whether a file that begins with these bytes is of this format."""
    lines: Callable[[ReadOptions], LineParser] | None = None
    document: Callable[[bytes, ReadOptions], Iterable[TraceRequest | BadValue]] | None = None


FORMATS: dict[str, Format] = {}


def register(found: Format) -> None:
    FORMATS[found.name] = found


def parse_object(line: bytes) -> dict[str, Any]:
    """A JSON object. Raises BadValue for anything else."""
    try:
        record = JSON.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(None, f"is not JSON ({error}): {shown(line[:60].decode('utf-8', 'replace'))}") from error
    if not isinstance(record, dict):
        raise BadValue(None, f"is not a JSON object but {shown(record)}")
    return record


def first_object(head: bytes) -> dict[str, Any]:
    """The object on the first line of these bytes, or the keys of one that is cut off; empty when there is none."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    try:
        record = JSON.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return dict.fromkeys(_keys(line))
    return record if isinstance(record, dict) else {}


def _keys(line: bytes) -> Iterator[str]:
    """What stands in quotes before a colon, for objects whose end is not in sight."""
    parts = line.split(b'"')
    for i in range(1, len(parts) - 1, 2):
        if parts[i + 1].lstrip().startswith(b":"):
            yield parts[i].decode("utf-8", "replace")
