"""Several starts in one file: which one is read, and that the others are named."""

from __future__ import annotations

from kvblocks.sizing.logs import explain, read_log
from tests.sizing.logs.eras import Numbers, one_line, refusal, two_lines, v0_8

FIRST, SECOND = Numbers(tokens=136080), Numbers(tokens=120000, concurrency="2.93", model="other/model")


def test_the_last_complete_start_is_read_and_the_others_are_named() -> None:
    lines = two_lines(FIRST, "0.15.1") + two_lines(SECOND, "0.15.1") + two_lines(FIRST, "0.15.1")[:5]
    log = read_log(lines)
    assert [start.status for start in log.starts] == ["ready", "ready", "unfinished"]
    assert log.start.number == 2
    assert (log.start.first_line, log.start.last_line) == (12, 22)
    assert log.cache is not None
    assert log.cache.tokens is not None
    assert (log.cache.tokens.value, log.cache.tokens.line) == (120000, 18)
    named = next(finding for finding in explain(log) if finding.topic == "starts")
    assert "start 1 (lines 1-11) of Qwen/Qwen3-8B by vLLM 0.15.1: ready" in named.text
    assert "start 3 (lines 23-27)" in named.text


def test_a_crash_loop_ends_with_its_last_refusal() -> None:
    loop = [*two_lines(FIRST, "0.22.0")[:6], refusal(40960, "5.62", "4.89", 35600)]
    log = read_log(loop * 5)
    assert [start.status for start in log.starts] == ["refused"] * 5
    assert log.start.number == 5
    assert log.refusals[0].line == 35


def test_starts_of_different_versions_are_told_apart() -> None:
    log = read_log(v0_8(FIRST) + one_line(SECOND, "0.32.0"))
    assert [start.version for start in log.starts] == ["0.8.5", "0.32.0"]
    assert log.model is not None
    assert log.model.value == "other/model"


def test_an_offline_script_that_starts_twice_has_two_starts() -> None:
    """`LLM(...)` prints no banner: its arguments come first, or the engine's config."""
    offline = two_lines(FIRST, "0.11.2")[1:]
    assert len(read_log(offline + offline).starts) == 2
    bare = [line.replace("pid=7", "pid=8") for line in offline[2:]]
    assert len(read_log(offline[2:] + bare).starts) == 2


def test_pasted_excerpts_without_a_beginning_are_told_apart_by_their_memory() -> None:
    lines = ["Available KV cache memory: 10.55 GiB", "GPU KV cache size: 230,528 tokens"]
    log = read_log([*lines, "Available KV cache memory: 5.59 GiB", refusal(221000, "10.12", "5.59", 122080)])
    assert [start.status for start in log.starts] == ["ready", "refused"]
    assert log.available is not None
    assert log.available.value.gib == 5.59


def test_data_parallel_engines_are_one_start() -> None:
    n = FIRST
    lines = [f"(APIServer pid=1) INFO vLLM API server version 0.22.0{' '}"]
    for engine in range(4):
        lines.append(
            f"(EngineCore_DP{engine} pid={7 + engine}) Initializing a V1 LLM engine (v0.22.0) with config: model='m'"
        )
        lines.append(
            f"(EngineCore_DP{engine} pid={7 + engine}) INFO Model loading took 15.27 GiB memory and 3.2 seconds"
        )
    for engine in range(4):
        who = f"(EngineCore_DP{engine} pid={7 + engine}) INFO"
        lines += [
            f"{who} Available KV cache memory: 18.69 GiB",
            f"{who} GPU KV cache size: {n.tokens - engine:,} tokens",
        ]
    log = read_log(lines)
    assert len(log.starts) == 1
    assert len(log.caches) == 4
    assert log.cache is not None
    assert log.cache.tokens is not None
    assert log.cache.tokens.value == n.tokens - 3
    assert any(finding.topic == "engines" for finding in explain(log))


def test_several_api_servers_are_one_start() -> None:
    lines = two_lines(FIRST, "0.22.0")
    log = read_log([lines[0], lines[1], lines[0], lines[1], *lines[2:]])
    assert len(log.starts) == 1


def test_without_a_complete_start_the_one_with_numbers_is_read() -> None:
    lines = two_lines(FIRST, "0.15.1")
    log = read_log(lines[:6] + lines[:2])
    assert log.start.number == 1
    assert log.status == "unfinished"
    assert log.available is not None


def test_an_error_before_the_cache_is_kept() -> None:
    log = read_log(
        [*two_lines(FIRST, "0.15.1")[:4], "(Worker pid=7) ERROR torch.OutOfMemoryError: CUDA out of memory."]
    )
    assert log.status == "failed"
    assert log.errors[0].value == "torch.OutOfMemoryError: CUDA out of memory."
    assert "CUDA out of memory" in next(f for f in explain(log) if f.topic == "errors").text
