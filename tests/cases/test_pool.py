"""Public reports about block pools, as scenarios of ours; the id names the report in the collection."""

from __future__ import annotations

import pytest

from kvblocks.errors import PoolError
from tests.cases.scenario import Engine, cached


def test_bh003_a_hit_keeps_the_entry_that_it_hits() -> None:
    engine = cached(range(1, 9))
    first = engine.manager.block_pool.indexes[0].run(engine.request(range(1, 9)).block_hashes, 2)
    b = engine.admit([*range(1, 9), *range(9, 13)])
    c = engine.admit([*range(1, 9), *range(20, 24)])
    assert engine.table(b)[:2] == engine.table(c)[:2] == first
    assert [engine.manager.block_pool.ref_count[block] for block in first] == [2, 2]


def test_bh004_a_reused_block_is_not_found_by_its_old_content() -> None:
    engine = cached(range(8), usable_blocks=3)
    b = engine.admit(range(100, 112))
    engine.free(b)
    assert engine.hit(range(9)).num_tokens == 0  # check() compares every entry with the block's own hash


@pytest.mark.parametrize("path", ["reuse", "evict", "reset", "free of an unfinished block"])
def test_bh005_a_block_that_lost_its_content_can_be_cached_again(path: str) -> None:
    engine = Engine(usable_blocks=2)
    a = engine.admit(range(3 if path.startswith("free") else 8))
    if path == "evict":
        engine.manager.evict_blocks(engine.table(a))
    engine.free(a)
    if path == "reset":
        assert engine.manager.reset_prefix_cache()
    b = engine.admit(range(50, 58))
    pool = engine.manager.block_pool
    assert [pool.hash_of[block] for block in engine.table(b)] == b.block_hashes
    assert len(pool.indexes[0]) == sum(block_hash is not None for block_hash in pool.hash_of) == 2


def test_bh007_a_pinned_block_is_not_queued_twice() -> None:
    engine = cached(range(8), usable_blocks=6)
    pool = engine.manager.block_pool
    pool.touch([1, 2])
    engine.manager.check(pinned=[1, 2])
    assert pool.num_free == len(list(pool.free_order())) == 4
    pool.free([2, 1])
    assert pool.num_free == len(list(pool.free_order())) == 6
    assert sorted(pool.allocate(6)) == [1, 2, 3, 4, 5, 6]


def test_bh008_the_three_kinds_of_blocks_always_add_up() -> None:
    """The report is about tiers; in one tier the same fault would show as parts that do not sum to the whole."""
    engine = Engine(usable_blocks=6)

    def adds_up() -> None:
        usage = engine.manager.pool_usage
        assert usage.live + usage.cached + usage.blank == 6
        assert min(usage) >= 0

    for prompt in (range(8), range(4, 20), range(8), range(100, 124)):
        request = engine.request(prompt)
        engine.try_admit(request)
        adds_up()
        engine.free(request)
        adds_up()


def test_bh009_a_second_free_changes_nothing_and_a_block_given_twice_is_refused() -> None:
    engine = Engine(usable_blocks=6)
    a = engine.admit(range(8))
    pool = engine.manager.block_pool
    with pytest.raises(PoolError, match="more often than it is held"):
        pool.free([1, 1])
    engine.free(a, a)
    assert engine.num_free == 6
    b, c = engine.admit(range(50, 54)), engine.admit(range(60, 64))
    assert engine.table(b) != engine.table(c)


def test_bh010_an_unused_lookahead_slot_is_given_back_once() -> None:
    engine = Engine(usable_blocks=6)
    a = engine.request(range(4))
    assert engine.try_admit(a, num_lookahead_tokens=1) is not None
    assert engine.num_free == 4
    engine.free(a, a)
    assert engine.num_free == 6


def test_bh012_without_caching_the_blocks_freed_last_are_used_first() -> None:
    engine = Engine(usable_blocks=6, enable_caching=False)
    a = engine.admit(range(12))
    assert engine.table(a) == [1, 2, 3]
    engine.free(a)
    assert sorted(engine.table(engine.admit(range(12)))) == [1, 2, 3]
    caching = cached(range(12), usable_blocks=6)
    assert caching.table(caching.admit(range(50, 62))) == [4, 5, 6]


def test_bh013_a_chain_is_evicted_from_its_end() -> None:
    engine = cached(range(16), usable_blocks=4)
    engine.free(engine.admit(range(100, 104)))
    assert engine.hit(range(17)).num_tokens == 12


def test_bh014_a_pool_of_cached_blocks_only_gives_all_that_is_asked_or_refuses() -> None:
    engine = cached(range(32), usable_blocks=8)
    assert engine.manager.pool_usage == (0, 8, 0)
    pool = engine.manager.block_pool
    with pytest.raises(PoolError, match="only 8 of 8"):
        pool.allocate(9)
    assert engine.try_admit(engine.request(range(100, 136))) is None
    assert engine.manager.pool_usage == (0, 8, 0)
    assert sorted(pool.allocate(8)) == list(range(1, 9))
    assert len(pool.indexes[0]) == 0
