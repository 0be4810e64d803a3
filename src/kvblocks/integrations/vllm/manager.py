"""vLLM's KV-cache manager, with kvblocks doing the work: the same calls, the same answers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvblocks import __version__
from kvblocks.integrations.vllm.blocks import BlockTables, BlockView, key_of
from kvblocks.integrations.vllm.events import EventRecorder
from kvblocks.integrations.vllm.guard import GuardedObservers, load_observers
from kvblocks.integrations.vllm.live import start_live
from kvblocks.integrations.vllm.pool import CoordinatorView, PoolView, tables
from kvblocks.integrations.vllm.settings import PluginSettings, read_settings
from kvblocks.integrations.vllm.specs import check_connector, translate
from kvblocks.kinds import MambaSpec, blocks_for
from kvblocks.manager import KVCacheBlocks, KVCacheManager, Observer

__all__ = ["VLLMKVCacheManager", "key_of"]


class VLLMKVCacheManager:
    """Stands in for `vllm.v1.core.kv_cache_manager.KVCacheManager`: same constructor, methods and results.

    Requests are vLLM's own objects, and their `block_hashes` are used as they are. Raises `UnsupportedError` with the
    reason when the configuration must stay with vLLM.
    """

    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: Any = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
        *,
        vllm_config: Any = None,
        settings: PluginSettings | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """The arguments up to `enable_mamba_shared_prefix_checkpoint` are vLLM's.

        vllm_config: vLLM's whole configuration, to see which KV connector there is.
        settings: the plugin's settings; those of the environment when None.
        observers: told of everything, beside those that the settings name.
        """
        from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
        from vllm.v1.metrics.stats import PrefixCacheStats

        from kvblocks.integrations.vllm.plugin import logger

        settings = read_settings(os.environ) if settings is None else settings
        setup = translate(
            kv_cache_config,
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            enable_caching=enable_caching,
            use_eagle=use_eagle,
            dcp_world_size=dcp_world_size,
            pcp_world_size=pcp_world_size,
            metrics_collector=metrics_collector,
            enable_mamba_shared_prefix_checkpoint=enable_mamba_shared_prefix_checkpoint,
        )
        states = [group for group in setup.groups if isinstance(group, MambaSpec)]
        check_connector(vllm_config, bool(states))
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self._events: EventRecorder | None = None
        live = start_live(settings, vllm_config, logger())
        watching: list[Observer] = [*load_observers(settings.observers, logger()), *observers]
        if live is not None:
            watching += live.observers
        if enable_kv_cache_events:
            self._events = EventRecorder(
                [(get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)) for spec in specs]
            )
            watching.insert(0, self._events)
        self.core = KVCacheManager(
            setup.num_blocks,
            setup.groups,
            max_model_len=max_model_len,
            enable_caching=enable_caching,
            hash_block_size=hash_block_size if enable_caching else None,
            max_in_flight_tokens=max_in_flight_tokens,
            use_eagle=bool(setup.eagle_groups),
            eagle_groups=setup.eagle_groups,
            retention_interval=setup.retention_interval,
            fine_hits=setup.fine_hits,
            num_prefill_lookahead=num_prefill_lookahead,
            zeroed_groups=setup.zeroed_groups,
            hand_off_states=vllm_config is not None and vllm_config.kv_transfer_config is not None,
            watermark=watermark,
            observer=GuardedObservers(watching, logger()) if watching else None,
            checked=False,  # what vLLM's own manager takes, this one takes
        )
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.enable_kv_cache_events = enable_kv_cache_events
        self.log_stats = log_stats
        self.num_kv_cache_groups = len(specs)
        self.mamba_shared_prefix_checkpoint = False
        self.block_pool = PoolView(self.core)
        self.coordinator = CoordinatorView(
            self.core,
            self.block_pool,
            specs,
            enable_partial_hash_hits=setup.fine_hits,
            num_reprefillable_tokens=max(0, num_prefill_lookahead - 1),
        )
        self.empty_kv_cache_blocks = BlockTables(self.block_pool, tuple(() for _ in specs))
        """The shared result without blocks; the scheduler passes it back where a request has no hit."""
        self._setup = setup
        self._quiet = self.core.quiet_until.get
        self._grow = self.core.grow
        self._nothing = self.core.empty_kv_cache_blocks.blocks
        self._watermark = watermark > 0
        self._new_stats = PrefixCacheStats
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self._check_steps, self._step = settings.check_steps, 0

    def summary(self) -> str:
        """One line: that kvblocks is active, and over what."""
        groups = ", ".join(self._setup.kinds) or "none"
        return (
            f"kvblocks {__version__} manages the KV cache: policy {self.core.block_pool.policy_name}, "
            f"{len(self._setup.kinds)} KV-cache groups ({groups}), {self._setup.num_blocks} blocks, "
            f"prefix caching {'on' if self.enable_caching else 'off'}"
        )

    # -- Reading --------------------------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of usable blocks that are in use."""
        return self.core.usage

    def prefix_cache_lookup_enabled(self, request: Any) -> bool:
        return self.enable_caching and not request.skip_reading_prefix_cache

    def get_computed_blocks(self, request: Any) -> tuple[BlockTables, int, int]:
        """The longest cached prefix: its blocks, its tokens, and the junction to keep findable (or 0)."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0, 0
        hit = self.core.get_computed_blocks(request)
        if not hit.num_tokens:
            return self.empty_kv_cache_blocks, 0, hit.shared_prefix_boundary
        if self._events is not None and getattr(request, "kv_cache_report_mode", "incremental") == "full":
            self._report_hit(request, hit.blocks)
        blocks = BlockTables(self.block_pool, hit.blocks.blocks, hit.blocks)
        return blocks, hit.num_tokens, hit.shared_prefix_boundary

    def _report_hit(self, request: Any, hit: KVCacheBlocks) -> None:
        """Tell listeners again of the blocks that the request found, as they asked."""
        assert self._events is not None
        for group, blocks in zip(self.core.groups, hit.blocks, strict=True):
            hashes = group.hashes_of_blocks(request.block_hashes, 0, len(blocks))
            if hashes:
                self._events.stored(request, group.group_id, 0, group.block_size, hashes, None)

    def get_computed_blocks_for_connector(self, request: Any) -> tuple[BlockTables, int, int, bool]:
        """`get_computed_blocks`; the last answer, whether the groups' hits differ, is always no."""
        return (*self.get_computed_blocks(request), False)

    def get_blocks(self, request_id: str) -> BlockTables:
        """The request's block tables."""
        return tables(
            self.block_pool,
            tuple([group.tables.get(request_id, ()) for group in self.core.groups]),
            self.empty_kv_cache_blocks,
        )

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.core.get_block_ids(request_id)

    def get_block_ids_for_computed_tokens(self, request_id: str, num_computed_tokens: int) -> tuple[list[int], ...]:
        """The block tables; those of attention over the request's own tokens end with the computed tokens."""
        ids = self.core.get_block_ids(request_id)
        clipped = []
        for group, spec, table in zip(self.core.groups, self._their_specs(), ids, strict=True):
            whole = isinstance(group.spec, MambaSpec) or not group.spec.prefix_cacheable
            clipped.append(table if whole else table[: blocks_for(num_computed_tokens, spec.block_size)])
        return tuple(clipped)

    def _their_specs(self) -> list[Any]:
        return [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]

    def estimate_cached_tokens(self, request: Any) -> int:
        """How many leading tokens of the request the cache can find now, in every group."""
        return self.core.findable_tokens(request.request_id)

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Zero per group: vLLM computes nothing in common any more."""
        return [0] * self.num_kv_cache_groups

    # -- Allocating -----------------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: BlockTables | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> BlockTables | None:
        """Give the request slots for its next tokens: the new blocks, or None when they do not fit."""
        if new_computed_blocks is None:
            limit = self._quiet(request)
            if limit is not None and not (
                num_external_computed_tokens
                or num_new_computed_tokens
                or num_encoder_tokens
                or full_sequence_must_fit
                or reserved_blocks
                or delay_cache_blocks
                or self._watermark
                or num_new_tokens < 1
            ):
                computed = request.num_computed_tokens
                if computed + num_new_tokens + num_lookahead_tokens < limit:
                    return self.empty_kv_cache_blocks
                if self._grow is not None:
                    grown = self._grow(request, computed, num_new_tokens, num_lookahead_tokens)
                    if grown is self._nothing:
                        return self.empty_kv_cache_blocks
                    return None if grown is None else BlockTables(self.block_pool, grown)
            hit = None
        elif new_computed_blocks is self.empty_kv_cache_blocks or not any(new_computed_blocks.ids):
            hit = None
        else:
            hit = new_computed_blocks.hit or KVCacheBlocks(new_computed_blocks.ids)
        if not (num_new_tokens or num_external_computed_tokens or num_new_computed_tokens):
            raise ValueError("no tokens: num_new_tokens must be at least 1 when no computed tokens are taken over")
        result = self.core.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            hit,
            num_lookahead_tokens,
            num_external_computed_tokens,
            delay_cache_blocks,
            num_encoder_tokens,
            full_sequence_must_fit,
            reserved_blocks,
            has_scheduled_reqs,
            skip_zeroing_group_ids,
        )
        if result is None:
            return None
        return tables(self.block_pool, result.blocks, self.empty_kv_cache_blocks)

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Make what is full among the first tokens findable."""
        self.core.cache_blocks(request, num_computed_tokens)

    def create_kv_cache_blocks(self, blocks: tuple[Iterable[Any], ...]) -> BlockTables:
        """A result from blocks; the shared one when there are none."""
        ids = tuple([[block.block_id for block in group] for group in blocks])
        return tables(self.block_pool, ids, self.empty_kv_cache_blocks)

    def truncate_computed_blocks(self, blocks: BlockTables, num_computed_tokens: int) -> BlockTables:
        """The part of a hit that covers so many tokens, a multiple of every group's block size."""
        ids = []
        for group, hits in zip(self.core.groups, blocks.ids, strict=True):
            count = num_computed_tokens // group.block_size
            if num_computed_tokens % group.block_size:
                raise ValueError(f"{num_computed_tokens} tokens are not whole blocks of {group.block_size}")
            if count > len(hits) and not isinstance(group.spec, MambaSpec):
                raise ValueError(f"the hit of {len(hits)} blocks in group {group.group_id} has no {count}")
            ids.append(list(hits[:count]))
        return tables(self.block_pool, tuple(ids), self.empty_kv_cache_blocks)

    # -- Giving back ----------------------------------------------------------------------------------------------

    def free(self, request: Any) -> None:
        """Give back the request's blocks, last block first."""
        self.core.free(request)

    def pop_blocks_for_free(self, request: Any) -> list[BlockView]:
        """Forget the request; its blocks stay in use until they are passed to `block_pool.free_blocks`, reversed."""
        return [self.block_pool.view(block) for block in self.core.pop_blocks_for_free(request)]

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Give back the blocks that no later token reads."""
        self.core.remove_skipped_blocks(request_id, processed_computed_tokens)

    def evict_blocks(self, block_ids: Collection[int]) -> None:
        """Forget the content of these blocks."""
        self.core.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Forget all content; False while a block is in use."""
        if not self.core.reset_prefix_cache():
            from kvblocks.integrations.vllm.plugin import logger

            logger().warning("the prefix cache is not reset: %d blocks are in use", self.core.block_pool.usage.live)
            return False
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    # -- Each step ------------------------------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        """A new step is being scheduled."""
        self.core.new_step_starts()
        if self._check_steps:
            self._step += 1
            if self._step % self._check_steps == 0:
                self.core.check()

    def check_at_end(self) -> None:
        """Verify every structure, and say how many blocks are still in use."""
        from kvblocks.integrations.vllm.plugin import logger

        self.core.check()
        live = self.core.block_pool.usage.live
        logger().info("kvblocks: every structure is right after %d steps; %d blocks in use", self._step, live)

    def take_new_block_ids(self) -> list[int]:
        """The blocks that the worker must zero."""
        return self.core.take_new_block_ids()

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Have the request's blocks from `start_token` on zeroed."""
        self.core.report_new_blocks(request_id, start_token)

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[BlockView]]:
        """The copies to make before this step, and the blocks held for them, in the order in which to free them."""
        copies, held = self.core.take_kv_cache_block_copies()
        if not copies:
            return [], []
        from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

        pairs = [KVCacheBlockCopy(src_block_id=copy.source, dst_block_id=copy.target) for copy in copies]
        return pairs, [self.block_pool.view(block) for block in reversed(held)]

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Per request, (group, block, tokens) of the states that a connector may store now."""
        return self.core.take_handed_states()

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """(group, block, tokens) of the states at the end of a finished request's prompt."""
        return self.core.take_own_ends(request)

    # -- Statistics and events ------------------------------------------------------------------------------------

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count a request that was admitted with so many hit tokens."""
        if self.prefix_cache_stats is not None and self.prefix_cache_lookup_enabled(request):
            self.prefix_cache_stats.record(
                num_tokens=request.num_tokens, num_hits=num_hits, preempted=request.num_preemptions > 0
            )

    def make_prefix_cache_stats(self) -> Any:
        """The counts since the last call; None when nobody wants statistics."""
        stats = self.prefix_cache_stats
        if stats is not None:
            self.prefix_cache_stats = self._new_stats()
        return stats

    def take_events(self) -> list[Any]:
        """The KV events since the last call; none when they are off."""
        return [] if self._events is None else self._events.take()
