"""What adds up in public logs and what does not; the numbers are of entries of the shared list of logs."""

from __future__ import annotations

import pytest

from kvblocks.sizing.logs import Finding, PlanNumbers, check, compare_with_plan, explain, read_log
from tests.sizing.logs.eras import Numbers, one_line, refusal, two_lines, v0_8, v0_8_old_engine


def findings(lines: list[str], topic: str) -> list[Finding]:
    log = read_log(lines)
    return [finding for finding in (*explain(log), *check(log)) if finding.topic == topic]


def verdict(lines: list[str], topic: str) -> str:
    (found,) = [finding for finding in check(read_log(lines)) if finding.topic == topic]
    return found.verdict


def cache(tokens: int, length: int, times: str, *more: str) -> list[str]:
    size = f"INFO GPU KV cache size: {tokens:,} tokens"
    return [*more, size, f"INFO Maximum concurrency for {length:,} tokens per request: {times}x"]


def setting_block_size(tokens: int) -> str:
    why = "to ensure that attention page size is >= mamba page size."
    return f"INFO Setting attention block size to {tokens} tokens {why}"


def version(text: str) -> str:
    return f"INFO vLLM API server version {text}"


@pytest.mark.parametrize(
    ("tokens", "length", "times"),
    [
        (230528, 100000, "2.31"),  # SZ001
        (148096, 131072, "1.13"),  # SZ006
        (157648, 131072, "1.20"),  # SZ007
        (76144, 2048, "37.18"),  # SZ011
        (399424, 196608, "2.03"),  # SZ019
        (688, 640, "1.07"),  # SZ031: 1.075 is printed 1.07
        (688, 640, "1.08"),  # and could be 1.08
        (16, 2048, "0.01"),  # SZ030
    ],
)
def test_tokens_by_length_is_the_concurrency_of_one_group(tokens: int, length: int, times: str) -> None:
    assert verdict(cache(tokens, length, times), "tokens and concurrency") == "agrees"


def test_figures_of_two_runs_do_not_add_up_by_one_block() -> None:
    """SZ014: 597,776 / 16,384 prints 36.49."""
    (found,) = findings(cache(597776, 16384, "36.48", version("0.19.0")), "tokens and concurrency")
    assert found.verdict == "disagrees"
    assert "would print 36.49, not 36.48; 1 block of 16 fewer would fit" in found.text


@pytest.mark.parametrize(
    ("block", "tokens", "length", "times", "blocks", "groups", "needed"),
    [
        (2096, 148816, 32768, "12.91", 284, 4, 22),  # SZ072
        (528, 246576, 4096, "169.82", 1868, 4, 11),  # SZ073
        (784, 290864, 32768, "33.04", 1487, 4, 45),  # SZ074
    ],
)
def test_the_old_figure_of_hybrids_tells_groups_and_blocks(
    block: int, tokens: int, length: int, times: str, blocks: int, groups: int, needed: int
) -> None:
    lines = cache(tokens, length, times, version("0.17.0"), setting_block_size(block))
    (found,) = [finding for finding in check(read_log(lines)) if finding.topic == "tokens and concurrency"]
    assert found.verdict == "agrees"
    assert (found.numbers["num_blocks"], found.numbers["groups"]) == (blocks, groups)
    assert f"{needed} per request" in found.text
    assert found.bug is not None
    assert found.bug.name == "tokens-of-hybrids"


def test_the_old_figure_without_a_block_size_is_named_and_no_groups_are_made_up() -> None:
    """SZ057: cross attention."""
    (found,) = findings(cache(33216, 448, "26.62", version("0.15.0")), "tokens and concurrency")
    assert (found.verdict, found.numbers["num_blocks"]) == ("agrees", None)


def test_a_version_that_no_longer_prints_the_old_figure_is_not_excused_by_it() -> None:
    lines = cache(148816, 32768, "12.91", version("0.24.0"), setting_block_size(2096))
    assert verdict(lines, "tokens and concurrency") == "disagrees"


@pytest.mark.parametrize(
    ("block", "tokens", "length", "times"),
    [(2096, 569878, 131072, "4.35"), (1600, 623873, 262144, "2.38"), (16, 19881, 448, "44.38")],  # SZ066, 067, 058
)
def test_the_new_figure_is_concurrency_times_length(block: int, tokens: int, length: int, times: str) -> None:
    lines = cache(tokens, length, times, version("0.24.0"), setting_block_size(block))
    assert verdict(lines, "tokens and concurrency") == "agrees"
    assert verdict(lines, "whole blocks") == "agrees"
    (means,) = findings(lines, "tokens")
    assert means.numbers["formula"] == "concurrency"


def test_context_parallel_ranks_multiply_the_tokens() -> None:
    """SZ044: 3,813 blocks of 64 tokens on 8 ranks."""
    lines = [
        version("0.19.0"),
        "INFO non-default args: {'block_size': 64}",
        "INFO Available KV cache memory: 14.15 GiB",
        "INFO Multiplying the GPU KV cache size by the dcp_world_size 8.",
        *cache(1952256, 202752, "9.63"),
    ]
    assert verdict(lines, "tokens and concurrency") == "agrees"
    (found,) = findings(lines, "bytes per token")
    assert found.numbers["num_blocks"] == 3813
    assert found.numbers["low_bytes"] < 62252 < found.numbers["high_bytes"]


@pytest.mark.parametrize(
    ("gib", "tokens", "per_token"),
    [("10.55", 230528, 49152), ("18.69", 136080, 147456), ("3.06", 22256, 147456), ("23.62", 399424, 63488)],
)
def test_memory_by_tokens_gives_the_bytes_of_a_token(gib: str, tokens: int, per_token: int) -> None:
    """SZ001, 008, 017, 019."""
    lines = [f"INFO Available KV cache memory: {gib} GiB", *cache(tokens, 16384, f"{tokens / 16384:.2f}")]
    (found,) = findings(lines, "bytes per token")
    assert found.numbers["low_bytes"] < per_token <= found.numbers["high_bytes"]
    assert found.numbers["high_bytes"] - found.numbers["low_bytes"] < per_token / 200


def test_an_override_that_had_no_effect_is_found_out() -> None:
    """SZ029."""
    override = "INFO Overriding num_gpu_blocks=333325 with num_gpu_blocks_override=100"
    (found,) = findings([override, *cache(5333200, 131072, "40.69")], "override and tokens")
    assert found.verdict == "disagrees"
    assert found.bug is not None
    assert found.bug.name == "override-ignored"
    assert "would be 1,600 tokens" in found.text


def test_an_override_below_one_request_is_suspect() -> None:
    """SZ030: the engine starts with a block and nothing can be scheduled."""
    override = "INFO Overriding num_gpu_blocks=125643 with num_gpu_blocks_override=1"
    lines = [override, *cache(16, 2048, "0.01")]
    assert verdict(lines, "override and tokens") == "agrees"
    (found,) = findings(lines, "longest request")
    assert found.verdict == "suspect"
    assert found.bug is not None
    assert found.bug.name == "override-unchecked"


@pytest.mark.parametrize(
    "lines",
    [
        cache(262144, 262144, "1.00", version("0.24.0"), setting_block_size(1600)),  # SZ061
        cache(4096, 4096, "1.00"),
        cache(4096, 4090, "1.00"),
    ],
)
def test_a_cache_of_exactly_one_request_lacks_the_null_block(lines: list[str]) -> None:
    (found,) = findings(lines, "longest request")
    assert found.verdict == "suspect"
    assert found.bug is not None
    assert found.bug.name == "null-block-unchecked"


def test_a_block_more_than_one_request_is_enough() -> None:
    assert findings(cache(4112, 4096, "1.00"), "longest request") == []


@pytest.mark.parametrize(
    ("length", "needed", "available", "estimated", "per_token"),
    [
        (221000, "10.12", "5.59", 122080, 49152),  # SZ002
        (262144, "24.0", "3.18", 34736, 98304),  # SZ003
        (118000, "6.3", "6.11", 114432, 57344),  # SZ013
        (1048576, "22.5", "17.39", 810208, 23040),  # SZ036
    ],
)
def test_an_estimated_length_in_step_with_memory_gives_the_bytes_of_a_token(
    length: int, needed: str, available: str, estimated: int, per_token: int
) -> None:
    (found,) = findings([refusal(length, needed, available, estimated)], "estimated length")
    assert found.verdict == "agrees"
    assert found.numbers["bytes_per_token"] == pytest.approx(per_token, rel=0.002)
    assert "fixed_bytes" not in found.numbers


@pytest.mark.parametrize(
    ("length", "needed", "available", "estimated", "fixed", "slope"),
    [(65536, "12.04", "7.25", 8624, 6.52, 90372), (30000, "6.66", "5.44", 13528, 4.44, 79527)],  # SZ050, SZ084
)
def test_an_estimated_length_below_that_shows_what_does_not_grow(
    length: int, needed: str, available: str, estimated: int, fixed: float, slope: int
) -> None:
    (found,) = findings([refusal(length, needed, available, estimated)], "estimated length")
    assert found.verdict == "agrees"
    assert found.numbers["fixed_bytes"] / 2**30 == pytest.approx(fixed, abs=0.01)
    assert found.numbers["bytes_per_token"] == pytest.approx(slope, rel=0.001)


def test_a_refusal_by_a_hundredth_of_a_gib_is_said_to_be_too_close() -> None:
    """SZ060."""
    lines = [refusal(262144, "9.29", "9.28", 260800)]
    assert verdict(lines, "refusal") == "agrees"
    (found,) = findings(lines, "estimated length")
    assert "too close to tell" in found.text


def test_an_estimated_length_above_what_fits_is_of_another_refusal() -> None:
    assert verdict([refusal(262144, "24.0", "3.18", 150000)], "estimated length") == "disagrees"


def test_a_refusal_of_what_fits_does_not_add_up() -> None:
    assert verdict([refusal(4096, "1.0", "3.0")], "refusal") == "disagrees"


def test_a_refusal_with_more_memory_than_a_worker_printed_is_of_another_start() -> None:
    lines = ["INFO Available KV cache memory: 3.18 GiB", refusal(262144, "24.0", "5.0")]
    assert verdict(lines, "available in the refusal") == "disagrees"
    assert verdict([lines[0], refusal(262144, "24.0", "3.17")], "available in the refusal") == "agrees"


def test_pipeline_stages_were_checked_together_in_0_14_and_0_15() -> None:
    """SZ003."""
    for number, expected in (("0.15.2rc1", 1), ("0.13.0", 0), ("0.16.0", 0)):
        given = "INFO non-default args: {'pipeline_parallel_size': 2}"
        lines = [version(number), given, refusal(262144, "24.0", "3.18")]
        assert len(findings(lines, "pipeline stages")) == expected


def test_negative_memory_is_named() -> None:
    """SZ032."""
    lines = ["INFO Available KV cache memory: -2.14 GiB"]
    assert verdict(lines, "nothing left") == "agrees"
    assert verdict([*lines, "ValueError: No available memory for the cache blocks. Try"], "nothing left") == "agrees"
    assert verdict([*lines, *cache(16, 16, "1.00")], "nothing left") == "disagrees"


def test_the_terms_of_the_old_engine_add_up() -> None:
    lines = v0_8_old_engine(Numbers())
    for topic in ("budget", "sum of memory", "blocks and concurrency"):
        assert verdict(lines, topic) == "agrees"
    wrong = [line.replace("is 18.69GiB", "is 19.69GiB") for line in lines]
    (found,) = findings(wrong, "sum of memory")
    assert found.verdict == "disagrees"
    assert "1.00 GiB apart" in found.text


def test_the_terms_of_the_usage_line_add_up_or_leave_a_rest() -> None:
    usage = (
        "INFO Free memory on device (23.1/23.56 GiB) on startup. Desired GPU memory utilization is (0.9, 21.2 GiB). "
        "Actual usage is 15.34 GiB for consumed memory (weights + non-torch), 1.4 GiB for peak activation, and 0.54 "
        "GiB for CUDAGraph memory."
    )
    lines = ["INFO Available KV cache memory: 4.46 GiB", usage]
    assert verdict(lines, "budget") == "agrees"
    assert verdict(lines, "sum of memory") == "agrees"
    assert verdict([lines[0].replace("4.46", "4.96"), usage], "sum of memory") == "disagrees"


def test_every_era_s_own_log_adds_up() -> None:
    for lines in (
        v0_8(Numbers()),
        v0_8_old_engine(Numbers()),
        two_lines(Numbers(), "0.11.2"),
        one_line(Numbers(), "0.32.0"),
    ):
        assert not [finding for finding in check(read_log(lines)) if finding.verdict != "agrees" and finding.bug]
        assert not [finding for finding in check(read_log(lines)) if finding.verdict == "disagrees"]


def test_graphs_that_were_set_aside_and_not_taken_are_suspect() -> None:
    lines = [
        version("0.26.0"),
        "INFO Estimated CUDA graph memory: 6.24 GiB total",
        "INFO Graph capturing finished in 20 secs, took 0.54 GiB",
        "INFO Available KV cache memory: 5.16 GiB",
    ]
    (found,) = findings(lines, "graphs")
    assert found.verdict == "suspect"
    assert found.bug is not None
    assert findings([line.replace("6.24", "0.60") for line in lines], "graphs")[0].verdict == "says"


def test_one_worker_s_memory_of_several_is_said_to_be_one() -> None:
    lines = ["INFO non-default args: {'tensor_parallel_size': 4}", "INFO Available KV cache memory: 8.11 GiB"]
    (found,) = findings(lines, "ranks")
    assert "one of them states its memory" in found.text


QWEN3_235B = PlanNumbers(
    num_blocks=11309,
    tokens=180944,
    max_concurrency=11309 / 2560,
    block_size=16,
    bytes_per_block=770048,
    available_bytes=int(8.11 * 2**30),
    max_model_len=40960,
)


def test_fewer_tokens_than_a_worker_s_memory_gives_are_put_down_to_another_worker() -> None:
    """SZ028: 8.11 GiB were printed, 178,880 tokens are 8.02 GiB."""
    lines = [
        "INFO non-default args: {'tensor_parallel_size': 4, 'max_model_len': 40960}",
        "INFO Available KV cache memory: 8.11 GiB",
        "INFO GPU KV cache size: 178,880 tokens",
    ]
    (found,) = [f for f in compare_with_plan(read_log(lines), QWEN3_235B) if f.topic == "tokens"]
    assert found.verdict == "disagrees"
    assert "8.02 GiB" in found.text
    assert "a worker that does not print its memory may have had less" in found.text


@pytest.mark.parametrize("tokens", [180816, 180944, 181040])
def test_tokens_agree_for_every_memory_that_is_printed_alike(tokens: int) -> None:
    lines = [
        "INFO non-default args: {'max_model_len': 40960}",
        "INFO Available KV cache memory: 8.11 GiB",
        f"INFO GPU KV cache size: {tokens:,} tokens",
    ]
    (found,) = [f for f in compare_with_plan(read_log(lines), QWEN3_235B) if f.topic == "tokens"]
    assert found.verdict == "agrees"


def test_a_plan_of_another_length_is_not_compared_by_tokens() -> None:
    log = read_log(cache(180944, 32768, "5.52", "INFO Available KV cache memory: 8.11 GiB"))
    found = {finding.topic: finding.verdict for finding in compare_with_plan(log, QWEN3_235B)}
    assert found["length"] == "disagrees"
    assert "tokens" not in found


def test_an_estimated_plan_is_told_by_how_much_its_memory_is_off() -> None:
    log = read_log(cache(180944, 40960, "4.42", "INFO Available KV cache memory: 8.11 GiB"))
    plan = PlanNumbers(
        num_blocks=11000,
        tokens=176000,
        max_concurrency=11000 / 2560,
        block_size=16,
        bytes_per_block=770048,
        available_bytes=11000 * 770048,
        max_model_len=40960,
    )
    found = {finding.topic: finding for finding in compare_with_plan(log, plan)}
    assert found["available"].verdict == "disagrees"
    assert "0.22 GiB (2.7%) less" in found["available"].text
    assert found["tokens"].verdict == found["concurrency"].verdict == "agrees"


def test_the_old_figure_of_a_hybrid_fits_its_plan() -> None:
    """SZ072."""
    lines = ["INFO Available KV cache memory: 5.69 GiB", setting_block_size(2096), *cache(148816, 32768, "12.91")]
    plan = PlanNumbers(
        num_blocks=284,
        tokens=int(284 / 22 * 32768),
        max_concurrency=284 / 22,
        block_size=2096,
        bytes_per_block=21463040,
        available_bytes=int(5.69 * 2**30),
        max_model_len=32768,
    )
    found = {finding.topic: finding for finding in compare_with_plan(read_log(lines), plan)}
    assert {finding.verdict for finding in found.values()} == {"agrees"}
    assert found["tokens"].numbers["groups"] == 4


def test_a_measured_number_of_blocks_is_compared_though_it_was_overridden() -> None:
    override = "INFO Overriding num_gpu_blocks=9856 with num_gpu_blocks_override=43"
    lines = ["INFO Available KV cache memory: 19.25 GiB", override, *cache(688, 640, "1.07")]
    plan = PlanNumbers(
        num_blocks=43, max_concurrency=43 / 40, block_size=16, bytes_per_block=2097152, max_model_len=640
    )
    found = {finding.topic: finding.verdict for finding in compare_with_plan(read_log(lines), plan)}
    assert found["measured blocks"] == "agrees"
    assert found["tokens"] == "agrees"


def test_whisper_s_cross_attention_is_named_as_what_it_is_charged() -> None:
    """SZ057, SZ058."""
    lines = [
        *cache(19881, 448, "44.38", version("0.21.0")),
        "INFO Resolved architecture: WhisperForConditionalGeneration",
    ]
    (found,) = findings(lines, "concurrency")
    assert found.bug is not None
    assert found.bug.name == "cross-attention"
