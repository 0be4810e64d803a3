"""Where prompts part although they go on alike: what differs is found, and what a cure would do is simulated.

A prompt with the time of day near its start shares nothing after it with any other, though nearly all of it is the
same. Comparing prompts that part at one place gives a `Template`: the parts that all have, and between them what
differs. With it a prompt can be rewritten as its author could: what differs moved behind what is shared, or, where it
is the same in another order, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint32]

RUN = 8
"""Tokens in a row that count as the same part, not as chance."""
WINDOW = 4096
"""What differs is at most so many tokens long."""
MOST_PARTS = 16
LEAST_LIST = 32
"""A list that comes in another order has at least so many tokens."""
ALIKE = 0.95


class Resumption(NamedTuple):
    """After they part, two prompts go on alike from these tokens on."""

    mine: int
    theirs: int
    length: int


def common(a: Tokens, b: Tokens) -> int:
    """How many leading tokens are the same."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def resumption(a: Tokens, b: Tokens, a_at: int, b_at: int) -> Resumption | None:
    """Where two prompts that part at `a_at` and `b_at` go on alike, nearest first; None when they do not."""
    width = 4 * RUN
    mine, theirs = (
        np.ascontiguousarray(tokens[at : at + WINDOW], dtype=np.uint32).tobytes()
        for tokens, at in ((a, a_at), (b, b_at))
    )
    places: dict[bytes, int] = {}
    for j in range(0, len(theirs) - width + 1, 4):
        places.setdefault(theirs[j : j + width], j)
    best: tuple[int, int] | None = None
    for i in range(0, len(mine) - width + 1, 4):
        if best is not None and i >= sum(best):
            break
        found = places.get(mine[i : i + width])
        if found is not None and (best is None or i + found < sum(best)):
            best = (i, found)
    if best is None:
        return None
    i, j = a_at + best[0] // 4, b_at + best[1] // 4
    return Resumption(i, j, common(a[i:], b[j:]))


class Rewritten(NamedTuple):
    tokens: Tokens
    num_moved: int
    """Tokens that differ and were moved or put in order."""


@dataclass(frozen=True, slots=True)
class Template:
    """The parts that prompts have in common, in order; the first begins each of them."""

    parts: tuple[Tokens, ...]
    gaps: tuple[Tokens, ...]
    """What the first prompt has between them."""

    @property
    def position(self) -> int:
        """The token at which they part."""
        return len(self.parts[0])

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.parts))

    @property
    def same_again_tokens(self) -> int:
        """Tokens that are the same again after something differed."""
        return self.num_tokens - len(self.parts[0])

    @property
    def has_list(self) -> bool:
        """Whether something that differs is long enough to be a list."""
        return any(len(gap) >= LEAST_LIST for gap in self.gaps)

    def ends_like(self, other: Template) -> bool:
        """Whether both have the same last part, give or take its ends: what differs before it is of the same kind."""
        part = self.parts[-1]
        middle = part[(len(part) - RUN) // 2 :][:RUN]
        last = other.parts[-1]
        return _find(last.tobytes(), middle.tobytes(), 0, 4 * len(last)) is not None

    def split(self, tokens: Tokens) -> tuple[list[Tokens], int] | None:
        """What this prompt has between the parts, and where the last part ends; None when it is not of this kind.

        It may have only the first parts.
        """
        at = len(self.parts[0])
        if len(tokens) < at or not np.array_equal(tokens[:at], self.parts[0]):
            return None
        gaps: list[Tokens] = []
        data = np.ascontiguousarray(tokens, dtype=np.uint32).tobytes()
        for part in self.parts[1:]:
            found = _find(data, part.tobytes(), 4 * at, 4 * (at + WINDOW + len(part)))
            if found is None:
                break
            gaps.append(tokens[at:found])
            at = found + len(part)
        return (gaps, at) if gaps else None

    def moved(self, tokens: Tokens) -> Rewritten | None:
        """The prompt with what differs behind what is shared."""
        split = self.split(tokens)
        if split is None:
            return None
        gaps, end = split
        changed = np.concatenate([*self.parts[: len(gaps) + 1], *gaps, tokens[end:]])
        return Rewritten(changed, sum(map(len, gaps)))

    def ordered(self, tokens: Tokens) -> Rewritten | None:
        """The prompt with lists that come in another order in the order of the first."""
        split = self.split(tokens)
        if split is None:
            return None
        gaps, end = split
        pieces: list[Tokens] = [self.parts[0]]
        num_moved = 0
        for part, gap, first in zip(self.parts[1:], gaps, self.gaps, strict=False):
            same = reordered(gap, first)
            pieces += [first if same else gap, part]
            num_moved += len(gap) if same else 0
        return Rewritten(np.concatenate([*pieces, tokens[end:]]), num_moved) if num_moved else None


def reordered(a: Tokens, b: Tokens) -> bool:
    """Whether two stretches are a list of the same things in another order: nearly the same tokens."""
    if min(len(a), len(b)) < LEAST_LIST:
        return False
    names_a, counts_a = np.unique(a, return_counts=True)
    names_b, counts_b = np.unique(b, return_counts=True)
    _, at_a, at_b = np.intersect1d(names_a, names_b, assume_unique=True, return_indices=True)
    shared = int(np.minimum(counts_a[at_a], counts_b[at_b]).sum())
    return shared >= ALIKE * max(len(a), len(b))


def learn(prompts: Sequence[Tokens]) -> Template | None:
    """What prompts that part at one place have in common, from the first of them and those that go on like it.

    None when most of them do not.
    """
    if len(prompts) < 2:
        return None
    first = prompts[0]
    shared = [alike for other in prompts[1:] if len(alike := _alike(first, other)) > 1]
    if not shared or 2 * len(shared) < len(prompts) - 1:
        return None
    intervals = shared[0]
    for alike in shared[1:]:
        intervals = _intersect(intervals, alike)
    if intervals and intervals[0][0]:
        intervals = [(0, 0), *intervals]  # they differ from the first token on
    if len(intervals) < 2:
        return None
    intervals = intervals[:MOST_PARTS]
    parts = tuple(np.ascontiguousarray(first[a:b]) for a, b in intervals)
    gaps = tuple(first[b:c] for (_, b), (c, _) in pairwise(intervals))
    return Template(parts, gaps)


def _alike(first: Tokens, other: Tokens) -> list[tuple[int, int]]:
    """The stretches of `first` that `other` has too, in order: from the start on as long as they go on alike."""
    end = common(first, other)
    found = [(0, end)]
    a = b = end
    while len(found) < MOST_PARTS and a < len(first) and b < len(other):
        after = resumption(first, other, a, b)
        if after is None:
            break
        found.append((after.mine, after.mine + after.length))
        a, b = after.mine + after.length, after.theirs + after.length
    return found


def _intersect(xs: list[tuple[int, int]], ys: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is in both lists of stretches; the first one stays however short, others need `RUN` tokens."""
    found: list[tuple[int, int]] = []
    for a, b in xs:
        for c, d in ys:
            low, high = max(a, c), min(b, d)
            if high - low >= RUN or (high > low and not low):
                found.append((low, high))
    return found


def _find(data: bytes, part: bytes, start: int, end: int) -> int | None:
    """The token at which the part is in the data."""
    at = data.find(part, start, end)
    while at >= 0:
        if at % 4 == 0:
            return at // 4
        at = data.find(part, at + 1, end)
    return None
