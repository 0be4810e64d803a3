"""Public reports about sizes, as far as the core answers them: pages of specs, and the longest request that fits."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kvblocks.kinds import FullAttentionSpec, MambaSpec, MLASpec
from tests.cases.scenario import Engine
from tests.shared import shared

BELONGS_TO_PLAN = ("BH076", "BH081")
"""Reports about pipeline stages and grouping of layers, which `kvblocks plan` will answer."""


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
    assert tested | set(BELONGS_TO_PLAN) == reports
    assert not tested & set(BELONGS_TO_PLAN)
