"""What the blocks hold: an engine writes what it computes, makes the copies that it must, and reads what it is given.

Every slot is written with the prefix that ends there. Then whatever a group's tokens need must still be there: at each
hit, and at each step of each request. That holds whatever is kept findable (retention) and wherever hits may end
(inside a block too), so no rule of the manager is repeated here.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, RequestStatus, TokenRequest
from kvblocks.prefix import BlockHasher

FULL, COARSE = FullAttentionSpec(block_size=4), FullAttentionSpec(block_size=8)
WINDOW, STATE = SlidingWindowSpec(block_size=4, sliding_window=9), MambaSpec(block_size=4)
SEQUENCES, OPERATIONS = 60, 90
MAX_MODEL_LEN = 60

# The specs, and the options that their hits may end inside a block with.
FINE = {"hash_block_size": 2, "fine_hits": True}
SETTINGS: dict[str, tuple[list[KVCacheSpec], dict[str, Any]]] = {
    "window": ([WINDOW], {}),
    "full and window": ([FULL, WINDOW], {}),
    "full and two windows": ([FULL, WINDOW, SlidingWindowSpec(block_size=4, sliding_window=17)], {}),
    "full and window, draft head": ([FULL, WINDOW], {"use_eagle": True}),
    "unequal blocks": ([COARSE, WINDOW], {}),
    "full and state": ([FULL, STATE], {}),
    "full, fine hits": ([COARSE], FINE),
    "two full, fine hits": ([COARSE, FULL], FINE),
    "full, fine hits, draft head": ([COARSE], {**FINE, "use_eagle": True}),
    "full and state, fine hits": ([COARSE, MambaSpec(block_size=8)], FINE),
}


@dataclass
class Engine:
    """Random traffic over one manager, and the content of every slot."""

    specs: list[KVCacheSpec]
    options: dict[str, Any]
    rng: random.Random
    live: list[TokenRequest] = field(default_factory=list)
    waiting: list[TokenRequest] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    made: int = 0

    def __post_init__(self) -> None:
        self.manager = KVCacheManager(
            1 + sum(64 // spec.block_size for spec in self.specs),
            self.specs,
            max_model_len=MAX_MODEL_LEN,
            max_in_flight_tokens=MAX_MODEL_LEN,
            **self.options,
        )
        self.hasher = BlockHasher(self.manager.hash_block_size)
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, offset) -> the prefix that ends there

    def new_request(self) -> TokenRequest:
        self.made += 1
        prompt = [token for _ in range(self.rng.randrange(1, 5)) for token in [self.rng.randrange(2)] * 7]
        prompt = prompt[: len(prompt) - self.rng.randrange(5)]
        return TokenRequest(f"r{self.made}", prompt, self.hasher)

    def chunk(self, request: TokenRequest, computed: int) -> int:
        """How many tokens to compute.

        Where there are states a step ends, as in vLLM, on a block's end, where the same prompt would resume, or with
        the request; and one that begins inside a block does not pass its end.
        """
        total = request.num_tokens
        end = total if self.rng.random() < 0.5 else self.rng.randint(computed + 1, total)
        size = max((spec.block_size for spec in self.specs if isinstance(spec, MambaSpec)), default=1)
        if end < total:
            end = min(-(-end // size) * size, total)
        if computed % size:
            end = min(end, -(-computed // size) * size)
        resume = (request.num_prompt_tokens - 1) // self.hasher.block_size * self.hasher.block_size
        return (resume if computed < resume < end and self.rng.random() < 0.7 else end) - computed

    def positions(self, spec: KVCacheSpec, computed: int) -> range:
        """The tokens that the next one reads, when so many are computed; of a state, the last one."""
        if isinstance(spec, MambaSpec):
            return range(max(0, computed - 1), computed)
        return range(max(0, computed - spec.sliding_window + 1) if isinstance(spec, SlidingWindowSpec) else 0, computed)

    def holds(self, request: TokenRequest, group: int, block: int, position: int) -> bool:
        offset = 0 if isinstance(self.specs[group], MambaSpec) else position % self.specs[group].block_size
        return self.slots.get((block, offset)) == tuple(request.all_token_ids[: position + 1])

    def check_readable(self, request: TokenRequest, tables: Any, computed: int) -> None:
        for group, spec in enumerate(self.specs):
            for position in self.positions(spec, computed):
                block = tables[group][position // spec.block_size]
                assert block, f"group {group} lacks the block of token {position} of {computed}"
                assert self.holds(request, group, block, position), (group, block, position, computed)

    def make_copies(self) -> None:
        """Before the step writes anything."""
        copies, held = self.manager.take_kv_cache_block_copies()
        for copy in copies:
            self.seen["copies"] += 1
            for offset in range(max(spec.block_size for spec in self.specs)):
                self.slots.pop((copy.target, offset), None)
                if (copy.source, offset) in self.slots:
                    self.slots[copy.target, offset] = self.slots[copy.source, offset]
        self.manager.release_blocks(held)

    def write(self, request: TokenRequest, new: int) -> None:
        """Compute the next tokens: read what they need, then write them; a state is written at the step's end."""
        tables, start = self.manager.get_block_ids(request.request_id), request.num_computed_tokens
        self.make_copies()
        for group, spec in enumerate(self.specs):
            table = tables[group]
            if isinstance(spec, MambaSpec):
                end = start + new
                self.slots[table[(end - 1) // spec.block_size], 0] = tuple(request.all_token_ids[:end])
                continue
            for position in range(start, start + new):
                block = table[position // spec.block_size]
                if block:  # what a window has left behind within this step is not needed
                    self.slots[block, position % spec.block_size] = tuple(request.all_token_ids[: position + 1])
        request.num_computed_tokens += new
        self.check_readable(request, tables, request.num_computed_tokens)

    def admit(self) -> None:
        self.manager.new_step_starts()
        request = self.waiting.pop() if self.waiting and self.rng.random() < 0.7 else self.new_request()
        hit = self.manager.get_computed_blocks(request)
        assert hit.num_tokens < request.num_tokens
        self.check_readable(request, hit.blocks.blocks, hit.num_tokens)
        request.shared_prefix_boundary = hit.shared_prefix_boundary
        new = self.chunk(request, hit.num_tokens)
        blocks = self.manager.allocate_slots(request, new, hit.num_tokens, hit.blocks)
        if blocks is None:
            self.waiting.append(request)
            self.seen["refusals"] += 1
            return
        size = max(spec.block_size for spec in self.specs)
        self.seen.update(hits=hit.num_tokens > 0, inside=hit.num_tokens % size != 0, junctions=hit[2] > 0)
        request.num_computed_tokens = hit.num_tokens
        request.status = RequestStatus.RUNNING
        self.live.append(request)
        self.write(request, new)

    def step(self) -> None:
        self.manager.new_step_starts()
        request = self.rng.choice(self.live)
        if request.num_computed_tokens == request.num_tokens:
            if request.num_tokens >= MAX_MODEL_LEN:
                self.free(request)
                return
            request.append_output_token_ids(self.rng.randrange(2))
        new = self.chunk(request, request.num_computed_tokens)
        if self.manager.allocate_slots(request, new) is not None:
            self.write(request, new)
            return
        victim = self.rng.choice(self.live)
        self.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self.waiting.append(victim)

    def free(self, request: TokenRequest) -> None:
        self.live.remove(request)
        self.manager.free(request)

    def run(self) -> None:
        for _ in range(OPERATIONS):
            choice = self.rng.random()
            if choice < 0.4 and len(self.live) < 4:
                self.admit()
            elif choice < 0.8 and self.live:
                self.step()
            elif choice < 0.96 and self.live:
                self.free(self.rng.choice(self.live))
            elif choice > 0.98:
                self.manager.evict_blocks(self.rng.sample(range(1, self.manager.block_pool.num_blocks), 2))
            self.manager.check()
            for request in self.live:
                tables = self.manager.get_block_ids(request.request_id)
                self.check_readable(request, tables, request.num_computed_tokens)


@pytest.mark.parametrize("retention", ["all", "none but replays and junctions", "every 16th"])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_hit_and_what_is_read_is_always_there(name: str, retention: str) -> None:
    """A failure prints the seed."""
    specs, options = SETTINGS[name]
    interval = {"all": None, "none but replays and junctions": 0, "every 16th": 16}[retention]
    if interval and not any(spec.sparsely_retained for spec in specs):
        pytest.skip("nothing is dropped")
    seen: Counter[str] = Counter()
    for seed in range(SEQUENCES):
        engine = Engine(specs, {**options, "retention_interval": interval}, random.Random(f"{name} {seed}"))
        try:
            engine.run()
        except BaseException:
            print(f"failing: {name}, {retention}, seed {seed}")
            raise
        seen += engine.seen
    assert seen["hits"] > 20, "too little is hit for this test to mean anything"
    assert seen["refusals"]
    if options.get("fine_hits"):
        assert seen["inside"] > 5
        assert seen["copies"] > 5
