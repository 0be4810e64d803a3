"""Seeded random traffic over two managers side by side: after each operation every answer must be equal.

The driver acts as vLLM's scheduler does: running requests first, preemption when one is refused, then admissions, then
what is drained each step; outputs arrive (some a step later, as with asynchronous scheduling), drafts are rejected, and
in between come aborts, evictions, resets, loads of a connector and deferred frees. Both managers get the same request
objects, which neither changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from vllm.v1.request import Request, RequestStatus

from tests.integrations.vllm.cases import Case
from tests.integrations.vllm.sides import Hit, both_sides, make_hasher, make_request, sizes_of

Answer = TypeVar("Answer")
MAX_RUNNING = 7


class DifferentError(AssertionError):
    """The managers disagree."""


class StockFailedError(Exception):
    """vLLM's manager itself raised: the sequence ends here, and is counted."""


class Traffic:
    """One sequence of operations. `run()` raises DifferentError with the last operations when an answer differs."""

    def __init__(self, case: Case, seed: str, operations: int) -> None:
        self.case, self.left = case, operations
        rng = self.rng = random.Random(seed)
        self.theirs, self.ours = self.sides = both_sides(case, events=rng.random() < 0.5)
        self.watched = self.theirs.manager.enable_kv_cache_events
        self.log: list[str] = []
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.loading: list[Request] = []
        self.deferred: list[str] = []
        self.made = self.popped = 0
        self.hasher = make_hasher(case)
        self.alphabet = rng.choice([2, 3, 50])
        self.pieces = [self.tokens(rng.choice([2, 4, 6, 8, 16])) for _ in range(4)]
        self.late = rng.random() < 0.3
        self.gate, self.odd = rng.random() < 0.6, rng.random() < 0.4
        self.budget = rng.choice([6, 12, 24, 60])
        states = [group for group in case.groups if group.kind == "mamba_align"]
        self.state_size = max((group.size for group in states), default=0)
        self.drafts = rng.choice([0, 0, 0, 2, 3])
        if states:
            self.drafts = min([self.drafts, *(group.drafts for group in states)])
        self.lookahead = max(rng.choice([0, 0, self.drafts, 2]), case.prefill_lookahead)
        self.external = rng.choice([0.0, 0.0, 0.3]) if case.caching else 0.0
        self.reserved = 0
        self.sizes = sizes_of(case)
        self.fine = self.theirs.manager.coordinator.enable_partial_hash_hits
        self.encoder = any(group.kind == "cross" for group in case.groups)

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.alphabet) for _ in range(count)]

    def run(self) -> None:
        while self.left > 0:
            while len(self.waiting) < 3 and self.rng.random() < 0.6:
                self.waiting.append(self.new_request())
            self.step()

    # -- Both managers --------------------------------------------------------------------------------------------

    def both(
        self, what: str, call: Callable[[Any], Answer], shown: Callable[[Answer], Any] = lambda x: x
    ) -> list[Answer]:
        """The answers of both managers; they and the states after them are equal."""
        self.left -= 1
        try:
            theirs = call(self.theirs)
        except Exception as error:
            raise StockFailedError(f"{what}: {error}") from error
        self.log.append(f"{what} -> {shown(theirs)}")
        ours = call(self.ours)
        if shown(theirs) != shown(ours):
            raise DifferentError(self.report(what, shown(theirs), shown(ours)))
        self.compare(what)
        return [theirs, ours]

    def compare(self, what: str) -> None:
        for name in ("numbers", "free_order", "keys", "covered"):
            theirs, ours = (getattr(side, name)() for side in self.sides)
            if theirs != ours:
                raise DifferentError(self.report(f"{name} after {what}", theirs, ours))
        for request in self.running + self.loading:
            theirs, ours = (side.table(request.request_id) for side in self.sides)
            if theirs != ours:
                raise DifferentError(self.report(f"table of {request.request_id} after {what}", theirs, ours))
        self.ours.check()

    def report(self, what: str, theirs: Any, ours: Any) -> str:
        last = "\n    ".join(self.log[-12:])
        return f"{what}:\n  vLLM     {theirs}\n  kvblocks {ours}\nafter\n    {last}"

    # -- A step ---------------------------------------------------------------------------------------------------

    def new_request(self) -> Request:
        rng = self.rng
        tokens = [token for _ in range(rng.randint(1, 6)) for token in rng.choice(self.pieces)]
        if rng.random() < 0.6:
            del tokens[rng.randint(1, len(tokens)) :]
        del tokens[self.case.max_model_len - 20 :]
        self.made += 1
        salt = rng.choice([None] * 6 + ["s"])
        skip = rng.choice([None] * 12 + [True])
        request = make_request(f"r{self.made}", tokens, self.hasher, salt=salt, skip_reading=skip)
        request.wanted = rng.choice([1, 3, 8, 20, 40])
        request.lag = []  # tokens and drafts of the steps whose output has not arrived
        request.encoder_tokens = rng.randint(1, 12) if self.encoder else 0
        return request

    def step(self) -> None:
        self.both("new step", lambda side: side.manager.new_step_starts())
        scheduled = self.schedule_running()
        budget = self.budget - sum(new for _, new, _ in scheduled)
        while self.waiting and budget > 0 and len(self.running) < MAX_RUNNING:
            if scheduled and self.rng.random() < 0.15:
                break
            new = self.admit(budget)
            if new is None:
                break
            if new:
                scheduled.append((self.running[-1], new, 0))
                budget -= new
        self.drain()
        for request, new, drafts in scheduled:
            request.num_computed_tokens += new
            request.num_in_flight_tokens += new
            behind = request.num_computed_tokens - request.num_tokens
            if self.late and behind >= 0:
                request.num_output_placeholders = max(request.num_output_placeholders, behind + 1)
            request.lag.append((new, drafts))
        for request in list(self.running):
            if request.lag and (not self.late or len(request.lag) > 1 or self.rng.random() < 0.3):
                self.output(request)
        self.other_events()

    def schedule_running(self) -> list[tuple[Request, int, int]]:
        scheduled: list[tuple[Request, int, int]] = []
        budget, at = self.budget, 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            new, drafts = self.next_tokens(request, budget)
            if new <= 0 or self.rng.random() < 0.1:
                at += 1
                continue
            if not self.make_room(request, new, scheduled):
                break
            scheduled.append((request, new, drafts))
            budget = self.budget - sum(tokens for _, tokens, _ in scheduled)
            at += 1
        return scheduled

    def next_tokens(self, request: Request, budget: int) -> tuple[int, int]:
        """How many tokens the request computes next, and how many of them are drafts."""
        rng, computed = self.rng, request.num_computed_tokens
        new = request.num_tokens + request.num_output_placeholders - computed
        drafts = 0
        if new == 1 and self.drafts and computed >= request.num_prompt_tokens - 1:
            drafts = rng.randint(0, self.drafts)
        elif new > 0:
            new = min(new, budget)
            if new > 1 and rng.random() < 0.3 and not self.state_size:
                new = rng.randint(1, new)
        if new <= 0:
            return 0, 0
        new = min(new + drafts, self.case.max_model_len - 1 - computed)
        if self.state_size and not (self.odd and rng.random() < 0.1):
            new = self.split(request, computed, new)
        return new, min(drafts, max(new - 1, 0))

    def make_room(self, request: Request, new: int, scheduled: list[tuple[Request, int, int]]) -> bool:
        """Allocate, preempting the last running requests; False when the request itself had to go."""
        what = (
            f"allocate {request.request_id} computed {request.num_computed_tokens}/{request.num_tokens} +{new} "
            f"lookahead {self.lookahead} in flight {request.num_in_flight_tokens}"
        )
        while True:
            answer = self.both(what, lambda side: side.allocate(request, new, num_lookahead_tokens=self.lookahead))
            if answer[0] is not None:
                return True
            victim = self.running.pop()
            scheduled[:] = [entry for entry in scheduled if entry[0] is not victim]
            self.give_back(victim, "preempt")
            victim.num_computed_tokens = victim.num_output_placeholders = victim.num_in_flight_tokens = 0
            victim.status = RequestStatus.PREEMPTED
            victim.num_preemptions += 1
            victim.lag = []
            self.waiting.insert(0, victim)
            if victim is request:
                return False

    def resume_point(self, tokens: int, unit: int) -> int:
        """Where a prompt of so many tokens resumes when it is sent again, in whole units."""
        if self.case.use_eagle:
            return max(tokens // unit - 1, 0) * unit
        return (tokens - 1) // unit * unit

    def split(self, request: Request, start: int, new: int) -> int:
        """As the scheduler does with states: end a chunk of the prompt where a state is worth keeping."""
        size, end = self.state_size, start + new
        prompt: int = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= prompt:
            return new
        last = self.resume_point(request.num_tokens, size)
        if end < prompt and (end // size * size > start or size <= self.budget):
            end = end // size * size
        tail = self.resume_point(request.num_prompt_tokens, self.sizes.hash) if self.fine else 0
        junction = request.shared_prefix_boundary
        stops = [
            (start // size + 1) * size if start % size else 0,
            last,
            tail if last < tail < request.num_prompt_tokens else 0,
            start + (junction - start) // size * size if start < junction < end else 0,
        ]
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def admit(self, budget: int) -> int | None:
        """Admit the first waiting request: its tokens of this step, 0 for a load, or None when it has to wait."""
        request = self.waiting[0]
        options: dict[str, Any] = {
            "has_scheduled_reqs": bool(self.running),
            "full_sequence_must_fit": self.gate,
            "num_encoder_tokens": request.encoder_tokens,
        }
        if request.num_computed_tokens:
            return self.admit_loaded(request, budget, options)
        hits = self.both(f"look up {request.request_id}", lambda side: side.lookup(request), lambda hit: hit[:3])
        hit = hits[0].tokens
        request.shared_prefix_boundary = hits[0].boundary
        external = self.external_tokens(request, hit)
        if external and self.rng.random() < 0.5:
            return self.load(request, hits, external, options)
        new: int = min(request.num_tokens - hit - external, budget)
        if new > 1 and self.rng.random() < 0.2 and not self.state_size:
            new = self.rng.randint(1, new)
        if self.state_size and not (self.odd and self.rng.random() < 0.1):
            new = self.split(request, hit + external, new)
        if new <= 0:
            return None
        options |= {"num_external_computed_tokens": external, "num_lookahead_tokens": self.lookahead}
        what = f"admit {request.request_id} {request.num_tokens} hit {hit} external {external} +{new} {options}"
        answer = self.both(what, lambda side: side.allocate(request, new, hits[self.sides.index(side)], **options))
        if answer[0] is None:
            return None
        self.started(request, hit + external)
        for side in self.sides:
            side.manager.record_prefix_cache_stats(request, hit)
        return new

    def admit_loaded(self, request: Request, budget: int, options: dict[str, Any]) -> int | None:
        """Admit a request whose load has arrived."""
        new: int = min(request.num_tokens - request.num_computed_tokens, budget)
        if self.state_size:
            new = self.split(request, request.num_computed_tokens, new)
        if new <= 0:
            return None
        what = f"admit loaded {request.request_id} {request.num_computed_tokens}+{new} {options}"
        options = options | {"num_lookahead_tokens": self.lookahead}
        if self.both(what, lambda side: side.allocate(request, new, **options))[0] is None:
            return None
        self.started(request, request.num_computed_tokens)
        return new

    def started(self, request: Request, computed: int) -> None:
        self.waiting.pop(0)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = computed

    def external_tokens(self, request: Request, hit: int) -> int:
        """How many tokens a connector brings for the request."""
        rest = request.num_tokens - hit
        if rest < 2 or self.rng.random() >= self.external or (self.state_size and hit % self.state_size):
            return 0
        external = self.rng.randint(1, rest - 1)
        if self.rng.random() < 0.7:
            external -= (hit + external) % self.sizes.smallest
        if self.state_size:
            external -= (hit + external) % self.state_size
        return max(external, 0)

    def load(self, request: Request, hits: list[Hit], external: int, options: dict[str, Any]) -> int | None:
        """Start a load that arrives in a later step."""
        options |= {
            "num_external_computed_tokens": external,
            "delay_cache_blocks": True,
            "reserved_blocks": self.reserved,
            "skip_zeroing_group_ids": (0,) if self.rng.random() < 0.5 else (),
        }
        what = f"load {request.request_id} hit {hits[0].tokens} external {external} {options}"
        answer = self.both(what, lambda side: side.allocate(request, 0, hits[self.sides.index(side)], **options))
        if answer[0] is None:
            return None
        self.waiting.pop(0)
        self.loading.append(request)
        request.num_computed_tokens = hits[0].tokens + external
        request.local_tokens = hits[0].tokens
        for side in self.sides:
            side.manager.record_prefix_cache_stats(request, hits[0].tokens)
        return 0

    def drain(self) -> None:
        self.both("take new blocks", lambda side: side.take_new_block_ids())
        self.both("take copies", lambda side: side.take_copies())
        self.both("take states", lambda side: side.take_states())
        if self.rng.random() < 0.5:
            if self.watched:
                self.both("take events", lambda side: side.events())
            self.both("take statistics", lambda side: side.stats())

    def output(self, request: Request) -> None:
        """The output of the request's oldest step arrives; some drafts are rejected."""
        new, drafts = request.lag.pop(0)
        request.num_in_flight_tokens -= new
        if request.num_computed_tokens - request.num_in_flight_tokens < request.num_tokens:
            return  # a part of the prompt, or a rejected position that is computed again
        accepted = self.rng.randint(0, drafts)
        request.num_computed_tokens -= drafts - accepted
        waiting_for = max(0, request.num_output_placeholders - (drafts - accepted))
        request.append_output_token_ids(self.tokens(accepted + 1))
        request.num_output_placeholders = max(0, waiting_for - accepted - 1)
        if self.late and self.case.caching:
            done = min(request.num_computed_tokens - request.num_output_placeholders, request.num_tokens)
            what = f"cache blocks {request.request_id} {done}"
            self.both(what, lambda side: side.manager.cache_blocks(request, done))
        full = request.num_tokens >= self.case.max_model_len - 8
        if full or request.num_tokens - request.num_prompt_tokens >= request.wanted:
            self.running.remove(request)
            self.give_back(request, "finish")

    def give_back(self, request: Request, why: str) -> None:
        """Free the request now, or when the step in flight is done."""
        if self.rng.random() < (0.75 if request.num_in_flight_tokens else 0.2):
            self.popped += 1
            key = f"{request.request_id}#{self.popped}"
            self.both(f"{why}, pop {request.request_id}", lambda side: side.pop(request, key))
            self.deferred.append(key)
        else:
            self.both(f"{why}, free {request.request_id}", lambda side: side.manager.free(request))

    # -- Between steps --------------------------------------------------------------------------------------------

    def other_events(self) -> None:
        rng = self.rng
        self.reserved = rng.choice([0, 0, 2, 5])
        for request in list(self.loading):
            if rng.random() < 0.4:
                self.loading.remove(request)
                self.loaded(request)
        if self.deferred and rng.random() < 0.6:
            self.release(self.deferred.pop(0))
        if self.running and rng.random() < 0.05:
            request = self.running.pop(rng.randrange(len(self.running)))
            self.give_back(request, "abort")
        if self.running and rng.random() < 0.05:
            self.finish_transfer(rng.choice(self.running))
        if self.case.caching:
            self.touch_cache()
        if rng.random() < 0.05:
            request = self.new_request()
            self.both(f"only look up {request.num_tokens}", lambda side: side.lookup(request), lambda hit: hit[:3])
        if rng.random() < 0.02:
            self.both("reset", lambda side: side.manager.reset_prefix_cache())
        if rng.random() < 0.015:
            self.reset_all()
        if rng.random() < 0.01:
            request = self.new_request()
            self.both("free a stranger", lambda side: side.manager.free(request))
        for request in self.running + self.loading:
            if rng.random() < 0.1:
                what = f"estimate {request.request_id}"
                self.both(what, lambda side: side.manager.estimate_cached_tokens(request))  # noqa: B023

    def loaded(self, request: Request) -> None:
        """A load arrived, whole or in part, or failed."""
        if self.rng.random() < 0.15:
            whole = self.sizes.scheduler
            kept = self.rng.randint(0, request.num_computed_tokens) // whole * whole
            if kept < request.local_tokens or not kept or self.state_size:
                self.both(f"load failed, free {request.request_id}", lambda side: side.manager.free(request))
                request.num_computed_tokens = 0
                self.waiting.insert(0, request)
                return
            request.num_computed_tokens = kept
        count = request.num_computed_tokens
        self.both(f"loaded {request.request_id} {count}", lambda side: side.manager.cache_blocks(request, count))
        if count == request.num_tokens:
            request.num_computed_tokens -= 1
        self.waiting.insert(0, request)

    def finish_transfer(self, request: Request) -> None:
        """What the scheduler asks for when a connector sends a request's blocks on."""
        processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        arguments = (request.request_id, processed, request.num_prompt_tokens)
        what = f"remove skipped {request.request_id} {processed}"
        self.both(what, lambda side: side.manager.remove_skipped_blocks(*arguments))
        what = f"blocks of computed tokens {request.request_id} {processed}"
        self.both(what, lambda side: side.manager.get_block_ids_for_computed_tokens(request.request_id, processed))

    def touch_cache(self) -> None:
        rng = self.rng
        if rng.random() < 0.06:
            blocks = set(rng.sample(range(1, self.case.blocks), min(3, self.case.blocks - 1)))
            self.both(f"evict {sorted(blocks)}", lambda side: side.manager.evict_blocks(blocks))
        if self.odd and self.running and rng.random() < 0.1 and not self.state_size:
            request = rng.choice(self.running)
            done = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
            done = min(done, request.num_tokens)
            what = f"cache again {request.request_id} {done}"
            self.both(what, lambda side: side.manager.cache_blocks(request, done))

    def reset_all(self) -> None:
        """Free everything, and forget it."""
        while self.running:
            request = self.running.pop()
            self.both(f"free {request.request_id}", lambda side: side.manager.free(request))  # noqa: B023
        while self.deferred:
            self.release(self.deferred.pop(0))
        if not self.loading:
            self.both("reset all", lambda side: side.manager.reset_prefix_cache())

    def release(self, key: str) -> None:
        self.both(f"release {key}", lambda side: side.release(key))
