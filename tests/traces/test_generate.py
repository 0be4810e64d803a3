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


@pytest.mark.parametrize("kind, low, high", [("chat", 0.6, 0.9), ("agent", 0.85, 1.0), ("rag", 0.3, 0.7)])
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
    with pytest.raises(UsageError, match="documents_per_request=9 exceeds documents=3"):
        Workload(documents=3, documents_per_request=9)
