"""The pool and the coordinator as vLLM's scheduler and connectors know them, over kvblocks' own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvblocks.integrations.vllm.blocks import BlockTables, BlockView, BlockViews, ids_of
from kvblocks.kinds import CacheGroup, Demand
from kvblocks.manager import KVCacheManager
from kvblocks.pool import NULL_BLOCK


class _AllBlocks(Sequence[BlockView]):
    """Every block by its number."""

    def __init__(self, pool: PoolView) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.num_gpu_blocks

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return BlockViews(self._pool, range(len(self))[at])
        return self._pool.view(range(len(self))[at])


class PoolView:
    """The block pool in vLLM's words. Blocks go in and out as views."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self.core = manager.block_pool
        self.num_gpu_blocks = self.core.num_blocks
        self.enable_caching = self.core.enable_caching
        self.hash_block_size = manager.hash_block_size
        self._views: dict[int, BlockView] = {}
        self.null_block = self.view(NULL_BLOCK)
        self.blocks = _AllBlocks(self)

    def view(self, block_id: int) -> BlockView:
        """The view of a block: the same object each time."""
        view = self._views.get(block_id)
        if view is None:
            view = self._views[block_id] = BlockView(self, block_id)
        return view

    def get_num_free_blocks(self) -> int:
        return self.core.num_free

    def get_usage(self) -> float:
        return self._manager.usage

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Collection[int]) -> list[BlockView] | None:
        """The oldest block with this content in each of the groups; None when one of them has none."""
        found = [self.core.indexes[group_id].get(block_hash) for group_id in kv_cache_group_ids]
        return None if None in found else [self.view(block) for block in found if block is not None]

    def touch(self, blocks: Iterable[Any]) -> None:
        """Hold blocks for a connector until it passes them to `free_blocks`."""
        self._manager.hold_blocks(ids_of(blocks))

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Give back blocks that were popped, retained for a copy, or touched; the first given is reused first."""
        self._manager.release_blocks(ids_of(ordered_blocks)[::-1])

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        self._manager.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self._manager.reset_prefix_cache()


class GroupView:
    """What vLLM reads of the manager of one group."""

    def __init__(self, group: CacheGroup, kv_cache_spec: Any, pool: PoolView) -> None:
        self._group = group
        self.kv_cache_spec = kv_cache_spec
        self.block_pool = pool
        self.block_size = group.block_size
        self.kv_cache_group_id = group.group_id
        self.enable_caching = pool.enable_caching
        self.use_eagle = group.context.is_eagle

    @property
    def has_positionally_stable_blocks(self) -> bool:
        """Whether a position of a block table keeps meaning the same tokens."""
        return not self._group.defers_hits

    @property
    def records_new_block_ids(self) -> bool:
        return self._group.context.zeroed


class CoordinatorView:
    """What vLLM reads of the coordinator of all groups."""

    def __init__(
        self,
        manager: KVCacheManager,
        pool: PoolView,
        kv_cache_specs: Sequence[Any],
        *,
        enable_partial_hash_hits: bool,
        num_reprefillable_tokens: int,
    ) -> None:
        self._manager = manager
        self.block_pool = pool
        self.single_type_managers = tuple(
            GroupView(group, spec, pool) for group, spec in zip(manager.groups, kv_cache_specs, strict=True)
        )
        self.group_block_sizes = tuple(group.block_size for group in manager.groups)
        self.eagle_group_ids = {group.group_id for group in manager.groups if group.context.is_eagle}
        self.enable_partial_hash_hits = enable_partial_hash_hits
        self.num_reprefillable_tokens = num_reprefillable_tokens

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Any],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        """How many free blocks it takes until the request has `num_tokens` slots."""
        demand = Demand(
            num_tokens,
            num_tokens_main_model,
            num_local_computed_tokens,
            total_computed_tokens,
            at_admission=apply_admission_cap,
        )
        hits = [ids_of(group) for group in new_computed_blocks]
        return self._manager.blocks_needed(_Named(request_id), demand, hits, num_encoder_tokens)

    def get_blocks(self, request_id: str) -> tuple[BlockViews, ...]:
        return tuple(BlockViews(self.block_pool, group.tables.get(request_id, ())) for group in self._manager.groups)


class _Named:
    """Stands for a request where only its id counts: the need of blocks."""

    num_tokens = num_prompt_tokens = shared_prefix_boundary = 0
    block_hashes: Sequence[bytes] = ()

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id


def tables(pool: PoolView, ids: tuple[Sequence[int], ...], empty: BlockTables) -> BlockTables:
    """The tables, or the shared empty object."""
    return BlockTables(pool, ids) if any(ids) else empty
