"""Observers: statistics count admissions, events tell which prefixes the cache holds."""

from __future__ import annotations

from typing import Any

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, Observer, Observers, RequestStatus, TokenRequest
from kvblocks.observe import AllBlocksCleared, BlockRemoved, BlockStored, KVEventRecorder, StatsObserver
from kvblocks.prefix import BlockHasher

HASHER = BlockHasher(4)
FULL = FullAttentionSpec(block_size=4)


def make(
    observer: Observer, num_blocks: int = 20, specs: tuple[KVCacheSpec, ...] = (FULL,), **options: Any
) -> KVCacheManager:
    return KVCacheManager(num_blocks, specs, max_model_len=500, observer=observer, **options)


def admit(manager: KVCacheManager, request: TokenRequest) -> bool:
    hit = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit.num_tokens, hit.blocks)
    if blocks is None:
        return False
    request.num_computed_tokens = request.num_tokens
    return True


def test_a_request_counts_when_it_enters_however_often_it_was_looked_up() -> None:
    stats = StatsObserver()
    manager = make(stats, num_blocks=11)
    first, second = TokenRequest("a", range(33), HASHER), TokenRequest("b", range(13), HASHER)
    assert admit(manager, first)
    blocker = TokenRequest("c", range(100, 104), HASHER)
    assert admit(manager, blocker)
    for _ in range(5):
        assert not admit(manager, second)
    assert (stats.stats.requests, stats.stats.queries, stats.stats.hits, stats.stats.refusals) == (2, 37, 0, 5)
    manager.free(blocker)
    assert admit(manager, second)
    taken = stats.take()
    assert (taken.requests, taken.queries, taken.hits, taken.hit_rate) == (3, 50, 12, 12 / 50)
    assert taken.allocated_blocks == 9 + 1 + 1
    assert stats.snapshot().requests == 0


def test_what_a_preempted_request_finds_again_counts_apart() -> None:
    stats = StatsObserver()
    manager = make(stats)
    request = TokenRequest("a", range(13), HASHER)
    admit(manager, request)
    manager.free(request)
    request.num_computed_tokens, request.num_preemptions, request.status = 0, 1, RequestStatus.PREEMPTED
    admit(manager, request)
    taken = stats.take()
    assert (taken.requests, taken.hits) == (1, 0)
    assert (taken.preempted_requests, taken.preempted_queries, taken.preempted_hits) == (1, 13, 12)


def test_a_request_that_must_not_read_the_cache_is_not_in_the_hit_rate_but_feeds_it() -> None:
    stats = StatsObserver()
    manager = make(stats)
    for name in "ab":
        request = TokenRequest(name, range(9), HASHER, skip_reading_prefix_cache=True)
        assert manager.get_computed_blocks(request).num_tokens == 0
        assert admit(manager, request)
    assert stats.stats.requests == 0
    assert manager.get_computed_blocks(TokenRequest("c", range(9), HASHER)).num_tokens == 8


def test_stored_blocks_name_their_parent_and_their_tokens() -> None:
    events = KVEventRecorder()
    manager = make(events)
    request = TokenRequest("a", range(10), HASHER)
    admit(manager, request)
    request.append_output_token_ids([50, 51])
    manager.allocate_slots(request, 2)
    first, second, third = request.block_hashes
    assert events.take_events() == [
        BlockStored((first, second), None, tuple(range(8)), 4, 0, "a"),
        BlockStored((third,), second, (8, 9, 50, 51), 4, 0, "a"),
    ]
    assert events.take_events() == []


def test_a_hash_is_removed_when_its_last_copy_is_gone() -> None:
    events = KVEventRecorder()
    manager = make(events)
    a, b = TokenRequest("a", range(4), HASHER), TokenRequest("b", range(4), HASHER)
    admit(manager, a)
    admit(manager, b)
    (block_a,), (block_b,) = manager.get_block_ids("a")[0], manager.get_block_ids("b")[0]
    events.take_events()
    manager.evict_blocks([block_a])
    assert events.take_events() == []
    manager.evict_blocks([block_b])
    assert events.take_events() == [BlockRemoved(a.block_hashes[0], 0)]


def test_a_reset_clears_all_in_one_event() -> None:
    events = KVEventRecorder()
    manager = make(events)
    request = TokenRequest("a", range(9), HASHER)
    admit(manager, request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    events.take_events()
    assert manager.reset_prefix_cache()
    assert events.take_events() == [AllBlocksCleared()]


def test_blocks_loaded_from_elsewhere_are_stored_in_order_when_they_arrive() -> None:
    events = KVEventRecorder()
    manager = make(events)
    request = TokenRequest("a", range(13), HASHER)
    manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    assert events.take_events() == []
    manager.cache_blocks(request, 8)
    request.num_computed_tokens = 8
    manager.allocate_slots(request, 5)
    stored = [event for event in events.take_events() if isinstance(event, BlockStored)]
    assert [(event.parent_block_hash, len(event.block_hashes)) for event in stored] == [
        (None, 2),
        (request.block_hashes[1], 1),
    ]


def test_a_window_s_events_tell_runs_of_blocks_apart() -> None:
    events = KVEventRecorder()
    window = SlidingWindowSpec(block_size=4, sliding_window=5)
    manager = make(events, specs=(FULL, window), num_blocks=40)
    request = TokenRequest("a", range(41), HASHER)
    request.shared_prefix_boundary = 12
    admit(manager, request)
    stored = [event for event in events.take_events() if isinstance(event, BlockStored) and event.group_id == 1]
    assert [(event.token_ids[0], len(event.token_ids)) for event in stored] == [(8, 4), (36, 4)]
    assert stored[0].parent_block_hash == request.block_hashes[1]


def test_several_observers_are_told_alike_and_none_costs_nothing() -> None:
    class Names(Observer):
        def __init__(self) -> None:
            self.told: list[str] = []

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                object.__getattribute__(self, "told").append(name)
            return super().__getattribute__(name)

    one, other = Names(), Names()
    manager = make(Observers([one, other]), num_blocks=4)
    a, b = TokenRequest("a", range(9), HASHER), TokenRequest("b", range(50, 62), HASHER)
    admit(manager, a)
    admit(manager, b)
    manager.free(a)
    admit(manager, b)
    manager.free(b)
    manager.reset_prefix_cache()
    assert one.told == other.told
    assert {"on_lookup", "on_allocate", "on_cache", "on_refuse", "on_evict", "on_free", "on_reset"} == set(one.told)


def test_what_is_told_of_a_prompt_is_read_once() -> None:
    """Each hash is copied into one event once, however long the run: the work is linear in the prompt."""

    class Hashes(list[bytes]):
        read = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            Hashes.read += len(found) if isinstance(at, slice) else 1
            return found

    events = KVEventRecorder()
    window = SlidingWindowSpec(block_size=4, sliding_window=4000)
    manager = make(events, specs=(window,), num_blocks=400, retention_interval=0)
    request = TokenRequest("a", range(400), HASHER)
    request.block_hashes = Hashes(request.block_hashes)
    admit(manager, request)
    stored = [event for event in events.take_events() if isinstance(event, BlockStored)]
    assert sum(len(event.block_hashes) for event in stored) == 99  # up to where the same prompt resumes
    assert len(stored) == 1
    assert Hashes.read < 6 * len(request.block_hashes)
