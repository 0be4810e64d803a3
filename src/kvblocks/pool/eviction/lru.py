"""Least recently used: blocks are given up in the order in which they became free.

A request frees its blocks last block first, so within one request the deepest block goes before the prefix that it
needs. The order is that of vLLM's free queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from kvblocks.errors import IntegrityError

_COMPACT_BELOW = 1024
"""Queues with fewer stale entries than this are not worth compacting."""


class LRU:
    """A queue of ids with lazy removal.

    A block that is hit leaves a stale entry behind, and `_stale` counts these per block. The stale entries of a block
    are always older than its valid one, so the first `_stale[block]` occurrences met from the left are the ones to
    skip. The queue is rebuilt when stale entries outnumber valid ones: O(1) amortised per operation.
    """

    name = "lru"
    __slots__ = ("_num_stale", "_queue", "_stale")

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self._stale: dict[int, int] = {}
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._queue) - self._num_stale

    def add(self, blocks: Sequence[int]) -> None:
        self._queue.extend(blocks)

    def remove(self, blocks: Sequence[int]) -> None:
        stale = self._stale
        if stale.keys().isdisjoint(blocks):
            stale.update(dict.fromkeys(blocks, 1))
        else:
            for block in blocks:
                stale[block] = stale.get(block, 0) + 1
        self._num_stale += len(blocks)
        if self._num_stale > _COMPACT_BELOW and self._num_stale * 2 > len(self._queue):
            self._queue = deque(self.peek())
            self._stale.clear()
            self._num_stale = 0

    def evict(self, n: int) -> list[int]:
        pop = self._queue.popleft
        stale = self._stale
        if not stale:
            return [pop() for _ in range(n)]
        blocks: list[int] = []
        while len(blocks) < n:
            block = pop()
            if block in stale:
                self._skip(block)
            else:
                blocks.append(block)
        return blocks

    def _skip(self, block: int) -> None:
        self._num_stale -= 1
        if self._stale[block] == 1:
            del self._stale[block]
        else:
            self._stale[block] -= 1

    def peek(self) -> Iterator[int]:
        if not self._stale:
            yield from islice(self._queue, None)
            return
        left = dict(self._stale)
        for block in self._queue:
            if left.get(block):
                left[block] -= 1
            else:
                yield block

    def check(self) -> None:
        if sum(self._stale.values()) != self._num_stale:
            raise IntegrityError(f"LRU counts {self._num_stale} stale entries, blocks say {self._stale}")
        held = list(self.peek())
        if len(held) != len(self) or len(set(held)) != len(held):
            raise IntegrityError(f"LRU holds {len(self)} blocks, its queue has {held}")
