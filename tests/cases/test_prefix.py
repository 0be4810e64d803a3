"""Public reports about prefix caching, as scenarios of ours."""

from __future__ import annotations

import pytest

from kvblocks.errors import RequestError
from kvblocks.kinds import FullAttentionSpec
from kvblocks.observe import BlockStored, KVEventRecorder, StatsObserver
from tests.cases.scenario import Engine, cached


def test_bh015_a_fully_cached_prompt_recomputes_its_last_block_beside_the_old_one() -> None:
    engine = cached(range(16))
    request = engine.request(range(16))
    hit = engine.try_admit(request)
    assert hit is not None
    assert hit.num_tokens == 12
    assert engine.table(request) == [1, 2, 3, 5]
    pool = engine.manager.block_pool
    assert pool.hash_of[4] == pool.hash_of[5] == request.block_hashes[3]
    assert pool.indexes[0].get(request.block_hashes[3]) == 4  # the older copy answers


@pytest.mark.parametrize("length, cached_tokens", [(127, 64), (128, 64), (129, 128)])
def test_bh016_what_is_counted_is_what_is_taken(length: int, cached_tokens: int) -> None:
    """One new block each. The hits were free, so they leave the free blocks too: room for one less is refused."""
    engine = cached(range(128), usable_blocks=6, block_size=64)
    request = engine.request(range(length))
    before = engine.num_free
    taken = cached_tokens // 64 + 1
    assert engine.try_admit(request, reserved_blocks=before - taken + 1) is None
    hit = engine.try_admit(request, reserved_blocks=before - taken)
    assert hit is not None
    assert hit.num_tokens == cached_tokens
    assert before - engine.num_free == len(engine.table(request)) == taken


def test_bh017_what_lies_behind_a_missing_block_is_no_hit() -> None:
    engine = cached(range(12))
    engine.manager.evict_blocks([1])
    assert engine.hit(range(13)).num_tokens == 0


def test_bh018_a_request_is_counted_when_it_enters() -> None:
    stats = StatsObserver()
    engine = Engine(usable_blocks=105, block_size=16, observer=stats)
    engine.free(engine.admit(range(1600)))
    blocker = engine.admit(range(5000, 5064))
    stats.take()
    request = engine.request(range(1640))
    for _ in range(5):
        assert engine.try_admit(request) is None
    engine.free(blocker)
    assert engine.try_admit(request) is not None
    taken = stats.take()
    assert (taken.requests, taken.queries, taken.hits, taken.refusals) == (1, 1640, 1600, 5)


def test_bh019_a_hit_found_before_an_eviction_cannot_be_used_after_it() -> None:
    engine = cached(range(8), usable_blocks=3)
    request = engine.request(range(9))
    stale = engine.manager.get_computed_blocks(request)
    assert stale.num_tokens == 8
    engine.free(engine.admit(range(100, 112)))
    assert engine.manager.get_computed_blocks(request).num_tokens == 0
    with pytest.raises(RequestError, match="no longer holds this prefix"):
        engine.manager.allocate_slots(request, 1, stale.num_tokens, stale.blocks)


@pytest.mark.parametrize("delayed", [False, True])
def test_bh020_each_full_block_is_registered_once_and_a_partial_one_never(delayed: bool) -> None:
    events = KVEventRecorder()
    engine = Engine(observer=events)
    request = engine.request(range(12))
    stored = []
    for computed in (6, 12):
        engine.manager.allocate_slots(request, 6, delay_cache_blocks=delayed)
        request.num_computed_tokens = computed
        for _ in range(2):  # asking again changes nothing
            engine.manager.cache_blocks(request, computed)
        stored.append([event.block_hashes for event in events.take_events() if isinstance(event, BlockStored)])
    first, second, third = request.block_hashes
    assert stored == [[(first,)], [(second, third)]]
    assert len(engine.manager.block_pool.indexes[0]) == 3


def test_bh023_a_compressed_group_counts_the_tokens_that_its_blocks_span() -> None:
    compressed = FullAttentionSpec(block_size=1024, tokens_per_state=4)  # 256 states a block
    engine = Engine(usable_blocks=40, specs=[FullAttentionSpec(block_size=256), compressed])
    engine.free(engine.admit(range(2049)))
    hit = engine.hit(range(2049))
    assert hit.num_tokens == 2048
    assert [len(blocks) for blocks in hit.blocks.blocks] == [8, 2]


def test_bh026_a_prompt_shorter_than_a_block_is_held_and_released_like_any_other() -> None:
    engine = Engine(block_size=16)
    request = engine.admit(range(5))
    assert request.block_hashes == []
    held = engine.manager.pop_blocks_for_free(request)
    assert (len(held), engine.num_free) == (1, 19)
    engine.manager.release_blocks(held)
    assert engine.num_free == 20
    assert len(engine.manager.block_pool.indexes[0]) == 0
