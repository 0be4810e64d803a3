"""Public reports about sizes, as far as the core answers them: pages of specs, and the longest request that fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, MambaSpec, MLASpec
from tests.cases.scenario import Engine
from tests.shared import shared

BELONGS_TO_PLAN = ("BH076", "BH081")
"""Reports about pipeline stages and grouping of layers, which `kvblocks plan` will answer."""


def test_bh077_a_pool_of_exactly_the_blocks_needed_is_one_short() -> None:
    engine = Engine(usable_blocks=178, block_size=1600, max_model_len=286_400)  # 179 blocks with the null block
    assert engine.manager.peak_blocks(286_400) == (179,)
    assert engine.manager.max_request_tokens == 178 * 1600


def test_bh079_an_indexer_s_keys_are_part_of_the_page() -> None:
    latent, indexer = MLASpec(block_size=64), MLASpec(block_size=64, head_size=132, dtype_bytes=1)
    per_token = 61 * (latent.page_size_bytes + indexer.page_size_bytes) // 64
    assert per_token == 61 * (1152 + 132)


def test_bh080_attention_grows_and_a_state_does_not() -> None:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=16), MambaSpec(block_size=16)]
    manager = Engine(usable_blocks=5000, specs=specs).manager
    assert [manager.peak_blocks(tokens) for tokens in (16, 1600, 16_000)] == [(1, 1), (100, 2), (1000, 2)]


def test_bh082_the_kind_of_the_spec_decides_the_bytes() -> None:
    heads = FullAttentionSpec(block_size=1, num_kv_heads=128, head_size=192, head_size_v=128)
    assert heads.page_size_bytes == 128 * (192 + 128) * 2
    assert MLASpec(block_size=1).page_size_bytes == 1152


def test_every_report_of_the_collection_is_a_test_or_left_out_with_a_reason() -> None:
    reports = {entry["id"] for entry in json.loads(shared("cases/behaviour.json").read_text())}
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tested = {name.upper() for name in re.findall(r"def test_(bh\d+)_", source)}
    assert tested | set(BELONGS_TO_PLAN) == reports
    assert not tested & set(BELONGS_TO_PLAN)
