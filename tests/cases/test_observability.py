"""Public reports about what a cache says of itself, as scenarios of ours."""

from __future__ import annotations

import pytest

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvblocks.observe import BlockRemoved, BlockStored, KVEventRecorder
from tests.cases.scenario import Engine


def test_bh084_usage_stays_between_nothing_and_all() -> None:
    engine = Engine(usable_blocks=8, specs=[SlidingWindowSpec(block_size=4, sliding_window=5)], max_in_flight_tokens=40)
    assert engine.manager.usage == 0.0
    a = engine.admit(range(20))
    for _ in range(12):
        engine.decode(a)
        assert 0.0 <= engine.manager.usage <= 1.0
    assert engine.try_admit(engine.request(range(100, 140))) is None
    engine.free(a, a)
    assert engine.manager.usage == 0.0
    engine.admit(range(200, 232))
    assert engine.manager.usage == 1.0
    assert Engine(usable_blocks=0).manager.usage == 0.0


def test_bh085_each_group_tells_its_own_block_size() -> None:
    sizes = [256, 64, 8, 4]
    engine = Engine(usable_blocks=100, specs=[FullAttentionSpec(block_size=size) for size in sizes])
    assert [group.block_size for group in engine.manager.groups] == sizes
    assert engine.manager.hash_block_size == 4
    capacity = engine.manager.max_request_tokens
    assert sum(engine.manager.peak_blocks(capacity)) <= 100 < sum(engine.manager.peak_blocks(capacity + 1))


def test_bh087_an_event_lists_the_tokens_of_its_own_blocks() -> None:
    events = KVEventRecorder()
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=4), MambaSpec(block_size=4)]
    engine = Engine(usable_blocks=40, specs=specs, retention_interval=None, observer=events)
    request = engine.admit(range(8))
    assert engine.table(request, 1)[0] == 0
    (stored,) = [e for e in events.take_events() if isinstance(e, BlockStored) and e.group_id == 1]
    assert stored.block_hashes == (request.block_hashes[1],)
    assert stored.token_ids == (4, 5, 6, 7)
    assert stored.parent_block_hash == request.block_hashes[0]


def test_bh088_a_parent_was_announced_before_its_children() -> None:
    """By the group itself where every block is kept; a window or a state names a parent that full attention stored."""
    events = KVEventRecorder()
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=4, sliding_window=6)]
    engine = Engine(usable_blocks=60, specs=specs, observer=events)
    requests = [engine.admit(range(22)), engine.admit([*range(10), *range(50, 70)])]
    for request in requests:
        for token in range(9):
            engine.decode(request, token)
    engine.free(*requests)
    engine.admit(range(40))
    stored: set[tuple[int, bytes]] = set()
    for event in events.take_events():
        if isinstance(event, BlockStored):
            parent = event.parent_block_hash
            assert parent is None or (0, parent) in stored
            stored |= {(event.group_id, block_hash) for block_hash in event.block_hashes}


@pytest.mark.parametrize("older_first", [True, False])
def test_bh089_a_hash_with_a_copy_left_is_not_removed(older_first: bool) -> None:
    events = KVEventRecorder()
    engine = Engine(observer=events)
    requests = [engine.admit(range(4)), engine.admit(range(4))]
    first, second = requests if older_first else requests[::-1]
    engine.manager.evict_blocks(engine.table(first))
    assert not [e for e in events.take_events() if isinstance(e, BlockRemoved)]
    assert engine.hit(range(5)).blocks.get_block_ids() == (engine.table(second),)
    engine.manager.evict_blocks(engine.table(second))
    assert events.take_events() == [BlockRemoved(first.block_hashes[0], 0)]
    assert engine.hit(range(5)).num_tokens == 0


def test_bh091_blocks_from_elsewhere_are_announced_before_what_follows_them() -> None:
    events = KVEventRecorder()
    engine = Engine(observer=events)
    request = engine.request(range(12))
    assert engine.try_admit(request, 4, num_external_computed_tokens=8) is not None
    hashes = [block_hash for e in events.take_events() if isinstance(e, BlockStored) for block_hash in e.block_hashes]
    assert hashes == request.block_hashes


def test_bh093_a_shared_block_counts_once() -> None:
    engine = Engine(usable_blocks=10)
    requests = [engine.admit([*range(8), 100 + i]) for i in range(3)]
    assert engine.manager.pool_usage.live == 2 + 3
    engine.free(*requests[:2])
    assert engine.manager.pool_usage.live == 3
    engine.free(requests[2])
    assert engine.manager.pool_usage == (0, 2, 8)
