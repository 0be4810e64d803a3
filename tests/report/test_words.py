"""The words: the answer first, and never more than the numbers say."""

from __future__ import annotations

from typing import Any

import pytest

from kvblocks.replay import ReplaySettings, replay
from kvblocks.report.values import clean, count, percent, script_json, seconds, short
from kvblocks.report.words import more_memory, rejections, reuse_words, summary
from kvblocks.traces import TraceRequest
from tests.report.sample import data, found, run


def told(result: dict[str, Any]) -> str:
    return " ".join(summary(result)).replace("\u00a0", " ")


def test_a_size_that_refused_most_requests_is_not_the_answer() -> None:
    refused = run(64, 0.9, requests=5, prompt_tokens=300, rejected=95)
    words = told(found(refused, run(512, 0.3), run(1024, 0.4)))
    assert words.startswith("With 1,024 blocks (room for 16,368 tokens), 40.0 % of the prompt tokens")
    assert "6,400 of 16,000 did not have to be computed" in words
    assert "Sizes that admitted fewer requests are not compared" in words


def test_the_size_that_an_interrupt_stopped_is_not_the_answer() -> None:
    stopped = run(1024, 0.7, requests=40, prompt_tokens=5000)
    words = told(found(run(512, 0.3), stopped, not_run=[2048, 4096]) | {"interrupted": True})
    assert words.startswith("With 512 blocks")
    assert "The replay was interrupted" in words
    assert "Not run: 2,048, 4,096 blocks." in words


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.2, 0.595, 0.6, 0.6), "From 200 blocks on the hit rate is within a point of that at the largest size."),
        ((0.6, 0.3, 0.6, 0.6), "From 400 blocks on the hit rate is within"),  # not 100: a later size is far off
        ((0.6, 0.6, 0.6), "From 100 blocks on"),
        ((0.2, 0.3, 0.4, 0.6), "The hit rate still rises at the largest size: try larger ones."),
        ((0.2, 0.6, 0.4), ""),
        ((0.3,), ""),
        ((), ""),
    ],
)
def test_it_is_said_from_which_size_on_all_later_ones_are_the_same(rates: tuple[float, ...], expected: str) -> None:
    words = more_memory(found(*(run(100 * 2**i, rate) for i, rate in enumerate(rates))))
    assert words.startswith(expected)
    assert bool(words) == bool(expected)


def test_nothing_larger_is_advised_at_the_ceiling_of_the_trace() -> None:
    rising = (run(100, 0.2), run(200, 0.595))
    reuse = {"counts": [100, 500], "cold": 400, "sampled_share": 1.0}  # 600 x 16 of 16,000 tokens can be hit
    ceiling = "With 200 blocks the hit rate is at the ceiling of this trace: 40.0 % of the touched blocks are of new"
    assert more_memory(found(*rising, reuse=reuse)).replace("\u00a0", " ").startswith(ceiling)
    far = {"counts": [100, 800], "cold": 100, "sampled_share": 1.0}
    assert more_memory(found(*rising, reuse=far)).startswith("The hit rate still rises")
    full = run(200, 0.4, evicted_blocks=0)
    assert more_memory(found(rising[0], full)) == (
        "With 200 blocks nothing was evicted, so a larger cache cannot hit more."
    )


def test_a_ceiling_that_is_claimed_is_one() -> None:
    """No size of a real replay hits more than the size at which the words stop advising larger ones."""
    for sizes in ((300, 600), (600, 1200), (1200, 2400)):
        result = data(*sizes, 10**6, serial=True)
        unbounded = result["runs"].pop()
        words = more_memory(result)
        if "ceiling" in words or "cannot hit more" in words:
            assert unbounded["hit_rate"] - result["runs"][-1]["hit_rate"] <= 0.01
        elif "still rises" in words:
            assert unbounded["hit_rate"] - result["runs"][-1]["hit_rate"] > 0.01


def test_rejections_are_given_per_size_with_what_of_them_is_counted() -> None:
    small = run(64, 0.5, rejected=3, requests=98)
    small |= {"reject_reasons": {"too long": 3}, "reject_examples": {"too long": "80 tokens"}}
    words = told(found(small, run(512, 0.6, rejected=1)))
    assert "Requests were rejected: 3 at 64 blocks, 1 at 512 blocks." in words
    assert "in no figure of its size, but in the reuse distances and shared prefixes" in words
    assert "Of a request whose outputs do not fit, the prompt counts, and the outputs that had room." in words
    assert [line.replace("\u00a0", " ") for line in rejections(small)] == [
        "At 64 blocks 3 requests rejected: too long. The first: 80 tokens"
    ]


@pytest.mark.parametrize("serial", [True, False])
def test_what_is_said_to_be_counted_of_rejected_requests_is(serial: bool) -> None:
    def request(first: int, blocks: int, outputs: int) -> TraceRequest:
        ids = list(range(first, first + blocks))
        return TraceRequest("r", 16 * blocks, outputs, block_ids=ids, tokens_per_id=16)

    trace = [request(0, 2, 0), request(10, 9, 0), request(20, 3, 70)]  # the pool has room for 4 blocks
    result = replay(lambda: trace, [5], ReplaySettings(serial=serial), analyse=True).to_dict(series=True)
    (counted,) = result["runs"]
    assert counted["reject_reasons"] == {"the prompt does not fit": 1, "the outputs do not fit": 1}
    assert (counted["requests"], counted["prompt_tokens"]) == (2, 16 * (2 + 3))
    assert counted["output_tokens"] == (0 if serial else 17)  # alone, all of its outputs are asked for at once
    assert result["reuse"]["cold"] == 2 + 9 + 3


def test_a_warm_cache_and_waits_are_told_when_there_is_something_to_tell() -> None:
    assert "later half" not in told(found(run(100, 0.3)))
    warm = run(100, 0.3, hit_rate_last_half=0.31, ttft_s={"mean": 0.2, "p50": 0.18, "p90": 1.0, "p99": 123.4})
    assert "Over the later half of the requests, when the cache was warm, it was 31.0 %." in told(found(warm))
    assert "within 180 ms and 99 % within 123 s of simulated time" in told(found(warm))
    assert "first token" not in told(found(run(100, 0.3, ttft_s={"mean": None, "p50": None, "p90": None, "p99": None})))


def test_cold_touches_and_sampling_are_named() -> None:
    words = reuse_words({"counts": [10, 30], "cold": 60, "sampled_share": 0.25}).replace("\u00a0", " ")
    assert words.startswith("Of 100 touches 60 (60.0 %) were cold: of content not seen before, which a cache of no")
    assert words.endswith("The counts are estimates: one block in 4 is followed.")
    assert reuse_words({"counts": [], "cold": 0, "sampled_share": 1.0}) == "The trace touched no full block."


def test_numbers_are_written_for_people() -> None:
    def plain(text: str) -> str:
        return text.replace("\u00a0", " ")

    assert [plain(percent(share)) for share in (0.19229, 0.0, 1.0, None)] == ["19.2 %", "0.0 %", "100.0 %", "–"]
    assert [plain(count(n, "request")) for n in (0, 1, 12031)] == ["0 requests", "1 request", "12,031 requests"]
    times = [plain(seconds(value)) for value in (0.0, 0.0042, 0.042, 3.14159, 1200.4, None)]
    assert times == ["0.00 s", "4.20 ms", "42 ms", "3.14 s", "1,200 s", "–"]
    assert [short(n) for n in (0, 8193, 65_537, 999_999, 1_048_576)] == ["0", "8,193", "65.5k", "1M", "1.05M"]


def test_json_in_a_script_cannot_end_it_and_has_only_finite_numbers() -> None:
    text = script_json({"</script>": "<!--\u2028&"})
    assert text == '{"\\u003c/script\\u003e": "\\u003c!--\\u2028\\u0026"}'
    assert clean({"a\n": (float("nan"), float("-inf"), 1.5, "\udcff", True)}) == {
        "a\ufffd": [None, None, 1.5, "\ufffd", True]
    }
