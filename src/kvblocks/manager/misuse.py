"""The checks against misuse: everything that a caller of the manager can get wrong, before anything changes."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvblocks.errors import RequestError
from kvblocks.manager.request import Request
from kvblocks.pool import NULL_BLOCK

if TYPE_CHECKING:
    from kvblocks.manager.manager import KVCacheManager


def check_allocation(
    manager: KVCacheManager,
    request: Request,
    hits: tuple[Sequence[int], ...] | None,
    *,
    delayed: bool,
    num_new_tokens: int,
    num_new_computed_tokens: int,
    num_external_computed_tokens: int,
    **counts: int,
) -> None:
    """Raise RequestError unless this `allocate_slots` call makes sense."""
    request_id = request.request_id
    counts |= {
        "num_new_tokens": num_new_tokens,
        "num_new_computed_tokens": num_new_computed_tokens,
        "num_external_computed_tokens": num_external_computed_tokens,
    }
    for name, count in counts.items():
        if count < 0:
            raise RequestError(request_id, f"{name}={count} must not be negative")
    if not (num_new_tokens or num_new_computed_tokens or num_external_computed_tokens):
        raise RequestError(request_id, "no tokens: give num_new_tokens, a prefix hit, or external tokens")
    check_owner(manager, request)
    computed, total = request.num_computed_tokens, request.num_tokens
    if not 0 <= computed - request.num_in_flight_tokens <= total:
        raise RequestError(
            request_id,
            f"num_computed_tokens={computed} (of which {request.num_in_flight_tokens} in flight) must be between 0 and "
            f"num_tokens={total}: append generated tokens before the next step, and set it to 0 after a preemption",
        )
    adopted = computed + num_new_computed_tokens + num_external_computed_tokens
    if adopted > computed and adopted + (not delayed) > total:
        raise RequestError(
            request_id,
            f"{computed} computed + {num_new_computed_tokens} hit + {num_external_computed_tokens} external tokens "
            f"leave none of its {total} tokens to compute; lower the external tokens by at least "
            f"{adopted + (not delayed) - total}",
        )
    if hits is not None or num_new_computed_tokens:
        _check_hits(manager, request, hits, num_new_computed_tokens)
    if not delayed:
        check_hashes(manager, request, min(adopted + num_new_tokens, total))


def check_owner(manager: KVCacheManager, request: Request) -> None:
    """Raise RequestError if another request object holds blocks under this id."""
    owner = manager.owners.get(request.request_id)
    if owner is not None and owner is not request:
        raise RequestError(
            request.request_id, "another request with this id holds blocks; free that one first, or use another id"
        )


def check_hashes(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Raise RequestError if the request lacks the hashes of its first `num_tokens` tokens."""
    if not manager.enable_caching or not manager.groups:
        return
    unit = manager.groups[0].context.hash_block_size
    if len(request.block_hashes) < num_tokens // unit:
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


def _check_hits(
    manager: KVCacheManager, request: Request, hits: tuple[Sequence[int], ...] | None, num_tokens: int
) -> None:
    """Raise RequestError unless the hit is one for this request, now: what was evicted since must not be adopted."""
    request_id = request.request_id
    if hits is None:
        raise RequestError(request_id, f"num_new_computed_tokens={num_tokens} needs the blocks of that hit")
    if request_id in manager.owners:
        if num_tokens or any(map(len, hits)):
            raise RequestError(request_id, "holds blocks already; a prefix hit is adopted at its first allocation only")
        return
    if len(hits) != len(manager.groups):
        raise RequestError(request_id, f"the hit has {len(hits)} groups, the manager {len(manager.groups)}")
    start = request.num_computed_tokens
    hash_of = manager.block_pool.hash_of
    for group, blocks in zip(manager.groups, hits, strict=True):
        if not group.spec.prefix_cacheable:
            continue
        whole = (start + num_tokens) // group.block_size
        if len(blocks) * group.block_size < start + num_tokens:
            raise RequestError(
                request_id, f"group {group.group_id}: {len(blocks)} blocks cannot hold a hit of {num_tokens} tokens"
            )
        first = bisect(blocks, NULL_BLOCK, key=bool)  # null blocks come first
        expected = list(group.hashes_of_blocks(request.block_hashes, first, whole))
        borne = list(map(hash_of.__getitem__, blocks[first:whole]))
        if borne != expected:
            at = next(i for i in range(len(expected)) if borne[i : i + 1] != expected[i : i + 1])
            raise RequestError(
                request_id,
                f"group {group.group_id}: block {blocks[first + at]} at position {first + at} no longer holds this "
                "prefix; look it up again in the step that allocates",
            )
