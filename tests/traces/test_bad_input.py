"""Bad traces: the message names the file, the line, the field, what was seen and the fix; nothing else is raised."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import KVBlocksError, MissingExtraError, TraceError, UsageError
from kvblocks.traces import describe, open_trace, open_traces

GOOD = b'{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'


def changed(**fields: Any) -> bytes:
    record = json.loads(GOOD) | fields
    return json.dumps({name: value for name, value in record.items() if value != "GONE"}).encode()


BAD_LINES = [
    (b'{"timestamp": 5, "input_length": 600,', None, "is not JSON"),
    (b"[1, 2]", None, "is not a JSON object but [1, 2]"),
    (b"\x00\xff\xfe", None, "is not JSON"),
    (b'{"a": "\xff"}', None, "is not JSON"),
    (b"[" * 100_000, None, "is not JSON"),
    (
        changed(input_length="GONE"),
        "input_length",
        "is missing; add it (there is 'timestamp', 'output_length', 'hash_ids')",
    ),
    (changed(input_length=-3), "input_length", "is -3; it must be at least 1"),
    (changed(input_length=0), "input_length", "is 0; it must be at least 1"),
    (changed(input_length=2**40), "input_length", "below 2147483648"),
    (changed(input_length="600"), "input_length", "is '600'; it must be a whole number of tokens"),
    (changed(input_length=True), "input_length", "is true"),
    (changed(input_length=1.5), "input_length", "is 1.5"),
    (changed(output_length=-1), "output_length", "is -1; it must be at least 0"),
    (changed(timestamp="now\x1b[31m"), "timestamp", r"is 'now\x1b[31m'; it must be a time"),
    (changed(timestamp=-1), "timestamp", "not negative"),
    (changed(hash_ids=[0]), "hash_ids", "has 1 ids, but 600 tokens start 2 runs of 512"),
    (changed(hash_ids=[0, -1]), "hash_ids", "has -1 at position 1"),
    (changed(hash_ids=[0, 2**63]), "hash_ids", "at position 1; it must be a whole number from 0"),
    (changed(hash_ids=[0, True]), "hash_ids", "has true at position 1"),
    (changed(hash_ids="01"), "hash_ids", "must be a list of ids"),
    (changed(timestamp=1), "timestamp", "is 0.001 s, before the 0.005 s of line 1; sort the trace by time, as in: jq"),
]


@pytest.mark.parametrize("bad, field, message", BAD_LINES)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, bad: bytes, field: str | None, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + b"\n" + bad + b"\n" + GOOD + b"\n")
    with open_trace(str(path)) as trace, pytest.raises(TraceError) as caught:
        list(trace)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600
    with open_trace(str(path), skip_bad_lines=True) as trace:
        assert len(list(trace)) == 2
        assert trace.skipped.count == 1
        assert message in trace.skipped.examples[0]


@pytest.mark.parametrize(
    "line, field, message",
    [
        (b'{"prompt_token_ids": []}', "prompt_token_ids", "at least one token id"),
        (b'{"prompt_token_ids": [1, 4294967296]}', "prompt_token_ids", "has 4294967296 at position 1"),
        (b'{"prompt_token_ids": [1], "prompt": "x"}', None, "has prompt_token_ids and prompt (there is"),
        (b'{"block_ids": [1], "tokens_per_id": 16}', None, "a request has exactly one of"),
        (
            b'{"block_ids": [1, 2], "tokens_per_id": 16, "input_length": 16}',
            "block_ids",
            "but the 16 tokens of input_length start only 1 runs",
        ),
        (b'{"timestamp": 3}', None, "has no prompt"),
        (b'{"prompt": "hello"}', "prompt", "is text, which needs a tokenizer: give --tokenizer"),
        (b'{"input_length": 3, "session": 7}', "session", "is 7; it must be a string"),
        (b'{"input_length": 3, "priority": "high"}', "priority", "lower goes first"),
    ],
)
def test_a_bad_line_of_ours_is_named(tmp_path: Path, line: bytes, field: str | None, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(line)
    with open_trace(str(path), format="kvblocks") as trace, pytest.raises(TraceError) as caught:
        list(trace)
    assert (caught.value.line, caught.value.field) == (1, field)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "row, message",
    [
        ("yesterday,5,6", "field 'TIMESTAMP': is 'yesterday'; it must look like 2023-11-16"),
        ("2023-13-16 18:17:03,5,6", "field 'TIMESTAMP': is '2023-13-16 18:17:03'"),
        ("2023-11-16 18:17:03,-5,6", "field 'ContextTokens': is -5"),
        ("2023-11-16 18:17:03,many,6", "field 'ContextTokens': is 'many'"),
        ("2023-11-16 18:17:03,5", "has 2 columns: '2023-11-16 18:17:03,5'; it must have 3"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + row + "\n")
    with open_trace(str(path)) as trace, pytest.raises(TraceError, match=r"trace\.csv:2: ") as caught:
        list(trace)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_size": 0}, "field 'block_size': is 0"),
        ({"hash_id_scope": "galaxy"}, "field 'hash_id_scope': is 'galaxy'"),
        ({"requests": 5}, "field 'requests': is 5; it must be a list"),
        ({"requests": [7]}, "field 'requests[0]': is 7; it must be an object"),
        ({"requests": [{"t": 0, "in": 64, "hash_ids": []}]}, "'requests[0].hash_ids': has 0 ids, but 64 tokens have 1"),
        ({"requests": [{"t": 0, "requests": [{"t": 1}]}]}, "field 'requests[0].requests[0].in': is missing"),
        ({"requests": []}, "has no request"),
    ],
)
def test_a_bad_session_is_named_by_its_place(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "session.json"
    path.write_text(json.dumps({"id": "x", "block_size": 64, "requests": []} | change))
    with open_trace(str(path)) as trace, pytest.raises(TraceError) as caught:
        list(trace)
    assert message in str(caught.value)


def test_files_that_are_no_traces_are_named_with_the_fix(tmp_path: Path) -> None:
    def refused(path: Path, match: str) -> None:
        with pytest.raises(TraceError, match=match), open_trace(str(path)) as trace:
            list(trace)

    path = tmp_path / "trace"
    refused(path, "cannot be opened: No such file or directory; check the path")
    for empty in (b"", b"\n \n", gzip.compress(b"")):
        path.write_bytes(empty)
        refused(path, "is empty; a trace has at least one request")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    refused(
        path,
        r"begins with '\?PNG|begins with .*none of the known formats \(azure, kv-cache-tester, mooncake, kvblocks\)",
    )
    packed = gzip.compress((GOOD + b"\n") * 2000)
    path.write_bytes(packed[: len(packed) // 2])
    refused(path, "the gzip stream ends early: the file is cut off")
    path.write_bytes(packed[:-8] + bytes(8))
    refused(path, "the gzip stream is damaged")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", "is a directory; name a trace file in it")
    with pytest.raises(UsageError, match="--format 'csv' is unknown: choose one of"):
        open_trace(str(path), format="csv")
    with pytest.raises(UsageError, match="no trace is given"):
        open_traces([])
    with pytest.raises(UsageError, match="name it once"):
        open_traces(["-", "-"])


def test_when_every_line_is_bad_the_trace_has_no_request(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"x\ny\n")
    with (
        open_trace(str(path), format="mooncake", skip_bad_lines=True) as trace,
        pytest.raises(TraceError, match=r"has no request that can be read \(2 bad lines were left out\)"),
    ):
        list(trace)


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    rng = random.Random(11)
    path = tmp_path / "trace"
    originals = [
        (GOOD + b"\n") * 3,
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
        json.dumps({"id": "x", "block_size": 64, "requests": [{"t": 0, "in": 65, "out": 1, "hash_ids": [1]}]}).encode(),
        b'{"prompt_token_ids": [1, 2], "timestamp": 3, "session": "s"}\n',
    ]
    originals += [gzip.compress(data) for data in originals]
    for _ in range(1500):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        path.write_bytes(bytes(data))
        try:
            with open_trace(str(path), skip_bad_lines=rng.random() < 0.5) as trace:
                list(trace)
        except KVBlocksError:
            pass


def test_a_missing_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b'{"prompt": "x"}')
    with pytest.raises(UsageError, match=r"tokenizer\.json does not exist"):
        open_trace(str(path), tokenizer=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"not a tokenizer\.json"):
        open_trace(str(path), tokenizer=str(tmp_path))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"kvblocks\[text\]"):
        open_trace(str(path), tokenizer=str(tmp_path))


def test_no_mix_of_fields_and_values_raises_anything_else(tmp_path: Path) -> None:
    """Every message stays short and printable, whatever the trace says."""
    rng = random.Random(5)
    numbers = [0, -1, 1, 16, 513, 2**31, 2**63, 2**64, 10**400, -(10**400), 1.5, 1e308, -0.0]
    others: list[Any] = [
        None,
        True,
        "",
        "x\x1b[31m",
        [],
        {},
        [1],
        [True],
        [1.0],
        [2**70],
        [None],
        [[1]],
        list(range(40)),
    ]
    values = [*numbers, *others, [{}], [{"role": "user", "content": "x"}]]
    fields = ["timestamp", "input_length", "output_length", "hash_ids", "block_ids", "tokens_per_id", "messages"]
    fields += ["prompt_token_ids", "prompt", "session", "cache_salt", "lora", "priority", "request_id", "namespace"]
    fields += ["t", "in", "out", "block_size", "id", "hash_id_scope", "agent_id"]

    def record(depth: int = 0) -> dict[str, Any]:
        made = {field: rng.choice(values) for field in rng.sample(fields, rng.randrange(1, 9))}
        if rng.random() < 0.3 and depth < 12:
            made["requests"] = [record(depth + 1) for _ in range(rng.randrange(3))]
        return made

    path = tmp_path / "trace"
    for _ in range(400):
        path.write_text("".join(json.dumps(record()) + "\n" for _ in range(rng.randrange(1, 4))))
        for name in (None, "mooncake", "kvblocks", "kv-cache-tester", "azure"):
            try:
                with open_trace(str(path), format=name, skip_bad_lines=rng.random() < 0.5) as trace:
                    describe(trace)
            except KVBlocksError as error:
                message = str(error).replace(str(path), "")
                assert message.isprintable()
                assert len(message) < 600
