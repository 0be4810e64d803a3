"""Replays: what they count, and that their parts agree."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from kvblocks.errors import TraceError, UsageError
from kvblocks.replay import ReplaySettings, StepCost, replay
from kvblocks.replay.content import TraceHasher
from kvblocks.replay.prefixes import SharedPrefixes
from kvblocks.replay.reuse import ReuseDistances
from kvblocks.scheduling import SchedulerConfig
from kvblocks.traces import TraceRequest, Workload, generate

CHATS = list(generate("chat", Workload(requests=120, seed=3, system_tokens=256)))


def request(
    ids: list[int], tokens: int | None = None, *, at: float | None = None, per_id: int = 16, **fields: Any
) -> TraceRequest:
    prompt = len(ids) * per_id if tokens is None else tokens
    fields.setdefault("num_output_tokens", 0)
    return TraceRequest("r", prompt, block_ids=ids, tokens_per_id=per_id, timestamp_s=at, **fields)


def run(trace: Iterable[TraceRequest], *sizes: int, **settings: Any) -> list[dict[str, Any]]:
    requests = list(trace)
    runs: list[dict[str, Any]] = replay(lambda: requests, sizes, ReplaySettings(**settings)).to_dict(series=True)[
        "runs"
    ]
    return runs


@pytest.mark.parametrize("serial", [True, False])
def test_more_cache_never_hits_less_and_an_unbounded_one_hits_all_that_is_shared(serial: bool) -> None:
    sizes = (200, 400, 800, 1600, 100_000)
    runs = run(CHATS, *sizes, serial=serial)
    hits = [r["hit_tokens"] for r in runs]
    assert hits == sorted(hits)
    assert [r["num_blocks"] for r in runs] == list(sizes)
    assert runs[-1]["evicted_blocks"] == runs[-1]["preemptions"] == 0
    assert runs[-1]["hit_rate"] > 0.5
    for r in runs:
        assert r["requests"] + r["rejected"] >= 120
        assert 0 < r["peak_live_blocks"] < r["num_blocks"]
        assert r["hit_rate"] == r["hit_tokens"] / r["prompt_tokens"]


def test_several_sizes_in_one_run_give_what_each_gives_alone() -> None:
    for serial in (True, False):
        together = run(CHATS, 400, 1600, serial=serial)
        assert together == [*run(CHATS, 400, serial=serial), *run(CHATS, 1600, serial=serial)]


def test_a_serial_replay_counts_by_hand() -> None:
    trace = [request([1, 2, 3]), request([1, 2, 3]), request([1, 2, 4, 5]), request([9], num_output_tokens=20)]
    (r,) = run(trace, 100, serial=True)
    # 3 blocks cold; the same again hits all but the last block; then 2 shared blocks; then nothing
    assert (r["prompt_tokens"], r["hit_tokens"], r["output_tokens"]) == (48 + 48 + 64 + 16, 32 + 32, 20)
    assert (r["requests"], r["rejected"], r["peak_live_blocks"]) == (4, 0, 4)
    assert r["hit_rate_last_half"] == 32 / 80


def test_a_refused_prompt_counts_as_rejected_and_in_nothing_else() -> None:
    trace = [request([1, 2]), request(list(range(10, 15))), request([1, 2]), request([1], num_output_tokens=70)]
    (r,) = run(trace, 5, serial=True)
    assert (r["requests"], r["rejected"], r["prompt_tokens"], r["hit_tokens"]) == (3, 2, 32 + 32 + 16, 16)
    assert r["output_tokens"] == 0  # the last one's outputs were refused
    assert r["reject_reasons"] == {"the prompt does not fit": 1, "the outputs do not fit": 1}
    assert r["reject_examples"]["the prompt does not fit"] == "80 tokens, there is room for 64"
    (timed,) = run(trace, 5)
    assert (timed["requests"], timed["rejected"]) == (3, 2)
    assert "need 5 blocks; the pool has 4 usable ones" in timed["reject_examples"]["the prompt does not fit"]


@pytest.mark.parametrize("serial", [True, False])
def test_requests_beyond_the_model_s_length_are_rejected(serial: bool) -> None:
    trace = [request([1, 2], num_output_tokens=20), request([1, 2, 3, 4]), request([1, 2], num_output_tokens=8)]
    (r,) = run(trace, 100, serial=serial, max_model_len=48)
    assert (r["requests"], r["rejected"], r["prompt_tokens"]) == (2, 2, 64)


def test_without_outputs_only_prompts_take_blocks() -> None:
    trace = [request([1], num_output_tokens=500)]
    assert run(trace, 100, serial=True, outputs=False)[0]["peak_live_blocks"] == 1
    assert run(trace, 100, serial=True)[0]["peak_live_blocks"] == 33
    assert run(trace, 100, outputs=False)[0]["output_tokens"] == 0
    assert run(trace, 100)[0]["output_tokens"] == 500


def test_a_finer_block_finds_sharing_inside_a_coarse_content_id() -> None:
    trace = [request([1, 2], 1000, per_id=512), request([1, 2, 3], 1500, per_id=512)]
    hits = {size: run(trace, 5000, serial=True, block_size=size)[0]["hit_tokens"] for size in (16, 64, 500, 512, 1024)}
    assert hits == {16: 992, 64: 960, 500: 1000, 512: 512, 1024: 0}


def test_what_is_not_known_is_never_shared() -> None:
    lengths_only = [TraceRequest("a", 100, 5), TraceRequest("b", 100, 5)]
    assert run(lengths_only, 100, serial=True)[0]["hit_tokens"] == 0
    tails = [request([1], 100), request([1], 100)]  # one known run of 16, then content of their own
    assert run(tails, 100, serial=True)[0]["hit_tokens"] == 16


def test_namespaces_salts_and_adapters_keep_content_apart() -> None:
    apart: list[dict[str, Any]] = [{"namespace": "x"}, {"cache_salt": "x"}, {"lora": "x"}]
    for fields in apart:
        trace = [request([1, 2, 3]), request([1, 2, 3], **fields), request([1, 2, 3], **fields)]
        assert run(trace, 100, serial=True)[0]["hit_tokens"] == 32, fields


def test_token_ids_and_content_ids_give_the_same_hits() -> None:
    rng = random.Random(1)
    ids = [[rng.randrange(3) for _ in range(rng.randrange(1, 9))] for _ in range(60)]
    by_id = [request(row) for row in ids]
    by_token = [
        TraceRequest("t", len(row) * 16, 0, token_ids=[16 * i + j for i in row for j in range(16)]) for row in ids
    ]
    for size in (20, 60, 4000):
        assert run(by_id, size, serial=True)[0]["hit_tokens"] == run(by_token, size, serial=True)[0]["hit_tokens"]


def test_a_timed_replay_follows_its_clock() -> None:
    cost = StepCost(prefill_tokens_per_s=1000.0, decode_step_s=0.1)
    trace = [request([1], num_output_tokens=3, at=10.0), request([2], num_output_tokens=1, at=100.0)]
    (r,) = run(trace, 100, cost=cost)
    assert r["steps"] == 4  # prefill and first token, two decodes; then the second request
    assert r["ttft_s"]["mean"] == pytest.approx(0.116)
    assert r["duration_s"] == pytest.approx(100.116)
    assert r["output_tokens"] == 4


def test_a_small_cache_preempts_and_recomputes_what_was_lost() -> None:
    trace = [request([10 * i + j for j in range(3)], num_output_tokens=60, at=0.0) for i in range(4)]
    (r,) = run(trace, 20, scheduler=SchedulerConfig(full_sequence_must_fit=False))
    assert r["preemptions"] > 0
    assert 0 < r["recomputed_tokens"] < r["preemptions"] * 108
    assert (r["requests"], r["output_tokens"], r["rejected"]) == (4, 240, 0)


def test_an_interrupted_replay_gives_what_is_known_so_far() -> None:
    def interrupted() -> Iterator[TraceRequest]:
        yield from CHATS[:40]
        raise KeyboardInterrupt

    for serial in (True, False):
        found = replay(interrupted, [400, 800], ReplaySettings(serial=serial))
        assert found.interrupted
        assert found.to_dict()["interrupted"]
        assert 0 < found.runs[0].requests <= 40
        assert found.to_dict()["not_run"] == ([] if serial else [800])
        nothing = replay(lambda: iter(_interrupted_at_once()), [400, 800], ReplaySettings(serial=serial))
        assert (nothing.interrupted, nothing.runs, nothing.not_run) == (True, [], [400, 800])


def _interrupted_at_once() -> Iterator[TraceRequest]:
    raise KeyboardInterrupt
    yield


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="num_blocks=1: the null block"):
        run(CHATS, 1)
    with pytest.raises(UsageError, match="no cache size"):
        run(CHATS)
    with pytest.raises(TraceError, match="no request to replay"):
        run([], 10)
    wrong: list[dict[str, Any]] = [{"block_size": 0}, {"block_size": 2**32}, {"limit": 0}, {"limit": 10**23}]
    for bad in wrong:
        with pytest.raises(UsageError, match=next(iter(bad))):
            ReplaySettings(**bad)
    for cost in ({"prefill_tokens_per_s": 1e-300}, {"decode_step_s": float("nan")}, {"decode_step_s": 1e300}):
        with pytest.raises(UsageError, match=next(iter(cost))):
            StepCost(**cost)


def test_series_have_few_points_and_add_up() -> None:
    (r,) = run(CHATS * 12, 800, serial=True)
    series = r["series"]
    assert 100 < len(series["x"]) <= 512
    assert all(a + b + c == 799 for a, b, c in zip(series["live"], series["cached"], series["blank"], strict=True))
    assert series["x"] == sorted(series["x"])


def test_reuse_distances_equal_a_plain_count() -> None:
    rng = random.Random(2)
    touches = [rng.randrange(40).to_bytes(32, "big") for _ in range(600)]
    reuse = ReuseDistances()
    reuse.touch(touches)
    expected: dict[int, int] = {}
    cold = 0
    for i, content in enumerate(touches):
        before = next((j for j in range(i - 1, -1, -1) if touches[j] == content), None)
        if before is None:
            cold += 1
        else:
            distance = len(set(touches[before + 1 : i]))
            expected[distance.bit_length()] = expected.get(distance.bit_length(), 0) + 1
    data = reuse.to_dict()
    assert data["cold"] == cold
    assert data["counts"] == [expected.get(i, 0) for i in range(len(data["counts"]))]
    assert len(data["edges"]) == len(data["counts"]) + 1


def test_a_thinned_sample_of_reuse_distances_stays_close(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    contents = [rng.randbytes(32) for _ in range(500)]
    touches = [contents[min(int(rng.paretovariate(0.6)), 499)] for _ in range(12_000)]
    exact, thinned = ReuseDistances(), ReuseDistances()
    exact.touch(touches)
    monkeypatch.setattr("kvblocks.replay.reuse.SAMPLE_TOUCHES", 3000)
    for at in range(0, len(touches), 50):
        thinned.touch(touches[at : at + 50])
    assert thinned.to_dict()["sampled_share"] < 1
    whole, part = sum(exact.to_dict()["counts"]), sum(thinned.to_dict()["counts"])
    assert 0.5 * whole < part < 2 * whole


def test_shared_prefixes_are_a_tree_of_stretches() -> None:
    hasher = TraceHasher(512)
    prefixes = SharedPrefixes(512)
    for ids in ([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [7]):
        prefixes.touch(hasher.prompt(request(ids, per_id=512)).hashes)
    first, second = prefixes.to_list()
    assert (first["label"], first["requests"], first["hit_tokens"], first["parent"]) == (
        "tokens 0-1,024",
        3,
        2048,
        None,
    )
    assert (second["label"], second["requests"], second["parent"]) == ("tokens 1,024-1,536", 2, first["id"])
