"""Layers to groups: which share a block table, and how wide a block becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvblocks.errors import UsageError
from kvblocks.kinds import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    RequestLimits,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from kvblocks.kinds.grouping import CacheLayer, LayerGroup, bytes_per_block, group_layers, num_padding_layers

FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, sliding_window=1024)


def layers(*parts: tuple[KVCacheSpec, int]) -> list[CacheLayer]:
    specs = [spec for spec, count in parts for _ in range(count)]
    return [CacheLayer(f"layers.{i}", spec) for i, spec in enumerate(specs)]


def sizes(groups: Sequence[LayerGroup]) -> list[int]:
    return [len(group.layers) for group in groups]


@pytest.mark.parametrize(
    ("full", "window", "expected"),
    [
        (4, 20, [4, 4, 4, 4, 4, 4]),
        (12, 13, [12, 13]),
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (20, 30, [20, 15, 15]),
        (1, 0, [1]),
    ],
)
def test_kinds_are_dealt_out_into_groups_of_about_the_rarest_one_s_size(
    full: int, window: int, expected: list[int]
) -> None:
    assert sizes(group_layers(layers((FULL, full), (WINDOW, window)))) == expected


def test_a_model_of_one_kind_is_one_group_whatever_its_pages() -> None:
    small = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=64)
    groups = group_layers(layers((FULL, 80), (small, 16)))
    assert sizes(groups) == [96]
    assert bytes_per_block(groups) == 80 * FULL.page_size_bytes + 16 * small.page_size_bytes


def test_a_short_group_costs_the_width_of_the_widest() -> None:
    groups = group_layers(layers((FULL, 10), (WINDOW, 52)))
    assert sizes(groups) == [10, 9, 9, 9, 9, 8, 8]
    assert bytes_per_block(groups) == 10 * FULL.page_size_bytes
    assert num_padding_layers(groups) == 8


def test_every_stage_of_a_pipeline_gets_its_share_of_each_group() -> None:
    found = [CacheLayer(f"layers.{i}", WINDOW if i % 3 else FULL, i // 12) for i in range(24)]
    for group in group_layers(found):
        assert sizes([group.on_stage(0), group.on_stage(1)]) == [4, 4]


def test_a_page_that_divides_the_largest_gets_a_larger_block() -> None:
    half = SlidingWindowSpec(block_size=16, num_kv_heads=4, head_size=128, sliding_window=1024)
    full, window = group_layers(layers((FULL, 5), (half, 5)))
    assert (full.spec.block_size, window.spec.block_size) == (16, 32)
    assert full.spec.page_size_bytes == window.spec.page_size_bytes


def test_a_page_that_does_not_divide_the_largest_is_padded() -> None:
    odd = SlidingWindowSpec(block_size=16, num_kv_heads=3, head_size=128, sliding_window=1024)
    window = group_layers(layers((FULL, 5), (odd, 5)))[1].spec
    assert (window.block_size, window.page_size_bytes) == (16, FULL.page_size_bytes)
    assert window.content_size_bytes == odd.page_size_bytes


def test_a_latent_is_never_padded() -> None:
    latent = MLASpec(block_size=16, head_size=576)
    chunk = ChunkedLocalSpec(block_size=16, num_kv_heads=3, head_size=128, attention_chunk_size=4096)
    with pytest.raises(UsageError, match="latent cannot be padded"):
        group_layers(layers((latent, 5), (chunk, 5)))


def test_latents_next_to_windows_that_cannot_be_made_equal_are_one_group_of_full_attention() -> None:
    latent = MLASpec(block_size=16, head_size=576)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=3, head_size=128, sliding_window=4096)
    groups = group_layers(layers((latent, 5), (window, 5)))
    assert sizes(groups) == [10]
    assert isinstance(groups[0].layers[-1].spec, FullAttentionSpec)


def test_without_the_hybrid_manager_windows_and_chunks_are_kept_whole() -> None:
    groups = group_layers(layers((FULL, 10), (WINDOW, 52)), hybrid=False)
    assert sizes(groups) == [62]
    assert groups[0].blocks_per_request(RequestLimits(131072, 8192)) == 8192


def test_without_the_hybrid_manager_states_are_refused() -> None:
    state = MambaSpec(block_size=16, state_bytes=4096)
    full = replace(FULL, dcp_sharded=True)
    with pytest.raises(UsageError, match="hybrid"):
        group_layers(layers((full, 4), (state, 4)), hybrid=False)


def test_a_state_is_padded_to_the_page_of_attention() -> None:
    state = MambaSpec(block_size=16, state_bytes=FULL.page_size_bytes - 100)
    groups = group_layers(layers((FULL, 4), (state, 8)))
    assert {group.spec.page_size_bytes for group in groups} == {FULL.page_size_bytes}
    assert sizes(groups) == [4, 4, 4]


def test_a_model_without_a_cache_has_no_group() -> None:
    assert group_layers([]) == []
    assert bytes_per_block([]) == 0


def test_packed_pages_are_laid_side_by_side_and_rounded_up_once() -> None:
    window = SlidingWindowMLASpec(block_size=64, head_size=512, dtype_bytes=1, sliding_window=128)
    coarse = MLASpec(block_size=256, head_size=512, dtype_bytes=1, tokens_per_state=4)
    fine = MLASpec(block_size=256, head_size=132, dtype_bytes=1, tokens_per_state=4)
    found = layers((window, 12))
    for i in range(6):
        found += [CacheLayer(f"c.{i}", coarse), CacheLayer(f"f.{i}", fine)]
    groups = group_layers(found, block_outermost=True)
    assert sizes(groups) == [6, 6, 12]
    assert bytes_per_block(groups, block_outermost=True) == 6 * (coarse.page_size_bytes + fine.page_size_bytes)


@given(
    st.lists(st.tuples(st.sampled_from([FULL, WINDOW]), st.integers(1, 60)), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_every_layer_is_in_exactly_one_group_and_no_group_is_wider_than_a_block(
    parts: list[tuple[KVCacheSpec, int]], stages: int
) -> None:
    found = layers(*parts)
    found = [CacheLayer(layer.name, layer.spec, i * stages // len(found)) for i, layer in enumerate(found)]
    groups = group_layers(found)
    assert sorted(layer.name for group in groups for layer in group.layers) == sorted(layer.name for layer in found)
    assert max(sum(layer.spec.page_size_bytes for layer in group.layers) for group in groups) == bytes_per_block(groups)
    assert len({group.spec.page_size_bytes for group in groups}) == 1
    kinds = {type(layer.spec) for group in groups for layer in group.layers}
    for group in groups:
        assert len({type(layer.spec) for layer in group.layers}) == 1
    assert len(groups) >= len(kinds)
