"""Reads values as Python prints them (`{'a': 1, 'b': Name(c=None)}`), without running or importing anything.

Log lines hold objects that are no literals, and lines that were cut short. What is no literal stays text; what was
cut is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MAX_LENGTH = 200_000
"""Characters of one line that are looked at."""

_MAX_DEPTH = 12
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, Any] = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,18}\.\d{0,18}|\d{0,18}\.\d{1,18}|\d{1,18})(?:[eE][+-]?\d{1,3})?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


def read_value(text: str, depth: int = 0) -> Any:
    """The value of a literal (number, text, list, tuple, dict, None, True, False); other text is returned as it is."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return _unquoted(text[1:-1])
    if len(text) >= 2 and depth < _MAX_DEPTH and _PAIRS.get(text[0]) == text[-1]:
        if text[0] == "{":
            return read_mapping(text, depth + 1)
        return [read_value(part, depth + 1) for part in parts_of(text[1:-1])]
    return text


def read_mapping(text: str, depth: int = 0) -> dict[str, Any]:
    """The fields of a printed dict; a field that was cut off at the end of the text is left out."""
    text = text.strip().removeprefix("{")
    found: dict[str, Any] = {}
    for part in parts_of(text, closing="}"):
        key, colon, value = _split_once(part, ":")
        if colon:
            found[str(read_value(key, depth + 1))] = read_value(value, depth + 1)
    return found


def read_keywords(text: str) -> dict[str, Any]:
    """The fields of `a=1, b='x'`, as in a printed object or an engine's config; cut fields are left out."""
    found: dict[str, Any] = {}
    for part in parts_of(text, closing=")"):
        key, equals, value = part.partition("=")
        if equals and key.strip().isidentifier():
            found[key.strip()] = read_value(value)
    return found


def parts_of(text: str, closing: str = "") -> Iterator[str]:
    """The parts between commas that are inside no bracket and no quotes.

    Ends at an unmatched `closing` bracket. A last part with an open bracket or quote was cut off and is left out.
    """
    stack: list[str] = []
    quote = ""
    begin = position = 0
    text = text[:MAX_LENGTH]
    while position < len(text):
        char = text[position]
        if quote:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = ""
        elif char in "'\"" and not text[max(position - 1, 0) : position].isalnum():
            quote = char  # an apostrophe inside a bare word opens nothing
        elif char in _PAIRS:
            stack.append(_PAIRS[char])
        elif stack and char == stack[-1]:
            stack.pop()
        elif not stack and char == closing:
            break
        elif char == "," and not stack:
            yield text[begin:position]
            begin = position + 1
        position += 1
    if not stack and not quote and text[begin:position].strip():
        yield text[begin:position]


def _split_once(text: str, sign: str) -> tuple[str, str, str]:
    """Like `partition`, but not inside the quotes that the text begins with."""
    lead = text.lstrip()
    if lead[:1] in ("'", '"') and (end := lead.find(lead[0], 1)) > 0:
        head, rest = lead[: end + 1], lead[end + 1 :]
        before, found, after = rest.partition(sign)
        return head + before, found, after
    return text.partition(sign)


def _unquoted(text: str) -> str:
    """Text with the common escapes resolved."""
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text, flags=re.S)
