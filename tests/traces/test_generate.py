"""Generated workloads: the same for the same seed, readable, and shared as their kind says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvblocks.errors import UsageError
from kvblocks.traces import KINDS, Workload, describe, generate, open_trace, write_trace


@pytest.mark.parametrize("kind", KINDS)
def test_a_generated_trace_reads_back_as_it_was_made(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        assert write_trace(generate(kind, Workload(requests=200, seed=4)), file) == 200
    with open_trace(str(path)) as trace:
        back = list(trace)
    made = list(generate(kind, Workload(requests=200, seed=4)))
    assert [(r.request_id, r.timestamp_s, list(r.block_ids or ())) for r in back] == [
        (r.request_id, r.timestamp_s, list(r.block_ids or ())) for r in made
    ]
    assert made != list(generate(kind, Workload(requests=200, seed=5)))


@pytest.mark.parametrize("kind, low, high", [("chat", 0.6, 0.8), ("agent", 0.85, 1.0), ("rag", 0.3, 0.6)])
def test_the_reusable_share_is_that_of_its_kind(kind: str, low: float, high: float) -> None:
    summary = describe(generate(kind, KINDS[kind][1]))
    assert summary.requests == 1000
    assert low < summary.reusable_share < high


def test_the_same_seed_gives_the_same_trace_on_every_python() -> None:
    first = next(iter(generate("chat", Workload(seed=1))))
    assert (first.num_prompt_tokens, first.num_output_tokens, first.timestamp_s) == (
        582,
        158,
        0.144,
    )


def test_prompts_stay_within_their_limit() -> None:
    for kind in KINDS:
        longest = max(r.num_prompt_tokens for r in generate(kind, Workload(requests=300, max_prompt_tokens=2000)))
        assert 500 < longest <= 2000


def test_impossible_workloads_are_refused() -> None:
    with pytest.raises(UsageError, match="workload 'poem' is unknown: choose one of chat, agent, rag"):
        next(generate("poem"))
    with pytest.raises(UsageError, match="requests=0"):
        Workload(requests=0)
    with pytest.raises(UsageError, match="sessions_per_s"):
        Workload(sessions_per_s=0.0)
    with pytest.raises(UsageError, match="leaves no room after the system prompt"):
        Workload(system_tokens=1000, max_prompt_tokens=1000)
    for bad in (float("nan"), float("inf"), -1.0):
        with pytest.raises(UsageError, match="zipf"):
            Workload(zipf=bad)
    with pytest.raises(UsageError, match="documents_per_request=9 exceeds documents=3"):
        Workload(documents=3, documents_per_request=9)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_workloads_still_give_their_requests(kind: str) -> None:
    extremes = [
        Workload(requests=20, user_tokens=10**6, output_tokens=10**6, system_tokens=0, max_prompt_tokens=64),
        Workload(requests=20, system_tokens=960, max_prompt_tokens=1024, document_tokens=10**4),
        Workload(requests=20, zipf=10, documents=1000, documents_per_request=1000, document_tokens=1),
        Workload(requests=20, turns=1, think_time_s=0, sessions_per_s=1e6),
        Workload(requests=20, turns=10**6, think_time_s=0, sessions_per_s=1e-6),
    ]
    for workload in extremes:
        made = list(generate(kind, workload))
        assert len(made) == 20
        times = [request.timestamp_s or 0.0 for request in made]
        assert times == sorted(times)
        assert all(request.num_prompt_tokens <= workload.max_prompt_tokens for request in made)


def test_an_answer_comes_back_in_the_next_prompt_of_its_conversation() -> None:
    before: dict[str | None, list[int]] = {}
    for request in generate("chat", Workload(requests=200, seed=2)):
        ids = list(request.block_ids or ())
        if request.session in before:
            earlier = before[request.session]
            assert ids[: len(earlier)] == earlier
            assert len(ids) > len(earlier) + 1
        before[request.session] = ids


def test_documents_of_a_question_differ() -> None:
    workload = Workload(requests=100, documents=4, documents_per_request=4, zipf=3, document_tokens=16)
    for request in generate("rag", workload):
        ids = list(request.block_ids or ())
        assert len(set(ids)) == len(ids)
