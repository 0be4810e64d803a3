"""A vLLM start-up log, read: what it says about memory, and on which line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.logs.patterns import STARTS, arguments, clean, facts, rank_of

LONGEST_LINE = 1 << 20
"""Characters of a line that are looked at."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that the log says."""

    value: Any
    line: int
    text: str
    rank: str = ""


@dataclass(slots=True)
class StartupLog:
    """One start of an engine. `found` has the facts by name (see `patterns.LINES`), in order of their lines."""

    path: str = ""
    first_line: int = 1
    num_starts: int = 1
    """Starts in the file; this is the last that says anything of its cache."""
    arguments: dict[str, Any] = field(default_factory=dict)
    found: dict[str, list[Fact]] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The last value of a fact; None when the log does not say it."""
        return self.found[name][-1].value if name in self.found else None

    def values(self, name: str) -> list[Any]:
        """Every value of a fact, of all workers."""
        return [fact.value for fact in self.found.get(name, ())]

    def lines(self, *names: str) -> list[int]:
        """The lines that say these facts."""
        return sorted({fact.line for name in names for fact in self.found.get(name, ())})

    @property
    def available_gib(self) -> float | None:
        """Memory for the cache of the worker that has least."""
        return min(self.values("available_gib"), default=None)

    @property
    def says_something(self) -> bool:
        """Whether it tells of the cache."""
        return any(name in self.found for name in ("tokens", "num_blocks", "available_gib", "refusal", "no_memory",
                                                   "refusal_tokens", "not_free", "concurrency"))  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The log as JSON would have it."""
        return {
            "path": self.path,
            "first_line": self.first_line,
            "starts": self.num_starts,
            "arguments": {name: value for name, value in self.arguments.items() if _is_plain(value)},
            "facts": [
                {"name": name, "value": fact.value, "line": fact.line, "rank": fact.rank}
                for name, found in self.found.items()
                for fact in found
            ],
        }


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list, dict))


def read_log(lines: Iterable[bytes | str], path: str = "") -> StartupLog:
    """Read the last start in a log that tells of its cache. Streams; lines may be of any length.

    Raises UsageError when no line is one of a vLLM start-up.
    """
    current = StartupLog(path=path)
    kept: StartupLog | None = None
    starts = 0
    begun = False
    at = 0
    for at, line in enumerate(lines, 1):
        text = clean(line[:LONGEST_LINE])
        if any(mark in text for mark in STARTS):
            if current.says_something:
                kept, current = current, StartupLog(path=path, first_line=at)
                begun = False
            starts += not begun
            begun = True
            for name, value in arguments(text).items():
                current.arguments.setdefault(str(name), value)
        rank = rank_of(text)
        for name, value in facts(text):
            current.found.setdefault(name, []).append(Fact(value, at, text.strip()[:400], rank))
    log = current if current.says_something or kept is None else kept
    if not log.found:
        raise UsageError(
            f'{path or "log"}: none of its {at:,} lines is of a vLLM start-up; looked for "Available KV cache memory", '
            '"GPU KV cache size", "Maximum concurrency", "# GPU blocks" and refusals; give the server\'s own output'
        )
    log.num_starts = max(starts, 1)
    return log
