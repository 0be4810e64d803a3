"""The seam between the pool and an eviction policy: four verbs on free cached blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class EvictionPolicy(Protocol):
    """Decides which free cached block is given up first.

    The policy holds exactly the blocks that are free and (when they were added) bore a hash; live and blank blocks are
    the pool's own. It never changes a block, it only orders ids.
    """

    name: str

    def add(self, blocks: Sequence[int]) -> None:
        """Take in blocks that became free, in the order in which they were freed. None of them is held already."""
        ...

    def remove(self, blocks: Sequence[int]) -> None:
        """Let go of blocks that were hit and are live again. All of them are held."""
        ...

    def evict(self, n: int) -> list[int]:
        """Let go of the n blocks that are given up first, in that order. The caller has checked `n <= len(self)`."""
        ...

    def peek(self) -> Iterator[int]:
        """The held blocks in the order in which `evict` would give them up now. Changes nothing."""
        ...

    def __len__(self) -> int:
        """How many blocks are held."""
        ...

    def check(self) -> None:
        """Raise IntegrityError if the policy's own structures contradict each other."""
        ...
