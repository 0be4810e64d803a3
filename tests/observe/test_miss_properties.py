"""Miss reasons over random workloads: the parts add up for every kind of cache, and each reason's claim is true."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from kvblocks.kinds import ChunkedLocalSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, MLASpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, RequestStatus, TokenRequest
from kvblocks.observe import Evicted, FirstSeen, KeyDiffers, MissReasons, RequestMisses
from kvblocks.prefix import BlockHasher, ExtraKeys, LoRAKey

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, sliding_window=9)
STATE = MambaSpec(block_size=4)

KINDS: dict[str, tuple[list[KVCacheSpec], dict[str, Any]]] = {
    "full": ([FULL], {}),
    "full, draft head": ([FULL], {"use_eagle": True}),
    "full, fine hashes": ([FullAttentionSpec(block_size=8)], {"hash_block_size": 2, "fine_hits": True}),
    "latent": ([MLASpec(block_size=4)], {}),
    "window": ([WINDOW], {"retention_interval": None}),
    "window, sparse": ([WINDOW], {}),
    "chunked": ([ChunkedLocalSpec(block_size=4, attention_chunk_size=12)], {}),
    "states": ([STATE], {}),
    "full and window": ([FULL, WINDOW], {}),
    "full and window, draft head": ([FULL, WINDOW], {"use_eagle": True, "retention_interval": None}),
    "full and states": ([FULL, STATE], {}),
    "unequal blocks": ([FULL, SlidingWindowSpec(block_size=8, sliding_window=16)], {}),
    "caching off": ([FULL], {"enable_caching": False}),
}


class Workload:
    """Random requests over a manager, as a scheduler would send them; `said` is what was said of each admission."""

    def __init__(self, name: str, seed: int, num_blocks: int = 30, **bounds: Any) -> None:
        specs, options = KINDS[name]
        self.rng = random.Random(f"{name} {seed}")
        self.said: list[RequestMisses] = []
        self.reasons = MissReasons(on_request=self.said.append, **bounds)
        self.manager = KVCacheManager(
            num_blocks, specs, max_model_len=200, max_in_flight_tokens=24, observer=self.reasons, **options
        )
        self.hasher = BlockHasher(self.manager.hash_block_size) if self.manager.enable_caching else None
        self.live: list[TokenRequest] = []
        self.preempted: list[TokenRequest] = []
        self.texts = [[self.rng.randrange(3) for _ in range(self.rng.randrange(1, 14))] for _ in range(4)]
        self.made = 0

    def request(self) -> TokenRequest:
        rng = self.rng
        prompt = [token for _ in range(rng.randrange(1, 5)) for token in rng.choice(self.texts)]
        keys = rng.choice([None, None, None, ExtraKeys(cache_salt="s"), ExtraKeys(lora=LoRAKey("l"))])
        self.made += 1
        request = TokenRequest(f"r{self.made}", prompt, self.hasher, extra_keys=keys)
        request.skip_reading_prefix_cache = rng.random() < 0.05
        return request

    def step(self) -> None:
        rng, manager = self.rng, self.manager
        manager.new_step_starts()
        chance = rng.random()
        if chance < 0.4:
            again = self.preempted and rng.random() < 0.5
            self.enter(self.preempted.pop() if again else self.request())
        elif chance < 0.75 and self.live:
            request = rng.choice(self.live)
            left = request.num_tokens - request.num_computed_tokens
            if not left:
                request.append_output_token_ids(rng.randrange(3))
                left = 1
            self.grow(request, rng.randint(1, left))
        elif chance < 0.93 and self.live:
            request = self.live.pop(rng.randrange(len(self.live)))
            manager.free(request)
            if rng.random() < 0.3:
                request.num_computed_tokens, request.status = 0, RequestStatus.PREEMPTED
                request.num_preemptions += 1
                request.shared_prefix_boundary = 0
                self.preempted.append(request)
        elif chance < 0.97:
            manager.evict_blocks(rng.sample(range(1, manager.block_pool.num_blocks), 3))
        elif chance < 0.98 and not self.live:
            manager.reset_prefix_cache()
        _, held = manager.take_kv_cache_block_copies()
        manager.release_blocks(held)
        manager.check()

    def enter(self, request: TokenRequest) -> None:
        hit = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = hit.shared_prefix_boundary
        new = self.rng.randint(1, request.num_tokens - hit.num_tokens)
        if self.manager.allocate_slots(request, new, hit.num_tokens, hit.blocks) is None:
            if request.num_preemptions:
                self.preempted.append(request)
            return
        request.num_computed_tokens, request.status = hit.num_tokens + new, RequestStatus.RUNNING
        self.live.append(request)
        said = self.said[-1]
        assert said.request_id == request.request_id
        assert said.hit_tokens == hit.num_tokens

    def grow(self, request: TokenRequest, num_tokens: int) -> None:
        if self.manager.allocate_slots(request, num_tokens) is None:
            self.manager.free(request)
            self.live.remove(request)
        else:
            request.num_computed_tokens += num_tokens


def add_up(said: RequestMisses) -> None:
    at = said.hit_tokens + said.external_tokens
    for miss in said.misses:
        assert miss.start == at < miss.end
        at = miss.end
    assert at == said.num_tokens


@pytest.mark.parametrize("bounds", [{}, {"max_units": 30, "max_token_bytes": 4000}])
@pytest.mark.parametrize("name", KINDS)
def test_every_token_is_a_hit_or_has_exactly_one_reason(name: str, bounds: dict[str, int]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        work = Workload(name, seed, **bounds)
        for _ in range(160):
            work.step()
        for said in work.said:
            add_up(said)
            seen.update(said.reasons)
        totals = work.reasons.totals
        assert totals.tokens == totals.hit_tokens + totals.external_tokens + sum(totals.reasons.values())
    assert seen["opted_out"]
    if name != "caching off":
        assert seen["first_seen"]
        assert seen["preempted"]
        assert bounds or not seen["unknown"], "nothing was forgotten"


def serial(
    prompts: Sequence[tuple[list[int], ExtraKeys | None]], num_blocks: int, block_size: int
) -> tuple[list[RequestMisses], KVCacheManager]:
    """One request at a time through a cache of full attention."""
    said: list[RequestMisses] = []
    specs = [FullAttentionSpec(block_size=block_size)]
    manager = KVCacheManager(num_blocks, specs, max_model_len=500, observer=MissReasons(on_request=said.append))
    hasher = BlockHasher(block_size)
    for number, (prompt, keys) in enumerate(prompts):
        request = TokenRequest(str(number), prompt, hasher, extra_keys=keys)
        hit = manager.get_computed_blocks(request)
        blocks = manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit.num_tokens, hit.blocks)
        assert blocks is not None
        request.num_computed_tokens = request.num_tokens
        manager.free(request)
    return said, manager


def prompts_of(seed: int, *, keyed: bool = False) -> list[tuple[list[int], ExtraKeys | None]]:
    rng = random.Random(seed)
    texts = [[rng.randrange(3) for _ in range(rng.randrange(1, 14))] for _ in range(4)]
    keys = [None, ExtraKeys(cache_salt="a"), ExtraKeys(cache_salt="b")] if keyed else [None]
    return [
        ([token for _ in range(rng.randrange(1, 5)) for token in rng.choice(texts)], rng.choice(keys))
        for _ in range(60)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_with_the_blocks_that_an_evicted_miss_names_it_is_a_hit(seed: int) -> None:
    prompts = prompts_of(seed)
    size = 16
    said, _ = serial(prompts, size, 4)
    found = 0
    for number, request in enumerate(said):
        for miss in request.misses:
            if isinstance(miss.detail, Evicted):
                assert miss.detail.more_blocks is not None
                larger, _ = serial(prompts[: number + 1], size + miss.detail.more_blocks, 4)
                assert larger[-1].hit_tokens >= miss.end
                found += 1
    assert found


@pytest.mark.parametrize("seed", range(20))
def test_with_blocks_of_one_token_a_partial_block_is_a_hit_and_a_first_seen_token_is_none(seed: int) -> None:
    prompts = prompts_of(seed)
    said, _ = serial(prompts, 5000, 8)
    single, _ = serial(prompts, 5000, 1)
    reasons: Counter[str] = Counter()
    for ours, exact in zip(said, single, strict=True):
        reasons.update(ours.reasons)
        known = next((miss.start for miss in ours.misses if miss.reason == "first_seen"), ours.num_tokens)
        assert exact.hit_tokens == min(known, ours.num_tokens - 1)
        assert set(ours.reasons) <= {"partial_block", "last_token", "first_seen"}
    assert reasons["partial_block"] > 50


@pytest.mark.parametrize("seed", range(20))
def test_a_first_seen_token_names_the_earlier_prompt_that_shares_most(seed: int) -> None:
    prompts = prompts_of(seed)
    said, _ = serial(prompts, 5000, 4)
    for number, request in enumerate(said):
        mine = prompts[number][0]
        shared = [_common(mine, earlier) for earlier, _ in prompts[:number]]
        for miss in request.misses:
            if isinstance(miss.detail, FirstSeen):
                assert miss.detail.position == max(shared, default=0)
                if miss.detail.position:
                    assert miss.detail.request_id is not None
                    assert shared[int(miss.detail.request_id)] == miss.detail.position


@pytest.mark.parametrize("seed", range(20))
def test_with_the_same_key_a_miss_by_key_is_a_hit(seed: int) -> None:
    prompts = prompts_of(seed, keyed=True)
    said, _ = serial(prompts, 5000, 4)
    found = 0
    for number, request in enumerate(said):
        for miss in request.misses:
            if isinstance(miss.detail, KeyDiffers):
                other = prompts[int(miss.detail.request_id)]
                assert other[1] != prompts[number][1]
                changed = [*prompts[:number], (prompts[number][0], other[1])]
                assert serial(changed, 5000, 4)[0][-1].hit_tokens >= miss.end
                found += 1
    assert found


def _common(first: list[int], second: list[int]) -> int:
    at = 0
    while at < min(len(first), len(second)) and first[at] == second[at]:
        at += 1
    return at
