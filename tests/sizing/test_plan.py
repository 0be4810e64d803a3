"""What a plan says and refuses, on models of the catalogue: no file outside the repository is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvblocks import BlockHasher, KVCacheManager, TokenRequest
from kvblocks.errors import UsageError
from kvblocks.sizing import EngineFlags, ModelConfig, Plan, plan
from kvblocks.sizing.architectures import known_types
from kvblocks.sizing.catalogue import find_model, names

GIB = 2**30


def planned(model: str, gib: float = 40, env: dict[str, str] | None = None, **flags: Any) -> Plan:
    return plan(find_model(model), flags, available_bytes=int(gib * GIB), env=env)


def test_a_dense_model_holds_two_numbers_per_head_layer_and_token() -> None:
    found = planned("qwen3-8b")
    assert found.bytes_per_token == 36 * 8 * (128 + 128) * 2
    assert found.fixed_bytes_per_request == 0
    assert found.num_blocks == 40 * GIB // (16 * 147456)
    assert found.tokens == found.num_blocks * 16


def test_fp8_halves_a_token_and_doubles_the_tokens() -> None:
    plain, fp8 = planned("qwen3-8b"), planned("qwen3-8b", kv_cache_dtype="fp8")
    assert (fp8.bytes_per_token, plain.bytes_per_token) == (73728, 147456)
    assert abs((fp8.tokens or 0) - 2 * (plain.tokens or 0)) <= 16


def test_a_latent_is_the_same_on_every_rank() -> None:
    assert planned("deepseek-v3").bytes_per_block == planned("deepseek-v3", tensor_parallel_size=8).bytes_per_block


def test_heads_are_divided_among_ranks_and_copied_when_there_are_fewer() -> None:
    widths = [planned("qwen3-8b", tensor_parallel_size=tp).bytes_per_block[0] for tp in (1, 2, 8, 16)]
    assert widths[0] == 2 * widths[1] == 8 * widths[2] == 8 * widths[3]


def test_a_checkpoint_that_was_quantised_for_an_fp8_cache_gets_one() -> None:
    data = dict(find_model("qwen3-8b").raw)
    data["quantization_config"] = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    assert plan(data, {}, available_bytes=GIB * 40).kv_cache_dtype == "fp8"
    assert plan(data, {"kv_cache_dtype": "bfloat16"}, available_bytes=GIB * 40).kv_cache_dtype == "bfloat16"


def test_a_request_that_does_not_fit_says_how_much_is_missing_and_what_would_fit() -> None:
    found = planned("qwen3-8b", 2, max_model_len=32768)
    assert found.status == "does_not_fit"
    longest = found.estimated_max_model_len or 0
    assert planned("qwen3-8b", 2, max_model_len=longest).ok
    assert not planned("qwen3-8b", 2, max_model_len=longest + 1).ok
    assert "4.5 GiB" in str(found.error)
    assert f"max_model_len={longest}" in str(found.error)


def test_auto_takes_the_longest_that_fits() -> None:
    found = planned("qwen3-8b", 2, max_model_len="auto")
    assert found.ok
    assert found.max_model_len == planned("qwen3-8b", 2, max_model_len=32768).estimated_max_model_len


def test_an_override_replaces_the_memory_in_the_check_too() -> None:
    assert planned("qwen3-8b", num_gpu_blocks_override=100, max_model_len=1584).ok
    assert planned("qwen3-8b", num_gpu_blocks_override=100, max_model_len=1600).status == "does_not_fit"


def test_the_stage_with_the_least_room_decides_how_many_blocks() -> None:
    config = find_model("llama-3.1-8b".replace("llama", "meta-llama"))
    flags = {"pipeline_parallel_size": 2}
    even = plan(config, flags, available_bytes=[20 * GIB, 20 * GIB])
    uneven = plan(config, flags, available_bytes=[20 * GIB, 10 * GIB])
    assert even.num_blocks == 2 * (uneven.num_blocks or 0)
    assert plan(config, flags, available_bytes=20 * GIB, env={"VLLM_PP_LAYER_PARTITION": "8,24"}).bytes_per_block == (
        8 * 65536,
        24 * 65536,
    )


REFUSED = [
    ({"tensor_parallel_size": 3}, "does not divide the 32 attention heads; use 2"),
    ({"block_size": 0}, "block_size=0 must be at least 1"),
    ({"block_size": "16"}, "must be a whole number"),
    ({"kv_cache_dtype": "fp9"}, "did you mean 'fp8'?"),
    ({"kv_cache_dtyp": "fp8"}, "did you mean kv_cache_dtype or "),
    ({"gpu_memory_utilization": 1.5}, "share of the device's memory"),
    ({"max_model_len": 10**6}, "exceeds the 40960 tokens that the model was made for"),
    ({"decode_context_parallel_size": 2}, "must divide tensor_parallel_size=1"),
    ({"decode_context_parallel_size": 2, "tensor_parallel_size": 2}, "above the 8 KV heads"),
    ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "layers for multi-token prediction"),
    ({"speculative_config": {"method": "magic", "num_speculative_tokens": 1}}, "method='magic' is unknown"),
    ({"speculative_config": {"num_speculative_tokens": 1}}, "needs a method"),
    ({"speculative_config": {"method": "eagle3", "num_speculative_tokens": 1}}, "needs the draft model's folder"),
    ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, "each request needs a token"),
    ({"pipeline_parallel_size": 64}, "exceeds the 36 layers"),
    ({"dtype": "int8"}, "dtype='int8' is unknown"),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_flag_that_vllm_refuses_is_refused_with_its_name_value_and_a_fix(flags: dict[str, Any], words: str) -> None:
    found = planned("qwen3-8b", **flags)
    assert found.status == "refused"
    assert words in str(found.error)
    assert found.num_blocks is None


def test_windows_cannot_be_spread_over_ranks() -> None:
    found = planned("gemma-3-27b-it-text", tensor_parallel_size=32, decode_context_parallel_size=2)
    assert found.status == "refused"
    assert "sliding window" in str(found.error)


def test_an_unknown_family_is_refused_by_its_name_and_the_fields_that_cannot_be_placed() -> None:
    data = {**find_model("qwen3-8b").raw, "model_type": "qwen9", "sliding_window": 4096, "architectures": ["Qwen9"]}
    found = plan(data, {}, available_bytes=GIB)
    assert found.status == "refused"
    assert "'qwen9' is unknown" in str(found.error)
    assert "sliding_window=4096" in str(found.error)
    assert "qwen3" in str(found.error)
    assumed = plan(data, {}, available_bytes=GIB * 40, assume_full_attention=True)
    assert assumed.ok


def test_a_model_around_an_unknown_language_model_is_refused_too() -> None:
    data = {"model_type": "nobody_vl", "text_config": dict(find_model("qwen3-8b").raw)}
    found = plan(data, {}, available_bytes=GIB)
    assert "'nobody_vl' is unknown (its language part, 'qwen3', is known)" in str(found.error)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF\x03\x00", "a GGUF file"),
        (b"{", "not JSON"),
        (b"[1]", "a JSON object"),
        (b'{"weight_map": {}}', "an index of weights"),
        (b"\x80\x02}q", "a pickle"),
        (b"", "not JSON"),
    ],
)
def test_a_file_that_is_no_config_is_named_for_what_it_is(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        ModelConfig.load(path)


def test_a_folder_without_a_config_and_a_path_that_is_not_there_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no config\.json"):
        ModelConfig.load(tmp_path)
    with pytest.raises(UsageError, match="no such file or folder"):
        ModelConfig.load(tmp_path / "absent")


def test_a_name_that_is_not_in_the_catalogue_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Qwen/Qwen3-8B"):
        find_model("qwen3-9b")
    assert find_model("QWEN/qwen3-8B").name == "Qwen/Qwen3-8B"
    assert find_model("qwen3-8b").text_type in known_types()


@pytest.mark.parametrize("name", names())
def test_every_model_of_the_catalogue_is_planned(name: str) -> None:
    found = planned(name, 2048)
    assert found.ok, found.error
    json.dumps(found.to_dict())


@pytest.mark.parametrize("name", names())
def test_every_plan_of_the_catalogue_makes_a_manager_that_serves_a_request(name: str) -> None:
    found = planned(name, 2048, num_gpu_blocks_override=100_000)
    manager = KVCacheManager(**found.kv_cache_config())
    request = TokenRequest("one", range(300), BlockHasher(block_size=manager.hash_block_size))
    assert manager.allocate_slots(request, 300, num_encoder_tokens=100) is not None
    manager.check()
    manager.free(request)
    manager.check()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["qwen3-8b", "gemma-3-27b-it-text", "qwen3.5-27b", "deepseek-v3", "gpt-oss-20b"]),
    st.integers(1, 400),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["auto", "fp8"]),
    st.integers(1024, 32768),
)
def test_more_memory_never_holds_less(model: str, gib: int, tp: int, dtype: str, length: int) -> None:
    flags: dict[str, Any] = {"tensor_parallel_size": tp, "kv_cache_dtype": dtype, "max_model_len": length}
    small, large = planned(model, gib, **flags), planned(model, gib + 1, **flags)
    if small.ok:
        assert large.ok
        assert (large.num_blocks or 0) >= (small.num_blocks or 0)
        assert large.memory_bytes == (gib + 1) * GIB
        assert (small.num_blocks or 0) * max(small.bytes_per_block) <= gib * GIB
    assert (large.estimated_max_model_len or 0) >= (small.estimated_max_model_len or 0)


def test_flags_are_taken_by_vllm_s_names_in_either_spelling_and_others_ignored() -> None:
    flags = EngineFlags.from_mapping({"--tensor-parallel-size": 2, "kv_cache_dtype": "fp8", "served-model-name": "x"})
    assert (flags.tensor_parallel_size, flags.kv_cache_dtype) == (2, "fp8")
    assert EngineFlags.from_mapping({"no-enable-prefix-caching": True}).enable_prefix_caching is False


def test_a_layer_that_reads_another_s_cache_must_be_on_its_stage() -> None:
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "hidden_size": 1536,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "num_kv_shared_layers": 4,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    flags = {"pipeline_parallel_size": 2}
    refused = plan(config, flags, available_bytes=2**34, env={"VLLM_PP_LAYER_PARTITION": "8,4"})
    assert "layer 8 reads the cache of layer 7, which is on another stage" in str(refused.error)
    assert plan(config, flags, available_bytes=2**34, env={"VLLM_PP_LAYER_PARTITION": "4,8"}).ok


def test_a_prediction_layer_can_keep_the_model_s_dtype_beside_a_quantised_cache() -> None:
    config = {
        "model_type": "exaone_moe",
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "hidden_size": 2048,
        "head_dim": 128,
        "sliding_window": 128,
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 1,
        "torch_dtype": "bfloat16",
    }
    config["layer_types"] = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2
    drafting = {"kv_cache_dtype": "fp8", "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    found = plan(config, drafting, available_bytes=2**33)
    assert {group.page_size_bytes for group in found.groups} == {16 * 2 * 8 * 128 * 2}
