"""What is left for the cache is the engine's share of the device minus terms that each say how they were computed."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.sizing.devices import GIB, device_of_memory, find_device
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.memory import MemoryEstimate, capture_sizes, estimate_available
from kvblocks.sizing.model_config import ModelConfig

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
EXPERTS = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def estimate(data: dict[str, Any] = LLAMA, device: str = "h100", tokens: int = 8192, seqs: int = 256, **more: Any) -> MemoryEstimate:  # fmt: skip  # noqa: E501
    stage, engine = more.pop("stage", 0), more.pop("engine", (0, 32))
    return estimate_available(
        ModelConfig.from_data(data), EngineFlags.from_mapping(more), find_device(device),
        max_num_batched_tokens=tokens, max_num_seqs=seqs, stage=stage, engine=engine,
    )  # fmt: skip


def test_the_share_of_the_device_is_rounded_up_to_bytes() -> None:
    found = estimate(gpu_memory_utilization=0.92)
    assert found.requested_bytes == math.ceil(find_device("h100").total_bytes * 0.92)


def test_what_is_left_is_the_share_minus_all_terms() -> None:
    found = estimate()
    assert found.terms[0].best_bytes == found.requested_bytes
    assert found.available_best == sum(term.best_bytes for term in found.terms)
    assert all(term.best_bytes <= 0 for term in found.terms[1:])
    assert found.available_low < found.available_best < found.available_high
    for term in found.terms:
        assert term.low_bytes <= term.best_bytes <= term.high_bytes
        assert any(letter.isdigit() for letter in term.formula)


def test_an_estimate_is_data_that_nobody_changes() -> None:
    found = estimate()
    with pytest.raises(FrozenInstanceError):
        found.requested_bytes = 0  # type: ignore[misc]
    data = found.to_dict()
    assert data["available_best"] == found.available_best
    assert [term["name"] for term in data["terms"]][:3] == ["requested", "weights", "activation peak"]
    assert data["weights"]["source"] == "config"
    assert data["not_modelled"]


def test_a_model_that_does_not_fit_leaves_less_than_nothing() -> None:
    found = estimate(device="rtx 3060")
    assert found.available_best < 0
    assert found.available_high < 0


def test_bytes_given_for_the_cache_are_the_answer() -> None:
    found = estimate(kv_cache_memory_bytes=5 * GIB)
    assert found.available_low == found.available_best == found.available_high == 5 * GIB
    assert [term.name for term in found.terms] == ["given"]


def test_a_size_given_by_the_user_is_exact() -> None:
    config, flags = ModelConfig.from_data(LLAMA), EngineFlags()
    exact = estimate_available(config, flags, device_of_memory("80GiB"), max_num_batched_tokens=8192, max_num_seqs=256)
    assert exact.terms[0].low_bytes == exact.terms[0].high_bytes == exact.requested_bytes
    assert estimate().terms[0].low_bytes < estimate().requested_bytes


def test_more_tokens_at_once_leave_less() -> None:
    left = [estimate(tokens=tokens).available_best for tokens in (2048, 8192, 32768)]
    assert left == sorted(left, reverse=True)


def test_more_sequences_leave_less_as_the_sampler_needs_a_row_of_logits_each() -> None:
    few, many = (estimate(seqs=seqs, tokens=2048, enforce_eager=True).available_best for seqs in (256, 1024))
    assert few > many
    sampler = next(term for term in estimate(seqs=1024).terms if term.name == "activation peak")
    assert sampler.formula.startswith("the sampler: 1024 sequences x 128256 words")


def test_the_sampler_of_older_engines_sorts_the_vocabulary() -> None:
    new, old = (
        next(term.best_bytes for term in estimate(seqs=1024, engine=engine).terms if term.name == "activation peak")
        for engine in ((0, 32), (0, 11))
    )
    assert old < 4 * new < 0


def test_graphs_are_charged_from_the_version_that_does_so_and_not_in_eager_mode() -> None:
    names = [
        {term.name for term in found.terms}
        for found in (estimate(), estimate(engine=(0, 20)), estimate(enforce_eager=True))
    ]
    assert ["CUDA graphs" in each for each in names] == [True, False, False]


@pytest.mark.parametrize(
    ("seqs", "tokens", "device", "sizes"),
    [
        (128, 2048, "l40s", (35, 19)),
        (256, 8192, "l40s", (51, 35)),
        (1024, 8192, "b300", (51, 51)),
        (8, 65536, "gb10", (5, 4)),
        (1, 8192, "5090", (2, 1)),
    ],
)
def test_the_sizes_that_are_captured_are_those_of_real_logs(
    seqs: int, tokens: int, device: str, sizes: tuple[int, int]
) -> None:
    found = capture_sizes(EngineFlags(), find_device(device), tokens, seqs)
    if device == "b300":  # its log is from a version before the longer list of data-centre Blackwell
        assert found >= sizes
    else:
        assert found == sizes


def test_experts_need_workspaces_and_others_do_not() -> None:
    assert "expert workspaces" in {term.name for term in estimate(EXPERTS).terms}
    assert "expert workspaces" not in {term.name for term in estimate().terms}


def test_several_gpus_need_buffers_to_talk() -> None:
    alone, split = estimate(), estimate(tensor_parallel_size=4)
    assert "communication" in {term.name for term in split.terms} - {term.name for term in alone.terms}
    assert split.available_best > alone.available_best


def test_only_the_last_stage_samples_and_only_the_first_encodes() -> None:
    peaks = [
        next(
            term
            for term in estimate(stage=stage, pipeline_parallel_size=2, seqs=1024).terms
            if term.name == "activation peak"
        )
        for stage in (0, 1)
    ]
    assert peaks[0].formula.startswith("the forward pass")
    assert peaks[1].formula.startswith("the sampler")


def test_shared_memory_widens_the_range() -> None:
    spark, card = estimate(device="gb10"), estimate(device="rtx pro 6000")
    assert spark.available_high - spark.available_low > card.available_high - card.available_low + 4 * GIB


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_counts_that_are_none_are_refused(name: str, value: Any) -> None:
    counts = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, name: value}
    with pytest.raises(UsageError, match=rf"{name}=.* must be a whole number"):
        estimate_available(ModelConfig.from_data(LLAMA), EngineFlags(), find_device("h100"), **counts)


def test_an_estimate_takes_a_moment_and_imports_nothing_heavy() -> None:
    start = time.perf_counter()
    for _ in range(5):
        estimate({**EXPERTS, "num_hidden_layers": 94})
    assert (time.perf_counter() - start) / 5 < 0.1
    code = "import sys, kvblocks.sizing.memory; print({'numpy', 'torch', 'vllm'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
