"""Public reports about block pools, as scenarios of ours; the id names the report in the collection."""

from __future__ import annotations

import random

import pytest

from kvblocks.errors import PoolError
from kvblocks.manager import TokenRequest
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
    assert sorted(engine.table(b)) == [1, 2, 3]
    engine.free(b)
    assert engine.hit(range(9)).num_tokens == 0
    pool = engine.manager.block_pool
    assert not any(block_hash in pool.indexes[0] for block_hash in engine.request(range(8)).block_hashes)
    assert all(pool.hash_of[block] == block_hash for block_hash, block in pool.indexes[0].pairs())


@pytest.mark.parametrize("path", ["reuse", "evict while live", "evict while free", "reset", "free of a partial block"])
def test_bh005_a_block_that_lost_its_content_can_be_cached_again(path: str) -> None:
    engine = Engine(usable_blocks=2)
    pool = engine.manager.block_pool
    a = engine.admit(range(3 if path == "free of a partial block" else 8))
    if path == "evict while live":
        engine.manager.evict_blocks(engine.table(a))
    engine.free(a)
    if path == "evict while free":
        engine.manager.evict_blocks([1, 2])
    if path == "reset":
        assert engine.manager.reset_prefix_cache()
    if path != "reuse":
        assert pool.hash_of == [None] * 3
        assert len(pool.indexes[0]) == 0
    b = engine.admit(range(50, 58))
    assert [pool.hash_of[block] for block in engine.table(b)] == b.block_hashes
    assert len(pool.indexes[0]) == sum(block_hash is not None for block_hash in pool.hash_of) == 2


def test_bh007_a_pinned_block_is_not_queued_twice() -> None:
    engine = cached(range(8), usable_blocks=6)
    pool = engine.manager.block_pool
    pool.touch([1, 2])
    engine.manager.check(pinned=[1, 2])
    assert pool.num_free == len(list(pool.free_order())) == 4
    pool.free([2, 1])
    engine.manager.check()
    assert pool.num_free == len(list(pool.free_order())) == 6
    assert sorted(pool.allocate(6)) == [1, 2, 3, 4, 5, 6]


def test_bh008_the_three_kinds_of_blocks_always_add_up() -> None:
    """The report is about tiers; in one tier the same fault would show as parts that do not sum to the whole."""
    rng = random.Random(8)
    engine = Engine(usable_blocks=9)
    live: list[TokenRequest] = []
    refused = 0
    for _ in range(300):
        act = rng.choice(["admit", "admit", "decode", "decode", "free", "evict", "reset"])
        if act == "admit":
            start = rng.choice([0, 0, 4, 100])
            request = engine.request(range(start, start + rng.randint(1, 20)))
            if engine.try_admit(request) is None:
                refused += 1
            else:
                live.append(request)
        elif act == "decode" and live:
            request = rng.choice(live)
            if not engine.decode(request, rng.randrange(2)):
                refused += 1
                live.remove(request)
                engine.free(request)
        elif act == "free" and live:
            engine.free(live.pop(rng.randrange(len(live))))
        elif act == "evict":
            engine.manager.evict_blocks([rng.randint(1, 9)])
        elif act == "reset":
            assert engine.manager.reset_prefix_cache() is (not live)
        usage = engine.manager.pool_usage
        assert usage.live + usage.cached + usage.blank == 9
        assert min(usage) >= 0
        assert usage.live == len({block for request in live for block in engine.table(request)})
    assert refused


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
