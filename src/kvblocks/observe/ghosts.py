"""What a group's index has lost: hashes that were cached, and a look at the cache as if they still were."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvblocks.prefix import PrefixIndex

ON_REQUEST = 2**62
"""The number of an eviction that made room for nobody (`evict_blocks`)."""
RESET = 2**62 + 1
"""The number of what was cached when the cache was reset."""


class Displacement(NamedTuple):
    """One allocation that evicted."""

    request_id: str
    admissions: int
    """Requests admitted before it."""
    time_s: float | None


class GhostIndex:
    """Hashes that lost their last block, with the number of that eviction. The older half goes when there are too many.

    An operation costs O(1).
    """

    __slots__ = ("_half", "_old", "_young", "horizon")

    def __init__(self, max_hashes: int) -> None:
        self._half = max(max_hashes // 2, 1)
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self.horizon = 0
        """Evictions up to this number may have been forgotten; later ones have not."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, block_hash: bytes) -> int | None:
        """The number of the eviction, or None."""
        number = self._young.get(block_hash)
        return self._old.get(block_hash) if number is None else number

    def add(self, block_hash: bytes, number: int, latest: int) -> None:
        """Enter a hash; `latest` is the number of the latest eviction, for when older ones are forgotten."""
        self._young[block_hash] = number
        if len(self._young) >= self._half:
            self._roll(latest)

    def reset(self, hashes: Iterable[bytes], latest: int) -> None:
        """All these were cached when the cache was reset."""
        for block_hash in hashes:
            self.add(block_hash, RESET, latest)

    def _roll(self, latest: int) -> None:
        if self._old:
            numbers = self._old.values()
            self.horizon = max(self.horizon, *(latest if number >= ON_REQUEST else number for number in numbers))
        self._old, self._young = self._young, {}

    def discard(self, hashes: Iterable[bytes]) -> None:
        """They are cached again."""
        for known in (self._young, self._old):
            if not known.keys().isdisjoint(hashes):
                for block_hash in hashes:
                    known.pop(block_hash, None)


class ShadowIndex(PrefixIndex):
    """A group's index as if nothing (of what `ghosts` remembers) had been lost. Reads only.

    A block that is not there any more is given as the negative of its eviction's number.
    """

    __slots__ = ("_find", "_ghosts", "_resets")

    def __init__(self, index: PrefixIndex, ghosts: GhostIndex, *, resets: bool) -> None:
        """`resets`: also what was lost when the cache was reset."""
        self._find = index.get
        self._ghosts, self._resets = ghosts, resets
        self.get = self._get

    def _get(self, block_hash: bytes) -> int | None:
        block = self._find(block_hash)
        if block is not None:
            return block
        number = self._ghosts.get(block_hash)
        if number is None or (number == RESET and not self._resets):
            return None
        return -number


class Duplicates:
    """What keeps "more blocks" from being a count of evictions alone: contents that are kept twice.

    The end of a prompt is computed again although it is cached, so a larger cache holds it twice, and a later hit takes
    the older copy, which a smaller cache would have lost: the larger one then uses up a block that the smaller one
    does not. Such hits are counted (each content once), from the last touch of whatever is evicted.
    """

    def __init__(self, max_hashes: int) -> None:
        """`max_hashes`: at least as many as the cache can hold."""
        self.count = 0
        """Hits so far that may have taken an older copy."""
        self._max = max_hashes
        self._twice: set[bytes] = set()
        self._young: dict[bytes, int] = {}  # the count when a hash was last touched
        self._old: dict[bytes, int] = {}

    def touch(self, hashes: Sequence[bytes], hit: int, kept: int, known: int) -> None:
        """A request brings `hashes`: so many are hit, would be hit had nothing been evicted, and were known before."""
        twice = self._twice
        if twice:
            first = twice.intersection(hashes[:hit])
            self.count += len(first)
            twice.difference_update(hashes[:kept])
        if known > kept:
            twice.update(hashes[kept:known])
            if len(twice) > self._max:
                self.count += len(twice)
                twice.clear()
        self._young.update(dict.fromkeys(hashes, self.count))
        if len(self._young) >= self._max:
            self._old, self._young = self._young, {}

    def since_touch(self, block_hash: bytes) -> int:
        """Such hits since the hash was last touched."""
        touched = self._young.get(block_hash)
        return self.count - (self._old.get(block_hash, 0) if touched is None else touched)


class Displacements:
    """Which allocation made which eviction; evictions are numbered from 1."""

    def __init__(self, max_kept: int) -> None:
        self.count = 0
        """Evictions so far."""
        self._max = max_kept
        self._forgotten = 0
        self._ends: list[int] = []
        self._by: list[Displacement] = []

    def close(self, by: Displacement) -> None:
        """All evictions since the last call were for this allocation."""
        if self.count == (self._ends[-1] if self._ends else self._forgotten):
            return
        self._ends.append(self.count)
        self._by.append(by)
        if len(self._ends) > self._max:
            half = self._max // 2
            self._forgotten = self._ends[half - 1]
            del self._ends[:half], self._by[:half]

    def get(self, number: int) -> Displacement | None:
        """Who evicted; None when that has been forgotten."""
        at = bisect_left(self._ends, number)
        return None if number <= self._forgotten or at == len(self._ends) else self._by[at]
