"""What a decode step comes to when a block is full or a new one is needed: room for a request that runs.

`make_grow` picks the function once, by what the groups are; its parts are bound once, since it runs for every request
each few steps. The result is that of `allocate_slots` for the same request, to the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvblocks.manager.misuse import check_hashes, check_running
from kvblocks.manager.request import Request

if TYPE_CHECKING:
    from kvblocks.manager.manager import KVCacheManager

Grow = Callable[[Request, int, int, int], tuple[Sequence[int], ...] | None]
"""(request, its computed tokens, new tokens, lookahead) to the new blocks per group, or None when they do not fit."""


def make_grow(manager: KVCacheManager, observed: bool) -> Grow | None:
    """The function for this manager; None when some group has to look at more than the length of a table."""
    if not all(group.grows_plainly for group in manager.groups):
        return None
    if len(manager.groups) == 1 and manager.groups[0].is_simple and not observed:
        return _one_simple_group(manager)
    return _any_groups(manager)


def _one_simple_group(manager: KVCacheManager) -> Grow:
    """For one group of full attention that nobody watches: the commonest case by far, in one piece."""
    group, pool, quiet_until = manager.groups[0], manager.block_pool, manager.quiet_until
    tables, num_cached, size = group.tables, group.num_cached, group.block_size
    nothing, caching, longest = manager.empty_kv_cache_blocks.blocks, manager.enable_caching, manager.max_model_len
    allocate, cache_one, register, checked = pool.allocate, pool.cache_one, group.cache, manager.checked

    def grow(request: Request, computed: int, new: int, lookahead: int) -> tuple[Sequence[int], ...] | None:
        name, main = request.request_id, computed + new
        table = tables[name]
        slots = main + lookahead
        if slots > longest:
            slots = longest
            if checked and main > longest:
                check_running(manager, request, new, lookahead)
        cached = end = num_cached.get(name, 0) if caching else 0
        if caching and main >= (cached + 1) * size:
            num_tokens = request.num_tokens
            if main > num_tokens:
                main = num_tokens
            end = main // size
            if checked and end > len(request.block_hashes):
                check_hashes(manager, request, main)
        held = len(table)
        new_blocks = nothing
        if slots > held * size:
            missing = -(-slots // size) - held
            if missing > pool.num_free:
                return None
            new_blocks = (allocate(missing),)
            table += new_blocks[0]
            held += missing
        if end == cached + 1:
            cache_one(0, table[cached], request.block_hashes[cached], end * size)
            num_cached[name] = cached = end
        elif end > cached:
            register(request, main)
            cached = end
        quiet_until[request] = (cached + 1) * size if caching and cached < held else held * size + 1
        return new_blocks

    return grow


def _any_groups(manager: KVCacheManager) -> Grow:
    """For any groups that grow plainly."""
    groups, pool, observer = manager.groups, manager.block_pool, manager.observer
    skipping = [group for group in groups if group.skips_tokens]
    nothing, caching, longest = manager.empty_kv_cache_blocks.blocks, manager.enable_caching, manager.max_model_len
    unit, make_findable, checked = manager.hash_block_size, manager.make_findable, manager.checked

    def grow(request: Request, computed: int, new: int, lookahead: int) -> tuple[Sequence[int], ...] | None:
        name, num_tokens, main = request.request_id, request.num_tokens, computed + new
        processed = computed - request.num_in_flight_tokens
        to_cache = main if main < num_tokens else num_tokens
        short = caching and (len(request.block_hashes) + 1) * unit <= to_cache
        if checked and (short or processed < 0 or main > longest):
            check_running(manager, request, new, lookahead)
        slots = min(main + lookahead, longest)
        for group in skipping:
            group.remove_skipped_blocks(name, processed)
        need, new_blocks = 0, nothing
        for group in groups:
            missing = -(-slots // group.block_size) - len(group.tables[name])
            if missing > 0:
                need += missing
        if need:
            num_free = pool.num_free
            if need > num_free:
                if observer is not None:
                    observer.on_refuse(request, need, num_free)
                return None
            new_blocks = tuple([group.allocate(request, slots, main) for group in groups])
        make_findable(request, to_cache)
        if observer is not None:
            observer.on_allocate(request, new_blocks, None)
        return new_blocks

    return grow
