"""Explanations add up, and their advice is what a replay of it finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kvblocks.explain import Advice, Explanation, explain
from kvblocks.kinds import FullAttentionSpec, SlidingWindowSpec
from kvblocks.replay import CacheLayout, ReplaySettings, RunResult, replay
from kvblocks.traces import TraceRequest, Workload, generate, open_trace
from tests.explain import made_up
from tests.shared import shared


def explained(
    requests: Sequence[TraceRequest], num_blocks: int | None = None, block_size: int = 16, **settings: Any
) -> Explanation:
    settings = {"serial": True, **settings}
    found = explain(lambda: requests, num_blocks, ReplaySettings(block_size=block_size, **settings))
    adds_up(found)
    return found


def adds_up(found: Explanation) -> None:
    """What holds for every explanation."""
    run = found.run
    assert run.hit_tokens + sum(share.tokens for share in found.reasons) == run.prompt_tokens
    assert run.hit_rate + sum(share.share for share in found.reasons) == pytest.approx(1)
    assert found.gpu_s == pytest.approx(sum(share.gpu_s for share in found.reasons))
    for share in found.reasons:
        assert 0 < share.ttft_adds_s["mean"] < found.ttft_s["mean"]
    assert sum(share.ttft_adds_s["mean"] for share in found.reasons) == pytest.approx(found.ttft_s["mean"] - 0.020)
    assert all(advice.gain >= 0.005 for advice in found.advice)
    assert [advice.gain for advice in found.advice] == sorted((a.gain for a in found.advice), reverse=True)
    assert all(advice in found.tried for advice in found.advice)
    if found.curve is not None:
        assert found.curve.largest_error < 0.001


def again(requests: Sequence[TraceRequest], advice: Advice, **settings: Any) -> RunResult:
    """A replay of our own with the size and block size that advice names."""
    chosen = ReplaySettings(**{"serial": True, **settings} | {"block_size": advice.block_size})
    return replay(lambda: requests, [advice.num_blocks], chosen).runs[0]


def same(advice: Advice, run: RunResult, before: RunResult) -> None:
    assert (advice.hit_tokens, advice.hit_rate) == (run.hit_tokens, run.hit_rate)
    assert advice.gain == run.hit_rate - before.hit_rate


def test_a_time_in_the_system_prompt_is_found_and_moved() -> None:
    found = explained(made_up.with_a_time(200, where="front"))
    assert found.hit_rate < 0.2
    assert found.reasons[0].reason == "first_seen"
    top = found.advice[0]
    assert (top.kind, top.simulated, top.details["position"]) == ("move", True, 20)
    assert 370 <= top.details["same_again_tokens"] <= 380
    mended = explained(made_up.with_a_time(200, where="end"))
    assert top.hit_rate == pytest.approx(mended.hit_rate, abs=0.01)
    assert top.gain > 0.6
    assert top.line.startswith("move the part that differs at token 20 behind the ")
    assert top.line.endswith(f"{100 * top.gain:+.1f} points (simulated)")
    assert not [advice for advice in mended.advice if advice.gain > 0.03]


def test_a_shuffled_list_of_tools_is_found_and_put_in_order() -> None:
    found = explained(made_up.with_tools(150, shuffled=True))
    assert [advice.kind for advice in found.advice] == ["order"]  # moving the list behind the rest gains less
    assert {advice.kind for advice in found.tried} == {"order", "move"}
    mended = explained(made_up.with_tools(150, shuffled=False))
    assert found.advice[0].hit_rate == pytest.approx(mended.hit_rate, abs=0.01)
    assert found.advice[0].gain > 0.5
    assert not mended.advice


def test_a_cache_that_is_too_small_is_told_by_how_much() -> None:
    requests = made_up.documents(300, documents=20)
    found = explained(requests, 300)
    assert found.reasons[0].reason == "evicted"
    assert found.advice[0].kind == "cache_size"
    for advice in found.advice:
        same(advice, again(requests, advice), found.run)
    assert found.advice[0].words == f"cache 2x larger ({found.advice[0].num_blocks:,} blocks)"
    assert "4x" not in " ".join(advice.words for advice in found.advice)  # it gains no more than 2x


def test_a_block_that_is_too_large_is_told_by_how_much() -> None:
    requests = made_up.documents(200, documents=10)
    found = explained(requests, 60, block_size=528)
    assert found.reasons[0].reason == "partial_block"
    top = found.advice[0]
    assert top.words == "block size 16 instead of 528"
    assert (top.block_size, top.num_blocks) == (16, 59 * 528 // 16 + 1)
    same(top, again(requests, top), found.run)
    assert top.gain > 0.5


def test_salts_that_keep_a_prompt_apart_are_told() -> None:
    requests = made_up.with_salts(100, salts=50)
    found = explained(requests)
    assert found.reasons[0].reason == "key_differs"
    top = found.advice[0]
    assert (top.kind, top.simulated) == ("salt", True)
    same(top, again(made_up_without_salts(requests), top), found.run)
    assert "tenant" not in str(found.to_dict())  # salts are secrets


def made_up_without_salts(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    return [made_up.request(i, list(request.token_ids or ())) for i, request in enumerate(requests)]


def test_where_nothing_helps_there_is_no_advice() -> None:
    found = explained(made_up.strangers(100))
    assert (found.advice, found.tried) == ([], [])
    assert found.hit_rate == 0
    assert found.curve is not None
    assert found.curve.unbounded == 0


def test_without_a_size_the_cache_is_one_that_never_evicts() -> None:
    requests = list(generate("chat", Workload(requests=200, seed=1)))
    found = explained(requests)
    assert found.never_evicts
    assert found.run.evicted_blocks == 0
    assert found.curve is not None
    assert found.curve.unbounded == pytest.approx(found.hit_rate)


def test_a_timed_replay_tells_who_was_computing_it_and_what_preemptions_cost() -> None:
    requests = [made_up.request(0, list(range(1000, 1400)), outputs=200) for _ in range(60)]
    found = explained(requests, 200, serial=False)
    assert {share.reason for share in found.reasons} >= {"in_flight"}
    assert found.run.preemptions
    assert found.again_tokens == found.run.recomputed_tokens


def test_a_curve_of_several_groups_is_made_of_replays() -> None:
    groups = (FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, sliding_window=64))
    layout = CacheLayout(name="two", groups=groups, tokens_per_block=8.0, max_in_flight_tokens=8192)
    requests = list(generate("chat", Workload(requests=80, seed=1)))
    found = explained(requests, 1500, layout=layout)
    assert found.curve is not None
    assert found.curve.method == "replays"
    for point in found.curve.points:
        run = replay(lambda: requests, [point.num_blocks], ReplaySettings(serial=True, layout=layout)).runs[0]
        assert run.hit_rate == point.hit_rate


TRACES = {
    "conversation": ("traces/mooncake/conversation_trace.jsonl", 512, 2000, 3000),
    "conversation, small blocks": ("traces/mooncake/conversation_trace.jsonl", 16, 20_000, 300),
    "coding session": ("traces/kv_cache_tester/trace_0023.json", 16, 10_000, 40),
    "coding session, large blocks": ("traces/kv_cache_tester/trace_0106.json", 512, 300, 60),
    "lengths only": ("traces/azure_llm_2023/AzureLLMInferenceTrace_code.csv", 16, 5000, 500),
}


@pytest.mark.parametrize("name", TRACES)
def test_the_advice_on_public_traces_is_what_replays_find(name: str) -> None:
    path, block_size, num_blocks, limit = TRACES[name]
    with open_trace(str(shared(path))) as trace:
        requests = list(islice(trace, limit))
    found = explained(requests, num_blocks, block_size)
    plain = [advice for advice in found.tried if not advice.simulated]
    for advice in plain:
        same(advice, again(requests, advice), found.run)
    if plain and max(advice.gain for advice in plain) >= 0.005:
        best = max(plain, key=lambda advice: again(requests, advice).hit_rate)
        assert found.advice[0].gain >= best.gain


def test_the_trace_of_a_file_is_explained_like_its_requests(tmp_path: Path) -> None:
    requests = made_up.with_a_time(50, where="front")
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(f'{{"prompt_token_ids": {list(r.token_ids or ())}, "output_length": 20}}\n' for r in requests)
    )
    of_file = explain(lambda: open_trace(str(path)), 500, ReplaySettings(serial=True)).to_dict()
    assert of_file["reasons"] == explained(requests, 500).to_dict()["reasons"]
