"""Least recently used: blocks are given up in the order in which they became free.

A request frees its blocks last block first, so within one request the deepest block goes before the prefix that it
needs. The order is that of vLLM's free queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from kvblocks.errors import IntegrityError

_COMPACT_BELOW = 1024
"""Queues with fewer stale entries than this are not worth compacting."""


class LRU:
    """A queue of ids with lazy removal.

    A block that is hit leaves a stale entry behind, and `_stale[block]` counts these. The stale entries of a block are
    always older than its valid one, so the first so many occurrences met from the left are the ones to skip. The queue
    is rebuilt when stale entries outnumber valid ones: O(1) amortised per operation.
    """

    name = "lru"
    __slots__ = ("_num_stale", "_queue", "_stale")

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self._stale: list[int] = []
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._queue) - self._num_stale

    def add(self, blocks: Sequence[int]) -> None:
        self._queue.extend(blocks)

    def remove(self, blocks: Sequence[int]) -> None:
        if not blocks:
            return
        stale = self._stale
        beyond = max(blocks) + 1 - len(stale)
        if beyond > 0:
            stale += [0] * beyond
        for block in blocks:
            stale[block] += 1
        self._num_stale += len(blocks)
        # A rebuild reads the queue and one count per block id: it must be earned by as many stale entries.
        if (
            self._num_stale > _COMPACT_BELOW
            and self._num_stale * 2 > len(self._queue)
            and self._num_stale * 4 > len(stale)
        ):
            self._queue = deque(self.peek())
            self._stale = [0] * len(stale)
            self._num_stale = 0

    def evict(self, n: int) -> list[int]:
        pop = self._queue.popleft
        if not self._num_stale:
            return [pop() for _ in range(n)]
        stale, known = self._stale, len(self._stale)
        blocks: list[int] = []
        while len(blocks) < n:
            block = pop()
            if block < known and stale[block]:
                stale[block] -= 1
                self._num_stale -= 1
            else:
                blocks.append(block)
        return blocks

    def peek(self) -> Iterator[int]:
        if not self._num_stale:
            yield from self._queue
            return
        stale, known = self._stale, len(self._stale)
        skipped: dict[int, int] = {}
        for block in self._queue:
            if block < known and stale[block] and (count := skipped.get(block, 0)) < stale[block]:
                skipped[block] = count + 1
            else:
                yield block

    def check(self) -> None:
        if sum(self._stale) != self._num_stale:
            raise IntegrityError(f"LRU counts {self._num_stale} stale entries, its blocks {sum(self._stale)}")
        held = list(self.peek())
        if len(held) != len(self) or len(set(held)) != len(held):
            raise IntegrityError(f"LRU holds {len(self)} blocks, its queue has {held}")
