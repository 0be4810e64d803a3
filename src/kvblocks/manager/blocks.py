"""The results of the manager: block numbers per KV-cache group, and a prefix hit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class KVCacheBlocks:
    """Block numbers, one sequence per KV-cache group. Treat it as immutable: empty results are one shared object."""

    __slots__ = ("blocks", "found_at", "found_for")

    def __init__(
        self, blocks: tuple[Sequence[int], ...], found_for: object = None, found_at: tuple[object, int] | None = None
    ) -> None:
        """`found_for` and `found_at` mark a prefix hit: the request; the pool, and its count of forgotten hashes."""
        self.blocks = blocks
        self.found_for = found_for
        self.found_at = found_at

    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int], ...] | None:
        """Fresh lists of the block numbers; None when there is none at all and `allow_none`."""
        if allow_none and not any(self.blocks):
            return None
        return tuple(map(list, self.blocks))

    def __bool__(self) -> bool:
        """Whether there is any block; an empty result is still a success (None is the refusal)."""
        return any(map(len, self.blocks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KVCacheBlocks):
            return NotImplemented
        return list(map(list, self.blocks)) == list(map(list, other.blocks))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KVCacheBlocks({', '.join(map(str, map(list, self.blocks)))})"


class PrefixHit(NamedTuple):
    """What the cache already holds of a request's tokens."""

    blocks: KVCacheBlocks
    """The blocks to pass to `allocate_slots`; 0 where a kind needs no block (left of a window)."""
    num_tokens: int
    """Leading tokens that need no computing."""
    shared_prefix_boundary: int
    """How far some group alone could have hit, when that is further than all agree; else 0. A scheduler stores it on
    the request, so that groups with sparse retention keep the junction findable next time."""


class BlockCopy(NamedTuple):
    """A copy that the engine must make before its next step writes: a hit ended inside a shared block."""

    source: int
    target: int


class DecodeSlots(NamedTuple):
    """What `allocate_decode_slots` did."""

    num_served: int
    """Requests that have their slot. When it is less than all, the next one did not fit and nothing changed for it."""
    new_blocks: dict[int, KVCacheBlocks]
    """By position in the call: the new blocks of the requests that needed one."""
