"""Sizes as people write them: `40GiB`, `8_192`, `512,1024`."""

from __future__ import annotations

import re

import typer

from kvblocks.errors import UsageError

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power, _letter: 1000**_power}


MOST = 2**63
"""No count is as large: Python's own iterators stop here."""
_MOST_DIGITS = 40
"""Longer numbers are not even converted."""


def whole_number(text: str) -> int:
    """A whole number of an option; the message names what was given."""
    digits = str(text).strip()
    if not re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", digits):
        raise typer.BadParameter(f"{_shown(digits)} is not a whole number")
    if len(digits) > _MOST_DIGITS or abs(int(digits)) >= MOST:
        raise typer.BadParameter(f"{_shown(digits)} is too large; give less than {MOST}")
    return int(digits)


def number(text: str) -> float:
    """A number of an option; the message names what was given."""
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{_shown(str(text))} is not a number") from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}...")


def parse_bytes(text: str, option: str) -> int:
    """Bytes from `40GiB` (powers of 1024), `40GB` or `40G` (powers of 1000), or a plain number."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text.replace("_", ""))
    factor = None if match is None else _UNITS.get(match[2].lower())
    if match is None or factor is None:
        raise UsageError(f"{option} {_shown(text)} is not a size: write it as 40GiB, 80GB or a number of bytes")
    if len(match[1]) > _MOST_DIGITS:
        raise UsageError(f"{option} {_shown(text)} is too large; write it as 40GiB")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_counts(texts: list[str], option: str, most: int) -> list[int]:
    """Whole numbers from 1 to `most`, from repeated or comma-separated options, underscores allowed."""
    counts = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not re.fullmatch(r"[0-9]+(_[0-9]+)*", part) or not part.strip("0_"):
            raise UsageError(f"{option} {_shown(part)} is not a positive whole number of blocks, such as 8193")
        if len(part) > _MOST_DIGITS or int(part) > most:
            raise UsageError(
                f"{option} {_shown(part)}: the bookkeeping of so many blocks fits no memory; give at most {most}"
            )
        counts.append(int(part))
    return counts


def short(count: int) -> str:
    """A count in at most five characters: 9,999, 12.3k, 4.56M."""
    if count < 10_000:
        return f"{count:,}"
    letter, factor = next(
        unit for unit in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)) if count >= 0.9995 * unit[1]
    )
    value = count / factor
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{letter}"


def parse_pairs(texts: list[str], option: str) -> list[tuple[str, str]]:
    """Names and values from repeated options such as `--env NAME=VALUE`."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} {text!r} must be NAME=VALUE")
        pairs.append((name, value))
    return pairs
