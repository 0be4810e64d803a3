"""The scheduler: who runs, with how many tokens, and who gives way."""

from __future__ import annotations

import random
from typing import Any, Literal

import pytest

from kvblocks.errors import RequestError, UsageError
from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, RequestStatus, TokenRequest
from kvblocks.prefix import BlockHasher
from kvblocks.scheduling import Scheduler, SchedulerConfig, Step
from kvblocks.scheduling.queue import PriorityQueue
from kvblocks.scheduling.request import SchedulableRequest

HASHER = BlockHasher(4)


class Engine:
    """Runs steps and appends a token to every request that has computed all of its own."""

    def __init__(
        self, num_blocks: int, specs: list[KVCacheSpec] | None = None, max_model_len: int = 500, **config: Any
    ) -> None:
        options = {name: config.pop(name) for name in ("watermark", "max_in_flight_tokens") if name in config}
        self.manager = KVCacheManager(
            num_blocks, specs or [FullAttentionSpec(block_size=4)], max_model_len=max_model_len, **options
        )
        self.scheduler = Scheduler(self.manager, SchedulerConfig(**config))
        self.next_token = 1000

    def add(self, request_id: str, prompt: range | list[int], **options: Any) -> TokenRequest:
        request = TokenRequest(request_id, prompt, HASHER, **options)
        assert self.scheduler.add(request) is None
        return request

    def step(self) -> Step:
        step = self.scheduler.schedule()
        self.scheduler.check()
        for request, _, _ in step.scheduled:
            assert isinstance(request, TokenRequest)
            if request.num_computed_tokens == request.num_tokens:
                self.next_token += 1
                request.append_output_token_ids(self.next_token)
        return step

    def finish(self, request_id: str) -> None:
        self.scheduler.finish(request_id)
        self.scheduler.check()


def tokens_of(step: Step) -> dict[str, int]:
    return {scheduled.request.request_id: scheduled.num_tokens for scheduled in step.scheduled}


def test_prompts_are_cut_to_the_step_s_budget_and_decodes_go_first() -> None:
    engine = Engine(40, max_num_batched_tokens=10)
    engine.add("a", range(6))
    engine.add("b", range(100, 120))
    assert tokens_of(engine.step()) == {"a": 6, "b": 4}
    assert tokens_of(engine.step()) == {"a": 1, "b": 9}
    assert tokens_of(engine.step()) == {"a": 1, "b": 7}
    assert tokens_of(engine.step()) == {"a": 1, "b": 1}


def test_no_more_requests_run_at_once_than_allowed() -> None:
    engine = Engine(40, max_num_seqs=2)
    for name in "abc":
        engine.add(name, range(5))
    assert tokens_of(engine.step()).keys() == {"a", "b"}
    engine.finish("a")
    assert tokens_of(engine.step()).keys() == {"b", "c"}


def test_a_request_admitted_later_hits_what_an_earlier_one_computes_in_the_same_step() -> None:
    engine = Engine(40)
    engine.add("a", range(20))
    engine.add("b", range(20))
    step = engine.step()
    assert [(admitted.request.request_id, admitted.num_hit_tokens) for admitted in step.admitted] == [
        ("a", 0),
        ("b", 16),
    ]
    assert tokens_of(step) == {"a": 20, "b": 4}


def test_a_state_is_hit_only_after_the_steps_that_compute_and_use_it() -> None:
    """As in vLLM, which renews the mark while the state is still the one that its owner goes on from."""
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=4), MambaSpec(block_size=4)]
    engine = Engine(60, specs, max_num_batched_tokens=4 * 4)
    engine.add("a", range(17))
    engine.add("b", range(17))
    assert tokens_of(engine.step()) == {"a": 16}
    assert tokens_of(engine.step()) == {"a": 1}
    step = engine.step()
    assert tokens_of(step) == {"a": 1, "b": 1}
    assert step.admitted[0].num_hit_tokens == 16


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget() -> None:
    engine = Engine(40, max_num_batched_tokens=10, chunked_prefill=False)
    engine.add("a", range(6))
    engine.add("b", range(100, 108))
    assert tokens_of(engine.step()) == {"a": 6}
    assert tokens_of(engine.step()) == {"a": 1, "b": 8}
    reason = engine.scheduler.add(TokenRequest("c", range(11), HASHER))
    assert reason == "11 tokens exceed max_num_batched_tokens=10 without chunked prefill"


def test_the_last_admitted_gives_way_and_its_cost_is_reported() -> None:
    engine = Engine(8, full_sequence_must_fit=False)
    a, b = engine.add("a", range(12)), engine.add("b", range(100, 111))
    engine.step()
    assert engine.manager.pool_usage.live == 6
    engine.step()  # a takes the last block, b fills its third
    step = engine.step()
    while not step.preempted:
        step = engine.step()
    (preempted,) = step.preempted
    assert (preempted.request, preempted.beneficiary_id) == (b, "b")
    assert preempted.num_lost_tokens == b.num_tokens - 1
    assert (b.status, b.num_computed_tokens, b.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert a.status is RequestStatus.RUNNING
    engine.finish("a")
    step = engine.step()
    (admitted,) = step.admitted
    assert admitted.resumed
    recomputed = preempted.num_lost_tokens - admitted.num_hit_tokens
    assert step.num_recomputed_tokens == recomputed


def test_with_priorities_the_least_important_gives_way_and_the_most_important_goes_first() -> None:
    engine = Engine(9, policy="priority", full_sequence_must_fit=False)
    engine.add("low", range(11), priority=5, arrival_time_s=0.0)
    engine.add("high", range(100, 111), priority=1, arrival_time_s=1.0)
    step = engine.step()
    assert list(tokens_of(step)) == ["high", "low"]
    while not step.preempted:
        step = engine.step()
    assert [p.request.request_id for p in step.preempted] == ["low"]
    engine.add("urgent", range(200, 203), priority=0, arrival_time_s=9.0)
    engine.finish("high")
    assert [admitted.request.request_id for admitted in engine.step().admitted] == ["urgent", "low"]


def test_a_request_that_can_never_fit_is_rejected_at_once_with_the_reason() -> None:
    engine = Engine(5, max_model_len=100)
    assert engine.scheduler.add(TokenRequest("a", range(17), HASHER)) == (
        "17 tokens need 5 blocks; the pool has 4 usable ones, room for 16 tokens"
    )
    assert engine.scheduler.add(TokenRequest("b", range(101), HASHER)) == "101 tokens exceed max_model_len=100"
    engine.add("c", range(16))
    assert tokens_of(engine.step()) == {"c": 16}


def test_a_request_that_grows_beyond_the_cache_is_refused_instead_of_tried_forever() -> None:
    engine = Engine(5)
    a = engine.add("a", range(14))
    engine.add("b", range(100, 104))
    refused = []
    for _ in range(10):
        step = engine.step()
        refused += step.refused
        if "b" in tokens_of(step):
            break
    (refusal,) = refused
    assert (refusal.request, a.status, a.num_tokens) == (a, RequestStatus.FINISHED, 17)
    assert refusal.reason == "17 tokens need 5 blocks; the pool has 4 usable ones, room for 16 tokens"


def test_the_watermark_keeps_blocks_free_for_those_that_run() -> None:
    def admitted(watermark: float) -> set[str]:
        engine = Engine(21, watermark=watermark)
        engine.add("a", range(40))
        engine.add("b", range(100, 136))
        return set(tokens_of(engine.step()))

    assert admitted(0.0) == {"a", "b"}
    assert admitted(0.1) == {"a"}


def test_a_whole_sequence_must_fit_before_its_first_chunk_runs() -> None:
    def admitted(whole: bool) -> set[str]:
        engine = Engine(16, max_num_batched_tokens=30, full_sequence_must_fit=whole)
        engine.add("a", range(20))
        engine.add("b", range(100, 150))
        return set(tokens_of(engine.step()))

    assert admitted(True) == {"a"}
    assert admitted(False) == {"a", "b"}


def test_finishing_twice_or_an_unknown_request_is_harmless() -> None:
    engine = Engine(20)
    engine.add("a", range(9))
    engine.finish("nobody")
    engine.step()
    engine.finish("a")
    engine.finish("a")
    assert (len(engine.scheduler), engine.manager.pool_usage.live) == (0, 0)
    engine.add("a", range(9))  # the id is free again
    with pytest.raises(RequestError, match="'a': is waiting or running already"):
        engine.scheduler.add(TokenRequest("a", range(3), HASHER))


def test_impossible_limits_are_refused() -> None:
    for bad in ({"max_num_batched_tokens": 0}, {"max_num_seqs": -1}, {"policy": "random"}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            SchedulerConfig(**bad)


SPECS: dict[str, list[KVCacheSpec]] = {
    "full": [FullAttentionSpec(block_size=4)],
    "full and window": [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=4, sliding_window=9)],
    "full and state": [FullAttentionSpec(block_size=4), MambaSpec(block_size=4)],
}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("name", SPECS)
def test_random_traffic_ends_with_every_request_served_and_no_block_lost(
    name: str, policy: Literal["fcfs", "priority"]
) -> None:
    for seed in range(12):
        rng = random.Random(f"{name} {policy} {seed}")
        engine = Engine(
            rng.randrange(26, 40),
            SPECS[name],
            80,
            policy=policy,
            max_num_batched_tokens=rng.choice([7, 16, 64]),
            max_num_seqs=rng.choice([2, 8]),
            full_sequence_must_fit=rng.random() < 0.7,
            max_in_flight_tokens=64,
            watermark=rng.choice([0.0, 0.1]),
        )
        goal: dict[str, int] = {}
        served: set[str] = set()
        preemptions = 0
        for number in range(40):
            prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
            engine.add(f"r{number}", prompt, priority=rng.randrange(3), arrival_time_s=float(number))
            goal[f"r{number}"] = len(prompt) + rng.randrange(1, 20)
            if rng.random() < 0.1:
                engine.finish(f"r{rng.randrange(number + 1)}")
        for _ in range(4000):
            if not len(engine.scheduler):
                break
            step = engine.step()
            assert step.num_tokens == sum(tokens_of(step).values()) <= engine.scheduler.config.max_num_batched_tokens
            assert len(engine.scheduler.running) <= engine.scheduler.config.max_num_seqs
            assert step.scheduled or step.preempted
            preemptions += len(step.preempted)
            for request, _, _ in step.scheduled:
                if request.num_tokens >= goal[request.request_id]:
                    served.add(request.request_id)
                    engine.finish(request.request_id)
        assert not len(engine.scheduler), f"seed {seed}: requests are stuck"
        assert len(served) > 25
        assert engine.manager.pool_usage.live == 0


def state_engine(**config: Any) -> Engine:
    specs: list[KVCacheSpec] = [
        FullAttentionSpec(block_size=4),
        MambaSpec(block_size=4, cache_mode="align"),
    ]
    return Engine(200, specs, max_in_flight_tokens=64, **config)


def test_steps_over_a_prompt_end_at_a_block_s_end_so_that_its_state_can_be_hit() -> None:
    engine = state_engine(max_num_batched_tokens=10)
    engine.add("a", range(23))
    assert [tokens_of(engine.step()) for _ in range(4)] == [{"a": 8}, {"a": 8}, {"a": 4}, {"a": 3}]
    engine.add("b", [*range(20), 50, 51])
    assert engine.step().admitted[0].num_hit_tokens == 20


def test_a_prompt_waits_for_a_step_with_room_up_to_a_block_s_end() -> None:
    engine = state_engine(max_num_batched_tokens=10)
    engine.add("a", range(7))
    engine.add("b", range(100, 120))
    assert tokens_of(engine.step()) == {"a": 4, "b": 4}
    assert tokens_of(engine.step()) == {"a": 3, "b": 4}
    assert tokens_of(engine.step()) == {"a": 1, "b": 8}


def test_a_block_that_no_step_can_fill_is_filled_in_several() -> None:
    engine = state_engine(max_num_batched_tokens=3)
    engine.add("a", range(10))
    assert [tokens_of(engine.step())["a"] for _ in range(5)] == [3, 1, 3, 1, 2]


def test_without_prefix_caching_steps_end_anywhere() -> None:
    manager = KVCacheManager(
        50,
        [MambaSpec(block_size=64, cache_mode="none")],
        max_model_len=64,
        enable_caching=False,
        max_in_flight_tokens=64,
    )
    scheduler = Scheduler(manager, SchedulerConfig(max_num_batched_tokens=10))
    assert scheduler.add(TokenRequest("a", range(23), HASHER)) is None
    assert tokens_of(scheduler.schedule()) == {"a": 10}


def test_steps_larger_than_what_a_window_is_sized_for_are_refused() -> None:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=4, sliding_window=9)]
    with pytest.raises(UsageError, match="max_num_batched_tokens=64 exceeds the manager's max_in_flight_tokens=16"):
        Engine(60, specs, max_num_batched_tokens=64, max_in_flight_tokens=16)
    Engine(60, specs, max_num_batched_tokens=16, max_in_flight_tokens=16)
    Engine(60, specs[:1], max_num_batched_tokens=64, max_in_flight_tokens=16)  # no window, nothing sized by it


def test_a_request_without_the_hashes_that_caching_needs_is_not_queued() -> None:
    engine = Engine(40)
    with pytest.raises(RequestError, match="block_hashes has 0 entries, but 10 tokens fill 2 units of 4"):
        engine.scheduler.add(TokenRequest("a", range(10)))
    assert len(engine.scheduler) == 0
    engine.add("a", range(10))


def test_a_request_ends_where_it_is_whatever_its_status_says() -> None:
    engine = Engine(40, max_num_seqs=1)
    running, waiting = engine.add("a", range(9)), engine.add("b", range(100, 109))
    engine.step()
    running.status, waiting.status = RequestStatus.FINISHED, RequestStatus.RUNNING  # by an engine that was first
    engine.finish("b")
    assert engine.scheduler.num_waiting == 0
    engine.finish("a")
    assert (engine.scheduler.running, engine.manager.pool_usage.live) == ([], 0)
    with pytest.raises(UsageError, match="name the request by its request_id"):
        engine.scheduler.finish(running)  # type: ignore[arg-type]


def test_of_equals_by_priority_and_arrival_the_one_that_was_preempted_goes_first() -> None:
    queue = PriorityQueue()
    requests = {name: TokenRequest(name, range(4), HASHER, priority=1, arrival_time_s=2.0) for name in "abcd"}
    for name in "ab":
        queue.add(requests[name])
    queue.put_back(requests["c"])
    queue.put_back(requests["d"])
    assert [queue.pop().request_id for _ in range(4)] == ["d", "c", "a", "b"]


def test_a_step_looks_at_each_running_request_once() -> None:
    """Requests that decode and requests that cannot (their token is not there yet), in turn: the worst case."""

    class Counted(list[SchedulableRequest]):
        read = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            self.read += len(found) if isinstance(at, slice) else 1
            return found

    engine = Engine(2000, max_num_seqs=400, max_num_batched_tokens=4000)
    for number in range(400):
        engine.add(f"r{number}", [number * 10 + i for i in range(5)])
    requests = [scheduled.request for scheduled in engine.scheduler.schedule().scheduled]
    for request in requests[::2]:
        assert isinstance(request, TokenRequest)
        request.append_output_token_ids(1)
    engine.scheduler.running = counted = Counted(requests)
    assert len(engine.scheduler.schedule().scheduled) == 200
    assert counted.read < 4 * len(requests)
