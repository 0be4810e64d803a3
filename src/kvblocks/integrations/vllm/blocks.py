"""What vLLM's code gets where it expects block objects: views that are made when somebody looks at them.

kvblocks' blocks are numbers. The scheduler only asks for the numbers; connectors look at single blocks, so a view of a
block exists from the first look on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

from kvblocks.manager import KVCacheBlocks
from kvblocks.pool import NULL_BLOCK

if TYPE_CHECKING:
    from kvblocks.integrations.vllm.pool import PoolView


class BlockView:
    """One block, as vLLM's code reads it. All attributes are those of the moment."""

    __slots__ = ("block_id", "pool")

    def __init__(self, pool: PoolView, block_id: int) -> None:
        self.pool = pool
        self.block_id = block_id

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_BLOCK

    @property
    def ref_cnt(self) -> int:
        """How many hold it; 0 for the null block."""
        return self.pool.core.ref_count[self.block_id]

    @property
    def block_hash(self) -> bytes | None:
        """The hash of its content followed by the number of its group, four bytes, as vLLM keys its index."""
        core = self.pool.core
        block_hash = core.hash_of[self.block_id]
        return None if block_hash is None else key_of(block_hash, core.group_of[self.block_id])

    @property
    def block_hash_num_tokens(self) -> int | None:
        """How many tokens of the prefix the hash covers."""
        core = self.pool.core
        return None if core.hash_of[self.block_id] is None else core.tokens_of[self.block_id]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockView) and (self.pool, self.block_id) == (other.pool, other.block_id)

    def __hash__(self) -> int:
        return hash(self.block_id)

    def __repr__(self) -> str:
        return f"BlockView(block_id={self.block_id}, ref_cnt={self.ref_cnt})"


def key_of(block_hash: bytes, group_id: int) -> bytes:
    """The key of vLLM's index: the hash, then the group as four bytes, most significant first."""
    return bytes(block_hash) + group_id.to_bytes(4, "big")


class BlockViews(Sequence[BlockView]):
    """A list of block numbers that reads as a list of blocks."""

    __slots__ = ("ids", "pool")

    def __init__(self, pool: PoolView, ids: Sequence[int]) -> None:
        self.pool = pool
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> BlockView: ...
    @overload
    def __getitem__(self, at: slice) -> BlockViews: ...
    def __getitem__(self, at: int | slice) -> BlockView | BlockViews:
        if isinstance(at, slice):
            return BlockViews(self.pool, self.ids[at])
        return self.pool.view(self.ids[at])

    def __iter__(self) -> Iterator[BlockView]:
        return map(self.pool.view, self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"BlockViews({list(self.ids)})"


def ids_of(blocks: Iterable[Any]) -> list[int]:
    """The numbers of blocks, given as views or as anything else with a `block_id`."""
    if isinstance(blocks, BlockViews):
        return list(blocks.ids)
    return [block.block_id for block in blocks]


class BlockTables:
    """Block numbers per KV-cache group, with the interface of vLLM's `KVCacheBlocks`.

    `ids[i][j]` is the number of the j-th block of group i; the lists may be the manager's own, so they are read, never
    changed. `hit` is the manager's result that they came from, when they are a prefix hit.
    """

    __slots__ = ("hit", "ids", "pool")

    def __init__(self, pool: PoolView, ids: tuple[Sequence[int], ...], hit: KVCacheBlocks | None = None) -> None:
        self.pool = pool
        self.ids = ids
        self.hit = hit

    @property
    def blocks(self) -> tuple[BlockViews, ...]:
        """The blocks per group."""
        return tuple([BlockViews(self.pool, ids) for ids in self.ids])

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Fresh lists of the numbers, of all groups or of `group_ids`; None when `allow_none` and there is no block."""
        ids = self.ids if group_ids is None else tuple([self.ids[group_id] for group_id in group_ids])
        if allow_none and not any(ids):
            return None
        return tuple([list(group) for group in ids])

    def get_unhashed_block_ids(self) -> list[int]:
        """The numbers of the blocks of the only group whose content nobody can hit; null blocks included."""
        (ids,) = self.ids
        return [block for block in ids if self.pool.core.hash_of[block] is None]

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Per group, the numbers of the blocks whose content nobody can hit; null blocks left out."""
        hash_of = self.pool.core.hash_of
        return [[block for block in ids if block != NULL_BLOCK and hash_of[block] is None] for ids in self.ids]

    def new_empty(self) -> BlockTables:
        """No block in as many groups."""
        return BlockTables(self.pool, tuple(() for _ in self.ids))

    def __add__(self, other: BlockTables) -> BlockTables:
        pairs = zip(self.ids, other.ids, strict=True)
        return BlockTables(self.pool, tuple([list(chain(mine, more)) for mine, more in pairs]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockTables) and list(map(list, self.ids)) == list(map(list, other.ids))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BlockTables({', '.join(map(str, map(list, self.ids)))})"
