"""Sizes from real start-up logs: each entry of the collection whose geometry is known is met within its rounding."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kvblocks.sizing import ModelConfig, Plan, plan
from tests.shared import SHARED, shared

GIB = 2**30
HALF = 0.005 * GIB
"""A figure of a log is right to half of its last decimal."""

NOT_MET = {
    "SZ003": "vLLM 0.15 checked all 48 layers against the memory of one stage; the stage of 32 layers needs 16 GiB",
    "SZ014": "stitched from two runs: the concurrency is not that of the tokens beside it",
    "SZ028": "the GiB figure is of one rank, the tokens are the minimum over four",
    "SZ029": "vLLM 0.9 printed the tokens of the profiled blocks, not those of the override",
    "SZ061": "started with 179 blocks for a request that needs 179, without one for the null block; 0.32 refuses",
    "SZ075": "vLLM 0.11 made blocks of latents multiples of 64 tokens (960 here); 0.32 makes them multiples of 128",
    "SZ030": "vLLM 0.10 started with one block, which is the null block, so that nothing could be served",
}
"""Entries whose log is wrong, or of rules that are no more; a test below says each of them."""

NO_GEOMETRY = {
    "SZ032", "SZ047", "SZ055", "SZ056", "SZ076", "SZ077", "SZ078", "SZ079", "SZ080", "SZ081", "SZ082", "SZ083", "SZ084",
    "SZ085", "SZ086", "SZ087", "SZ088", "SZ089",
}  # fmt: skip
"""Entries that leave out the model, its drafts or its flags; what can be checked of them is below."""


def entries() -> dict[str, dict[str, Any]]:
    path = SHARED / "cases" / "sizing_logs.json"
    return {entry["id"]: entry for entry in json.loads(path.read_text())} if path.exists() else {}


def one(name: str) -> dict[str, Any]:
    """An entry; skips the test where the collection is absent."""
    shared("cases/sizing_logs.json")
    return entries()[name]


def config_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A config with the geometry that the entry names."""
    shape = entry.get("architecture") or {}
    common = {
        "torch_dtype": "bfloat16",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "num_attention_heads": 64,
        "max_position_embeddings": 2**24,
        "num_hidden_layers": shape.get("layers", 1),
    }
    if "gdn_layers" in shape:
        every = shape["layers"] // shape["full_layers"]
        return {
            **common,
            "model_type": "qwen3_5_text",
            "num_key_value_heads": shape["kv_heads"],
            "head_dim": shape["head_dim"],
            "full_attention_interval": every,
            "linear_num_key_heads": shape["gdn_k_heads"],
            "linear_num_value_heads": shape["gdn_v_heads"],
            "linear_key_head_dim": shape["gdn_head_dim"],
            "linear_value_head_dim": shape["gdn_head_dim"],
            "linear_conv_kernel_dim": shape["conv_kernel"],
            "mamba_ssm_dtype": shape["ssm_dtype"],
            "mtp_num_hidden_layers": 1,
        }
    if "kda_layers" in shape:
        layers = range(1, shape["layers"] + 1)
        full = [i for i in layers if i % 4 == 0 or i == shape["layers"]]
        return {
            **common,
            "model_type": "kimi_linear",
            "kv_lora_rank": shape["kv_lora_rank"],
            "qk_rope_head_dim": shape["rope_dim"],
            "linear_attn_config": {
                "kda_layers": [i for i in layers if i not in full],
                "full_attn_layers": full,
                "num_heads": shape["kda_heads"],
                "head_dim": shape["kda_head_dim"],
                "short_conv_kernel_size": shape["conv_kernel"],
            },
        }
    if "self_attn" in shape:
        return {
            "model_type": "whisper",
            "torch_dtype": "float16",
            "d_model": shape["kv_heads"] * shape["head_dim"],
            "decoder_layers": shape["decoder_layers"],
            "decoder_attention_heads": shape["kv_heads"],
            "max_target_positions": 448,
        }
    if "sliding_kv_heads" in shape:
        return {
            **common,
            "model_type": "gemma4_text",
            "num_key_value_heads": shape["sliding_kv_heads"],
            "head_dim": shape["sliding_head_dim"],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": shape["full_kv_heads"],
            "global_head_dim": shape["full_head_dim"],
            "sliding_window": shape["sliding_window"],
        }
    if "sliding_layers" in shape:
        return {
            **common,
            "model_type": "gemma3_text",
            "num_key_value_heads": shape["kv_heads"],
            "head_dim": shape["head_dim"],
            "sliding_window": shape["sliding_window"],
        }
    if shape.get("sparse_indexer") or "indexer_bytes_per_token" in shape:
        return {
            **common,
            "model_type": "glm_moe_dsa",
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "num_nextn_predict_layers": 1,
        }
    if shape.get("mla"):
        return {
            **common,
            "model_type": "deepseek_v3",
            "kv_lora_rank": shape["kv_lora_rank"],
            "qk_rope_head_dim": shape["rope_dim"],
        }
    if "bytes_per_token" in shape:  # one layer of one head
        return {
            **common,
            "model_type": "llama",
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": shape["bytes_per_token"] // 4,
        }
    return {
        **common,
        "model_type": "llama",
        "num_attention_heads": 8 * shape.get("kv_heads", 1),
        "num_key_value_heads": shape.get("kv_heads", 1),
        "head_dim": shape.get("head_dim", 128),
    }


def flags_of(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry's flags under vLLM's names."""
    given = entry["flags"]
    flags: dict[str, Any] = {
        "max_model_len": given.get("max_model_len") or 2048,
        "tensor_parallel_size": given.get("tp", 1),
        "decode_context_parallel_size": given.get("dcp", 1),
    }
    drafts = given.get("mtp") or given.get("mtp_num_speculative_tokens") or 0
    if drafts:
        flags["speculative_config"] = {"method": "mtp", "num_speculative_tokens": int(drafts)}
    cache = str(given.get("kv_cache_dtype", "auto")).split()[0].split("(")[0]
    if cache not in ("auto", "bf16"):
        flags["kv_cache_dtype"] = cache
    for name in ("num_gpu_blocks_override", "max_num_batched_tokens", "max_num_seqs"):
        if name in given:
            flags[name] = given[name]
    if "block_size" in entry and "gdn_layers" not in (entry.get("architecture") or {}):
        flags["block_size"] = entry["block_size"]
    if "kda_layers" in (entry.get("architecture") or {}):
        flags.pop("block_size", None)
    if entry["id"] in ("SZ073", "SZ074"):
        flags["enable_prefix_caching"] = False  # states had none by default in those versions
    if entry["id"] == "SZ050":
        flags["async_scheduling"] = False  # 0.23 did not count a second batch in flight
    if entry["id"] in ("SZ053", "SZ054"):
        flags["max_num_batched_tokens"] = 2048  # not stated; the batch whose blocks come out whole for both
    if "self_attn" in (entry.get("architecture") or {}):
        flags.setdefault("max_num_batched_tokens", 2048)
    return flags


def answer(entry: dict[str, Any], memory: float) -> Plan:
    return plan(ModelConfig.from_data(config_of(entry)), flags_of(entry), available_bytes=int(memory))


def old_tokens(entry: dict[str, Any], found: Plan) -> int:
    """Tokens as vLLM counted them before 0.20: blocks over groups, times the smallest block."""
    dcp = entry["flags"].get("dcp", 1)
    smallest = min(group.block_size for group in found.groups)
    return (found.num_blocks or 0) // len(found.groups) * smallest * int(dcp)


CHECKED = sorted(set(entries()) - set(NOT_MET) - NO_GEOMETRY)


@pytest.mark.parametrize("name", CHECKED)
def test_a_logged_size_is_met_within_its_rounding(name: str) -> None:
    entry = entries()[name]
    log = entry["log"]
    said = re.match(r"([\d.]+)x", str(log.get("max_concurrency") or ""))
    if "needed_gib" in log:
        found = answer(entry, log.get("available_gib", 1) * GIB)
        assert found.status == "does_not_fit"
        assert round(found.needed_bytes_max_len[0] / GIB, 2) == pytest.approx(log["needed_gib"], abs=0.0051)
        if "estimated_max_len" in log:
            bounds = [answer(entry, log["available_gib"] * GIB + off) for off in (-HALF, HALF)]
            slack = max(sum(g.block_size for g in found.groups), 16) + max(found.bytes_per_block) // 2**20
            shortest, longest = (bound.estimated_max_model_len or 0 for bound in bounds)
            # Before 0.22 vLLM did not set the null block aside, so its estimate is up to a block longer.
            assert shortest <= log["estimated_max_len"] <= longest + slack
        return
    if "available_gib" in log:
        low, high = (answer(entry, log["available_gib"] * GIB + off) for off in (-HALF, HALF))
        assert low.ok, low.error
        if "num_gpu_blocks" in log:
            assert (low.num_blocks or 0) <= log["num_gpu_blocks"] <= (high.num_blocks or 0)
        if "kv_tokens" in log:
            new = (low.tokens or 0) <= log["kv_tokens"] <= (high.tokens or 0)
            old = old_tokens(entry, low) <= log["kv_tokens"] <= old_tokens(entry, high)
            assert new or old, (low.tokens, high.tokens, old_tokens(entry, low), log["kv_tokens"])
        if said:
            assert (low.max_concurrency or 0) - 0.0051 <= float(said[1]) <= (high.max_concurrency or 0) + 0.0051
        return
    # Without the memory: from the blocks that the tokens tell, to the concurrency.
    found = answer(entry, 2**50)
    per_request = sum(group.blocks_per_request for group in found.groups)
    length = found.max_model_len or 1
    blocks: float | None = log.get("num_gpu_blocks") or (entry.get("computed") or {}).get("num_blocks")
    if blocks is None:
        blocks = log["kv_tokens"] / min(group.block_size for group in found.groups) if len(found.groups) == 1 else None
    if blocks is None:  # int(concurrency x length)
        blocks = log["kv_tokens"] * per_request / length
        assert abs(blocks - round(blocks)) < per_request / length + 1e-6
    if said:
        assert float(said[1]) == pytest.approx(blocks / per_request, abs=0.0101)
    if "kv_tokens" in log:
        new = int(blocks / per_request * length)
        old = int(blocks) // len(found.groups) * min(group.block_size for group in found.groups)
        assert log["kv_tokens"] in (new, old) or abs(new - log["kv_tokens"]) <= 1


def test_every_entry_is_checked_or_left_out_with_a_reason() -> None:
    shared("cases/sizing_logs.json")
    assert set(entries()) == set(CHECKED) | set(NOT_MET) | NO_GEOMETRY
    assert len(CHECKED) >= 35


def test_sz003_counted_every_layer_against_one_stage() -> None:
    entry = one("SZ003")
    flags = {"pipeline_parallel_size": 2, "max_model_len": 262144}
    env = {"VLLM_PP_LAYER_PARTITION": "16,32"}
    found = plan(config_of(entry), flags, available_bytes=int(3.18 * GIB), env=env)
    assert [size / GIB for size in found.needed_bytes_max_len] == [8.0, 16.0]
    assert found.status == "does_not_fit"
    one_stage = plan(config_of(entry), {"max_model_len": 262144}, available_bytes=int(3.18 * GIB))
    assert one_stage.needed_bytes_max_len[0] / GIB == entry["log"]["needed_gib"]


def test_sz014_s_two_figures_are_of_two_runs() -> None:
    entry = one("SZ014")
    tokens = entry["log"]["kv_tokens"]
    assert f"{tokens / 16384:.2f}x" == "36.49x"
    assert entry["log"]["max_concurrency"].startswith("36.48x")


def test_sz028_s_tokens_are_those_of_the_rank_with_least_memory() -> None:
    entry = one("SZ028")
    flags = {"tensor_parallel_size": 4, "max_model_len": 2048}
    stated = plan(config_of(entry), flags, available_bytes=int(8.11 * GIB))
    least = plan(config_of(entry), flags, available_bytes=int(8.018 * GIB))
    assert (least.num_blocks or 0) * 16 == pytest.approx(entry["log"]["kv_tokens"], abs=200)
    assert (stated.num_blocks or 0) * 16 > entry["log"]["kv_tokens"] * 1.01


def test_sz029_and_sz030_are_refused_because_the_override_is_the_cache() -> None:
    shared("cases/sizing_logs.json")
    for name, blocks in (("SZ029", 100), ("SZ030", 1)):
        found = answer(entries()[name], 81.38 * GIB)
        assert found.status == "does_not_fit"
        assert found.memory_bytes == blocks * max(found.bytes_per_block)
    roomy = {**entries()["SZ029"], "flags": {"num_gpu_blocks_override": 100, "max_model_len": 1024}}
    assert answer(roomy, 81.38 * GIB).tokens == 1600


def test_sz061_has_exactly_the_blocks_of_one_request_and_none_for_the_null_block() -> None:
    shared("cases/sizing_logs.json")
    found = answer(entries()["SZ061"], 9.3 * GIB)
    assert int(9.3 * GIB) // found.bytes_per_block[0] == sum(group.blocks_per_request for group in found.groups) == 179
    assert found.status == "does_not_fit"
    assert found.estimated_max_model_len == 260800


def test_sz075_s_blocks_were_aligned_to_64_tokens() -> None:
    shared("cases/sizing_logs.json")
    entry = entries()["SZ075"]
    found = answer(entry, 2.3 * GIB)
    assert (found.block_size, entry["block_size"]) == (1024, 960)
    assert len(found.groups) == entry["num_kv_groups"]
    assert found.bytes_per_block[0] * 960 // 1024 == pytest.approx(entry["bytes_per_block_id"], rel=0.07)


@pytest.mark.parametrize("name", sorted(NO_GEOMETRY))
def test_of_an_entry_without_geometry_tokens_and_concurrency_agree_unless_the_old_formula_was_used(name: str) -> None:
    shared("cases/sizing_logs.json")
    log = entries()[name]["log"]
    said = re.match(r"([\d.]+)x @(\d+)", str(log.get("max_concurrency") or ""))
    if name in ("SZ032", "SZ055", "SZ078", "SZ079", "SZ084", "SZ088"):
        assert not said or "kv_tokens" not in log
        return
    assert said
    agree = log["kv_tokens"] / int(said[2]) == pytest.approx(float(said[1]), abs=0.0051)
    assert agree == (name != "SZ077")


def test_a_negative_memory_is_refused() -> None:
    """SZ032: gpt-oss-120b on an H100 left -2.14 GiB."""
    found = plan(config_of({"architecture": {"layers": 36, "kv_heads": 8, "head_dim": 64}}), {}, available_bytes=-GIB)
    assert found.status == "does_not_fit"
    assert "no memory is left" in str(found.error)
