"""A log as lines: opened and decoded, unwrapped from what container tools put around it, colours removed.

Understood around a line: JSON (Docker's, Kubernetes', vLLM's own), the prefix of a container runtime
(`2026-05-12T10:11:12Z stderr F ...`, parts of long lines joined), colour codes, carriage returns of progress bars.
Other prefixes (`vllm-1  | `, a date of syslog) need no unwrapping: forms are looked for anywhere in a line.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kvblocks.errors import UsageError

LogSource = str | os.PathLike[str] | Iterable[str] | Iterable[bytes] | Iterable[str | bytes]
MAX_LINE = 1 << 20
"""Characters after which a line without an end is cut, so that a file without line ends needs no memory."""

_SAMPLE = 8192
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\[[0-9;]{1,12}m")
_RUNTIME = re.compile(r"\d{4}-\d\d-\d\dT\S{1,40} (?:stdout|stderr) ([FP]) ?")
_PROCESS = re.compile(r"\(([A-Za-z][^()]{0,60}?)\s+pid=(\d{1,12})(?:,[^()]{0,80})?\)")
_MESSAGES = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "body", "event")
_INSIDE = ("jsonPayload", "data", "record")
_MAGIC = {
    b"\x1f\x8b": "compressed with gzip; unpack it first (gunzip)",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"GGUF": "a GGUF file (weights), not a log",
    b"%PDF": "a PDF; save the log as text",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A piece of text of a numbered line (from 1). `process` is the name that wrapped JSON gives, else ""."""

    number: int
    text: str
    process: str = ""


def name_of(source: LogSource) -> str:
    """What to call the source in messages."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "name", "log"))


def read_lines(source: LogSource, name: str = "log") -> Iterator[Line]:
    """The lines of a file, or of an iterable of lines (an open file, standard input, a list).

    Raises UsageError naming the source when it cannot be read as text.
    """
    if isinstance(source, (str, os.PathLike)):
        yield from _unwrapped(_lines_of_file(Path(source)))
    elif isinstance(source, (bytes, bytearray)) or not isinstance(source, Iterable):
        raise UsageError(
            f"{name}: is {type(source).__name__}; give the path of a log, or its lines (text.splitlines())"
        )
    else:
        yield from _unwrapped(_lines_of_iterable(source, name))


def process_before(text: str, position: int) -> str:
    """The process that a line names last before `position`: `Worker_TP0 pid=147`; "" when it names none."""
    found = ""
    for match in _PROCESS.finditer(text, 0, position):
        found = f"{match[1]} pid={match[2]}"
    return found


def _lines_of_file(path: Path) -> Iterator[str]:
    """The decoded lines of a file."""
    if "\n" in str(path) or "\0" in str(path):
        raise UsageError("log: this is text, not the path of a log; give its lines (text.splitlines())")
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder; name the log file in it")
        with path.open("rb") as file:
            encoding = _encoding(path, file.read(_SAMPLE))
        with path.open("r", encoding=encoding, errors="replace", newline="\n") as text:
            yield from _bounded(text)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; name a log that vLLM wrote while it started") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error


def _encoding(name: str | Path, sample: bytes) -> str:
    """How to decode what begins with `sample`. Raises UsageError when it is no text."""
    for magic, what in _MAGIC.items():
        if sample.startswith(magic):
            raise UsageError(f"{name}: is {what}")
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"  # what a redirect in PowerShell writes
    if b"\0" in sample:
        raise UsageError(f"{name}: is a binary file, not a log; name the text that vLLM printed while it started")
    return "utf-8-sig"


def _bounded(text: IO[str]) -> Iterator[str]:
    """Lines, cut where they are longer than a line of a log can be."""
    while line := text.readline(MAX_LINE):
        yield line


def _lines_of_iterable(source: Iterable[Any], name: str) -> Iterator[str]:
    """The lines of an iterable, decoded where they are bytes."""
    decoder: codecs.IncrementalDecoder | None = None
    held = ""
    try:
        for number, line in enumerate(source):
            if isinstance(line, str):
                yield line
            elif not isinstance(line, (bytes, bytearray)):
                raise UsageError(f"{name}: line {line!r:.60} must be text, not {type(line).__name__}")
            elif number == 0 and _encoding(name, bytes(line[:_SAMPLE])) == "utf-16":
                decoder = codecs.getincrementaldecoder("utf-16")("replace")
                held = decoder.decode(bytes(line))
            elif decoder is None:
                yield bytes(line).decode("utf-8", "replace")
            else:  # lines of bytes are cut in the middle of a character here
                *whole, held = (held + decoder.decode(bytes(line))).split("\n")
                yield from whole
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is not text: {error.reason}; open it with errors='replace'") from None
    if held:
        yield held


def _unwrapped(lines: Iterable[str]) -> Iterator[Line]:
    """The text of each line without wrappers. What one line holds may be several pieces."""
    held = ""
    for number, raw in enumerate(lines, 1):
        text = raw.rstrip("\r\n")
        runtime = _RUNTIME.match(text)
        if runtime:
            text = held + text[runtime.end() :]
            held = text if runtime[1] == "P" and len(text) < MAX_LINE else ""
            if held:
                continue
        process = ""
        for _ in range(3):  # a container's JSON around the engine's JSON
            inner = _message(text)
            if inner is None:
                break
            text, process = inner[0], inner[1] or process
        text = _COLOUR.sub("", text)
        for piece in text.replace("\r", "\n").split("\n"):
            if piece:
                yield Line(number, piece, process)
    if held:
        yield Line(number, held)


def _message(text: str) -> tuple[str, str] | None:
    """The message and the process of a line of JSON; None when it is none."""
    text = text.strip()
    if not text.startswith("{") or not text.endswith("}"):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for part in (data, *(data[name] for name in _INSIDE if isinstance(data.get(name), dict))):
        for name in _MESSAGES:
            if isinstance(part.get(name), str):
                who, pid = part.get("processName"), part.get("process")
                return part[name], f"{who} pid={pid}" if who and isinstance(pid, int) else ""
    return None
