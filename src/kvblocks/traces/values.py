"""Checks of the values in a trace: what they may be, and how a wrong one is shown."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
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
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:80])
    return repr(text) if isinstance(value, str) else text


def get(record: Mapping[str, Any], field: str, default: Any = REQUIRED) -> Any:
    """The field's value, or its default; a null counts as left out."""
    value = record.get(field)
    if value is None:
        if default is REQUIRED:
            raise BadValue(field, f"is missing; the line has {', '.join(map(shown, list(record)[:12])) or 'no fields'}")
        return default
    return value


def token_count(record: Mapping[str, Any], field: str, *, least: int, default: Any = REQUIRED) -> int:
    """A whole number of tokens, at least `least`."""
    value = get(record, field, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(field, f"is {shown(value)}; it must be a whole number of tokens")
    if not least <= value < MAX_TOKENS:
        raise BadValue(field, f"is {value}; it must be at least {least} and below {MAX_TOKENS}")
    return value


def seconds(record: Mapping[str, Any], field: str, *, scale: float = 1.0, default: Any = REQUIRED) -> float | None:
    """A time, in seconds after multiplication by `scale`."""
    value = get(record, field, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadValue(field, f"is {shown(value)}; it must be a time, a finite number that is not negative")
    return float(value) * scale


def text(record: Mapping[str, Any], field: str) -> str | None:
    """A string, or None when it is left out."""
    value = get(record, field, None)
    if value is not None and not isinstance(value, str):
        raise BadValue(field, f"is {shown(value)}; it must be a string")
    return value


def content_ids(record: Mapping[str, Any], field: str) -> Sequence[int]:
    """A list of identities: whole numbers from 0 to 2**63 - 1."""
    value = get(record, field)
    if not isinstance(value, list):
        raise BadValue(field, f"is {shown(value)}; it must be a list of ids")
    return _whole_numbers(value, field, "Q", 2**63)


def token_ids(record: Mapping[str, Any], field: str) -> Sequence[int]:
    """A list of token ids: whole numbers from 0 to 2**32 - 1, at least one."""
    value = get(record, field)
    if not isinstance(value, list) or not value:
        raise BadValue(field, f"is {shown(value)}; it must be a list of at least one token id")
    return _whole_numbers(value, field, "I", 2**32)


def _whole_numbers(values: list[Any], field: str, typecode: str, limit: int) -> array[int]:
    wrong = next((i for i, v in enumerate(values) if type(v) is not int or not 0 <= v < limit), None)
    if wrong is not None:
        raise BadValue(
            field, f"has {shown(values[wrong])} at position {wrong}; it must be a whole number from 0 to {limit - 1}"
        )
    return array(typecode, values)
