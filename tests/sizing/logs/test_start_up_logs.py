"""Start-up logs in the forms of several versions: read, explained, and compared with a plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvblocks.errors import UsageError
from kvblocks.sizing.from_log import read_and_check
from kvblocks.sizing.logs import StartupLog, explain, read_log

V0_6 = """\
INFO 01-14 12:36:51 model_runner.py:1099] Loading model weights took 14.9888 GB
INFO 01-14 12:36:52 worker.py:241] the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB
INFO 01-14 12:36:52 worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 54.95GiB.
INFO 01-14 12:36:52 executor_base.py:111] # cuda blocks: 28134, # CPU blocks: 2048
INFO 01-14 12:36:52 executor_base.py:116] Maximum concurrency for 8192 tokens per request: 54.95x
"""  # noqa: E501
V0_9 = """\
INFO 06-10 10:11:12 [api_server.py:1287] vLLM API server version 0.9.1
INFO 06-10 10:11:12 [cli_args.py:309] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 40960, 'port': 80}
INFO 06-10 10:11:30 [gpu_model_runner.py:1624] Model loading took 15.2683 GiB and 3.20 seconds
INFO 06-10 10:12:00 [gpu_worker.py:227] Available KV cache memory: 18.69 GiB
INFO 06-10 10:12:00 [kv_cache_utils.py:715] GPU KV cache size: 136,080 tokens
INFO 06-10 10:12:00 [kv_cache_utils.py:719] Maximum concurrency for 40,960 tokens per request: 3.32x
INFO 06-10 10:12:20 [gpu_model_runner.py:2048] Graph capturing finished in 20 secs, took 0.54 GiB
"""
V0_32 = """\
\x1b[0;36m(APIServer pid=7)\x1b[0;0m INFO 11-02 09:00:00 [api_utils.py:286] non-default args: {'model_tag': 'Qwen/Qwen3-8B', 'model': 'Qwen/Qwen3-8B', 'kv_cache_dtype': 'fp8', 'tensor_parallel_size': 2}
\x1b[0;36m(EngineCore pid=9)\x1b[0;0m INFO 11-02 09:00:01 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: model='Qwen/Qwen3-8B', max_seq_len=40960, tensor_parallel_size=2, kv_cache_dtype=fp8
(Worker_TP0 pid=11) INFO 11-02 09:00:09 [gpu_worker.py:760] Available KV cache memory: 20.0 GiB
(Worker_TP1 pid=12) INFO 11-02 09:00:09 [gpu_worker.py:760] Available KV cache memory: 19.9 GiB
(EngineCore pid=9) INFO 11-02 09:00:10 [kv_cache_utils.py:2328] GPU KV cache size: 579,616 tokens, Maximum concurrency for 40,960 tokens per request: 14.15x
"""  # noqa: E501
REFUSED = """\
INFO 02-08 10:00:00 [core.py:96] Initializing a V1 LLM engine (v0.15.2rc1) with config: model='Qwen/Qwen3-30B-A3B', pipeline_parallel_size=2
INFO 02-08 10:00:09 [gpu_worker.py:300] Available KV cache memory: 3.18 GiB
ValueError: To serve at least one request with the models's max seq len (32768), (3.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.18 GiB). Based on the available memory, the estimated maximum model length is 12880. Try increasing `gpu_memory_utilization`
"""  # noqa: E501


def read(text: str) -> StartupLog:
    return read_log(text.splitlines(keepends=True), "server.log")


def verdicts(text: str, **more: Any) -> dict[str, list[str]]:
    checked = read_and_check(text.splitlines(), "server.log", **more)
    found: dict[str, list[str]] = {}
    for finding in checked.findings:
        found.setdefault(finding.verdict, []).append(finding.text)
    return found


def test_the_lines_of_the_first_engine_are_read_and_its_subtraction_checked() -> None:
    log = read(V0_6)
    assert (log.get("num_blocks"), log.get("total_gib"), log.available_gib) == (28134, 79.22, 54.95)
    assert log.get("concurrency") == (8192, 54.95)
    assert any("leaves 54.96 GiB" in finding.text for finding in explain(log) if finding.verdict == "agrees")


def test_the_lines_of_0_9_agree_with_the_plan_of_the_model_that_they_name() -> None:
    found = verdicts(V0_9)
    assert "disagrees" not in found
    assert sum("plan's" in text for text in found["agrees"]) == 2


def test_the_lines_of_0_32_are_read_through_colours_and_prefixes_and_the_least_rank_counts() -> None:
    log = read(V0_32)
    assert log.get("version") == "0.32.0"
    assert log.values("available_gib") == [20.0, 19.9]
    assert len({fact.rank for fact in log.found["available_gib"]}) == 2
    found = verdicts(V0_32)
    assert "disagrees" not in found, found


def test_a_wrong_flag_is_found_out() -> None:
    found = verdicts(V0_32.replace("fp8", "auto"))
    assert any("+" in text and "plan's tokens" in text for text in found["disagrees"])


def test_a_refusal_is_explained_and_compared() -> None:
    found = verdicts(REFUSED)
    assert any("1.82 GiB are missing; up to 12,880 tokens" in text for text in found["says"])
    assert any("all 2 pipeline stages together" in text for text in found["disagrees"])


def test_tokens_of_another_start_than_the_concurrency_do_not_add_up() -> None:
    text = V0_9.replace("3.32x", "2.00x")
    assert any("of two starts" in line for line in verdicts(text)["disagrees"])


def test_the_older_token_count_of_hybrids_is_named() -> None:
    text = (
        "INFO 1 Available KV cache memory: 5.69 GiB\nINFO 2 GPU KV cache size: 148,816 tokens\n"
        "INFO 3 Maximum concurrency for 32,768 tokens per request: 12.91x\n"
    )
    assert any("before 0.20" in line for line in verdicts(text)["disagrees"])


def test_the_last_start_of_a_file_that_tells_of_its_cache_is_read() -> None:
    log = read(V0_9 + V0_32.replace("pid=9", "pid=19") + "vLLM API server version 0.33.0\n")
    assert log.num_starts == 3
    assert log.get("tokens") == 579_616
    assert log.first_line == 8


@pytest.mark.parametrize("key", ["log", "message", "msg"])
def test_lines_that_a_collector_wrapped_in_json_are_unwrapped(key: str) -> None:
    wrapped = "\n".join(json.dumps({"ts": 1, key: line}) for line in V0_9.splitlines())
    assert read(wrapped).get("tokens") == 136_080


def test_windows_line_ends_and_bytes_are_read() -> None:
    log = read_log((line.encode() + b"\r\n" for line in V0_9.splitlines()), "x")
    assert log.get("tokens") == 136_080


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\x01\x02" * 100, b"{" * 5000, "größer".encode("latin-1")])
def test_a_file_that_is_no_log_is_refused_with_what_was_looked_for(content: bytes) -> None:
    with pytest.raises(UsageError, match="is of a vLLM start-up; looked for"):
        read_log(content.splitlines(keepends=True), "x.log")


@given(
    st.floats(0.01, 900).map(lambda x: round(x, 2)),
    st.integers(1, 10**9),
    st.integers(1, 10**7),
    st.floats(0, 10**4).map(lambda x: round(x, 2)),
)
def test_any_numbers_are_read_back_from_both_forms(gib: float, tokens: int, length: int, times: float) -> None:
    size = f"GPU KV cache size: {tokens:,} tokens"
    most = f"Maximum concurrency for {length:,} tokens per request: {times:.2f}x"
    for text in (f"{size}\nINFO {most}", f"INFO {size}, {most}"):
        log = read(f"(EngineCore_DP0 pid=3) INFO Available KV cache memory: {gib} GiB\n{text}\n")
        assert (log.available_gib, log.get("tokens")) == (gib, tokens)
        assert log.get("concurrency") == (length, pytest.approx(times))
        explain(log)


@given(
    st.lists(st.one_of(st.text(max_size=80), st.binary(max_size=80), st.sampled_from(V0_32.splitlines())), max_size=8)
)
def test_whatever_the_lines_are_only_a_usage_error_is_raised(lines: list[bytes | str]) -> None:
    try:
        read_and_check(lines, "x.log")
    except UsageError as error:
        assert "vLLM start-up" in str(error)
