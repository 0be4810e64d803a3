"""Random sequences of manager calls, made as a scheduler makes them, compared with the naive manager after each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from kvblocks.kinds import ChunkedLocalSpec, FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, RequestStatus, TokenRequest
from kvblocks.observe import AllBlocksCleared, BlockRemoved, BlockStored, KVEventRecorder
from kvblocks.prefix import BlockHasher, ExtraKeys
from tests.manager.naive import Naive, NaiveGroup


@dataclass(frozen=True)
class Setting:
    """A configuration of both managers."""

    groups: tuple[tuple[str, int, int], ...]  # kind, block size, window or chunk
    num_blocks: int = 24
    eagle: bool = False
    caching: bool = True
    watermark: float = 0.0
    in_flight: int = 120
    retention: int | None = None


SETTINGS = {
    "full": Setting((("full", 4, 0),), 16),
    "full, caching off": Setting((("full", 4, 0),), 16, caching=False),
    "full, watermark": Setting((("full", 4, 0),), 20, watermark=0.2),
    "full, draft head": Setting((("full", 4, 0),), 16, eagle=True),
    "sliding": Setting((("sliding", 4, 9),), 13, in_flight=16),
    "chunked": Setting((("chunked", 4, 8),), 11, in_flight=16),
    "full and sliding": Setting((("full", 4, 0), ("sliding", 4, 8)), 30),
    "full and sliding, draft head": Setting((("full", 4, 0), ("sliding", 4, 8)), 30, eagle=True),
    "full and two windows": Setting((("full", 2, 0), ("sliding", 2, 3), ("sliding", 2, 7)), 60),
    "unequal blocks": Setting((("full", 4, 0), ("sliding", 8, 16)), 30),
    "full and chunked": Setting((("full", 4, 0), ("chunked", 4, 12)), 30, in_flight=20),
    "sliding, replays only": Setting((("sliding", 4, 9),), 13, in_flight=16, retention=0),
    "full and sliding, replays only": Setting((("full", 4, 0), ("sliding", 4, 8)), 30, retention=0),
    "full and sliding, every 16th": Setting((("full", 4, 0), ("sliding", 4, 8)), 30, retention=16),
    "two windows, every 12th": Setting((("full", 2, 0), ("sliding", 2, 3), ("sliding", 2, 7)), 60, retention=12),
    "unequal blocks, replays only": Setting((("full", 4, 0), ("sliding", 8, 16)), 30, retention=0),
    "unequal blocks, every 32nd": Setting((("full", 4, 0), ("sliding", 8, 16)), 30, retention=32),
    "hybrid, caching off": Setting((("full", 4, 0), ("sliding", 4, 8)), 30, caching=False),
}
MAX_MODEL_LEN = 120


def spec_of(kind: str, block_size: int, reach: int) -> KVCacheSpec:
    if kind == "full":
        return FullAttentionSpec(block_size=block_size)
    if kind == "sliding":
        return SlidingWindowSpec(block_size=block_size, sliding_window=reach)
    return ChunkedLocalSpec(block_size=block_size, attention_chunk_size=reach)


class KnownHashes(KVEventRecorder):
    """Replays the events into the set of findable hashes, as a router would."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[int, bytes]] = set()

    def follow(self) -> None:
        for event in self.take_events():
            if isinstance(event, BlockStored):
                self.known |= {(event.group_id, block_hash) for block_hash in event.block_hashes}
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            elif isinstance(event, BlockRemoved):
                self.known.remove((event.group_id, event.block_hash))
            elif isinstance(event, AllBlocksCleared):
                self.known.clear()


@dataclass
class Pair:
    """The manager and its naive twin."""

    setting: Setting
    rng: random.Random
    live: list[TokenRequest] = field(default_factory=list)
    waiting: list[TokenRequest] = field(default_factory=list)
    made: int = 0
    refusals: int = 0
    hits: int = 0
    evictions: int = 0

    def __post_init__(self) -> None:
        setting = self.setting
        self.events = KnownHashes()
        self.ours = KVCacheManager(
            setting.num_blocks,
            [spec_of(*group) for group in setting.groups],
            max_model_len=MAX_MODEL_LEN,
            enable_caching=setting.caching,
            use_eagle=setting.eagle,
            watermark=setting.watermark,
            max_in_flight_tokens=setting.in_flight,
            retention_interval=setting.retention,
            observer=self.events,
        )
        self.naive = Naive(
            setting.num_blocks,
            [NaiveGroup(*group, drop=setting.eagle) for group in setting.groups],
            MAX_MODEL_LEN,
            setting.caching,
            int(setting.watermark * setting.num_blocks),
            setting.in_flight,
            setting.retention,
        )
        self.unit = min(size for _, size, _ in setting.groups)
        self.hasher = BlockHasher(self.unit) if setting.caching else None
        self.pieces = [[self.rng.randrange(3) for _ in range(self.rng.choice([3, 4, 8, 12]))] for _ in range(4)]

    def compare(self) -> None:
        ours, naive = self.ours, self.naive
        ours.check()
        assert list(ours.block_pool.free_order()) == naive.free
        for request in self.live:
            assert list(ours.get_block_ids(request.request_id)) == naive.tables[request.request_id]
        entries = {(g, h, b) for g, index in enumerate(ours.block_pool.indexes) for h, b in index.pairs()}
        assert entries == set(naive.index)
        usage = ours.pool_usage
        assert usage.live + usage.cached + usage.blank == usage.usable == self.setting.num_blocks - 1
        assert 0.0 <= ours.usage <= 1.0
        self.events.follow()
        assert self.events.known == {(g, h) for g, h, _ in naive.index}

    def state(self) -> Any:
        """Everything that a refusal must leave alone."""
        pool = self.ours.block_pool
        return (
            list(pool.free_order()),
            list(pool.ref_count),
            list(pool.hash_of),
            [(dict(g.tables), {k: list(v) for k, v in g.tables.items()}, dict(g.num_cached)) for g in self.ours.groups],
            [sorted(index.pairs()) for index in pool.indexes],
            dict(self.ours.quiet_until),
            list(self.ours.owners),
        )

    # -- Operations -----------------------------------------------------------------------------------------------

    def new_request(self) -> TokenRequest:
        rng = self.rng
        tokens = [token for _ in range(rng.randint(1, 5)) for token in rng.choice(self.pieces)]
        if rng.random() < 0.5:
            tokens = tokens[: rng.randint(1, len(tokens))]
        self.made += 1
        keys = ExtraKeys(cache_salt="tenant") if rng.random() < 0.25 else None
        return TokenRequest(f"r{self.made}", tokens[: MAX_MODEL_LEN - 30], self.hasher, extra_keys=keys)

    def admit(self) -> None:
        rng = self.rng
        request = self.waiting.pop(0) if self.waiting and rng.random() < 0.7 else self.new_request()
        hit = self.ours.get_computed_blocks(request)
        expected = (
            self.naive.lookup(request, self.unit) if self.setting.caching else (0, [[] for _ in self.setting.groups])
        )
        assert (hit.num_tokens, [list(blocks) for blocks in hit.blocks.blocks]) == expected
        self.hits += hit.num_tokens > 0
        request.shared_prefix_boundary = hit.shared_prefix_boundary
        rest = request.num_tokens - hit.num_tokens
        external = rng.randint(1, rest - 1) if rest > 1 and rng.random() < 0.2 else 0
        new = rng.randint(1, rest - external) if rng.random() < 0.4 else rest - external
        delay = external > 0 and rng.random() < 0.5
        lookahead, reserved = rng.choice([0, 0, 2]), rng.choice([0, 0, 3])
        whole, others = rng.random() < 0.6, bool(self.live)
        before = self.state()
        ours = self.ours.allocate_slots(
            request,
            new,
            hit.num_tokens,
            hit.blocks,
            num_lookahead_tokens=lookahead,
            num_external_computed_tokens=external,
            delay_cache_blocks=delay,
            full_sequence_must_fit=whole,
            reserved_blocks=reserved,
            has_scheduled_reqs=others,
        )
        naive = self.naive.allocate(
            request, new, self.unit, expected, lookahead, external, delay, whole, reserved, others
        )
        assert (None if ours is None else [list(blocks) for blocks in ours.blocks]) == naive
        if ours is None:
            assert self.state() == before
            self.refusals += 1
            self.waiting.append(request)
            return
        request.num_computed_tokens = hit.num_tokens + external + new
        request.status = RequestStatus.RUNNING
        self.live.append(request)
        if delay and self.setting.caching:
            self.ours.cache_blocks(request, hit.num_tokens + external)
            self.naive.cache(request, hit.num_tokens + external, self.unit)

    def step(self) -> None:
        rng = self.rng
        request = rng.choice(self.live)
        if request.num_computed_tokens >= request.num_tokens:
            request.append_output_token_ids([rng.randrange(3) for _ in range(rng.choice([1, 1, 1, 3]))])
        if request.num_tokens >= MAX_MODEL_LEN - 6:
            self.free(request)
            return
        rest = request.num_tokens - request.num_computed_tokens
        new = rng.randint(1, rest)
        drafts = rng.choice([0, 0, 0, 2]) if new == rest else 0
        lookahead = rng.choice([0, 0, 3])
        request.num_in_flight_tokens = rng.choice([0, 0, 1])
        before = self.state()
        slides = any(kind != "full" for kind, _, _ in self.setting.groups)
        if drafts == lookahead == 0 and new == 1 and rng.random() < 0.5:
            slots = self.ours.allocate_decode_slots([request])
            ours = slots.new_blocks.get(0, self.ours.empty_kv_cache_blocks) if slots.num_served else None
        else:
            ours = self.ours.allocate_slots(request, new + drafts, num_lookahead_tokens=lookahead)
        naive = self.naive.allocate(request, new + drafts, self.unit, lookahead=lookahead)
        assert (None if ours is None else [list(blocks) for blocks in ours.blocks]) == naive
        request.num_in_flight_tokens = 0
        if ours is not None:
            request.num_computed_tokens += new
            return
        self.refusals += 1
        assert slides or self.state() == before
        victim = rng.choice(self.live)
        self.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self.waiting.append(victim)

    def free(self, request: TokenRequest) -> None:
        self.live.remove(request)
        if self.rng.random() < 0.2:
            blocks = self.ours.pop_blocks_for_free(request)
            self.ours.check()
            assert blocks == [block for table in self.naive.tables[request.request_id] for block in table]
            self.ours.release_blocks(blocks)
            self.naive.tables.pop(request.request_id)
            self.naive.cached.pop(request.request_id)
            self.naive.give_back(blocks[::-1])
        else:
            self.ours.free(request)
            self.ours.free(request)  # an abort may come twice
            self.naive.release(request.request_id)

    def evict(self) -> None:
        blocks = set(self.rng.sample(range(1, self.setting.num_blocks), 3))
        self.ours.evict_blocks(blocks)
        self.naive.evict(blocks)
        self.evictions += 1

    def reset(self) -> None:
        if self.rng.random() < 0.5:
            for request in list(self.live):
                self.free(request)
        assert self.ours.reset_prefix_cache() == self.naive.reset()


def run_sequence(name: str, seed: int, operations: int) -> Pair:
    """One sequence; raises AssertionError where the two managers differ."""
    rng = random.Random(f"{name}:{seed}")
    pair = Pair(SETTINGS[name], rng)
    for _ in range(operations):
        choice = rng.random()
        if choice < 0.3 and len(pair.live) < 6:
            pair.admit()
        elif choice < 0.76 and pair.live:
            pair.step()
        elif choice < 0.92 and pair.live:
            pair.free(rng.choice(pair.live))
        elif choice < 0.96:
            pair.evict()
        elif choice < 0.975:
            pair.reset()
        pair.compare()
    return pair
