"""Continuous batching over the manager: which requests run in the next step, and with how many tokens each.

The order is vLLM's: running requests first (decodes and rest of prompts), in the order of their admission; then, if
nothing had to be preempted, waiting ones while budget and room last. A request that finds no room preempts the last
admitted (or the least important) one, whose blocks are freed and whose tokens are computed again later, as far as they
are not still cached then.
"""

from __future__ import annotations

from typing import NamedTuple

from kvblocks.errors import IntegrityError, RequestError, UsageError
from kvblocks.manager import KVCacheBlocks, KVCacheManager, RequestStatus, check_hashes
from kvblocks.scheduling.config import SchedulerConfig
from kvblocks.scheduling.queue import FCFSQueue, PriorityQueue, WaitingQueue
from kvblocks.scheduling.request import SchedulableRequest


class Scheduled(NamedTuple):
    """One request's part of a step."""

    request: SchedulableRequest
    num_tokens: int
    new_blocks: KVCacheBlocks


class Admitted(NamedTuple):
    """A request that starts (or, after a preemption, starts again) in this step."""

    request: SchedulableRequest
    num_hit_tokens: int
    resumed: bool


class Preempted(NamedTuple):
    """A request that lost its blocks, and for whom."""

    request: SchedulableRequest
    num_lost_tokens: int
    """Computed tokens that it gave up; those still cached when it resumes cost nothing."""
    beneficiary_id: str
    """The request that needed the room; its own id when it was the only one left to give way."""


class Refused(NamedTuple):
    """A request that can never run (further), and why."""

    request: SchedulableRequest
    reason: str


class Step(NamedTuple):
    """What the next forward pass computes. `num_tokens` of each request follow its `num_computed_tokens`, which the
    scheduler has already advanced."""

    scheduled: list[Scheduled]
    admitted: list[Admitted]
    preempted: list[Preempted]
    refused: list[Refused]
    num_tokens: int
    num_recomputed_tokens: int
    """Tokens of this step that had been computed before a preemption."""


class Scheduler:
    """Waiting and running requests over one manager.

    The caller adds requests, calls `schedule` for each step, appends the generated tokens to the requests that have
    computed all of theirs, and calls `finish` for those that are done. Nothing else may allocate in the manager.
    """

    def __init__(self, manager: KVCacheManager, config: SchedulerConfig | None = None) -> None:
        self.manager = manager
        self.config = config or SchedulerConfig()
        self.running: list[SchedulableRequest] = []
        self._waiting: WaitingQueue = PriorityQueue() if self.config.policy == "priority" else FCFSQueue()
        self._requests: dict[str, SchedulableRequest] = {}
        self._reached: dict[str, int] = {}  # tokens that a preempted request had computed
        self._lookahead = self.config.num_lookahead_tokens
        self._max_request_tokens = manager.max_request_tokens
        if self._max_request_tokens < manager.max_model_len:
            self._max_request_tokens -= self._lookahead  # the pool is the limit, and drafts need slots of it
        bound = min((g.context.max_in_flight_tokens for g in manager.groups if g.max_admission_blocks), default=None)
        if bound is not None and bound < min(self.config.max_num_batched_tokens, self._max_request_tokens):
            raise UsageError(
                f"max_num_batched_tokens={self.config.max_num_batched_tokens} exceeds the manager's "
                f"max_in_flight_tokens={bound}, by which windows and chunks are sized; give both the same"
            )

    @property
    def max_request_tokens(self) -> int:
        """The longest request that can run."""
        return self._max_request_tokens

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __len__(self) -> int:
        """Requests that wait or run."""
        return len(self._requests)

    def add(self, request: SchedulableRequest) -> str | None:
        """Queue a request; or, when it can never fit, the reason, and it is not queued.

        Raises RequestError when its id is in use, or when it lacks block hashes that the manager needs.
        """
        if request.request_id in self._requests:
            raise RequestError(request.request_id, "is waiting or running already; finish it or choose another id")
        reason = self._never_fits(request.num_tokens)
        if reason is not None:
            request.status = RequestStatus.FINISHED
            return reason
        check_hashes(self.manager, request, request.num_tokens)
        request.status = RequestStatus.WAITING
        self._requests[request.request_id] = request
        self._waiting.add(request)
        return None

    def _never_fits(self, num_tokens: int) -> str | None:
        config, manager = self.config, self.manager
        if not config.chunked_prefill and num_tokens > config.max_num_batched_tokens:
            budget = config.max_num_batched_tokens
            return f"{num_tokens} tokens exceed max_num_batched_tokens={budget} without chunked prefill"
        if num_tokens <= self._max_request_tokens:
            return None
        if num_tokens > manager.max_model_len:
            return f"{num_tokens} tokens exceed max_model_len={manager.max_model_len}"
        return (
            f"{num_tokens} tokens need {sum(manager.peak_blocks(num_tokens))} blocks; the pool has "
            f"{manager.block_pool.num_blocks - 1} usable ones, room for {self._max_request_tokens} tokens"
        )

    def finish(self, request_id: str) -> None:
        """End a request, done or aborted, waiting or running: its blocks are free. An unknown id is harmless."""
        if not isinstance(request_id, str):
            raise UsageError(f"finish({request_id!r}): name the request by its request_id")
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        if request in self.running:  # the caller may have changed the status already
            self.running.remove(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self._reached.pop(request_id, None)
        self.manager.free(request)

    def schedule(self) -> Step:
        """Choose the next step and allocate its slots.

        An empty `scheduled` means that nothing can run: all queues are empty, or `refused` names what was in the way
        (then call again).
        """
        step = Step([], [], [], [], 0, 0)
        self.manager.new_step_starts()
        budget = self._schedule_running(step)
        if not step.preempted and not step.refused:
            budget = self._schedule_waiting(step, budget)
        recomputed = 0
        for request, num_tokens, _ in step.scheduled:
            if self._reached:
                recomputed += self._count_recomputed(request, num_tokens)
            request.num_computed_tokens += num_tokens
        return step._replace(num_tokens=self.config.max_num_batched_tokens - budget, num_recomputed_tokens=recomputed)

    def _count_recomputed(self, request: SchedulableRequest, num_tokens: int) -> int:
        reached = self._reached.get(request.request_id, 0)
        computed = request.num_computed_tokens
        if reached <= computed + num_tokens:
            self._reached.pop(request.request_id, None)
        return max(0, min(reached, computed + num_tokens) - computed)

    # -- Running --------------------------------------------------------------------------------------------------

    def _schedule_running(self, step: Step) -> int:
        """Give every running request its tokens, in order; the budget that is left."""
        budget = self.config.max_num_batched_tokens
        at = 0
        while at < len(self.running) and budget > 0:
            served = self._schedule_decodes(step, at, budget)
            at += served
            budget -= served
            if served:
                continue
            request = self.running[at]
            if request.num_tokens > self._max_request_tokens:
                self._refuse(step, request)
                continue
            num_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            num_tokens = self._aligned(request, request.num_computed_tokens, num_tokens)
            blocks = None
            if num_tokens > 0:
                blocks = self.manager.allocate_slots(request, num_tokens, num_lookahead_tokens=self._lookahead)
            if blocks is not None:
                step.scheduled.append(Scheduled(request, num_tokens, blocks))
                budget -= num_tokens
                at += 1
            elif num_tokens <= 0:
                at += 1  # its next token has not been appended yet, or no block's end is within the budget
            elif not self._make_room(step, request):
                break
        return budget

    def _schedule_decodes(self, step: Step, at: int, budget: int) -> int:
        """Serve the run of decoding requests that starts at `at`, in one call; how many found room."""
        if self._lookahead:
            return 0
        batch: list[SchedulableRequest] = []
        longest = self._max_request_tokens
        running = self.running
        for i in range(at, min(at + budget, len(running))):
            request = running[i]
            if request.num_tokens - request.num_computed_tokens != 1 or request.num_tokens > longest:
                break
            batch.append(request)
        if not batch:
            return 0
        slots = self.manager.allocate_decode_slots(batch)
        empty, new_blocks = self.manager.empty_kv_cache_blocks, slots.new_blocks
        step.scheduled.extend(
            [Scheduled(request, 1, new_blocks.get(i, empty)) for i, request in enumerate(batch[: slots.num_served])]
        )
        return slots.num_served

    def _aligned(self, request: SchedulableRequest, start: int, num_tokens: int) -> int:
        return self.manager.step_tokens(request, start, num_tokens, self.config.max_num_batched_tokens)

    def _refuse(self, step: Step, request: SchedulableRequest) -> None:
        """End a request that has grown beyond what can ever fit."""
        reason = self._never_fits(request.num_tokens) or ""
        self.finish(request.request_id)
        step.refused.append(Refused(request, reason))

    def _make_room(self, step: Step, request: SchedulableRequest) -> bool:
        """Preempt the last running request; whether `request` still runs."""
        victim = self.running.pop()
        lost = victim.num_computed_tokens
        self._reached[victim.request_id] = max(lost, self._reached.get(victim.request_id, 0))
        self.manager.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self._waiting.put_back(victim)
        step.preempted.append(Preempted(victim, lost, request.request_id))
        return victim is not request

    # -- Waiting --------------------------------------------------------------------------------------------------

    def _schedule_waiting(self, step: Step, budget: int) -> int:
        """Admit waiting requests, best first, until one does not fit; the budget that is left."""
        config = self.config
        while len(self._waiting) and budget > 0 and len(self.running) < config.max_num_seqs:
            request = self._waiting.peek()
            if self._never_fits(request.num_tokens) is not None:
                self._refuse(step, request)
                continue
            hit = self.manager.get_computed_blocks(request)
            if request.num_tokens - hit.num_tokens > budget and not config.chunked_prefill:
                break
            request.shared_prefix_boundary = hit.shared_prefix_boundary
            num_tokens = min(request.num_tokens - hit.num_tokens, budget)
            num_tokens = self._aligned(request, hit.num_tokens, num_tokens)
            if not num_tokens:
                break
            blocks = self.manager.allocate_slots(
                request,
                num_tokens,
                hit.num_tokens,
                hit.blocks,
                num_lookahead_tokens=self._lookahead,
                full_sequence_must_fit=config.full_sequence_must_fit,
                has_scheduled_reqs=bool(self.running),
            )
            if blocks is None:
                break
            self._waiting.pop()
            step.scheduled.append(Scheduled(request, num_tokens, blocks))
            step.admitted.append(Admitted(request, hit.num_tokens, request.status is RequestStatus.PREEMPTED))
            request.num_computed_tokens = hit.num_tokens
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            budget -= num_tokens
        if step.admitted and config.policy == "priority":
            self.running.sort(key=lambda request: (request.priority, request.arrival_time_s))
        return budget

    def check(self) -> None:
        """Raise IntegrityError unless queues and manager agree; see `KVCacheManager.check`."""
        self.manager.check()
        holders = {request_id for group in self.manager.groups for request_id, table in group.tables.items() if table}
        running = {request.request_id for request in self.running}
        if not holders <= running or len(running) + len(self._waiting) != len(self._requests):
            raise IntegrityError(f"blocks are held by {holders}, running are {running}")
