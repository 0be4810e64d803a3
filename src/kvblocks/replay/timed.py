"""The timed replay: requests arrive when the trace says, and the scheduler batches them against a simulated clock.

Every step costs `StepCost.step_s`. Nothing sleeps: the clock is a number. A trace without timestamps arrives all at
once, and is limited by the scheduler alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvblocks.errors import IntegrityError
from kvblocks.replay.request import ReplayRequest
from kvblocks.replay.result import RunResult, Series
from kvblocks.replay.settings import ReplaySettings
from kvblocks.scheduling import Scheduler, Step


class TimedRun:
    """A timed replay at one cache size."""

    def __init__(self, num_blocks: int, settings: ReplaySettings) -> None:
        self.manager = settings.make_manager(num_blocks)
        self.scheduler = Scheduler(self.manager, settings.scheduler)
        self._settings = settings
        pool = self.manager.block_pool
        self.result = RunResult(num_blocks, settings.block_size, "timed", pool.policy_name, Series("s"))
        self.now_s = 0.0

    def run(self, requests: Iterator[ReplayRequest], on_finish: Callable[[int], None] | None = None) -> RunResult:
        """Replay all requests; on KeyboardInterrupt the result so far, marked as interrupted.

        `on_finish` is called now and then with the number of requests that have ended.
        """
        try:
            self._run(requests, on_finish)
        except KeyboardInterrupt:
            self.result.interrupted = True
        self.result.evicted_blocks = self.manager.block_pool.num_evicted
        self.result.duration_s = self.now_s
        return self.result

    def _run(self, requests: Iterator[ReplayRequest], on_finish: Callable[[int], None] | None) -> None:
        scheduler = self.scheduler
        coming = next(requests, None)
        added = 0
        if coming is not None:
            self.now_s = coming.arrival_time_s
        start_s = self.now_s
        while coming is not None or len(scheduler):
            while coming is not None and coming.arrival_time_s <= self.now_s:
                self._add(coming)
                added += 1
                coming = next(requests, None)
            if not len(scheduler):
                if coming is not None:
                    self.now_s = coming.arrival_time_s
                continue
            self._step(scheduler.schedule(), start_s)
            if on_finish is not None and not self.result.steps % 64:
                on_finish(added - len(scheduler))

    def _add(self, request: ReplayRequest) -> None:
        if not self._settings.outputs:
            request.num_output_tokens = 0
        reason = self.scheduler.add(request)
        if reason is not None:
            self.result.reject("the prompt does not fit", reason)

    def _step(self, step: Step, start_s: float) -> None:
        """Let the step's time pass, and generate a token for each request that has computed all of its own."""
        result = self.result
        for admitted in step.admitted:
            if not admitted.resumed:
                result.admit(admitted.request.num_prompt_tokens, admitted.num_hit_tokens)
        for refused in step.refused:
            result.reject("the outputs do not fit", refused.reason)
        result.preemptions += len(step.preempted)
        if not step.scheduled:
            if not step.refused and not step.preempted:
                raise IntegrityError(f"{len(self.scheduler)} requests wait and none can run")
            return
        result.recomputed_tokens += step.num_recomputed_tokens
        result.steps += 1
        usage = self.manager.pool_usage
        result.peak_live_blocks = max(result.peak_live_blocks, usage.live)
        decodes = 0
        ready: list[ReplayRequest] = []
        for request, num_tokens, _ in step.scheduled:
            assert isinstance(request, ReplayRequest)
            if request.num_computed_tokens == request.num_tokens:
                ready.append(request)
                decodes += num_tokens == 1 and request.num_tokens > request.num_prompt_tokens
        self.now_s += self._settings.cost.step_s(step.num_tokens - decodes)
        for request in ready:
            if request.first_token_s is None:
                request.first_token_s = self.now_s
                result.first_token(self.now_s - request.arrival_time_s)
            if not request.is_done:
                request.append_output_token()
                result.output_tokens += 1
            if request.is_done:
                self.scheduler.finish(request.request_id)
        result.series.sample(self.now_s - start_s, usage, result.prompt_tokens, result.hit_tokens)
