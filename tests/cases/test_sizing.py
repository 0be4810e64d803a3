"""Public reports about sizes: pages of specs, the longest request that fits, pipeline stages, groups and padding."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvblocks.kinds import FullAttentionSpec, MambaSpec, MLASpec
from kvblocks.sizing import Plan, plan
from tests.cases.scenario import Engine
from tests.shared import shared

LAYERS = {"num_attention_heads": 32, "hidden_size": 4096, "head_dim": 128, "torch_dtype": "bfloat16"}


def test_bh076_each_pipeline_stage_is_held_against_its_own_memory() -> None:
    """48 layers of 4 heads, 16 on the first stage and 32 on the second; 262,144 tokens."""
    config = {"model_type": "llama", "num_hidden_layers": 48, "num_key_value_heads": 4, **LAYERS}
    config["max_position_embeddings"] = 262_144

    def planned(*gib: float) -> Plan:
        memory = [int(size * 2**30) for size in gib]
        env = {"VLLM_PP_LAYER_PARTITION": "16,32"}
        return plan(config, {"pipeline_parallel_size": 2}, available_bytes=memory, env=env)

    assert [size / 2**30 for size in planned(9, 17).needed_bytes_max_len] == [8, 16]
    assert planned(9, 17).ok
    short_first, short_second = planned(3.18, 17), planned(9, 3.18)
    assert "needs 8.0 GiB of KV cache for one request, 3.18 GiB are usable of pipeline stage 0" in str(
        short_first.error
    )
    assert "needs 16.0 GiB of KV cache for one request, 3.18 GiB are usable of pipeline stage 1" in str(
        short_second.error
    )
    assert (short_first.estimated_max_model_len, short_second.estimated_max_model_len) == (104_176, 52_080)


def test_bh081_groups_of_several_kinds_share_one_pool_and_say_their_padding() -> None:
    """16 layers of full attention and 48 states: four groups of 16 layers, and pages made equal."""
    config = {
        **LAYERS,
        "model_type": "qwen3_next",
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 32_768,
    }
    found = plan(config, available_bytes=20 * 2**30)
    assert [(group.kind, group.n_layers) for group in found.groups] == [("mamba", 16)] * 3 + [("full_attention", 16)]
    (page,) = {group.page_size_bytes for group in found.groups}
    assert found.bytes_per_block == (16 * page,)
    assert found.num_blocks == 20 * 2**30 // (16 * page)
    state = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 2
    assert [group.padding_bytes for group in found.groups] == [page - state] * 3 + [0]
    assert 0 < (page - state) / page < 0.05


def test_bh077_a_pool_of_exactly_the_blocks_needed_is_one_short() -> None:
    """The null block is nobody's: of 179 blocks 178 serve. 15 states take one each, attention the rest, 1,600
    tokens a block."""
    attention, state = FullAttentionSpec(block_size=1600), MambaSpec(block_size=262_144, cache_mode="none")
    engine = Engine(usable_blocks=178, specs=[attention] + [state] * 15, max_model_len=262_144, enable_caching=False)
    assert engine.manager.block_pool.num_blocks == 179
    assert sum(engine.manager.peak_blocks(262_144)) == 179
    assert engine.manager.max_request_tokens == 260_800
    longest = engine.admit(range(260_800))
    assert engine.num_free == 0
    engine.free(longest)
    assert engine.try_admit(engine.request(range(260_801))) is None


def test_bh079_an_indexer_s_keys_are_part_of_the_page() -> None:
    latent, indexer = MLASpec(block_size=64), MLASpec(block_size=64, head_size=132, dtype_bytes=1)
    pages = [61 * spec.page_size_bytes for spec in (latent, indexer)]
    assert [page / 64 for page in pages] == [61 * 1152, 61 * 132]
    budget = 45 * 10**9
    assert (budget // pages[0], budget // sum(pages)) == (10_005, 8_977)


def test_bh080_attention_grows_and_a_state_does_not() -> None:
    """52 layers, of which 4 are attention and 24 keep a state; the others keep nothing."""
    attention = FullAttentionSpec(block_size=16, num_kv_heads=8)
    state = MambaSpec(block_size=100_000, state_bytes=1_000_000, cache_mode="none")
    manager = Engine(usable_blocks=5000, specs=[attention, state], enable_caching=False).manager

    def bytes_of(tokens: int) -> int:
        pages = (4 * attention.page_size_bytes, 24 * state.page_size_bytes)
        return sum(blocks * page for blocks, page in zip(manager.peak_blocks(tokens), pages, strict=True))

    per_token = 4 * 8 * (128 + 128) * 2
    assert [bytes_of(tokens) for tokens in (16, 1600, 16_000)] == [
        24_000_000 + tokens * per_token for tokens in (16, 1600, 16_000)
    ]
    checkpoints = Engine(specs=[attention, MambaSpec(block_size=16)]).manager
    assert [checkpoints.peak_blocks(tokens)[1] for tokens in (16, 1600, 16_000)] == [1, 2, 2]


def test_bh082_the_kind_of_the_spec_decides_the_bytes() -> None:
    heads = FullAttentionSpec(block_size=1, num_kv_heads=128, head_size=192, head_size_v=128)
    assert heads.page_size_bytes == 128 * (192 + 128) * 2
    assert MLASpec(block_size=1).page_size_bytes == 1152


def test_every_report_of_the_collection_is_a_test_or_left_out_with_a_reason() -> None:
    reports = {entry["id"] for entry in json.loads(shared("cases/behaviour.json").read_text())}
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {name.upper() for name in re.findall(r"def test_(bh\d+)_", source)}
    assert tested == reports
