"""Public reports about allocating slots, as scenarios of ours."""

from __future__ import annotations

from typing import Any

import pytest

from kvblocks.errors import RequestError
from kvblocks.kinds import ChunkedLocalSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvblocks.observe import StatsObserver
from kvblocks.scheduling import Scheduler, SchedulerConfig
from tests.cases.scenario import Engine, cached

FULL = FullAttentionSpec(block_size=16)


def test_bh037_external_tokens_leave_one_to_compute() -> None:
    engine = Engine(usable_blocks=100, block_size=16)
    request = engine.request(range(1024))
    with pytest.raises(RequestError, match="lower the external tokens by at least 1"):
        engine.manager.allocate_slots(request, 0, num_external_computed_tokens=1024)
    assert engine.try_admit(request, 1, num_external_computed_tokens=1023) is not None
    assert len(engine.table(request)) == 64


def test_bh038_external_tokens_are_those_after_the_local_hit() -> None:
    stats = StatsObserver()
    engine = cached(range(16), block_size=8, observer=stats)
    stats.take()
    request = engine.request(range(40))
    with pytest.raises(RequestError, match="leave none of its 40 tokens to compute"):
        engine.try_admit(request, 0, num_external_computed_tokens=24)  # the store's count, local hit included
    hit = engine.try_admit(request, 16, num_external_computed_tokens=8)
    assert hit is not None
    assert hit.num_tokens == 16
    assert request.num_computed_tokens == 40
    assert engine.table(request)[:2] == [1, 2]
    assert len(engine.table(request)) == 5
    taken = stats.take()
    assert (taken.hits, taken.external_tokens) == (16, 8)
    assert engine.num_free == 15


@pytest.mark.parametrize("prompt, planned_blocks, all_blocks", [(895, 56, 56), (897, 56, 57)])
def test_bh040_the_slots_of_a_plan_are_exactly_those_of_its_tokens(
    prompt: int, planned_blocks: int, all_blocks: int
) -> None:
    """The report's prompt, and one whose last token begins a block: its slot comes with the step that computes it."""
    engine = Engine(usable_blocks=60, block_size=16)
    request = engine.request(range(prompt))
    planned = prompt - 1
    blocks = engine.manager.allocate_slots(request, 0, num_external_computed_tokens=planned, delay_cache_blocks=True)
    assert blocks is not None
    assert len(engine.table(request)) == planned_blocks
    engine.manager.cache_blocks(request, planned)
    request.num_computed_tokens = planned
    assert engine.manager.allocate_slots(request, 1) is not None
    assert len(engine.table(request)) == all_blocks


@pytest.mark.parametrize("held", [False, True])
def test_bh041_an_aborted_load_gives_its_blocks_back_uncached_and_its_late_end_is_refused(held: bool) -> None:
    """Freed at once, or held until the load has stopped writing. The report has the late end ignored; here it raises
    and changes nothing, since a caller that announces content for no blocks has lost count."""
    engine = Engine()
    request = engine.request(range(12))
    engine.manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    if held:
        blocks = engine.manager.pop_blocks_for_free(request)
        assert (len(blocks), engine.num_free) == (2, 18)
        engine.manager.release_blocks(blocks)
    else:
        engine.free(request)
    assert engine.manager.pool_usage == (0, 0, 20)
    with pytest.raises(RequestError, match="holds no blocks"):
        engine.manager.cache_blocks(request, 8)
    engine.free(request)
    assert engine.manager.pop_blocks_for_free(request) == []
    assert engine.manager.pool_usage == (0, 0, 20)


def test_bh043_lookahead_slots_are_allocated_and_not_cached() -> None:
    engine = Engine(block_size=16)
    request = engine.admit(range(14))
    request.append_output_token_ids(1)
    assert engine.manager.allocate_slots(request, 1, num_lookahead_tokens=4) is not None
    assert len(engine.table(request)) == 2
    assert len(engine.manager.block_pool.indexes[0]) == 0


def test_bh044_lookahead_ends_at_the_model_s_length() -> None:
    engine = Engine(usable_blocks=600, block_size=16, max_model_len=8192)
    request = engine.request(range(8186))
    assert engine.try_admit(request, num_lookahead_tokens=7) is not None
    assert len(engine.table(request)) == 512


def test_bh047_a_block_is_allocated_before_its_first_token_is_written() -> None:
    engine = Engine(usable_blocks=2)
    request, other = engine.admit(range(4)), engine.admit(range(50, 54))
    assert not engine.decode(request)  # no block is free for the fifth token
    engine.free(other)
    free = []
    assert engine.manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens += 1
    for _ in range(3):
        free.append(engine.num_free)
        assert engine.decode(request)
    assert free == [0, 0, 0]
    assert len(engine.table(request)) == 2


def test_bh049_a_step_that_needs_no_block_succeeds_with_an_empty_result() -> None:
    engine = Engine(block_size=16)
    request = engine.admit(range(17))
    request.append_output_token_ids(1)
    blocks = engine.manager.allocate_slots(request, 1)
    assert blocks is not None
    assert not blocks
    assert blocks.get_block_ids() == ([],)
    assert blocks.get_block_ids(allow_none=True) is None
    with pytest.raises(RequestError, match="no tokens"):
        engine.manager.allocate_slots(request, 0)


def test_bh050_a_request_that_outgrows_the_cache_is_ended_with_the_reason() -> None:
    """68 usable blocks, of which a state with 3 draft states takes 5 at most: 63 are left, 1,008 tokens."""
    specs = [FullAttentionSpec(block_size=16), MambaSpec(block_size=16, num_speculative_blocks=3)]
    engine = Engine(usable_blocks=68, specs=specs, max_model_len=1024)
    assert engine.manager.max_request_tokens == 1008
    scheduler = Scheduler(engine.manager)
    request = engine.request(range(1000))
    assert scheduler.add(request) is None
    for _ in range(24):
        step = scheduler.schedule()
        scheduler.check()
        if step.refused:
            break
        request.append_output_token_ids(1)
    assert request.num_tokens == 1009
    assert "1009 tokens need 69 blocks; the pool has 68 usable ones, room for 1008 tokens" in step.refused[0].reason
    assert engine.num_free == 68


@pytest.mark.parametrize(
    "specs, options",
    [
        ([FULL], {}),
        ([FULL, SlidingWindowSpec(block_size=32, sliding_window=100)], {"max_in_flight_tokens": 128}),
        ([FULL, ChunkedLocalSpec(block_size=16, attention_chunk_size=64)], {"max_in_flight_tokens": 128}),
        ([FULL, MambaSpec(block_size=16, num_speculative_blocks=3)], {}),
        ([FULL, MambaSpec(block_size=1024, cache_mode="none")], {"enable_caching": False}),
        ([FULL, MambaSpec(block_size=16, cache_mode="none")], {"enable_caching": False}),
    ],
    ids=["full", "window", "chunked local", "checkpoints", "state", "state of small blocks"],
)
@pytest.mark.parametrize("full_sequence_must_fit", [True, False])
def test_bh050_what_is_said_to_fit_an_empty_cache_is_computed(
    specs: list[KVCacheSpec], options: dict[str, Any], full_sequence_must_fit: bool
) -> None:
    """The other half of the report: a request that was let in must not wait for ever either."""
    engine = Engine(usable_blocks=40, specs=specs, max_model_len=1024, **options)
    config = SchedulerConfig(max_num_batched_tokens=128, full_sequence_must_fit=full_sequence_must_fit)
    scheduler = Scheduler(engine.manager, config)
    longest = engine.manager.max_request_tokens
    request = engine.request(range(longest))
    assert scheduler.add(request) is None
    for _ in range(-(-longest // 128) + 1):  # one more where steps end at a block's end
        assert scheduler.schedule().scheduled or request.num_computed_tokens == longest
        scheduler.check()
    assert request.num_computed_tokens == longest
    scheduler.finish(request.request_id)
    assert scheduler.add(engine.request(range(longest + 1))) is not None


def test_bh051_a_request_larger_than_the_pool_does_not_block_those_behind_it() -> None:
    engine = Engine(usable_blocks=4790, block_size=16, max_model_len=262_144)
    scheduler = Scheduler(engine.manager)
    reason = scheduler.add(engine.request(range(100_000)))
    assert reason is not None
    assert "room for 76640 tokens" in reason
    small = engine.request(range(500))
    assert scheduler.add(small) is None
    assert [scheduled.request for scheduled in scheduler.schedule().scheduled] == [small]


def test_bh052_the_null_block_is_not_capacity() -> None:
    engine = Engine(usable_blocks=12, block_size=8192, max_model_len=13 * 8192)
    assert engine.manager.max_request_tokens == 98_304
    assert Scheduler(engine.manager).add(engine.request(range(98_305))) is not None
    assert Scheduler(engine.manager).add(engine.request(range(98_304))) is None


def test_bh054_a_preempted_request_looks_up_its_generated_tokens_too() -> None:
    engine = Engine()
    request = engine.admit(range(10))
    for token in range(7):
        assert engine.decode(request, 100 + token)
    engine.preempt(request)
    assert request.num_computed_tokens == 0
    assert request.num_tokens == 17
    assert engine.manager.get_computed_blocks(request).num_tokens == 16
    hit = engine.try_admit(request)
    assert hit is not None
    assert hit.num_tokens == 16
