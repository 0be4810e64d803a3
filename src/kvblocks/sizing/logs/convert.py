"""From the named groups of a form to typed values."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from kvblocks.sizing.logs.facts import Fact, Gib, Refusal, RefusalKind
from kvblocks.sizing.logs.forms import Match, whole

T = TypeVar("T")
MAX_TEXT = 300
"""Characters of a line that a fact keeps."""

_SECRET = frozenset(("api_key", "hf_token", "token", "password"))
_SECRET_TEXT = re.compile(
    rf"""(\b(?:{"|".join(sorted(_SECRET))})['"]?\s*[:=]\s*)(?!None)(?:\[[^\]]*\]|'[^']*'|"[^"]*"|[^,)}}]+)"""
)

_COUNTS = {"length": "max_model_len", "estimated": "estimated", "capacity": "capacity", "seqs": "max_num_seqs"}
"""Whole numbers of a refusal's form, and the fields of `Refusal` that they are."""


def fact_of(value: T, match: Match, line: int, process: str) -> Fact[T]:
    """The value with the words that it came from."""
    return Fact(value, line, _SECRET_TEXT.sub(r"\1***", match.text)[:MAX_TEXT], process)


def without_secrets(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments, with keys and tokens masked: versions before 0.32 print them."""
    return {name: "***" if name in _SECRET and value else value for name, value in given.items()}


def content_of(match: Match) -> str:
    """What two forms have in common when they say the same."""
    return repr(sorted(match.groups.items()))


def gib_of(text: str, unit: str = "GiB") -> Gib:
    """A printed size. Old versions print GiB and call it GB; three and more digits are of `%.4f`, else of two."""
    digits = max(2, len(text.partition(".")[2]))
    scale = 1 / 1024 if unit.startswith("M") else 1.0
    return Gib(float(text) * scale, 0.5 * 10.0**-digits * scale)


def refusal_of(match: Match) -> Refusal:
    """The refusal that a form `refusal-...` states."""
    groups = match.groups
    kind: RefusalKind = match.name.removeprefix("refusal-")  # type: ignore[assignment]
    given: dict[str, Any] = {name: gib_of(groups[name]) for name in ("needed", "available", "total") if name in groups}
    given |= {field: whole(groups[name]) for name, field in _COUNTS.items() if name in groups}
    if "utilization" in groups:
        given["utilization"] = float(groups["utilization"])
    return Refusal(kind=kind, **given)


def distinct(facts: list[Fact[T]]) -> tuple[Fact[T], ...]:
    """The facts without repeats of a value, in order: ranks and tracebacks say things twice."""
    kept: list[Fact[T]] = []
    for fact in facts:
        if not any(fact.value == other.value for other in kept):
            kept.append(fact)
    return tuple(kept)
