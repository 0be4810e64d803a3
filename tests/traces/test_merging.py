"""Several traces as one: whose ids mean the same, and what every request must say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import TraceError, UsageError
from kvblocks.traces import describe, open_trace, open_traces


def write(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def reusable_tokens(*paths: str) -> int:
    with open_traces(paths) as trace:
        return describe(trace).reusable_tokens


MOONCAKE = {"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]}
OURS = {"timestamp": 0, "input_length": 33, "tokens_per_id": 16, "block_ids": [0, 1]}


@pytest.mark.parametrize("record, tokens", [(MOONCAKE, 1024), (OURS, 32)])
def test_equal_content_ids_of_different_files_are_different_content(
    tmp_path: Path, record: dict[str, Any], tokens: int
) -> None:
    one, other = write(tmp_path / "one", record), write(tmp_path / "other", record)
    assert reusable_tokens(one, other) == 0
    assert reusable_tokens(write(tmp_path / "both", record, record)) == tokens


def test_a_namespace_joins_the_content_ids_of_several_files(tmp_path: Path) -> None:
    record = OURS | {"namespace": "monday"}
    one, other = write(tmp_path / "one", record), write(tmp_path / "other", record)
    assert reusable_tokens(one, other) == 32
    assert reusable_tokens(one, write(tmp_path / "third", OURS | {"namespace": "tuesday"})) == 0


def test_token_ids_mean_the_same_in_every_file(tmp_path: Path) -> None:
    record = {"timestamp": 0, "prompt_token_ids": list(range(40))}
    assert reusable_tokens(write(tmp_path / "one", record), write(tmp_path / "other", record)) == 32


def test_merging_needs_a_timestamp_in_every_request(tmp_path: Path) -> None:
    timed = write(tmp_path / "timed", {"input_length": 3, "timestamp": 1})
    mixed = write(tmp_path / "mixed", {"input_length": 3, "timestamp": 1}, {"input_length": 3})
    with open_trace(mixed) as trace:
        assert [r.timestamp_s for r in trace] == [1.0, None]
    with (
        open_traces([timed, mixed]) as merged,
        pytest.raises(TraceError, match=r"mixed:2: .*several traces are merged"),
    ):
        list(merged)
    with open_traces([timed, mixed], skip_bad_lines=True) as merged:
        assert len(list(merged)) == 2
        assert merged.skipped.count == 1


def test_equal_times_are_in_order_and_a_fault_names_both_lines(tmp_path: Path) -> None:
    records = [{"input_length": 3, "timestamp": t} for t in (1, 1, 2.5, 2, 3)]
    path = write(tmp_path / "trace", *records)
    with open_trace(path) as trace, pytest.raises(TraceError, match=r"trace:4: .*is 2 s, before the 2.5 s of line 3"):
        list(trace)
    with open_trace(path, skip_bad_lines=True) as trace:
        assert [r.timestamp_s for r in trace] == [1.0, 1.0, 2.5, 3.0]
        assert trace.skipped.count == 1
    azure = tmp_path / "azure"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02.5,1,1\n")
    with open_trace(str(azure)) as trace, pytest.raises(TraceError, match=r"is -0\.5 s, .*sort -t, -k1,1"):
        list(trace)


def test_mooncake_runs_may_have_another_length(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", MOONCAKE | {"input_length": 40})
    with open_trace(path, tokens_per_id=16) as trace:
        assert [r.tokens_per_id for r in trace] == [16]
    with open_trace(path) as trace, pytest.raises(TraceError, match="--tokens-per-id"):
        list(trace)
    with pytest.raises(UsageError, match="tokens_per_id=0"):
        open_trace(path, tokens_per_id=0)
