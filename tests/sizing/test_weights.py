"""Weights are counted as the real models have them, in the format that the checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import weights_per_rank
from kvblocks.sizing.weights.count import count
from tests.shared import shared

COUNTS = json.loads(Path(__file__).with_name("parameter_counts.json").read_text())
"""Parameters of models that transformers 5.19 built on the meta device: shared configs, and defaults of families."""
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
}
DEEPSEEK = "deepseek-ai--DeepSeek-V3"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def load(name: str, quantization: dict[str, Any] | None = None) -> ModelConfig:
    data = json.loads((shared("configs") / name / "config.json").read_text())
    return ModelConfig.from_data({**data, "quantization_config": quantization} if quantization else data)


@pytest.mark.parametrize("name", COUNTS["shared"])
def test_a_real_config_has_the_parameters_that_its_model_has(name: str) -> None:
    counted = count(load(name))
    assert counted.parameters == pytest.approx(COUNTS["shared"][name], rel=0.0012)
    assert counted.unknown == ()


@pytest.mark.parametrize("family", COUNTS["families"], ids=lambda family: str(family["family"]))
def test_a_family_has_the_parameters_that_its_class_builds(family: dict[str, Any]) -> None:
    counted = count(ModelConfig.from_data(family["config"]))
    assert counted.parameters == pytest.approx(family["parameters"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama--Meta-Llama-3.1-8B", 8.03),
        ("Qwen--Qwen3-8B", 8.19),
        (DEEPSEEK, 671.0),
        ("openai--gpt-oss-20b", 20.9),
    ],
)
def test_published_sizes_are_met(name: str, billions: float) -> None:
    assert count(load(name)).parameters / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(
    ("name", "quantization", "tp", "logged_gib"),
    [
        ("meta-llama--Meta-Llama-3.1-8B", None, 1, 14.99),
        ("Qwen--Qwen2.5-7B-Instruct", None, 1, 14.25),
        ("Qwen--Qwen3-30B-A3B", {**FP8, "modules_to_not_convert": ["lm_head"]}, 1, 29.09),
        ("Qwen--Qwen3-8B", {"quant_method": "awq", "bits": 4, "group_size": 128}, 1, 5.71),
        (DEEPSEEK, FP8, 8, 79.74),
        ("openai--whisper-large-v3", None, 1, 2.88),
        ("openai--whisper-large-v3", None, 4, 0.83),
        ("MiniMaxAI--MiniMax-M2.5", FP8, 4, 53.75),
        ("Qwen--Qwen3-Next-80B-A3B-Instruct", None, 2, 74.28),
    ],
)
def test_the_bytes_that_real_engines_logged_are_met(
    name: str, quantization: dict[str, Any] | None, tp: int, logged_gib: float
) -> None:
    weights = weights_per_rank(load(name, quantization), EngineFlags(tensor_parallel_size=tp))
    assert weights.best / GIB == pytest.approx(logged_gib, rel=0.011)
    assert weights.low <= weights.best <= weights.high


def test_gpt_oss_experts_are_padded_as_their_kernels_need_it() -> None:
    data = json.loads((shared("configs") / "openai--gpt-oss-20b" / "config.json").read_text())
    data |= {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}
    data["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    weights = weights_per_rank(ModelConfig.from_data(data))
    assert weights.best / GIB == pytest.approx(64.38, rel=0.005)  # Triton kernels
    assert weights.high / GIB == pytest.approx(65.97, rel=0.015)  # Marlin kernels


@pytest.mark.parametrize(
    ("quantization", "per_weight"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 1.09),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5625),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group"}}
                },
            },
            0.5156,
        ),
    ],
)
def test_a_format_shrinks_linear_layers_and_leaves_embeddings(quantization: dict[str, Any], per_weight: float) -> None:
    config = ModelConfig.from_data({**LLAMA, "quantization_config": quantization})
    whole = weights_per_rank(ModelConfig.from_data(LLAMA))
    weights = weights_per_rank(config)
    assert weights.groups["embeddings"] == whole.groups["embeddings"]
    assert weights.groups["layers"] == pytest.approx(whole.groups["layers"] / 2 * per_weight, rel=0.005)


def test_modules_that_a_checkpoint_keeps_stay_in_its_dtype() -> None:
    kept = {**FP8, "modules_to_not_convert": ["model.layers.0.self_attn", "re:.*mlp[.]down_proj"]}
    some = weights_per_rank(ModelConfig.from_data({**LLAMA, "quantization_config": kept})).groups["layers"]
    none = weights_per_rank(ModelConfig.from_data({**LLAMA, "quantization_config": FP8})).groups["layers"]
    down, attention = 32 * 4096 * 14336, 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert some - none == pytest.approx(down + attention, rel=0.001)


def test_an_unknown_method_widens_the_range_and_says_so() -> None:
    config = ModelConfig.from_data({**LLAMA, "quantization_config": {"quant_method": "abacus"}})
    weights = weights_per_rank(config)
    assert weights.high > 1.5 * weights.low
    assert any("'abacus' are not known" in note for note in weights.not_modelled)


def test_an_unknown_family_widens_the_range_and_says_so() -> None:
    known = weights_per_rank(ModelConfig.from_data(LLAMA))
    weights = weights_per_rank(ModelConfig.from_data({**LLAMA, "model_type": "abacus"}))
    assert weights.best == known.best
    assert weights.low < 0.6 * known.low
    assert weights.high > 1.5 * known.high
    assert any("'abacus' has no rule" in note for note in weights.not_modelled)


@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_ranks_hold_at_least_their_share_and_repeat_what_is_not_split(tp: int) -> None:
    config = ModelConfig.from_data(LLAMA)
    whole, rank = weights_per_rank(config), weights_per_rank(config, EngineFlags(tensor_parallel_size=tp))
    assert whole.best / tp < rank.best < whole.best / tp * (1.05 if tp <= 8 else 1.2)


def test_expert_parallelism_moves_experts_but_not_bytes() -> None:
    config = load("Qwen--Qwen3-30B-A3B")
    split = weights_per_rank(config, EngineFlags(tensor_parallel_size=4))
    dealt = weights_per_rank(config, EngineFlags(tensor_parallel_size=4, enable_expert_parallel=True))
    assert split.best == dealt.best


def test_pipeline_stages_hold_every_layer_once() -> None:
    config = ModelConfig.from_data(LLAMA)
    flags = EngineFlags(pipeline_parallel_size=3)
    stages = [weights_per_rank(config, flags, stage) for stage in range(3)]
    whole = weights_per_rank(config)
    assert sum(stage.groups["layers"] for stage in stages) == pytest.approx(whole.groups["layers"], rel=1e-6)
    assert [stage.groups.get("embeddings", 0) for stage in stages][1] == 0


def test_a_tied_embedding_lies_on_the_first_and_the_last_stage() -> None:
    config = ModelConfig.from_data({**LLAMA, "tie_word_embeddings": True})
    flags = EngineFlags(pipeline_parallel_size=2)
    first, last = (weights_per_rank(config, flags, stage).groups["embeddings"] for stage in (0, 1))
    assert first == pytest.approx(last, rel=0.001)


def test_the_partition_of_layers_follows_the_environment() -> None:
    config, flags = ModelConfig.from_data(LLAMA), EngineFlags(pipeline_parallel_size=2)
    env = {"VLLM_PP_LAYER_PARTITION": "8,24"}
    first, last = (weights_per_rank(config, flags, stage, env).groups["layers"] for stage in (0, 1))
    assert last == pytest.approx(3 * first, rel=0.001)
    with pytest.raises(UsageError, match="VLLM_PP_LAYER_PARTITION='8,25'"):
        weights_per_rank(config, flags, 0, {"VLLM_PP_LAYER_PARTITION": "8,25"})
    with pytest.raises(UsageError, match="stage=2 must be"):
        weights_per_rank(config, flags, 2)


def test_draft_layers_count_only_when_they_are_used() -> None:
    config = load(DEEPSEEK, FP8)
    without = weights_per_rank(config, EngineFlags(tensor_parallel_size=8))
    draft = {"method": "mtp", "num_speculative_tokens": 1}
    with_mtp = weights_per_rank(config, EngineFlags(tensor_parallel_size=8, speculative_config=draft))
    assert 1.0 < (with_mtp.best - without.best) / GIB < 1.6  # a layer of 11.5 billion parameters on eight ranks
    named = weights_per_rank(config, EngineFlags(speculative_config={"method": "eagle3", "model": "a/draft"}))
    assert any("draft model 'a/draft'" in note for note in named.not_modelled)


def test_the_vision_tower_counts_unless_only_the_language_model_is_loaded() -> None:
    config = load("Qwen--Qwen3-VL-8B-Instruct")
    assert weights_per_rank(config).groups["vision"] > 2**30
    assert "vision" not in weights_per_rank(config, EngineFlags(language_model_only=True)).groups


def test_models_in_32_bits_are_loaded_in_16() -> None:
    config = ModelConfig.from_data({**LLAMA, "torch_dtype": "float32"})
    assert weights_per_rank(config).best == weights_per_rank(ModelConfig.from_data(LLAMA)).best
    assert weights_per_rank(config, EngineFlags(dtype="float32")).best > 1.9 * weights_per_rank(config).best


def test_a_config_without_a_size_names_the_field() -> None:
    data = {name: value for name, value in LLAMA.items() if name != "num_attention_heads"}
    with pytest.raises(UsageError, match="has no num_attention_heads"):
        weights_per_rank(ModelConfig.from_data(data))
