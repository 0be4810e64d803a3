"""Misuse is refused with an error that names the request, the value and the rule; and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvblocks.errors import PoolError, RequestError, UsageError
from kvblocks.kinds import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowSpec,
)
from kvblocks.manager import KVCacheBlocks, KVCacheManager, TokenRequest
from kvblocks.prefix import BlockHasher

HASHER = BlockHasher(4)


def make(num_blocks: int = 20, **options: Any) -> KVCacheManager:
    return KVCacheManager(num_blocks, [FullAttentionSpec(block_size=4)], max_model_len=1000, **options)


def request(request_id: str = "a", tokens: int = 10) -> TokenRequest:
    return TokenRequest(request_id, range(tokens), HASHER)


def refuses(manager: KVCacheManager, call: Callable[[], object], match: str) -> None:
    before = (list(manager.block_pool.free_order()), manager.get_block_ids("a"), manager.pool_usage)
    with pytest.raises(RequestError, match=match):
        call()
    assert (list(manager.block_pool.free_order()), manager.get_block_ids("a"), manager.pool_usage) == before
    manager.check()


@pytest.mark.parametrize(
    "name",
    [
        "num_new_tokens",
        "num_new_computed_tokens",
        "num_lookahead_tokens",
        "num_external_computed_tokens",
        "num_encoder_tokens",
        "reserved_blocks",
    ],
)
def test_a_negative_count_is_named(name: str) -> None:
    manager, a = make(), request()
    arguments = {"num_new_tokens": 3, name: -1}
    refuses(manager, lambda: manager.allocate_slots(a, **arguments), f"request 'a': {name}=-1 must not be negative")  # type: ignore[arg-type]


def test_a_negative_count_is_named_while_decoding_too() -> None:
    manager, a = make(), request()
    manager.allocate_slots(a, 9)
    a.num_computed_tokens = 9
    refuses(manager, lambda: manager.allocate_slots(a, -1), "num_new_tokens=-1")
    refuses(manager, lambda: manager.allocate_slots(a, 1, num_lookahead_tokens=-4), "num_lookahead_tokens=-4")


def test_no_tokens_at_all_is_refused() -> None:
    manager, a = make(), request()
    refuses(manager, lambda: manager.allocate_slots(a, 0), "no tokens")


def test_a_second_request_of_the_same_id_is_refused_until_the_first_is_freed() -> None:
    manager, first, second = make(), request(), request(tokens=2)
    manager.allocate_slots(first, 10)
    refuses(manager, lambda: manager.allocate_slots(second, 2), "another request with this id holds blocks")
    manager.free(second)  # a late abort of another request must not free this one's blocks
    assert manager.get_block_ids("a") != ([],)
    manager.free(first)
    assert manager.allocate_slots(second, 2) is not None


def test_more_computed_tokens_than_tokens_is_refused() -> None:
    manager, a = make(), request(tokens=10)
    a.num_computed_tokens = 11
    refuses(
        manager, lambda: manager.allocate_slots(a, 1), "num_computed_tokens=11 .* must be between 0 and num_tokens=10"
    )
    a.num_in_flight_tokens = 1  # a step in flight may have computed one that is not appended yet
    assert manager.allocate_slots(a, 1) is not None


def test_tokens_beyond_the_model_s_length_are_refused_and_lookahead_is_cut_there() -> None:
    manager, a = KVCacheManager(20, [FullAttentionSpec(block_size=4)], max_model_len=16), request(tokens=20)
    refuses(manager, lambda: manager.allocate_slots(a, 20), "0 computed [+] 20 new tokens exceed max_model_len=16")
    assert manager.allocate_slots(a, 15, num_lookahead_tokens=9) is not None
    assert len(manager.get_block_ids("a")[0]) == 4
    a.num_computed_tokens = 15
    refuses(manager, lambda: manager.allocate_slots(a, 2), "15 computed [+] 2 new tokens exceed max_model_len=16")


def test_external_tokens_must_leave_one_to_compute() -> None:
    manager, a = make(), request(tokens=10)
    refuses(
        manager,
        lambda: manager.allocate_slots(a, 0, num_external_computed_tokens=10),
        "leave none of its 10 tokens to compute; lower the external tokens by at least 1",
    )
    assert manager.allocate_slots(a, 0, num_external_computed_tokens=10, delay_cache_blocks=True) is not None


def test_a_stale_hit_is_refused() -> None:
    manager, a = make(), request(tokens=9)
    manager.allocate_slots(a, 9)
    manager.free(a)
    b = request("b", 9)
    hit = manager.get_computed_blocks(b)
    assert hit.num_tokens == 8
    manager.evict_blocks([hit.blocks.blocks[0][1]])
    refuses(
        manager,
        lambda: manager.allocate_slots(b, 1, hit.num_tokens, hit.blocks),
        "request 'b': group 0: block 2 at position 1 no longer holds this prefix",
    )


def test_a_hit_of_another_request_is_refused() -> None:
    manager, a = make(), request(tokens=9)
    manager.allocate_slots(a, 9)
    hit = manager.get_computed_blocks(request("b", 9))
    other = TokenRequest("c", range(100, 109), HASHER)
    refuses(manager, lambda: manager.allocate_slots(other, 1, 8, hit.blocks), "no longer holds this prefix")


def test_a_hit_needs_its_blocks_and_its_length() -> None:
    manager, a = make(), request(tokens=9)
    manager.allocate_slots(a, 9)
    hit = manager.get_computed_blocks(request("b", 9))
    b = request("b", 9)
    refuses(manager, lambda: manager.allocate_slots(b, 1, 8), "needs the blocks of that hit")
    refuses(manager, lambda: manager.allocate_slots(b, 1, 4, hit.blocks), "2 blocks are not those of a hit of 4 tokens")
    refuses(manager, lambda: manager.allocate_slots(b, 1, 8, KVCacheBlocks(((), ()))), "the hit has 2 groups")
    assert manager.allocate_slots(b, 1, 8, hit.blocks) is not None
    b.num_computed_tokens = 8
    refuses(manager, lambda: manager.allocate_slots(b, 1, 0, hit.blocks), "adopted at its first allocation only")


def test_missing_hashes_are_named() -> None:
    manager = make()
    unhashed = TokenRequest("a", range(10))
    refuses(
        manager,
        lambda: manager.allocate_slots(unhashed, 10),
        "block_hashes has 0 entries, but 10 tokens fill 2 units of 4",
    )
    assert make(enable_caching=False).allocate_slots(unhashed, 10) is not None


def test_caching_what_has_no_slots_is_refused() -> None:
    manager, a = make(), request(tokens=10)
    refuses(manager, lambda: manager.cache_blocks(a, 4), "holds no blocks")
    manager.allocate_slots(a, 4)
    refuses(manager, lambda: manager.cache_blocks(a, 8), "group 0 has 4 slots; allocate first")
    refuses(manager, lambda: manager.cache_blocks(a, 11), "it has num_tokens=10")


def test_freeing_what_holds_nothing_is_harmless() -> None:
    manager, a = make(), request()
    manager.free(a)
    manager.allocate_slots(a, 10)
    manager.free(a)
    manager.free(a)
    assert manager.pop_blocks_for_free(a) == []
    manager.check()
    assert manager.pool_usage.live == 0


def test_releasing_blocks_twice_is_refused() -> None:
    manager, a = make(), request()
    manager.allocate_slots(a, 10)
    blocks = manager.pop_blocks_for_free(a)
    manager.release_blocks(blocks)
    with pytest.raises(PoolError, match="not waiting to be released"):
        manager.release_blocks(blocks)
    manager.check()


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="request 'a': the prompt is empty"):
        TokenRequest("a", [])


@pytest.mark.parametrize(
    "build, match",
    [
        (lambda: KVCacheManager(0, [FullAttentionSpec(block_size=4)], max_model_len=8), "num_blocks=0"),
        (lambda: KVCacheManager(9, [FullAttentionSpec(block_size=4)], max_model_len=0), "max_model_len=0"),
        (lambda: make(watermark=1.0), "watermark=1.0"),
        (lambda: make(hash_block_size=3), "hash_block_size=3 must divide the block size 4"),
        (lambda: make(retention_interval=8), "retention_interval=8: no group is a sliding window or a state"),
        (lambda: make(use_eagle=True, eagle_groups=[1]), "eagle_groups names group 1"),
        (lambda: make(eagle_groups=[0]), r"eagle_groups=\[0\] has no effect without use_eagle=True"),
        (lambda: make("9"), "num_blocks='9'"),  # type: ignore[arg-type]
        (lambda: KVCacheManager(9, [FullAttentionSpec(block_size=4)], max_model_len=8.5), "max_model_len=8.5"),  # type: ignore[arg-type]
        (lambda: KVCacheManager(9, FullAttentionSpec(block_size=4), max_model_len=8), "must be a list of specs"),  # type: ignore[arg-type]
        (lambda: FullAttentionSpec(block_size="16"), "block_size='16'"),  # type: ignore[arg-type]
        (lambda: BlockHasher(2**32), "block_size=4294967296: a hash unit"),
        (lambda: FullAttentionSpec(block_size=0), "block_size=0 must be at least 1"),
        (lambda: FullAttentionSpec(block_size=6, tokens_per_state=4), "block_size=6 tokens must be a multiple"),
        (lambda: MLASpec(block_size=4, head_size=0), "head_size=0"),
        (lambda: SlidingWindowSpec(block_size=4, sliding_window=0), "sliding_window=0"),
        (lambda: ChunkedLocalSpec(block_size=4, attention_chunk_size=0), "attention_chunk_size=0"),
        (lambda: MambaSpec(block_size=4, cache_mode="all"), "cache_mode='all' is unknown"),  # type: ignore[arg-type]
        (lambda: MambaSpec(block_size=4, state_bytes=9, page_size_padded=8), "page_size_padded=8 is less"),
        (
            lambda: KVCacheManager(9, [CrossAttentionSpec(block_size=4)], max_model_len=8),
            r"groups\[0\] \(CrossAttentionSpec\) cannot be found by a prefix.*pass enable_caching=False",
        ),
        (
            lambda: KVCacheManager(9, [MambaSpec(block_size=4, cache_mode="none")], max_model_len=8),
            "pass enable_caching=False",
        ),
        (
            lambda: KVCacheManager(
                9,
                [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=8, sliding_window=9)],
                max_model_len=8,
                retention_interval=12,
            ),
            "retention_interval=12 must be None, 0 or a positive multiple of 8",
        ),
        (
            lambda: KVCacheManager(
                9,
                [SlidingWindowSpec(block_size=4, sliding_window=9)],
                max_model_len=8,
                hash_block_size=2,
                fine_hits=True,
            ),
            "fine_hits=True",
        ),
    ],
)
def test_a_contradictory_configuration_is_refused(build: Callable[[], object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        build()


def test_a_hit_of_another_manager_is_refused() -> None:
    one, other = make(), make()
    a = request(tokens=16)
    one.allocate_slots(a, 16)
    one.free(a)
    r = request("r", 16)
    hit = one.get_computed_blocks(r)
    refuses(other, lambda: other.allocate_slots(r, 4, hit.num_tokens, hit.blocks), "no longer holds this prefix")


def test_blocks_that_were_not_popped_cannot_be_released() -> None:
    manager, a, b = make(), request(tokens=9), request("b", 9)
    manager.allocate_slots(a, 9)
    hit = manager.get_computed_blocks(b)
    manager.allocate_slots(b, 1, hit.num_tokens, hit.blocks)
    with pytest.raises(PoolError, match="not waiting to be released"):
        manager.release_blocks(manager.get_block_ids("a")[0])
    popped = manager.pop_blocks_for_free(a)
    manager.release_blocks(popped)
    with pytest.raises(PoolError, match="not waiting"):  # b shares two of them
        manager.release_blocks(popped)
    manager.check()


def test_external_tokens_are_the_decoder_s() -> None:
    groups = [FullAttentionSpec(block_size=4), CrossAttentionSpec(block_size=4)]
    manager = KVCacheManager(13, groups, max_model_len=100, enable_caching=False)
    a = request(tokens=40)
    assert manager.allocate_slots(a, 4, num_external_computed_tokens=32, num_encoder_tokens=8) is not None
    assert [len(table) for table in manager.get_block_ids("a")] == [9, 2]
    manager.check()


def test_a_second_object_of_a_running_id_is_refused_while_decoding_too() -> None:
    manager, a, twin = make(), request(tokens=9), request(tokens=10)
    manager.allocate_slots(a, 9)
    a.num_computed_tokens = twin.num_computed_tokens = 9
    refuses(manager, lambda: manager.allocate_slots(twin, 1), "another request with this id")
    refuses(manager, lambda: manager.allocate_decode_slots([twin]), "another request with this id")


def test_a_null_block_in_a_hit_of_full_attention_is_refused() -> None:
    manager, a = make(), request(tokens=16)
    manager.allocate_slots(a, 16)
    manager.free(a)
    b = request("b", 16)
    found = manager.get_computed_blocks(b)
    holed = KVCacheBlocks(([0, *found.blocks.blocks[0][1:]],))
    refuses(manager, lambda: manager.allocate_slots(b, 4, 12, holed), "a hit of full attention has no null blocks")


def test_the_whole_hit_in_place_of_its_blocks_is_named() -> None:
    manager, a = make(), request(tokens=16)
    manager.allocate_slots(a, 16)
    b = request("b", 16)
    hit = manager.get_computed_blocks(b)
    refuses(manager, lambda: manager.allocate_slots(b, 4, 12, hit), "give its blocks: hit.blocks")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["num_new_tokens", "num_lookahead_tokens", "reserved_blocks"])
@pytest.mark.parametrize("value", [1.5, "3", None])
def test_a_count_of_the_wrong_type_is_named(name: str, value: Any) -> None:
    manager, a = make(), request()
    arguments = {"num_new_tokens": 3, name: value}
    refuses(manager, lambda: manager.allocate_slots(a, **arguments), f"{name}={value!r} must be a whole number")


def test_tokens_are_appended_all_or_none() -> None:
    a = request(tokens=6)
    before = (list(a.all_token_ids), a.num_tokens, list(a.block_hashes))
    for bad in (-1, 2**32, [7, 8, "x"], [7, None], (9, 2**40)):
        with pytest.raises(UsageError, match="a token id must be an integer"):
            a.append_output_token_ids(bad)  # type: ignore[arg-type]
        assert (a.all_token_ids, a.num_tokens, a.block_hashes) == before
    a.append_output_token_ids(token for token in (7, 8))
    assert a.block_hashes == TokenRequest("b", [*range(6), 7, 8], HASHER).block_hashes
    with pytest.raises(UsageError, match=r"token_ids\[4\] is -3"):  # behind the last whole unit
        TokenRequest("c", [0, 1, 2, 3, -3], HASHER)
