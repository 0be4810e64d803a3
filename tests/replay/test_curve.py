"""The curve and the clairvoyant reference: every size from one pass, and equal to replays."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from kvblocks.errors import UsageError
from kvblocks.replay import ReplaySettings, replay
from kvblocks.replay.chains import Chains, Piece
from kvblocks.replay.clairvoyant import clairvoyant_hits
from kvblocks.replay.content import TraceHasher
from kvblocks.replay.curve import lru_hits
from kvblocks.traces import TraceRequest, Workload, generate, open_trace
from tests.shared import shared


def chains_of(requests: list[TraceRequest], block_size: int) -> Chains:
    hasher, chains = TraceHasher(block_size), Chains(block_size)
    for request in requests:
        chains.touch(hasher.prompt(request).hashes, request.num_prompt_tokens, request.num_output_tokens)
    return chains


def random_prompts(seed: int, requests: int, vocabulary: int = 3) -> list[TraceRequest]:
    """Prompts that share beginnings of all lengths; none ends with a full block of 2, 3 or 4 tokens."""
    rng = random.Random(seed)
    found: list[TraceRequest] = []
    while len(found) < requests:
        tokens = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 30))]
        if len(tokens) % 2 and len(tokens) % 3 and len(tokens) % 4:
            found.append(TraceRequest(str(len(found)), len(tokens), rng.randrange(20), token_ids=tokens))
    return found


def replayed(requests: list[TraceRequest], sizes: list[int], block_size: int, *, outputs: bool = True) -> list[int]:
    settings = ReplaySettings(block_size=block_size, serial=True, outputs=outputs)
    runs = replay(lambda: requests, sizes, settings).runs
    assert all(run.requests == len(requests) for run in runs)
    return [run.hit_tokens for run in runs]


def test_pieces_say_who_touched_each_block_last() -> None:
    chains = Chains(1)
    chains.touch([b"a", b"b", b"c"], 4)
    chains.touch([b"a", b"x"], 3)
    chains.touch([b"a", b"b", b"c", b"d"], 5)
    assert [chain.pieces for chain in chains.prompts] == [
        (),
        (Piece(0, 0, 1),),
        (Piece(1, 0, 1), Piece(0, 1, 3)),
    ]
    assert chains.num_distinct == 5


@pytest.mark.parametrize("block_size", [2, 3, 4])
@pytest.mark.parametrize("outputs", [True, False])
def test_the_curve_is_what_replays_find_at_every_size(block_size: int, outputs: bool) -> None:
    for seed in range(6):
        requests = random_prompts(seed, 60)
        chains = chains_of(requests, block_size)
        sizes = list(range(chains.smallest, chains.smallest + 60))
        curve = lru_hits(chains, sizes, outputs=outputs)
        assert curve.doubled == 0
        assert curve.hit_tokens == replayed(requests, sizes, block_size, outputs=outputs)


@pytest.mark.parametrize("kind", ["chat", "agent", "rag"])
def test_the_curve_is_what_replays_of_made_up_workloads_find(kind: str) -> None:
    requests = list(generate(kind, Workload(requests=200, seed=4)))
    chains = chains_of(requests, 16)
    sizes = [chains.smallest, 2 * chains.smallest, 5 * chains.smallest, chains.largest]
    curve = lru_hits(chains, sizes)
    assert curve.hit_tokens == replayed(requests, sizes, 16)
    assert curve.hit_tokens[-1] == curve.unbounded_hit_tokens


def test_a_block_that_is_computed_twice_is_counted_and_hardly_matters() -> None:
    requests = _whole_blocks(random.Random(1), 400)
    chains = chains_of(requests, 4)
    sizes = [chains.smallest + step for step in (0, 5, 20, 80)]
    curve = lru_hits(chains, sizes)
    assert curve.doubled > 100
    for found, real in zip(curve.hit_tokens, replayed(requests, sizes, 4), strict=True):
        assert abs(found - real) <= 0.02 * chains.prompt_tokens


def _whole_blocks(rng: random.Random, requests: int) -> list[TraceRequest]:
    texts = [[rng.randrange(5) for _ in range(4 * rng.randrange(1, 8))] for _ in range(40)]
    chosen = (rng.choice(texts) for _ in range(requests))
    return [TraceRequest(str(i), len(tokens), 3, token_ids=tokens) for i, tokens in enumerate(chosen)]


def brute_force(requests: list[TraceRequest], num_blocks: int, block_size: int) -> int:
    """Farthest next use first, block by block, with nothing clever."""
    hasher = TraceHasher(block_size)
    chains = [hasher.prompt(request).hashes for request in requests]
    cached: dict[bytes, int] = {}  # block -> depth
    hits = 0
    for number, (request, hashes) in enumerate(zip(requests, chains, strict=True)):
        found = 0
        while found < len(hashes) and hashes[found] in cached:
            found += 1
        hits += min(found, (request.num_prompt_tokens - 1) // block_size)
        live = -(-(request.num_prompt_tokens + request.num_output_tokens) // block_size)
        if live > num_blocks - 1:
            live = -(-request.num_prompt_tokens // block_size)

        def next_use(block: bytes, number: int = number) -> int:
            return next((i for i in range(number + 1, len(chains)) if block in chains[i]), 10**9)

        rest = sorted((b for b in cached if b not in hashes), key=lambda b: (next_use(b), cached[b]))
        kept = rest[: num_blocks - 1 - live]
        cached = {block: cached[block] for block in kept} | {block: i for i, block in enumerate(hashes)}
    return hits * block_size


def test_the_clairvoyant_cache_is_what_its_definition_says() -> None:
    for seed in range(4):
        requests = random_prompts(seed, 40)
        chains = chains_of(requests, 2)
        for extra in (0, 3, 10, 30, 100):
            size = chains.smallest + extra
            assert clairvoyant_hits(chains, size) == brute_force(requests, size, 2)


def test_the_clairvoyant_cache_lies_between_lru_and_the_unbounded_one() -> None:
    requests = list(generate("chat", Workload(requests=300, seed=2)))
    chains = chains_of(requests, 16)
    for size in (chains.smallest, 2 * chains.smallest, 10 * chains.smallest):
        curve = lru_hits(chains, [size])
        assert curve.hit_tokens[0] <= clairvoyant_hits(chains, size) <= curve.unbounded_hit_tokens
    assert clairvoyant_hits(chains, chains.largest) == curve.unbounded_hit_tokens


def test_a_size_that_refuses_prompts_is_an_error() -> None:
    chains = chains_of([TraceRequest("a", 100, 0, token_ids=list(range(100)))], 10)
    with pytest.raises(UsageError, match="pool of 11 blocks"):
        lru_hits(chains, [10, 20])
    with pytest.raises(UsageError, match="pool of 11 blocks"):
        clairvoyant_hits(chains, 10)


def test_the_conversation_trace_has_the_known_gap_between_lru_and_clairvoyance() -> None:
    path = str(shared("traces/mooncake/conversation_trace.jsonl"))
    with open_trace(path) as trace:
        chains = chains_of(list(islice(trace, None)), 512)
    blocks = sum(chain.num_blocks for chain in chains.prompts)
    curve = lru_hits(chains, [5000])
    assert curve.hit_tokens[0] / 512 / blocks == pytest.approx(0.124, abs=0.0005)
    assert clairvoyant_hits(chains, 5000) / 512 / blocks == pytest.approx(0.355, abs=0.002)
