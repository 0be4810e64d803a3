"""A start-up log beside the plan of the model and flags that it states."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvblocks.errors import UsageError
from kvblocks.sizing.from_log import CheckedLog, read_and_check
from tests.sizing.logs.eras import ERAS, Numbers, one_line, refusal, two_lines

FP8 = Numbers(tokens=579616, concurrency="14.15", available="19.9")


def checked(lines: list[str], **more: Any) -> CheckedLog:
    return read_and_check(lines, "server.log", **more)


def verdicts(lines: list[str], **more: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in checked(lines, **more).findings:
        found.setdefault(finding.verdict, []).append(str(finding))
    return found


@pytest.mark.parametrize("version", ERAS)
def test_every_era_agrees_with_the_plan_of_the_model_that_it_names(version: str) -> None:
    log = checked(ERAS[version](Numbers()))
    assert log.model.startswith("Qwen/Qwen3-8B")
    assert not [finding for finding in log.findings if finding.verdict in ("disagrees", "suspect")]
    compared = {finding.topic for finding in log.findings if finding.verdict == "agrees"}
    assert (log.plan is None) == (version == "0.8.5"), "that era states no memory"
    assert log.plan is None or {"length", "concurrency"} <= compared
    assert log.plan is None or {"tokens", "blocks"} & compared


def tensor_parallel(kv_cache_dtype: str) -> list[str]:
    lines = one_line(FP8, "0.32.0")
    return [
        line.replace("'max_num_seqs': 6", f"'tensor_parallel_size': 2, 'kv_cache_dtype': {kv_cache_dtype!r}")
        for line in lines
    ]


def test_flags_of_the_log_are_those_of_the_plan() -> None:
    log = checked(tensor_parallel("fp8"))
    assert (log.flags["tensor_parallel_size"], log.flags["kv_cache_dtype"]) == (2, "fp8")
    assert "disagrees" not in verdicts(tensor_parallel("fp8"))


def test_a_wrong_flag_is_found_out() -> None:
    found = verdicts(tensor_parallel("auto"))
    assert any(text.startswith("tokens:") and "more in the log" in text for text in found["disagrees"])


def test_given_flags_go_before_those_of_the_log() -> None:
    assert "disagrees" not in verdicts(tensor_parallel("auto"), flags={"kv_cache_dtype": "fp8"})


def test_a_refusal_of_all_pipeline_stages_together_is_found_out() -> None:
    """As in SZ003: 48 layers were checked against the memory of the stage that has 24 of them."""
    lines = [
        "INFO Initializing a V1 LLM engine (v0.15.2rc1) with config: model='Qwen/Qwen3-30B-A3B', "
        "pipeline_parallel_size=2",
        "INFO Available KV cache memory: 1.18 GiB",
        refusal(32768, "3.0", "1.18", 12880),
    ]
    found = verdicts(lines)
    assert any("all 2 pipeline stages together" in text and "33698" in text for text in found["disagrees"])


def test_a_refusal_agrees_with_the_plan_s() -> None:
    lines = [*two_lines(Numbers(), "0.22.0")[:5], refusal(40960, "5.62", "4.89", 35600)]
    found = verdicts(lines)
    assert "disagrees" not in found
    assert any(text.startswith("needed:") for text in found["agrees"])
    assert any(text.startswith("estimated length: 35,600 tokens fit by the log") for text in found["agrees"])


def test_a_log_of_a_start_that_the_plan_does_not_allow_is_marked() -> None:
    n = Numbers(available="1.00", tokens=7280, concurrency="0.18")
    assert any("does not fit" in text for text in verdicts(two_lines(n, "0.22.0"))["disagrees"])


def test_a_model_that_is_not_at_hand_is_named() -> None:
    log = checked(two_lines(Numbers(model="/models/secret"), "0.22.0"))
    assert log.plan is None
    assert "/models/secret is neither here nor in the catalogue" in log.model


def test_everything_has_a_form_in_json() -> None:
    data = checked(two_lines(Numbers(), "0.22.0")).to_dict()
    assert data["log"]["start"] == {
        "number": 1,
        "first_line": 1,
        "last_line": 11,
        "status": "ready",
        "version": "0.22.0",
        "model": "Qwen/Qwen3-8B",
    }
    assert data["log"]["caches"][0]["tokens"]["value"] == 136080
    assert all(
        {"topic", "verdict", "text", "numbers", "lines", "bug"} <= finding.keys() for finding in data["findings"]
    )


LINES = [line for era in ERAS.values() for line in era(Numbers())] + [refusal(4096, "0.56", "0.1", 720)]


@given(st.lists(st.one_of(st.text(max_size=80), st.binary(max_size=80), st.sampled_from(LINES)), max_size=8))
def test_whatever_the_lines_are_only_a_usage_error_is_raised(lines: list[bytes | str]) -> None:
    with contextlib.suppress(UsageError):
        read_and_check(lines, "x.log")
