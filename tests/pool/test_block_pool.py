"""The pool: who is free, in which order, and what content can be found."""

from __future__ import annotations

import random

import pytest

from kvblocks.errors import IntegrityError, PoolError, UsageError
from kvblocks.pool import LRU, BlockPool


def hash_of(n: int) -> bytes:
    return n.to_bytes(32, "big")


def cache(pool: BlockPool, blocks: list[int], *hashes: int, group: int = 0) -> None:
    pool.cache(group, blocks, [hash_of(n) for n in hashes], range(4, 4 * len(blocks) + 4, 4))
    pool.check()


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert pool.usage == (4, 0, 0)
    with pytest.raises(PoolError, match="only 0 of 4 usable blocks are free"):
        pool.allocate(1)
    pool.check()


def test_a_pool_of_the_null_block_alone_is_empty() -> None:
    pool = BlockPool(1)
    assert pool.usage.usable == pool.num_free == 0
    assert pool.allocate(0) == []
    with pytest.raises(UsageError, match="num_blocks=0"):
        BlockPool(0)


def test_blank_blocks_are_handed_out_last_freed_first() -> None:
    pool = BlockPool(7)
    table = pool.allocate(3)
    pool.free(table[::-1])
    assert list(pool.free_order()) == [3, 2, 1, 4, 5, 6]
    assert pool.allocate(4) == [3, 2, 1, 4]
    pool.check()


def test_cached_blocks_are_given_up_oldest_first_and_a_request_s_tail_before_its_head() -> None:
    pool = BlockPool(7)
    first, second = pool.allocate(3), pool.allocate(2)
    cache(pool, first, 1, 2, 3)
    cache(pool, second, 4, 5)
    pool.free(second[::-1])
    pool.free(first[::-1])
    assert list(pool.free_order()) == [6, 5, 4, 3, 2, 1]
    assert pool.usage == (0, 5, 1)
    assert pool.allocate(3) == [6, 5, 4]
    assert (pool.indexes[0].get(hash_of(5)), pool.indexes[0].get(hash_of(3))) == (None, 3)
    assert pool.num_evicted == 2
    pool.check()


def test_a_hit_takes_a_block_out_of_the_order_and_its_free_puts_it_last() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    cache(pool, blocks, 1, 2, 3)
    pool.free(blocks[::-1])
    pool.touch([2])
    pool.check(tables=[[2]])
    assert list(pool.free_order()) == [3, 1]
    pool.touch([2, 0])
    pool.free([2])
    pool.free([2])
    assert list(pool.free_order()) == [3, 1, 2]
    pool.check(tables=[])


def test_copies_of_one_content_are_kept_and_the_oldest_answers() -> None:
    pool = BlockPool(5)
    a, b, c = pool.allocate(3)
    for block in (b, a, c):
        cache(pool, [block], 7)
    index = pool.indexes[0]
    assert index.get(hash_of(7)) == b
    pool.evict([b])
    assert index.get(hash_of(7)) == a
    pool.evict([c])
    assert index.get(hash_of(7)) == a
    pool.evict([a])
    assert index.get(hash_of(7)) is None
    pool.check()


def test_groups_do_not_see_each_other_s_content() -> None:
    pool = BlockPool(5, num_groups=2)
    a, b = pool.allocate(2)
    cache(pool, [a], 7, group=0)
    cache(pool, [b], 7, group=1)
    assert [index.get(hash_of(7)) for index in pool.indexes] == [a, b]
    pool.evict([a])
    assert [index.get(hash_of(7)) for index in pool.indexes] == [None, b]


def test_eviction_on_request_leaves_a_live_block_with_its_holders_and_a_free_one_in_its_place() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    cache(pool, blocks, 1, 2, 3)
    pool.free([2, 1])
    pool.evict([1, 3, 0, 4])
    pool.check(tables=[[3]])
    assert list(pool.free_order()) == [4, 2, 1]
    assert pool.usage == (1, 2, 1)
    pool.free([3])
    assert list(pool.free_order()) == [3, 4, 2, 1]
    assert pool.allocate(4) == [3, 4, 2, 1]
    with pytest.raises(PoolError, match="block 5 is not in the pool; ids go from 0 to 4"):
        pool.evict([1, 5])
    pool.check()


def test_a_block_that_lost_its_hash_can_be_cached_again() -> None:
    pool = BlockPool(3)
    (a,) = pool.allocate(1)
    for number in (1, 2, 3):
        cache(pool, [a], number)
        assert pool.indexes[0].get(hash_of(number)) == a
        pool.evict([a])
        assert (pool.hash_of[a], len(pool.indexes[0])) == (None, 0)
    cache(pool, [a], 4)
    with pytest.raises(PoolError, match="block 1 already bears a hash of 4 tokens"):
        cache(pool, [a], 5)


def test_reset_is_refused_while_a_block_is_live_and_keeps_the_order() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    cache(pool, blocks, 1, 2, 3)
    assert not pool.reset()
    assert len(pool.indexes[0]) == 3
    pool.free(blocks[::-1])
    order = list(pool.free_order())
    assert pool.reset()
    pool.check()
    assert (list(pool.free_order()), len(pool.indexes[0])) == (order, 0)


def test_a_block_is_not_freed_more_often_than_it_is_held() -> None:
    pool = BlockPool(5)
    a, b = pool.allocate(2)
    for bad in ([a, b, a], [3], [a, 3, b]):
        with pytest.raises(PoolError, match="given more often than it is held"):
            pool.free(bad)
        pool.check(tables=[[a, b]])
    pool.free([a, 0, b, 0])
    pool.check(tables=[])


def test_a_prefix_that_ends_inside_a_block_is_replaced_when_the_block_is_full() -> None:
    pool = BlockPool(4)
    (a,) = pool.allocate(1)
    assert pool.cache_partial(0, a, hash_of(1), 2)
    assert not pool.cache_partial(0, a, hash_of(1), 2)
    assert pool.cache_partial(0, a, hash_of(2), 3)
    assert pool.hashes_of(a) == [hash_of(2)]
    cache(pool, [a], 3)
    assert pool.hashes_of(a) == [hash_of(3)]
    assert pool.cache_partial(0, a, hash_of(2), 3)
    assert pool.hashes_of(a) == [hash_of(3), hash_of(2)]
    pool.check()
    assert not pool.is_writable(a)
    pool.evict([a])
    assert pool.is_writable(a)
    assert (len(pool.indexes[0]), pool.hashes_of(a)) == (0, [])
    pool.check()


def test_a_blank_block_can_be_pinned() -> None:
    pool = BlockPool(5)
    pool.touch([3])
    pool.check(tables=[[3]])
    assert list(pool.free_order()) == [1, 2, 4]
    pool.free([3])
    assert list(pool.free_order()) == [3, 1, 2, 4]


def test_check_notices_what_is_wrong() -> None:
    def broken() -> BlockPool:
        pool = BlockPool(5, num_groups=1)
        cache(pool, pool.allocate(2), 1, 2)
        pool.free([2])
        return pool

    pool = broken()
    pool.check(tables=[[1]])
    with pytest.raises(IntegrityError, match="holders, count"):
        pool.check(tables=[[1], [1]])
    pool.ref_count[3] = 1
    with pytest.raises(IntegrityError, match="are not all of"):
        pool.check()
    pool = broken()
    pool.hash_of[1] = None
    with pytest.raises(IntegrityError, match="index and blocks disagree"):
        pool.check()
    pool = broken()
    pool.hash_of[4] = hash_of(9)
    with pytest.raises(IntegrityError, match="blank blocks bear hashes"):
        pool.check()
    pool = broken()
    pool.ref_count[0] = 1
    with pytest.raises(IntegrityError, match="null block"):
        pool.check()


def test_lru_equals_a_plain_list() -> None:
    rng = random.Random(5)
    lru, plain, outside = LRU(), list[int](), list(range(1, 3000))
    for _ in range(4000):
        choice = rng.random()
        if choice < 0.4 and outside:
            blocks = [outside.pop(rng.randrange(len(outside))) for _ in range(min(len(outside), rng.randrange(1, 9)))]
            lru.add(blocks)
            plain += blocks
        elif choice < 0.75 and plain:
            blocks = rng.sample(plain, min(len(plain), rng.randrange(1, 9)))
            lru.remove(blocks)
            plain = [block for block in plain if block not in set(blocks)]
            outside += blocks
        elif plain:
            n = rng.randrange(min(len(plain), 6) + 1)
            assert lru.evict(n) == plain[:n]
            outside += plain[:n]
            del plain[:n]
        assert len(lru) == len(plain)
        if rng.random() < 0.05:
            assert list(lru.peek()) == plain
            lru.check()


def test_stale_entries_do_not_pile_up() -> None:
    lru = LRU()
    lru.add(range(1, 100))
    for _ in range(1000):
        lru.remove(range(1, 100))
        lru.add(range(1, 100))
    assert len(lru._queue) < 4000
    assert list(lru.peek()) == list(range(1, 100))
    lru.check()


@pytest.mark.parametrize("bad", [-1, 6, 10**9])
def test_a_block_that_is_not_in_the_pool_is_refused_and_nothing_changes(bad: int) -> None:
    pool = BlockPool(6)
    held = pool.allocate(2)
    for call, name in ((pool.touch, "touch"), (pool.free, "free"), (pool.evict, "evict")):
        before = (list(pool.free_order()), list(pool.ref_count))
        with pytest.raises(PoolError, match=f"{name}: .*{bad}.*; ids go from 0 to 5"):
            call([held[0], bad])
        assert (list(pool.free_order()), list(pool.ref_count)) == before
    pool.check(tables=[held])
