"""`read_log`: the lines of a file to the facts of one start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.logs.facts import Start, StartupLog
from kvblocks.sizing.logs.forms import LOOKED_FOR, Match, is_unfinished_refusal, matches_of
from kvblocks.sizing.logs.lines import Line, LogSource, name_of, process_before, read_lines
from kvblocks.sizing.logs.start import StartBuilder

_MAX_STARTS = 10_000
_MAX_JOINED = 6
"""Lines over which a terminal may have wrapped a refusal."""


def read_log(
    source: str | os.PathLike[str] | Iterable[str] | Iterable[bytes] | Iterable[str | bytes], name: str | None = None
) -> StartupLog:
    """The facts of a start-up log: a file's path, or the lines of one (an open file, standard input, a list).

    name: what to call the source in messages, where it is not a path.

    The file is streamed. Of several starts the last one that states a cache size or a refusal is read; without any,
    the last that states memory or an error; else the last. The others are in `starts`.

    Raises UsageError naming the source when it cannot be read as text or has no line that vLLM prints at start-up.
    """
    builders: list[StartBuilder] = []
    count = 0
    name = name if name is not None else name_of(source)
    for line, match in _matches(source, name):
        count = max(count, line.number)
        if match is None:
            continue
        process = process_before(line.text, match.begin) or line.process
        if not builders or builders[-1].begins_another(match, process):
            if len(builders) == _MAX_STARTS:
                raise UsageError(
                    f"{name}: has more than {_MAX_STARTS} starts by line {line.number}; "
                    "give the part of the log that holds the one in question"
                )
            builders.append(StartBuilder(line.number))
        builders[-1].take(match, line.number, process)
    if not builders:
        raise UsageError(
            f"{name}: has no line that vLLM prints while it starts ({count} lines read); looked for "
            + ", ".join(repr(words) for words in LOOKED_FOR)
        )
    starts = tuple(builder.start(number) for number, builder in enumerate(builders, 1))
    chosen = _chosen(builders)
    return builders[chosen].build(name, count, starts[chosen], starts)


def _chosen(builders: list[StartBuilder]) -> int:
    """Which start to read."""
    for says_enough in (
        lambda builder: builder.is_complete,
        lambda builder: builder.has_numbers,
        lambda builder: True,
    ):
        for index in range(len(builders) - 1, -1, -1):
            if says_enough(builders[index]):
                return index
    raise AssertionError("there is at least one start")


def _matches(source: Any, name: str) -> Iterator[tuple[Line, Match | None]]:
    """Every form of every line; with None at least once per line, so that lines can be counted."""
    wrapped = _Wrapped()
    for line in read_lines(source, name):
        yield from wrapped.add(line)
        if is_unfinished_refusal(line.text):
            yield from wrapped.begin(line)
        found = False
        for match in matches_of(line.text):
            found = True
            yield line, match
        if not found:
            yield line, None
    yield from wrapped.end()


class _Wrapped:
    """A refusal that a terminal or an editor has broken over some lines, put together."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._best: Match | None = None

    def begin(self, line: Line) -> Iterator[tuple[Line, Match]]:
        """A line in which a refusal begins and does not end."""
        yield from self.end()
        self._lines = [line]

    def add(self, line: Line) -> Iterator[tuple[Line, Match]]:
        """The next line, whatever it is."""
        if not self._lines:
            return
        self._lines.append(line)
        found = [match for match in _joined(self._lines) if match.name == "refusal-length"]
        self._best = max([*found, *([self._best] if self._best else [])], key=lambda m: len(m.groups), default=None)
        if len(self._lines) > _MAX_JOINED or (self._best and "estimated" in self._best.groups):
            yield from self.end()

    def end(self) -> Iterator[tuple[Line, Match]]:
        """What was found, at the line in which it begins."""
        if self._best:
            yield self._lines[0], self._best
        self._lines, self._best = [], None


def _joined(lines: list[Line]) -> Iterator[Match]:
    """The forms of wrapped lines, put together: a terminal breaks words, an editor breaks between them."""
    for glue in ("", " "):
        yield from matches_of(glue.join(line.text for line in lines))


__all__ = ["LogSource", "Start", "read_log"]
