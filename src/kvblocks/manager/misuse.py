"""The checks against misuse: everything that a caller of the manager can get wrong, before anything changes."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from kvblocks.errors import RequestError, UsageError
from kvblocks.kinds import KVCacheSpec, blocks_for
from kvblocks.manager.blocks import KVCacheBlocks, PrefixHit
from kvblocks.manager.request import Request
from kvblocks.pool import NULL_BLOCK

if TYPE_CHECKING:
    from kvblocks.manager.manager import KVCacheManager


def check_setup(groups: Sequence[KVCacheSpec], max_model_len: int) -> None:
    """Raise UsageError unless these are what a manager is made from."""
    if not isinstance(groups, Sequence) or not all(isinstance(spec, KVCacheSpec) for spec in groups):
        raise UsageError(f"groups={groups!r} must be a list of specs, one for each group: [FullAttentionSpec(...)]")
    if not isinstance(max_model_len, int) or max_model_len < 1:
        raise UsageError(f"max_model_len={max_model_len!r} must be a whole number, at least 1")


def check_allocation(
    manager: KVCacheManager,
    request: Request,
    hit: KVCacheBlocks | None,
    num_new_tokens: int,
    num_new_computed_tokens: int,
    num_lookahead_tokens: int,
    num_external_computed_tokens: int,
    num_encoder_tokens: int,
    reserved_blocks: int,
    delayed: bool,
) -> None:
    """Raise RequestError unless this `allocate_slots` call makes sense."""
    try:
        good = (
            num_new_tokens
            | num_new_computed_tokens
            | num_lookahead_tokens
            | num_external_computed_tokens
            | num_encoder_tokens
            | reserved_blocks
        ) >= 0
    except TypeError:
        good = False
    if not good:
        _refuse_counts(
            request,
            num_new_tokens=num_new_tokens,
            num_new_computed_tokens=num_new_computed_tokens,
            num_lookahead_tokens=num_lookahead_tokens,
            num_external_computed_tokens=num_external_computed_tokens,
            num_encoder_tokens=num_encoder_tokens,
            reserved_blocks=reserved_blocks,
        )
    given = num_new_computed_tokens + num_external_computed_tokens
    if not (num_new_tokens or given):
        raise RequestError(
            request.request_id, "no tokens: give num_new_tokens, a prefix hit, or num_external_computed_tokens"
        )
    owner = manager.owners.get(request.request_id)
    if owner is not None and owner is not request:
        raise RequestError(
            request.request_id, "another request with this id holds blocks; free that one first, or use another id"
        )
    computed, total = request.num_computed_tokens, request.num_tokens
    if not 0 <= computed - request.num_in_flight_tokens <= total:
        raise RequestError(
            request.request_id,
            f"num_computed_tokens={computed} (of which {request.num_in_flight_tokens} in flight) must be between 0 and "
            f"num_tokens={total}: append generated tokens before the next step, and set it to 0 after a preemption",
        )
    adopted = computed + given
    if given and adopted + (not delayed) > total:
        raise RequestError(
            request.request_id,
            f"{computed} computed + {num_new_computed_tokens} hit + {num_external_computed_tokens} external tokens "
            f"leave none of its {total} tokens to compute; lower the external tokens by at least "
            f"{adopted + (not delayed) - total}",
        )
    if adopted + num_new_tokens > manager.max_model_len:
        raise RequestError(
            request.request_id,
            f"{adopted} computed + {num_new_tokens} new tokens exceed max_model_len={manager.max_model_len}; end the "
            "request before, and draft fewer tokens near the end",
        )
    if hit is not None or num_new_computed_tokens:
        _check_hit(manager, request, hit, num_new_computed_tokens)
    if not delayed:
        check_hashes(manager, request, min(adopted + num_new_tokens, total))


def check_running(manager: KVCacheManager, request: Request, num_new_tokens: int, num_lookahead_tokens: int) -> None:
    """`check_allocation` for a request that runs and asks for room only."""
    check_allocation(manager, request, None, num_new_tokens, 0, num_lookahead_tokens, 0, 0, 0, False)


def _refuse_counts(request: Request, **counts: int) -> NoReturn:
    name, count = next((n, count) for n, count in counts.items() if not isinstance(count, int) or count < 0)
    rule = "not be negative" if isinstance(count, int) else "be a whole number"
    raise RequestError(request.request_id, f"{name}={count!r} must {rule}")


def check_hashes(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Raise RequestError if the request lacks the hashes of its first `num_tokens` tokens."""
    unit = manager.hash_block_size
    if manager.enable_caching and len(request.block_hashes) < num_tokens // unit:
        raise RequestError(
            request.request_id,
            f"block_hashes has {len(request.block_hashes)} entries, but {num_tokens} tokens fill {num_tokens // unit} "
            f"units of {unit}: hash with block_size={unit} and after every appended token",
        )


def check_cache(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Raise RequestError unless `cache_blocks(request, num_tokens)` makes sense."""
    request_id = request.request_id
    if manager.owners.get(request_id) is not request:
        raise RequestError(request_id, "holds no blocks; allocate before cache_blocks")
    if num_tokens > request.num_tokens:
        raise RequestError(
            request_id, f"cache_blocks({num_tokens}): it has num_tokens={request.num_tokens}, and drafts are not cached"
        )
    for group in manager.groups:
        slots = len(group.tables.get(request_id, ())) * group.block_size
        if group.spec.prefix_cacheable and num_tokens > slots:
            raise RequestError(
                request_id, f"cache_blocks({num_tokens}): group {group.group_id} has {slots} slots; allocate first"
            )
    check_hashes(manager, request, num_tokens)


def _check_hit(manager: KVCacheManager, request: Request, hit: KVCacheBlocks | None, num_tokens: int) -> None:
    """Raise RequestError unless the hit is one for this request, now: what was evicted since must not be adopted."""
    request_id = request.request_id
    if hit is None:
        raise RequestError(request_id, f"num_new_computed_tokens={num_tokens} needs the blocks of that hit")
    if isinstance(hit, PrefixHit):
        raise RequestError(request_id, "new_computed_blocks is the whole hit; give its blocks: hit.blocks")
    if request_id in manager.owners:
        if num_tokens or hit:
            raise RequestError(request_id, "holds blocks already; a prefix hit is adopted at its first allocation only")
        return
    if len(hit.blocks) != len(manager.groups):
        raise RequestError(request_id, f"the hit has {len(hit.blocks)} groups, the manager {len(manager.groups)}")
    adopted = request.num_computed_tokens + num_tokens
    for group, blocks in zip(manager.groups, hit.blocks, strict=True):
        if group.spec.prefix_cacheable and len(blocks) != blocks_for(adopted, group.block_size):
            raise RequestError(
                request_id, f"group {group.group_id}: {len(blocks)} blocks are not those of a hit of {adopted} tokens"
            )
    pool = manager.block_pool
    if hit.found_for is not request or hit.found_at != (pool, pool.num_forgotten):
        _check_content(manager, request, hit, adopted)


def _check_content(manager: KVCacheManager, request: Request, hit: KVCacheBlocks, adopted: int) -> None:
    """Raise RequestError unless every block of the hit still holds the request's prefix."""
    pool, hash_of = manager.block_pool, manager.block_pool.hash_of
    for group, blocks in zip(manager.groups, hit.blocks, strict=True):
        if not group.spec.prefix_cacheable:
            continue
        whole = adopted // group.block_size
        first = bisect(blocks, NULL_BLOCK)  # null blocks come first
        expected = group.hashes_of_blocks(request.block_hashes, first, whole)
        if first and not group.skips_tokens:
            raise RequestError(
                request.request_id, f"group {group.group_id}: a hit of full attention has no null blocks"
            )
        stale = next((at for at, known in enumerate(expected, first) if hash_of[blocks[at]] != known), None)
        if stale is None and whole < len(blocks):  # the hit ends inside its last block
            end = request.block_hashes[adopted // manager.hash_block_size - 1]
            stale = None if end in pool.hashes_of(blocks[whole]) else whole
        if stale is not None:
            raise RequestError(
                request.request_id,
                f"group {group.group_id}: block {blocks[stale]} at position {stale} no longer holds this prefix; look "
                "it up again in the step that allocates",
            )
