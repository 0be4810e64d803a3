"""Sizes in units in which they are read easily."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes as 71.9 GiB, 2.25 MiB, 512 B."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}" if abs(count) < 999.5 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count:.0f} B"


def length(tokens: int) -> str:
    """Tokens as people write lengths: 128K (of 1,024), 1M, or the number itself."""
    for letter, factor in (("M", 2**20), ("K", 2**10)):
        if tokens >= factor and tokens % factor == 0:
            return f"{tokens // factor:,}{letter}"
    return f"{tokens:,}"
