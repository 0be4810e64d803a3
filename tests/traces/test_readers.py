"""Trace readers: each format becomes the same kind of request."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.traces import TraceRequest, describe, open_trace, open_traces
from tests.shared import shared

MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 512, "output_length": 0, "hash_ids": [0]},
]
SESSION = {
    "id": "abc",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "s", "in": 130, "out": 7, "hash_ids": [1, 2]},
        {
            "t": 5.0,
            "type": "subagent",
            "requests": [
                {"t": 0.0, "type": "n", "in": 64, "out": 1, "hash_ids": [9]},
                {"t": 7.0, "type": "n", "in": 65, "out": 1, "hash_ids": [9]},
            ],
        },
        {"t": 8.0, "type": "subagent", "requests": [{"t": 0.5, "type": "n", "in": 64, "hash_ids": [8]}]},
        {"t": 10.0, "type": "n", "in": 200, "out": 3, "hash_ids": [1, 2, 3]},
    ],
}
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
)


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(path: Path, **options: Any) -> list[TraceRequest]:
    with open_trace(str(path), **options) as trace:
        return list(trace)


def write(folder: Path, data: bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_mooncake_lines_have_512_tokens_an_id_and_milliseconds(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, lines(*MOONCAKE)))
    assert (first.num_prompt_tokens, first.num_output_tokens, list(first.block_ids or ())) == (600, 5, [0, 1])
    assert (first.tokens_per_id, first.timestamp_s, second.timestamp_s) == (512, 0.0, 1.5)


def test_a_session_is_flattened_in_time_order_with_ids_of_its_own(tmp_path: Path) -> None:
    requests = read(write(tmp_path, json.dumps(SESSION, indent=2).encode()))
    assert [r.timestamp_s for r in requests] == [0.0, 5.0, 8.5, 10.0, 12.0]
    assert [r.num_prompt_tokens for r in requests] == [130, 64, 64, 200, 65]
    assert {r.session for r in requests} == {"abc"}
    (namespace,) = {r.namespace for r in requests}
    assert namespace
    other = read(write(tmp_path, json.dumps(SESSION).encode(), "other"))
    assert other[0].namespace != namespace
    shared_scope = read(write(tmp_path, json.dumps(SESSION | {"hash_id_scope": "global"}).encode()))
    assert {r.namespace for r in shared_scope} == {""}


def test_azure_rows_have_lengths_and_seconds_from_the_first(tmp_path: Path) -> None:
    first, second = read(write(tmp_path, AZURE.encode()))
    assert (first.num_prompt_tokens, first.num_output_tokens, first.timestamp_s) == (4808, 10, 0.0)
    assert second.timestamp_s == pytest.approx(0.052)
    assert first.token_ids is first.block_ids is None
    zoned = AZURE.splitlines()[0] + "\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:01+02:00,1,0\n"
    assert [r.timestamp_s for r in read(write(tmp_path, zoned.encode()))] == [0.0, pytest.approx(0.99007)]


def test_our_lines_hold_tokens_ids_or_a_length_and_all_that_a_cache_wants_to_know(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        lines(
            {
                "prompt_token_ids": [1, 2, 3],
                "output_length": 4,
                "timestamp": 1.5,
                "session": "s",
                "cache_salt": "t",
                "lora": "l",
                "priority": -2,
                "request_id": "q",
                "something_else": [1],
            },
            {"input_length": 100},
            {"input_length": 40, "tokens_per_id": 16, "block_ids": [7, 8, 9]},
        ),
    )
    tokens, length, ids = read(path)
    assert tokens == TraceRequest("q", 3, 4, 1.5, tokens.token_ids, None, 0, "", "s", "t", "l", -2)
    assert list(tokens.token_ids or ()) == [1, 2, 3]
    assert (length.num_prompt_tokens, length.num_output_tokens, length.timestamp_s, length.request_id) == (
        100,
        0,
        None,
        "2",
    )
    assert (list(ids.block_ids or ()), ids.tokens_per_id) == ([7, 8, 9], 16)


@pytest.mark.parametrize(
    "data", [lines(*MOONCAKE), json.dumps(SESSION).encode(), AZURE.encode(), lines({"input_length": 3})]
)
def test_gzip_a_byte_order_mark_blank_lines_and_windows_ends_make_no_difference(tmp_path: Path, data: bytes) -> None:
    plain = write(tmp_path, data)
    expected = read(plain)
    assert expected
    for variant in (gzip.compress(data), b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n") + b"\r\n\n  \n"):
        assert read(write(tmp_path, variant)) == expected


def test_standard_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (lines(*MOONCAKE), gzip.compress(lines(*MOONCAKE))):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        with open_trace("-") as trace:
            assert trace.total_bytes is None
            assert len(list(trace)) == 2


def test_several_files_and_directories_are_merged_by_time(tmp_path: Path) -> None:
    for i in range(3):
        record = SESSION | {"requests": [{"t": float(t), "in": 64, "out": 0, "hash_ids": [1]} for t in (i, i + 5)]}
        write(tmp_path, json.dumps(record).encode(), f"{i}.json")
    (tmp_path / "README.md").write_text("not a trace")
    with open_traces([str(tmp_path)]) as trace:
        assert [r.timestamp_s for r in trace] == [0.0, 1.0, 2.0, 5.0, 6.0, 7.0]
        assert trace.total_bytes
        assert trace.bytes_read == trace.total_bytes


def test_a_long_trace_is_streamed(tmp_path: Path) -> None:
    path = write(tmp_path, lines(*({"input_length": 5, "timestamp": i} for i in range(50_000))))
    with open_trace(str(path)) as trace:
        requests = iter(trace)
        next(requests)
        assert trace.total_bytes is not None
        assert trace.bytes_read < trace.total_bytes / 2


def test_a_format_can_be_named(tmp_path: Path) -> None:
    damaged = write(tmp_path, b"# a comment\n" + lines(*MOONCAKE))
    with open_trace(str(damaged), format="mooncake", skip_bad_lines=True) as trace:
        assert len(list(trace)) == 2
        assert trace.skipped.count == 1
        assert "is not JSON" in trace.skipped.examples[0]


def test_the_recorded_traces_can_be_read() -> None:
    expected = {"mooncake": 12_031, "kv_cache_tester": 448, "azure_llm_2023": 8_819}
    for folder, requests in expected.items():
        with open_traces([str(shared(f"traces/{folder}"))]) as trace:
            assert describe(trace).requests == requests


def test_describe_counts_by_hand(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        lines(
            {"input_length": 64, "tokens_per_id": 16, "block_ids": [1, 2, 3, 4], "timestamp": 0, "session": "a"},
            {"input_length": 64, "tokens_per_id": 16, "block_ids": [1, 2, 3, 4], "timestamp": 2, "session": "b"},
            {"input_length": 40, "tokens_per_id": 16, "block_ids": [1, 2, 9], "timestamp": 4, "output_length": 6},
            {"input_length": 32, "tokens_per_id": 16, "block_ids": [1, 2], "cache_salt": "x", "timestamp": 4},
        ),
    )
    with open_trace(str(path)) as trace:
        summary = describe(trace)
    assert (summary.requests, summary.sessions, summary.duration_s, summary.requests_per_s) == (4, 2, 4.0, 1.0)
    assert summary.reusable_tokens == 48 + 32  # the last token is always computed, so its unit is too
    assert summary.reusable_share == 80 / 200
    assert (summary.distinct_units, summary.distinct_tokens) == (
        4 + 0 + 2,
        16 * 6,
    )  # with the salt the same ids are others
    assert summary.prompt_tokens["max"] == 64
    assert summary.output_tokens["total"] == 6
    assert summary.shared_prefixes == [{"tokens": 64, "requests": 2}, {"tokens": 32, "requests": 3}]
