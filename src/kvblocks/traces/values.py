"""Checks of the values in a trace: what they may be, and how a wrong one is shown."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

MAX_TOKENS = 2**31
"""Longer prompts and outputs are taken for mistakes."""
REQUIRED = object()


class BadValue(Exception):  # noqa: N818 - it becomes a TraceError when the line is known
    """A field has a value that it must not have; `field` is None when no field is to blame."""

    def __init__(self, field: str | None, message: str) -> None:
        self.field = field
        super().__init__(message)


def shown(value: object) -> str:
    """The value for a message: short, with control characters escaped."""
    if isinstance(value, str):
        return f"'{_escaped(value[:80])}{'...' if len(value) > 80 else ''}'"
    if isinstance(value, list):  # its repr may be as long as a prompt
        return f"a list of {len(value)}" if len(value) > 8 else f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"an object with {names(value)}"
    if isinstance(value, int) and abs(value) >= 10**40:  # its digits may be more than Python writes out
        return "a number of more than 40 digits"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _escaped(repr(value)[:80])


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def names(record: Mapping[str, Any]) -> str:
    """The record's fields for a message; the first of them where there are many."""
    return ", ".join(map(shown, list(record)[:12])) + (", ..." if len(record) > 12 else "") or "no fields"


def get(record: Mapping[str, Any], field: str, default: Any = REQUIRED) -> Any:
    """The field's value, or its default; a null counts as left out."""
    value = record.get(field)
    if value is None:
        if default is REQUIRED:
            raise BadValue(field, f"is missing; add it (there is {names(record)})")
        return default
    return value


def token_count(record: Mapping[str, Any], field: str, *, least: int, default: Any = REQUIRED) -> int:
    """A whole number of tokens, at least `least`."""
    value = get(record, field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(field, f"is {shown(value)}; it must be a whole number of tokens, as in 512")
    if not least <= value < MAX_TOKENS:
        raise BadValue(field, f"is {shown(value)}; it must be at least {least} and below {MAX_TOKENS}")
    return value


def seconds(record: Mapping[str, Any], field: str, *, scale: float = 1.0, default: Any = REQUIRED) -> float | None:
    """A time, in seconds after multiplication by `scale`."""
    value = get(record, field, default)
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    if not good or not math.isfinite(value):
        raise BadValue(field, f"is {shown(value)}; it must be a time: a number, not negative, below 1e18")
    return float(value) * scale


def text(record: Mapping[str, Any], field: str) -> str | None:
    """A string, or None when it is left out."""
    value = get(record, field, None)
    if value is not None and not isinstance(value, str):
        raise BadValue(field, f"is {shown(value)}; it must be a string")
    return value


def content_ids(record: Mapping[str, Any], field: str) -> array[int]:
    """A list of identities: whole numbers from 0 to 2**63 - 1."""
    value = get(record, field)
    if not isinstance(value, list):
        raise BadValue(field, f"is {shown(value)}; it must be a list of ids")
    return _whole_numbers(value, field, 2**63)


def token_ids(record: Mapping[str, Any], field: str) -> array[int]:
    """A list of token ids: whole numbers from 0 to 2**32 - 1, at least one."""
    value = get(record, field)
    if not isinstance(value, list) or not value:
        raise BadValue(field, f"is {shown(value)}; it must be a list of at least one token id")
    return _whole_numbers(value, field, 2**32)


def _whole_numbers(values: list[Any], field: str, limit: int) -> array[int]:
    """The values as an array, of 4 bytes each where that is enough."""
    if not values:
        return array("I")
    # Prompts have many ids, so first comes what runs without a loop of Python's.
    if set(map(type, values)) != {int} or min(values) < 0 or (largest := max(values)) >= limit:
        wrong = next(i for i, v in enumerate(values) if type(v) is not int or not 0 <= v < limit)
        raise BadValue(
            field, f"has {shown(values[wrong])} at position {wrong}; it must be a whole number from 0 to {limit - 1}"
        )
    return array("I" if largest < 2**32 else "Q", values)
