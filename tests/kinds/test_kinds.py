"""The rules of each kind, with figures that vLLM 0.32's own manager gave for the same calls."""

from __future__ import annotations

from typing import Any

import pytest

from kvblocks.kinds import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from kvblocks.kinds.mamba import CheckpointGroup
from kvblocks.manager import KVCacheManager, TokenRequest
from kvblocks.prefix import BlockHasher


class Cache:
    """A manager and requests over the same running numbers, so that all prompts share what both have."""

    def __init__(self, *specs: KVCacheSpec, num_blocks: int = 400, **options: Any) -> None:
        options.setdefault("max_in_flight_tokens", 1000)
        self.manager = KVCacheManager(num_blocks, specs, max_model_len=1000, **options)
        self.hasher = BlockHasher(self.manager.hash_block_size)
        self.made = 0

    def request(self, tokens: int | list[int], boundary: int = 0) -> TokenRequest:
        self.made += 1
        ids = range(tokens) if isinstance(tokens, int) else tokens
        request = TokenRequest(f"r{self.made}", list(ids), self.hasher if self.manager.enable_caching else None)
        request.shared_prefix_boundary = boundary
        return request

    def run(self, request: TokenRequest, *chunks: int, lookahead: int = 0) -> list[tuple[list[int], ...]]:
        """Allocate chunk by chunk; the new blocks of each."""
        new = []
        for chunk in chunks:
            self.manager.new_step_starts()
            blocks = self.manager.allocate_slots(request, chunk, num_lookahead_tokens=lookahead)
            assert blocks is not None
            new.append(tuple(map(list, blocks.blocks)))
            request.num_computed_tokens += chunk
            self.manager.check()
        return new

    def decode(self, request: TokenRequest, steps: int) -> None:
        for token in range(steps):
            request.append_output_token_ids(5000 + token)
            self.run(request, 1)

    def hit(self, tokens: int, extra: int = 0) -> tuple[int, int]:
        """The hit of a prompt of the common tokens and `extra` others, and the boundary."""
        found = self.manager.get_computed_blocks(self.request([*range(tokens), *range(9000, 9000 + extra)]))
        return found.num_tokens, found.shared_prefix_boundary

    def findable(self, group: int) -> list[int]:
        """Where the findable blocks of a group end, in tokens."""
        pool = self.manager.block_pool
        return sorted(pool.tokens_of[block] for _, block in pool.indexes[group].pairs())


FULL, WINDOW = FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=4, sliding_window=8)


def cached(*specs: KVCacheSpec, tokens: int, **options: Any) -> Cache:
    """A cache that holds a freed prompt of so many tokens."""
    cache = Cache(*specs, **options)
    request = cache.request(tokens)
    cache.run(request, tokens)
    cache.manager.free(request)
    return cache


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    for spec in (FULL, MLASpec(block_size=4)):
        cache = cached(spec, tokens=40)
        assert [cache.hit(n) for n in (3, 4, 5, 8, 9, 40)] == [(0, 0), (0, 0), (4, 0), (4, 0), (8, 0), (36, 0)]
        assert cache.hit(40, extra=5) == (40, 0)


def test_a_draft_head_gives_up_the_last_block_of_a_hit() -> None:
    cache = cached(FULL, tokens=40, use_eagle=True)
    assert [cache.hit(n)[0] for n in (8, 9, 15, 16, 17, 20, 21, 39, 40)] == [0, 4, 8, 8, 12, 12, 16, 32, 32]


def test_in_a_hybrid_the_draft_s_drop_may_end_at_the_prompt_s_end() -> None:
    cache = cached(FULL, WINDOW, tokens=40, use_eagle=True, retention_interval=None)
    assert [cache.hit(n)[0] for n in (16, 17, 20, 21, 35, 36, 39, 40)] == [12, 12, 16, 16, 28, 32, 32, 36]
    one_sided = cached(FULL, WINDOW, tokens=40, use_eagle=True, eagle_groups=[1], retention_interval=None)
    assert [one_sided.hit(n) for n in (17, 37, 39)] == [(12, 16), (32, 36), (32, 36)]


@pytest.mark.parametrize(
    "prompt, options, expected",
    [
        (40, {}, [32, 36]),
        (41, {}, [36, 40]),
        (40, {"boundary": 20}, [16, 20, 32, 36]),
        (40, {"retention_interval": 16}, [12, 16, 28, 32, 36]),
        (40, {"retention_interval": 8}, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]),
        (40, {"retention_interval": None}, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]),
        (40, {"use_eagle": True}, [28, 32, 36, 40]),
        (43, {"use_eagle": True, "boundary": 20}, [16, 20, 24, 32, 36, 40]),
    ],
)
def test_a_window_keeps_findable_what_a_later_hit_can_use(
    prompt: int, options: dict[str, Any], expected: list[int]
) -> None:
    boundary = options.get("boundary", 0)
    cache = Cache(FULL, WINDOW, **{name: value for name, value in options.items() if name != "boundary"})
    cache.run(cache.request(prompt, boundary), prompt)
    assert cache.findable(0) == list(range(4, prompt + 1, 4))
    assert cache.findable(1) == expected


def test_with_sparse_retention_a_branch_misses_once_and_hits_from_then_on() -> None:
    cache = cached(FULL, WINDOW, tokens=40)
    assert cache.hit(40) == (36, 0)
    assert cache.hit(40, extra=4) == (36, 40)
    assert cache.hit(20, extra=20) == (0, 20)
    branch = cache.request([*range(20), *range(9000, 9020)], boundary=20)
    cache.run(branch, 40)
    assert cache.hit(20, extra=3) == (20, 0)
    assert cached(FULL, WINDOW, tokens=40, retention_interval=None).hit(20, extra=20) == (20, 0)


def test_generated_tokens_of_a_window_are_findable_with_dense_retention_only() -> None:
    for interval, expected in ((0, [32, 36]), (None, list(range(4, 60, 4)))):
        cache = Cache(FULL, WINDOW, retention_interval=interval)
        request = cache.request(39)
        cache.run(request, 39)
        cache.decode(request, 18)
        assert cache.findable(1) == expected
        assert cache.findable(0) == list(range(4, 57, 4))


def test_blocks_leave_the_window_and_are_handed_out_again() -> None:
    cache = Cache(WINDOW, num_blocks=6, max_in_flight_tokens=4)
    request = cache.request(8)
    cache.run(request, 8)
    cache.decode(request, 30)
    (table,) = cache.manager.get_block_ids(request.request_id)
    assert len(table) == 10
    live = [at for at, block in enumerate(table) if block]
    assert live == [7, 8, 9]  # 38 tokens computed: the next reads tokens 31 to 38
    assert cache.manager.pool_usage.live == 3


def test_a_step_in_flight_keeps_what_it_may_still_read() -> None:
    cache = Cache(WINDOW)
    request = cache.request(40)
    cache.run(request, 20)
    request.num_in_flight_tokens = 20
    cache.run(request, 4)
    assert cache.manager.get_block_ids("r1")[0][:5] == [1, 2, 3, 4, 5]
    request.num_in_flight_tokens = 4
    cache.run(request, 4)
    assert cache.manager.get_block_ids("r1")[0][:5] == [0, 0, 0, 4, 5]


def test_groups_of_unequal_blocks_become_findable_together() -> None:
    cache = Cache(
        FullAttentionSpec(block_size=8), SlidingWindowSpec(block_size=4, sliding_window=8), retention_interval=None
    )
    request = cache.request(14)
    cache.run(request, 14)
    assert (cache.findable(0), cache.findable(1)) == ([8], [4, 8])
    cache.decode(request, 2)
    assert cache.findable(1) == [4, 8, 12, 16]


def test_a_draft_head_s_groups_become_findable_one_block_further() -> None:
    """vLLM's figures for full attention in blocks of 8 and a window in blocks of 4, 44 tokens and then 4."""
    full = FullAttentionSpec(block_size=8)
    both = Cache(full, WINDOW, use_eagle=True, retention_interval=None)
    both.run(both.request(44), 44)
    assert (both.findable(0), both.findable(1)) == ([8, 16, 24, 32, 40, 44], list(range(4, 45, 4)))
    window_only = Cache(full, WINDOW, use_eagle=True, eagle_groups=[1], retention_interval=None)
    window_only.run(window_only.request(44), 44)
    assert (window_only.findable(0), window_only.findable(1)) == ([8, 16, 24, 32, 40], list(range(4, 45, 4)))
    short = Cache(full, WINDOW, use_eagle=True, retention_interval=None)
    short.run(short.request(7), 7)
    assert (short.findable(0), short.findable(1)) == ([], [])


def test_a_prompt_s_end_inside_a_block_is_known_where_hashes_are_finer() -> None:
    cache = Cache(FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=4, sliding_window=8))
    request = cache.request(41)
    cache.run(request, 41)
    cache.decode(request, 7)
    pool = cache.manager.block_pool
    ends = [
        {request.block_hashes.index(h) + 1 for h in pool.hashes_of(b)} for b in cache.manager.get_block_ids("r1")[0]
    ]
    assert ends == [{4}, {8}, {10, 12}]  # in units of 4 tokens


def test_left_of_a_chunk_everything_counts_as_a_hit() -> None:
    spec = ChunkedLocalSpec(block_size=4, attention_chunk_size=8)
    cache = Cache(spec)
    hit = cache.manager.get_computed_blocks(cache.request(19))
    assert (hit.num_tokens, [list(b) for b in hit.blocks.blocks]) == (16, [[0, 0, 0, 0]])
    cache = cached(spec, tokens=23)
    hit = cache.manager.get_computed_blocks(cache.request(23))
    assert (hit.num_tokens, [list(b) for b in hit.blocks.blocks]) == (20, [[0, 0, 0, 0, 5]])


def test_a_chunk_s_blocks_go_when_it_is_over() -> None:
    cache = Cache(ChunkedLocalSpec(block_size=4, attention_chunk_size=8))
    request = cache.request(30)
    cache.run(request, 14, 2, 1)
    assert cache.manager.get_block_ids("r1")[0] == [0, 0, 0, 0, 5]  # 16 computed: the third chunk begins


def test_admission_counts_what_a_window_or_chunk_holds_at_most() -> None:
    for spec, blocks in (
        (SlidingWindowSpec(block_size=4, sliding_window=9), 6),
        (ChunkedLocalSpec(block_size=4, attention_chunk_size=8), 5),
    ):
        fits = Cache(spec, num_blocks=blocks + 1, max_in_flight_tokens=12)
        assert fits.manager.peak_blocks(500) == (blocks,)
        assert fits.manager.max_request_tokens == 1000
        whole = fits.manager.allocate_slots(fits.request(500), 12, full_sequence_must_fit=True)
        assert whole is not None
        tight = Cache(spec, num_blocks=blocks, max_in_flight_tokens=12)
        assert tight.manager.allocate_slots(tight.request(500), 12, full_sequence_must_fit=True) is None
        assert tight.manager.max_request_tokens < 500


def test_a_running_state_takes_one_block_and_leaves_its_old_one() -> None:
    cache = Cache(FULL, MambaSpec(block_size=4))
    request = cache.request(18)
    assert cache.run(request, 6, 6, 6) == [([1, 2], [0, 3]), ([4], [5]), ([3, 6], [0, 7])]
    assert cache.manager.get_block_ids("r1")[1] == [0, 0, 5, 0, 7]
    cache.decode(request, 1)
    assert cache.manager.get_block_ids("r1")[1] == [0, 0, 0, 0, 7]


def test_draft_states_move_along_when_a_step_jumps_over_blocks() -> None:
    cache = Cache(FULL, MambaSpec(block_size=4, num_speculative_blocks=2))
    request = cache.request(20)
    assert cache.run(request, 4, 16) == [([1], [2, 3, 4]), ([5, 6, 7, 8], [0, 3, 4, 9])]
    assert cache.manager.get_block_ids("r1")[1] == [2, 0, 0, 0, 3, 4, 9]


def test_a_checkpoint_is_kept_where_a_step_ends_and_the_prompt_would_resume() -> None:
    cache = Cache(FULL, MambaSpec(block_size=4))
    request = cache.request(18)
    cache.run(request, 8, 8, 2)
    assert cache.findable(1) == [16]
    cache.manager.free(request)
    cache.manager.new_step_starts()
    assert [cache.hit(n) for n in (16, 17, 18)] == [(0, 12), (16, 0), (16, 0)]
    hit = cache.manager.get_computed_blocks(cache.request(18))
    assert [list(blocks) for blocks in hit.blocks.blocks][1][:3] == [0, 0, 0]
    dense = Cache(FULL, MambaSpec(block_size=4), retention_interval=None)
    dense.run(dense.request(18), 8, 8, 2)
    assert dense.findable(1) == [8, 16]


def test_a_checkpoint_of_this_step_is_not_to_be_had_in_it() -> None:
    cache = Cache(FULL, MambaSpec(block_size=4))
    cache.run(cache.request(17), 16)
    twin = cache.request(17)
    hit = cache.manager.get_computed_blocks(twin)
    assert hit.num_tokens == 16
    assert cache.manager.allocate_slots(twin, 1, 16, hit.blocks) is None
    cache.manager.new_step_starts()
    assert cache.manager.allocate_slots(twin, 1, 16, hit.blocks) is not None


def test_external_tokens_of_a_state_are_refused_when_they_do_not_fit() -> None:
    """vLLM counts one block too few here and fails half-way."""
    for blocks in range(4, 14):
        cache = Cache(FULL, MambaSpec(block_size=4, num_speculative_blocks=1), num_blocks=blocks)
        request = cache.request(20)
        before = list(cache.manager.block_pool.free_order())
        if cache.manager.allocate_slots(request, 4, num_external_computed_tokens=12) is None:
            assert list(cache.manager.block_pool.free_order()) == before
        cache.manager.check()


def test_without_caching_a_state_needs_its_block_and_the_drafts() -> None:
    cache = Cache(FULL, MambaSpec(block_size=1000, cache_mode="none", num_speculative_blocks=2), enable_caching=False)
    request = cache.request(18)
    assert cache.run(request, 8, 10) == [([1, 2], [3, 4, 5]), ([6, 7, 8], [])]
    assert cache.manager.peak_blocks(500) == (125, 3)


def test_cross_attention_is_allocated_once_for_the_encoder_s_tokens() -> None:
    cache = Cache(FULL, CrossAttentionSpec(block_size=16), enable_caching=False)
    first, second = cache.request(4), cache.request(4)
    for request in (first, second):
        blocks = cache.manager.allocate_slots(request, 4, num_encoder_tokens=1500)
        assert blocks is not None
        assert [len(b) for b in blocks.blocks] == [1, 94]
        request.num_computed_tokens = 4
        cache.decode(request, 9)
        assert len(cache.manager.get_block_ids(request.request_id)[1]) == 94
    assert not set(cache.manager.get_block_ids("r1")[1]) & set(cache.manager.get_block_ids("r2")[1])


def test_an_encoder_keeps_nothing() -> None:
    cache = Cache(EncoderOnlySpec(block_size=16), num_blocks=1, enable_caching=False)
    request = cache.request(500)
    assert cache.run(request, 500) == [([],)]
    assert EncoderOnlySpec(block_size=16).page_size_bytes == 0


def test_a_hit_of_one_group_alone_is_no_hit() -> None:
    cache = cached(FULL, SlidingWindowSpec(block_size=4, sliding_window=8), tokens=40, retention_interval=None)
    cache.manager.evict_blocks([block for _, block in cache.manager.block_pool.indexes[1].pairs()])
    assert cache.hit(40) == (0, 36)


def test_pages_have_the_size_of_their_states() -> None:
    assert FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128).page_size_bytes == 16 * 8 * 256 * 2
    assert (
        FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=192, head_size_v=128).page_size_bytes
        == 16 * 8 * 320 * 2
    )
    assert FullAttentionSpec(block_size=64, head_size=64, tokens_per_state=4, dtype_bytes=1).page_size_bytes == 16 * 128
    assert MLASpec(block_size=64).page_size_bytes == 64 * 576 * 2
    assert SlidingWindowMLASpec(block_size=64, sliding_window=128).page_size_bytes == 64 * 576 * 2
    assert MambaSpec(block_size=528, state_bytes=1000, page_size_padded=1024).page_size_bytes == 1024


def test_checkpoints_are_forgotten_with_their_blocks_where_nobody_tells_of_steps() -> None:
    cache = Cache(FULL, MambaSpec(block_size=4), num_blocks=20)
    for start in range(0, 20_000, 100):
        request = cache.request(list(range(start, start + 17)))
        for chunk in (16, 1):
            assert cache.manager.allocate_slots(request, chunk) is not None
            request.num_computed_tokens += chunk
        cache.manager.free(request)
    state = cache.manager.groups[1]
    assert isinstance(state, CheckpointGroup)
    assert len(state._new_this_step) <= 4 * 20
    again = cache.request(list(range(19_900, 19_917)))
    hit = cache.manager.get_computed_blocks(again)
    assert hit.num_tokens == 16
    assert cache.manager.allocate_slots(again, 1, 16, hit.blocks) is None  # the last step may not be over
    cache.manager.new_step_starts()
    assert cache.manager.allocate_slots(again, 1, 16, hit.blocks) is not None
