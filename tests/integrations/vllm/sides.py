"""vLLM's manager and kvblocks', made from one case and read as plain numbers, so that their answers can be compared."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from kvblocks.integrations.vllm.blocks import key_of
from kvblocks.integrations.vllm.manager import VLLMKVCacheManager
from kvblocks.integrations.vllm.settings import PluginSettings
from tests.integrations.vllm.cases import Case, Group

init_none_hash(sha256)

Ids = list[list[int]]


class Hit(NamedTuple):
    """A look-up's answer: the numbers, and the object to pass back."""

    ids: Ids
    tokens: int
    boundary: int
    blocks: Any


def make_spec(group: Group) -> Any:
    """vLLM's spec of a group."""
    size = group.size
    heads = {"block_size": size, "num_kv_heads": group.heads, "head_size": 8, "dtype": torch.float16}
    window = {"sliding_window": group.window, "extra_retained_tokens": group.extra}
    match group.kind:
        case "full":
            return interface.FullAttentionSpec(**heads)
        case "mla":
            return interface.MLAAttentionSpec(**heads)
        case "sliding":
            return interface.SlidingWindowSpec(**heads, **window)
        case "sliding_mla":
            return interface.SlidingWindowMLASpec(**heads, **window)
        case "chunked":
            return interface.ChunkedLocalAttentionSpec(**heads, attention_chunk_size=group.window)
        case "cross":
            return interface.CrossAttentionSpec(**heads)
        case kind:
            return interface.MambaSpec(
                size,
                ((16,),),
                (torch.float32,),
                mamba_cache_mode=kind.removeprefix("mamba_"),
                num_speculative_blocks=group.drafts,
            )


class Sizes(NamedTuple):
    """The granularities that vLLM derives from the groups."""

    scheduler: int
    hash: int
    smallest: int


def sizes_of(case: Case) -> Sizes:
    specs = [make_spec(group) for group in case.groups]
    effective = [spec.block_size * (case.dcp if spec.dcp_sharded else 1) for spec in specs]
    cacheable = [size for size, group in zip(effective, case.groups, strict=True) if group.kind != "cross"]
    return Sizes(math.lcm(*effective), case.hash_size or math.gcd(*cacheable), min(effective))


def arguments(case: Case, *, events: bool, log_stats: bool) -> dict[str, Any]:
    """What vLLM's scheduler passes to the manager that it makes."""
    sizes = sizes_of(case)
    groups = [
        interface.KVCacheGroupSpec([f"layer{i}"], make_spec(group), is_eagle_group=group.eagle)
        for i, group in enumerate(case.groups)
    ]
    config = interface.KVCacheConfig(
        case.blocks,
        [],
        groups,
        prefix_cache_retention_interval=case.retention,
        hash_block_size=sizes.hash,
    )
    return {
        "kv_cache_config": config,
        "max_model_len": case.max_model_len,
        "scheduler_block_size": sizes.scheduler,
        "hash_block_size": sizes.hash,
        "max_in_flight_tokens": case.in_flight,
        "enable_caching": case.caching,
        "use_eagle": case.use_eagle,
        "num_prefill_lookahead": case.prefill_lookahead,
        "log_stats": log_stats,
        "enable_kv_cache_events": events,
        "dcp_world_size": case.dcp,
        "watermark": case.watermark,
    }


class WithTransfer:
    """Stands for a configuration with a KV connector, so that states are handed off as in vLLM."""

    class kv_transfer_config:  # noqa: N801
        kv_connector = "ExampleConnector"
        kv_connector_module_path = None


class Side:
    """One manager. Every method returns plain data (a `Hit` keeps the object to pass back)."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.popped: dict[str, list[Any]] = {}
        self._copies: Counter[tuple[int, Any]] = Counter()

    # -- Operations -----------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> Hit:
        blocks, tokens, boundary = self.manager.get_computed_blocks(request)
        return Hit(self.ids(blocks), tokens, boundary, blocks)

    @staticmethod
    def ids(blocks: Any) -> Ids:
        return [[block.block_id for block in group] for group in blocks.blocks]

    def allocate(self, request: Request, new: int, hit: Hit | None = None, **options: Any) -> Ids | None:
        if hit is not None:
            options |= {"num_new_computed_tokens": hit.tokens, "new_computed_blocks": hit.blocks}
        blocks = self.manager.allocate_slots(request, new, **options)
        if blocks is None:
            return None
        ids = self.ids(blocks)
        assert blocks.get_block_ids(allow_none=True) == (tuple(ids) if any(ids) else None)
        return ids

    def pop(self, request: Request, key: str) -> list[int]:
        self.popped[key] = self.manager.pop_blocks_for_free(request)
        return [block.block_id for block in self.popped[key]]

    def release(self, key: str) -> None:
        self.manager.block_pool.free_blocks(reversed(self.popped.pop(key)))

    def take_copies(self) -> list[tuple[int, int]]:
        copies, held = self.manager.take_kv_cache_block_copies()
        self.manager.block_pool.free_blocks(held)
        return [(copy.src_block_id, copy.dst_block_id) for copy in copies]

    def take_new_block_ids(self) -> list[int]:
        return sorted(self.manager.take_new_block_ids())

    def take_states(self) -> dict[str, list[tuple[int, int, int]]]:
        return dict(self.manager.take_boundary_state_offloads())

    def stats(self) -> tuple[Any, ...]:
        stats = self.manager.make_prefix_cache_stats()
        first = (stats.requests, stats.queries, stats.hits)
        return (*first, stats.preempted_requests, stats.preempted_queries, stats.preempted_hits, stats.reset)

    def events(self) -> tuple[list[Any], list[Any], int]:
        """Stored and removed (group, hash) with their counts, and clearings; a removal only with the last copy.

        kvblocks reports it so by itself, so folding changes nothing there.
        """
        stored: Counter[tuple[int, Any]] = Counter()
        removed: Counter[tuple[int, Any]] = Counter()
        cleared = 0
        for event in self.manager.take_events():
            match type(event).__name__:
                case "BlockStored":
                    keys = [(event.group_idx, block_hash) for block_hash in event.block_hashes]
                    stored.update(keys)
                    self._copies.update(keys)
                case "BlockRemoved":
                    self._remove(event, removed)
                case _:
                    cleared += 1
                    self._copies.clear()
        return sorted(stored.items()), sorted(removed.items()), cleared

    def _remove(self, event: Any, removed: Counter[tuple[int, Any]]) -> None:
        for block_hash in event.block_hashes:
            key = (event.group_idx, block_hash)
            self._copies[key] -= 1
            if not self._copies[key]:
                removed[key] += 1

    # -- State ----------------------------------------------------------------------------------------------------

    def table(self, request_id: str) -> Ids:
        ids: Sequence[list[int]] = self.manager.get_block_ids(request_id)
        return [list(group) for group in ids]

    def free_order(self) -> list[int]:
        return [block.block_id for block in self.manager.block_pool.free_block_queue.get_all_free_blocks()]

    def keys(self) -> dict[int, list[bytes]]:
        """Every key of every block, the groups' numbers included."""
        pool, found = self.manager.block_pool, {}
        for block in pool.blocks:
            keys = [] if block.block_hash is None else [block.block_hash]
            keys += pool.cached_block_hashes_by_block.get(block.block_id, ())
            if keys:
                found[block.block_id] = sorted(map(bytes, keys))
        return found

    def covered(self) -> dict[int, int]:
        """How many tokens the main key of each block covers."""
        blocks: Iterable[Any] = self.manager.block_pool.blocks
        return {block.block_id: block.block_hash_num_tokens for block in blocks if block.block_hash is not None}

    def numbers(self) -> tuple[int, float]:
        return self.manager.block_pool.get_num_free_blocks(), round(self.manager.usage, 12)

    def check(self) -> None:
        """vLLM's manager cannot check itself."""


class Ours(Side):
    """kvblocks' manager, whose state is read from the core."""

    def free_order(self) -> list[int]:
        return list(self.manager.core.block_pool.free_order())

    def keys(self) -> dict[int, list[bytes]]:
        pool = self.manager.core.block_pool
        return {
            block: sorted(key_of(block_hash, pool.group_of[block]) for block_hash in pool.hashes_of(block))
            for block in range(1, pool.num_blocks)
            if pool.hash_of[block] is not None
        }

    def events(self) -> tuple[list[Any], list[Any], int]:
        """As they are: nothing is folded."""
        self._copies.clear()
        return super().events()

    def _remove(self, event: Any, removed: Counter[tuple[int, Any]]) -> None:
        removed.update((event.group_idx, block_hash) for block_hash in event.block_hashes)

    def check(self) -> None:
        self.manager.core.check()


def both_sides(case: Case, *, events: bool) -> tuple[Side, Ours]:
    """vLLM's manager and kvblocks' of one case, with events or without."""
    theirs = KVCacheManager(**arguments(case, events=events, log_stats=True))
    ours = VLLMKVCacheManager(
        **arguments(case, events=events, log_stats=True), vllm_config=WithTransfer, settings=PluginSettings()
    )
    return Side(theirs), Ours(ours)


def make_hasher(case: Case) -> Any:
    """vLLM's own function from a request to its block hashes."""
    return get_request_block_hasher(sizes_of(case).hash, sha256)


def make_request(
    name: str, tokens: Iterable[int], hasher: Any, *, salt: str | None = None, skip_reading: bool | None = None
) -> Request:
    """A request of vLLM's own class."""
    parameters = SamplingParams(max_tokens=10**6, skip_reading_prefix_cache=skip_reading)
    return Request(name, list(tokens), parameters, None, cache_salt=salt, block_hasher=hasher)
