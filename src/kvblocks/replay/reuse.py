"""Reuse distances: how many other blocks are touched between two touches of the same content.

Content that comes back after d other blocks can only be hit by an LRU cache of more than d blocks, so the histogram
says which cache sizes pay. The distances are those of content as it occurs in prompts, without eviction. On long
traces a fixed share of the content, chosen by its hash, stands for all (SHARDS, Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SAMPLE_TOUCHES = 200_000
"""Touches that are followed exactly before the sample is thinned."""


class ReuseDistances:
    """A histogram of reuse distances in blocks, in bins that double."""

    def __init__(self) -> None:
        self._rate_bits = 0  # content is followed when the lowest so many bits of its hash are zero
        self._last: dict[bytes, int] = {}  # content -> the time of its last touch
        self._tree: list[int] = [0]  # Fenwick tree over times: 1 where a content's last touch is
        self._touches = 0
        self._counts: list[float] = []
        self._cold = 0.0

    def touch(self, hashes: Sequence[bytes]) -> None:
        """A prompt with these blocks, in order."""
        mask = (1 << self._rate_bits) - 1
        weight = 1 << self._rate_bits
        for block_hash in hashes:
            if mask and int.from_bytes(block_hash[-4:], "big") & mask:
                continue
            before = self._last.get(block_hash)
            if before is None:
                self._cold += weight
            else:
                distance = (self._sum(self._touches) - self._sum(before)) * weight
                self._count(distance, weight)
                self._add(before, -1)
            self._touches += 1
            self._append()
            self._last[block_hash] = self._touches
        if self._touches > SAMPLE_TOUCHES:
            self._thin()

    def _count(self, distance: int, weight: int) -> None:
        at = distance.bit_length()
        if at >= len(self._counts):
            self._counts += [0.0] * (at + 1 - len(self._counts))
        self._counts[at] += weight

    def _thin(self) -> None:
        """Follow half of the content from now on, and renumber the touches that are still needed."""
        self._rate_bits += 1
        mask = (1 << self._rate_bits) - 1
        kept = sorted(
            (time, block_hash)
            for block_hash, time in self._last.items()
            if not int.from_bytes(block_hash[-4:], "big") & mask
        )
        self._last = {block_hash: time for time, (_, block_hash) in enumerate(kept, 1)}
        self._touches = len(kept)
        # A Fenwick tree of ones: each node covers as many times as its lowest set bit says.
        self._tree = [0] + [i & -i for i in range(1, self._touches + 1)]

    def _append(self) -> None:
        """Extend the tree by one time whose value is 1."""
        i = self._touches
        value, step = 1, 1
        while step < i & -i:
            value += self._tree[i - step]
            step *= 2
        self._tree.append(value)

    def _add(self, i: int, value: int) -> None:
        while i < len(self._tree):
            self._tree[i] += value
            i += i & -i

    def _sum(self, i: int) -> int:
        total = 0
        while i:
            total += self._tree[i]
            i &= i - 1
        return total

    def to_dict(self) -> dict[str, Any]:
        """`counts[i]` touches had a distance in [edges[i], edges[i + 1]); `cold` ones were the first of theirs."""
        return {
            "unit": "blocks",
            "edges": [0] + [1 << i for i in range(len(self._counts))],
            "counts": [round(count) for count in self._counts],
            "cold": round(self._cold),
            "sampled_share": 1 / (1 << self._rate_bits),
        }
