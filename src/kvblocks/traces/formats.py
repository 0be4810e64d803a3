"""The trace formats: how each is recognised, and how a line (or a file) of it becomes requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from kvblocks.errors import MissingExtraError
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.source import BOM
from kvblocks.traces.values import BadValue, shown

try:
    import msgspec
except ImportError as missing:
    raise MissingExtraError("msgspec", "cli", "reading traces") from missing

JSON = msgspec.json.Decoder()


class TextEncoder(Protocol):
    """Turns text into token ids; see `text.py`. Raises BadValue for what cannot be encoded."""

    def encode_prompt(self, prompt: str) -> list[int]: ...

    def encode_messages(self, messages: list[Any]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a format may want to know."""

    name: str
    """The trace's path. Content ids mean something within one file, so it is their namespace."""
    encoder: TextEncoder | None = None
    tokens_per_id: int | None = None
    """For formats whose files do not say it; None is the format's usual value."""


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
    sort_command: str = "jq -sc 'sort_by(.timestamp)[]' FILE"
    """A shell command that brings such a file into time order."""


FORMATS: dict[str, Format] = {}


def register(found: Format) -> None:
    """Make a format known; the first that recognises a file reads it."""
    FORMATS[found.name] = found


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises BadValue for anything else."""
    try:
        record = JSON.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise BadValue(
            None, f"is not JSON ({reason}): {shown(data[:60].decode('utf-8', 'replace'))}; mend it or leave it out"
        ) from error
    if not isinstance(record, dict):
        raise BadValue(None, f"is not a JSON object but {shown(record)}; a request is an object")
    return record


def first_object(head: bytes) -> dict[str, Any]:
    """The object on the first line of these bytes, or the keys of one that is cut off; empty when there is none."""
    line = head.removeprefix(BOM).lstrip().split(b"\n", 1)[0]
    try:
        record = JSON.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return dict.fromkeys(_keys(line))
    return record if isinstance(record, dict) else {}


def _keys(line: bytes) -> Iterator[str]:
    """What stands in quotes before a colon, for objects whose end is not in sight."""
    if not line.startswith(b"{"):
        return
    parts = line.split(b'"')
    for i in range(1, len(parts) - 1, 2):
        if parts[i + 1].lstrip().startswith(b":"):
            yield parts[i].decode("utf-8", "replace")
