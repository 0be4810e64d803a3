"""A hit that ends inside a block is copied before it is written, and nothing is lost or freed too early."""

from __future__ import annotations

import random

import pytest

from kvblocks.errors import RequestError
from kvblocks.kinds import FullAttentionSpec
from kvblocks.manager import BlockCopy, KVCacheManager, TokenRequest
from kvblocks.prefix import BlockHasher

HASHER = BlockHasher(4)


def make(num_blocks: int = 20) -> KVCacheManager:
    return KVCacheManager(
        num_blocks, [FullAttentionSpec(block_size=16)], max_model_len=500, hash_block_size=4, fine_hits=True
    )


def prefill(manager: KVCacheManager, request: TokenRequest) -> int:
    hit = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit.num_tokens, hit.blocks)
    manager.check()
    if blocks is None:
        return -1
    request.num_computed_tokens = request.num_tokens
    return hit.num_tokens


def test_the_last_block_of_the_hit_is_replaced_by_a_copy() -> None:
    manager = make()
    first, second = TokenRequest("a", range(30), HASHER), TokenRequest("b", range(30), HASHER)
    assert prefill(manager, first) == 0
    manager.new_step_starts()
    assert prefill(manager, second) == 28
    assert (manager.get_block_ids("a"), manager.get_block_ids("b")) == (([1, 2],), ([1, 3],))
    copies, held = manager.take_kv_cache_block_copies()
    assert copies == [BlockCopy(source=2, target=3)]
    manager.free(first)
    manager.free(second)
    manager.check()
    assert manager.pool_usage.live == 2  # source and target wait for the copy
    manager.release_blocks(held)
    manager.check()
    assert manager.pool_usage.live == 0
    assert manager.take_kv_cache_block_copies() == ([], [])


def test_what_this_step_computes_cannot_be_copied_in_it() -> None:
    manager = make()
    prefill(manager, TokenRequest("a", range(30), HASHER))
    assert manager.get_computed_blocks(TokenRequest("b", range(30), HASHER)).num_tokens == 16
    manager.new_step_starts()
    assert manager.get_computed_blocks(TokenRequest("b", range(30), HASHER)).num_tokens == 28


def test_the_copy_is_counted_before_anything_changes() -> None:
    manager = make(num_blocks=4)
    prefill(manager, TokenRequest("a", range(30), HASHER))
    manager.new_step_starts()
    before = list(manager.block_pool.free_order())
    assert prefill(manager, TokenRequest("b", range(40), HASHER)) == -1  # a copy and one more block; one is free
    assert list(manager.block_pool.free_order()) == before
    assert prefill(manager, TokenRequest("c", range(30), HASHER)) == 28


def test_a_longer_prompt_hits_inside_the_block_where_a_shorter_one_ended() -> None:
    manager = make()
    prefill(manager, TokenRequest("a", range(22), HASHER))
    manager.new_step_starts()
    assert prefill(manager, TokenRequest("b", range(60), HASHER)) == 20
    manager.new_step_starts()
    assert manager.get_computed_blocks(TokenRequest("c", [*range(21), 99], HASHER)).num_tokens == 20
    assert manager.get_computed_blocks(TokenRequest("d", [*range(19), 99, 98], HASHER)).num_tokens == 16


def test_a_stale_hit_that_ends_inside_a_block_is_refused() -> None:
    manager = make(num_blocks=5)
    first = TokenRequest("a", range(30), HASHER)
    prefill(manager, first)
    manager.free(first)
    manager.new_step_starts()
    request = TokenRequest("b", range(30), HASHER)
    stale = manager.get_computed_blocks(request)
    assert stale.num_tokens == 28
    other = TokenRequest("c", range(100, 148), HASHER)
    assert prefill(manager, other) == 0  # takes the block in which the hit ends
    manager.free(other)
    with pytest.raises(RequestError, match="block 2 at position 1 no longer holds this prefix"):
        manager.allocate_slots(request, 2, stale.num_tokens, stale.blocks)
    manager.check()


def test_random_traffic_loses_no_block() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        manager = make(rng.randrange(8, 24))
        live: list[TokenRequest] = []
        waiting: list[list[int]] = []
        for number in range(120):
            manager.new_step_starts()
            choice = rng.random()
            if choice < 0.4:
                request = TokenRequest(
                    f"r{number}", [n // rng.choice([7, 11]) for n in range(rng.randrange(1, 60))], HASHER
                )
                if prefill(manager, request) >= 0:
                    live.append(request)
            elif choice < 0.7 and live:
                request = rng.choice(live)
                request.append_output_token_ids(rng.randrange(2))
                if manager.allocate_slots(request, 1) is not None:
                    request.num_computed_tokens += 1
                else:
                    live.remove(request)
                    manager.free(request)
            elif choice < 0.9 and live:
                request = live.pop(rng.randrange(len(live)))
                manager.free(request)
            else:
                waiting.append(manager.take_kv_cache_block_copies()[1])
                if rng.random() < 0.7:
                    manager.release_blocks(waiting.pop(0))
            manager.check()
        for request in live:
            manager.free(request)
        waiting.append(manager.take_kv_cache_block_copies()[1])
        for held in waiting:
            manager.release_blocks(held)
        manager.check()
        assert manager.pool_usage.live == 0
