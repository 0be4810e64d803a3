"""Public reports about models with more than one kind of cache, as scenarios of ours."""

from __future__ import annotations

import pytest

from kvblocks.kinds import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.cases.scenario import Engine, cached

FULL = FullAttentionSpec(block_size=4)


def window(size: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=size)


def keep_only(engine: Engine, group: int, positions: list[int], table: list[int]) -> None:
    engine.manager.evict_blocks([block for at, block in enumerate(table) if at not in positions])


@pytest.mark.parametrize(
    "eagle, positions, expected",
    [
        (False, [2, 3], (8, [0, 0, 3, 4])),
        (True, [2, 3], (0, [])),
        (True, [1, 2, 3], (6, [0, 2, 3])),
    ],
)
def test_bh055_with_a_draft_head_a_window_needs_one_more_block(
    eagle: bool, positions: list[int], expected: tuple[int, list[int]]
) -> None:
    engine = Engine(specs=[window(4, 2)], use_eagle=eagle, retention_interval=None, max_in_flight_tokens=100)
    request = engine.admit(range(8))
    table = engine.table(request)
    engine.free(request)
    keep_only(engine, 0, positions, table)
    hit = engine.hit(range(9))
    assert (hit.num_tokens, list(hit.blocks.blocks[0])) == expected


def test_bh056_the_draft_s_drop_is_taken_once_however_many_groups_there_are() -> None:
    """The report expects 32 for 40 tokens; vLLM 0.32 looks one block past the candidate, so 40 tokens hit 36."""
    specs: list[KVCacheSpec] = [FULL, window(8), window(12)]
    engine = cached(range(40), usable_blocks=60, specs=specs, use_eagle=True, retention_interval=None)
    for tokens, expected in ((39, 32), (40, 36), (41, 36)):
        hit = engine.hit(range(tokens))
        assert hit.num_tokens == expected
        assert {len(blocks) for blocks in hit.blocks.blocks} == {expected // 4}


def test_bh057_unequal_blocks_with_a_draft_head_align_to_both() -> None:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=32), window(32, 16)]
    engine = cached(range(128), usable_blocks=40, specs=specs, use_eagle=True, retention_interval=None)
    for tokens, expected in ((64, 32), (65, 32), (127, 64), (128, 96), (129, 96)):
        hit = engine.hit(range(tokens))
        assert hit.num_tokens == expected
        assert [len(blocks) for blocks in hit.blocks.blocks] == [expected // 32, expected // 16]


@pytest.mark.parametrize("shared, unique, expected", [(1600, 600, 1584), (1500, 700, 0)])
def test_bh058_a_state_is_shared_where_a_checkpoint_lies_in_common_tokens(
    shared: int, unique: int, expected: int
) -> None:
    """Steps that end on blocks leave checkpoints there. The report expects the first prompt's to be hit at once: that
    is dense retention. vLLM 0.32 keeps the last one only, unless a junction was seen there."""
    specs = [FullAttentionSpec(block_size=528), MambaSpec(block_size=528)]
    engine = Engine(usable_blocks=40, specs=specs)
    first = engine.request([*range(shared), *range(10_000, 10_000 + unique)])
    for chunk in (528, 528, 528, 528, first.num_tokens - 2112):
        engine.manager.new_step_starts()
        assert engine.manager.allocate_slots(first, chunk) is not None
        first.num_computed_tokens += chunk
    engine.free(first)
    engine.manager.new_step_starts()
    prompt = [*range(shared), *range(20_000, 20_000 + unique)]
    # The first prompt's last whole block, 2112, holds tokens of its own in both cases: nothing is shared at once.
    hit = engine.hit(prompt)
    assert hit.num_tokens == 0
    assert hit.shared_prefix_boundary == shared // 528 * 528
    # The boundary tells the second request's run to keep the junction's checkpoint; a third one hits it.
    second = engine.request(prompt)
    second.shared_prefix_boundary = hit.shared_prefix_boundary
    for chunk in (528, 528, 528, 528, second.num_tokens - 2112):
        engine.manager.new_step_starts()
        assert engine.manager.allocate_slots(second, chunk) is not None
        second.num_computed_tokens += chunk
    engine.manager.new_step_starts()
    assert engine.hit([*range(shared), 1, 2, 3]).num_tokens == shared // 528 * 528
    dense = Engine(usable_blocks=40, specs=specs, retention_interval=None)
    third = dense.request([*range(shared), *range(10_000, 10_000 + unique)])
    for chunk in (528, 528, 528, 528, third.num_tokens - 2112):
        dense.manager.new_step_starts()
        assert dense.manager.allocate_slots(third, chunk) is not None
        third.num_computed_tokens += chunk
    dense.manager.new_step_starts()
    assert dense.hit(prompt).num_tokens == (expected or 1056)


def test_bh059_what_only_attention_has_is_no_hit() -> None:
    engine = Engine(usable_blocks=40, specs=[FULL, MambaSpec(block_size=4)])
    request = engine.admit(range(33))  # one step: no state but the last one
    engine.free(request)
    engine.manager.new_step_starts()
    hit = engine.hit(range(33))
    assert (hit.num_tokens, hit.shared_prefix_boundary) == (0, 32)


def test_bh061_null_blocks_of_a_state_are_never_hashed() -> None:
    engine = Engine(usable_blocks=40, specs=[FULL, MambaSpec(block_size=4)], retention_interval=None)
    request = engine.admit(range(12))
    table = engine.table(request, 1)
    assert table[:2] == [0, 0]
    pool = engine.manager.block_pool
    assert pool.hash_of[0] is None
    assert [block for _, block in pool.indexes[1].pairs()] == [table[2]]


def test_bh064_each_group_counts_in_its_own_block_size() -> None:
    specs: list[KVCacheSpec] = [MambaSpec(block_size=7168), window(128, 64)]
    engine = Engine(usable_blocks=300, specs=specs, max_in_flight_tokens=8000)
    request = engine.request(range(14_400))
    for chunk in (7168, 7168):
        engine.manager.new_step_starts()
        assert engine.manager.allocate_slots(request, chunk) is not None
        request.num_computed_tokens += chunk
    state, sliding = engine.table(request, 0), engine.table(request, 1)
    assert len(state) == 2
    assert state[1] != 0  # position (14336 - 1) // 7168
    assert len(sliding) == 224


def test_bh065_new_state_blocks_are_reported_like_any_other() -> None:
    engine = Engine(usable_blocks=6, specs=[FULL, MambaSpec(block_size=4)], enable_caching=True)
    a = engine.admit(range(3))
    old = engine.table(a, 1)
    engine.free(a)
    b = engine.request(range(50, 53))
    blocks = engine.manager.allocate_slots(b, 3)
    assert blocks is not None
    assert sorted([*blocks.blocks[0], *blocks.blocks[1]]) == sorted([*engine.table(b, 0), *engine.table(b, 1)])
    assert set(old) <= {*blocks.blocks[0], *blocks.blocks[1]}  # recycled, so whoever zeroes must be told


@pytest.mark.parametrize("computed", [*range(120, 260), 1022, 1023, 1024, 1025])
def test_bh068_a_window_keeps_what_the_next_token_reads(computed: int) -> None:
    engine = Engine(usable_blocks=40, specs=[window(127, 64)], max_in_flight_tokens=2000)
    request = engine.admit(range(computed))
    assert engine.decode(request)
    first_live = next(at for at, block in enumerate(engine.table(request)) if block)
    assert first_live == max(0, computed - 127 + 1) // 64
    assert min(126, computed) <= computed - first_live * 64 < 126 + 64


def test_bh069_any_group_may_take_the_cached_blocks_of_any_other() -> None:
    """The pool is full of what two groups left; the second request's attention takes some of its windows' blocks."""
    engine = Engine(usable_blocks=20, specs=[FULL, window(8)], retention_interval=None, max_in_flight_tokens=40)
    first = engine.admit(range(40))
    sliding = {block for block in engine.table(first, 1) if block}
    engine.free(first)
    assert len(sliding) == 10
    assert engine.manager.pool_usage == (0, 20, 0)
    second = engine.request(range(1000, 1052))
    assert engine.try_admit(second, 20) is not None
    for chunk in (20, 12):
        assert engine.manager.allocate_slots(second, chunk) is not None
        second.num_computed_tokens += chunk
    assert len(engine.table(second, 0)) == 13
    assert sliding & set(engine.table(second, 0))


@pytest.mark.parametrize("specs", [[MambaSpec(block_size=4), FULL], [FULL, MambaSpec(block_size=4)]])
def test_bh070_a_group_that_finds_no_room_takes_the_others_blocks_back(specs: list[KVCacheSpec]) -> None:
    engine = Engine(usable_blocks=5, specs=specs)
    before = list(engine.manager.block_pool.free_order())
    request = engine.request(range(20))  # a state and five blocks
    assert engine.try_admit(request) is None
    assert list(engine.manager.block_pool.free_order()) == before
    assert engine.manager.get_block_ids(request.request_id) == ([], [])
    assert engine.try_admit(engine.request(range(16))) is not None  # one block less fits
    assert engine.num_free == 0


def test_bh071_cross_attention_is_charged_for_the_encoder_s_tokens() -> None:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=16), CrossAttentionSpec(block_size=16)]
    engine = Engine(usable_blocks=600, specs=specs, enable_caching=False, max_in_flight_tokens=8192)
    request = engine.request(range(4))
    assert engine.try_admit(request, num_encoder_tokens=1500) is not None
    assert len(engine.table(request, 1)) == 94
    assert engine.manager.peak_blocks(448, num_encoder_tokens=1500) == (28, 94)


def test_bh072_cross_attention_is_nobody_else_s_and_does_not_grow() -> None:
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=16), CrossAttentionSpec(block_size=16)]
    engine = Engine(usable_blocks=600, specs=specs, enable_caching=False)
    first, second = engine.request(range(4)), engine.request(range(4))
    for request in (first, second):
        assert engine.try_admit(request, num_encoder_tokens=1500) is not None
    assert not set(engine.table(first, 1)) & set(engine.table(second, 1))
    before = engine.table(first, 1)
    for _ in range(3):
        assert engine.decode(first)
    assert engine.table(first, 1) == before


def test_bh073_the_footprint_of_a_short_prompt_can_be_asked() -> None:
    """One block of each attention group and one of each state, however few the tokens: in the report 32.9 % of all."""
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=7808)] * 6 + [MambaSpec(block_size=7808)] * 17
    engine = Engine(usable_blocks=70, specs=specs)
    assert engine.manager.peak_blocks(12) == (1,) * 23
    request = engine.admit(range(12))
    assert sum(len(table) for table in engine.manager.get_block_ids(request.request_id)) == 23
    assert round(engine.manager.usage, 3) == 0.329
