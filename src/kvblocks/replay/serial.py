"""The serial replay: one request at a time, in trace order. What remains is the cache and its eviction order.

Each request is looked up (at most all of its prompt but the last token), allocated whole, given slots for its outputs,
and freed before the next one comes. Its outputs are not made findable, since a trace does not say what they were. This
is how the figures that we check against were taken from vLLM's own manager.
"""

from __future__ import annotations

from kvblocks.manager import PrefixHit
from kvblocks.replay.request import ReplayRequest
from kvblocks.replay.result import RunResult, Series
from kvblocks.replay.settings import ReplaySettings


class SerialRun:
    """A serial replay at one cache size, fed request by request."""

    def __init__(self, num_blocks: int, settings: ReplaySettings) -> None:
        self.manager = settings.make_manager(num_blocks)
        self._outputs = settings.outputs
        self._step_tokens = None if settings.layout is None else settings.scheduler.max_num_batched_tokens
        self._max_tokens = self.manager.max_request_tokens
        pool = self.manager.block_pool
        self.result = RunResult(num_blocks, settings.block_size, "serial", pool.policy_name, Series("request"))
        self._number = 0

    def feed(self, request: ReplayRequest) -> None:
        """Run one request through the cache. It may be shared by several runs: it is left as it came."""
        manager, result = self.manager, self.result
        self._number += 1
        hit = manager.get_computed_blocks(request)
        prompt = request.num_prompt_tokens
        if prompt > self._max_tokens or not self._prefill(request, hit):
            result.reject("the prompt does not fit", f"{prompt} tokens, there is room for {self._max_tokens}")
            return
        result.admit(prompt, hit.num_tokens)
        if self._outputs and request.num_output_tokens:
            request.num_computed_tokens = prompt
            outputs = request.num_output_tokens
            if prompt + outputs > self._max_tokens or manager.allocate_slots(request, outputs) is None:
                details = f"{prompt} + {outputs} tokens, there is room for {self._max_tokens}"
                result.reject("the outputs do not fit", details)
            else:
                result.output_tokens += outputs
        request.num_computed_tokens = 0
        usage = manager.pool_usage
        result.peak_live_blocks = max(result.peak_live_blocks, usage.live)
        result.series.sample(self._number, usage, result.prompt_tokens, result.hit_tokens)
        manager.free(request)

    def _prefill(self, request: ReplayRequest, hit: PrefixHit) -> bool:
        """Give the prompt its slots; False, holding nothing, when they do not fit.

        At once; a model's layout in steps, at whose ends states are kept and windows let go.
        """
        manager, prompt = self.manager, request.num_prompt_tokens
        if self._step_tokens is None:
            return manager.allocate_slots(request, prompt - hit.num_tokens, hit.num_tokens, hit.blocks) is not None
        request.shared_prefix_boundary = hit.shared_prefix_boundary
        computed, adopted, blocks = hit.num_tokens, hit.num_tokens, hit.blocks
        while computed < prompt:
            manager.new_step_starts()
            most = min(prompt - computed, self._step_tokens)
            num_tokens = manager.step_tokens(request, computed, most, self._step_tokens) or most
            if manager.allocate_slots(request, num_tokens, adopted, blocks) is None:
                manager.free(request)
                request.num_computed_tokens = request.shared_prefix_boundary = 0
                return False
            adopted, blocks = 0, manager.empty_kv_cache_blocks
            computed += num_tokens
            request.num_computed_tokens = computed
        request.shared_prefix_boundary = 0
        return True

    def finish(self) -> RunResult:
        """The result so far."""
        self.result.evicted_blocks = self.manager.block_pool.num_evicted
        return self.result
