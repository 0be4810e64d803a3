"""The engine: continuous batching of a model over the scheduler, one step at a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.answer import Answer, FinishReason, Generation, Output
from kvblocks.engine.capacity import EngineSettings, hash_unit, resolve
from kvblocks.engine.model.batch import Batch, Span
from kvblocks.engine.model.forward import Model
from kvblocks.engine.model.shape import ModelShape
from kvblocks.engine.sampling import SamplingParams
from kvblocks.engine.storage import KVStorage
from kvblocks.engine.tokenizer import Tokenizer
from kvblocks.engine.weights import ModelWeights
from kvblocks.errors import IntegrityError, UsageError
from kvblocks.kinds import MambaSpec
from kvblocks.manager import KVCacheManager, Observer, Observers
from kvblocks.observe import StatsObserver
from kvblocks.prefix import BlockHasher, ExtraKeys
from kvblocks.scheduling import Scheduled, Scheduler, SchedulerConfig, Step

Array = NDArray[np.float32]


@dataclass(slots=True)
class EngineStats:
    """Counts since the start."""

    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    copied_blocks: int = 0


class Engine:
    """A model with its cache. Not for several threads at once; `EngineLoop` is.

    Add prompts, call `step` until nothing is left (`has_work`). `on_logits`, if set, sees the logits of each answer's
    next token: for tests.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: ModelWeights,
        tokenizer: Tokenizer | None = None,
        settings: EngineSettings | None = None,
        *,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Takes all the memory. Raises UsageError naming the setting."""
        self.settings = settings or EngineSettings()
        self.shape, self.tokenizer, self.clock = shape, tokenizer, clock
        self.capacity, num_blocks, max_model_len = resolve(shape, self.settings)
        groups = self.capacity.groups
        if self.settings.num_draft_tokens and any(isinstance(group.spec, MambaSpec) for group in groups):
            raise UsageError("num_draft_tokens: a state cannot take back a draft; leave it 0 for this model")
        self.cache_stats = StatsObserver()
        unit, fine = hash_unit(self.capacity, self.settings)
        self.manager = KVCacheManager(
            num_blocks,
            [group.spec for group in groups],
            max_model_len=max_model_len,
            enable_caching=self.settings.enable_caching,
            hash_block_size=unit,
            fine_hits=fine,
            max_in_flight_tokens=self.settings.max_num_batched_tokens + self.settings.num_draft_tokens,
            observer=Observers([self.cache_stats, *observers]),
        )
        self.scheduler = Scheduler(
            self.manager,
            SchedulerConfig(
                max_num_batched_tokens=self.settings.max_num_batched_tokens,
                max_num_seqs=self.settings.max_num_seqs,
                num_lookahead_tokens=self.settings.num_draft_tokens,
            ),
        )
        self.storage = KVStorage(
            groups, num_blocks, dtype=self.settings.kv_dtype, state=shape.state, debug=self.settings.debug
        )
        self.model = Model(shape, weights, groups)
        self.stats = EngineStats()
        self.on_logits: Callable[[Answer, Array], None] | None = None
        self._hasher = BlockHasher(self.manager.hash_block_size) if self.settings.enable_caching else None
        self._generations: dict[str, Generation] = {}
        self._names = itertools.count()

    @property
    def max_request_tokens(self) -> int:
        """The longest request, prompt and answer together."""
        return self.scheduler.max_request_tokens

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._generations)

    # -- Requests -------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str | None = None,
        on_output: Callable[[Output], None] | None = None,
    ) -> Generation:
        """Queue a prompt. Raises UsageError when it is empty, too long or has an id outside the vocabulary.

        `on_output` is told of each step's new tokens. `cache_salt`: only requests with the same one share blocks.
        """
        params = params or SamplingParams()
        name = f"request-{next(self._names)}" if request_id is None else request_id
        if name in self._generations:
            raise UsageError(f"request {name!r} is waiting or running already; choose another id")
        if params.stop and self.tokenizer is None:
            raise UsageError("stop strings need a model with a tokenizer")
        bad = next((token for token in prompt_token_ids if not 0 <= token < self.shape.vocab_size), None)
        if bad is not None:
            raise UsageError(f"token {bad} is outside the vocabulary of {self.shape.vocab_size}")
        longest = self.max_request_tokens
        if len(prompt_token_ids) >= longest:
            raise UsageError(
                f"the prompt has {len(prompt_token_ids):,} tokens; this server takes {longest - 1:,} at most "
                f"(max_model_len {self.manager.max_model_len:,}, {self.manager.block_pool.num_blocks - 1:,} blocks)"
            )
        generation = Generation(name, prompt_token_ids, params, on_output)
        keys = None if cache_salt is None else ExtraKeys(cache_salt=cache_salt)
        now, drafts = self.clock(), self.settings.num_draft_tokens
        for number in range(params.n):
            answer = Answer(generation, number, self._hasher, keys, self.tokenizer, drafts, now)
            generation.answers.append(answer)
        later = generation.answers[1:] if self.settings.enable_caching else []
        for answer in generation.answers[: len(generation.answers) - len(later)]:
            reason = self.scheduler.add(answer)
            assert reason is None, reason
        generation.waiting = list(later)
        self._generations[name] = generation
        self.stats.requests += 1
        return generation

    def abort(self, request_id: str) -> None:
        """End a request: its blocks are free when this returns. An unknown id is harmless."""
        generation = self._generations.pop(request_id, None)
        if generation is None:
            return
        generation.waiting.clear()
        for answer in generation.answers:
            if answer.finish_reason is None:
                self.scheduler.finish(answer.request_id)
                answer.finish_reason, answer.finished_s = "abort", self.clock()

    def abort_all(self, reason: FinishReason = "abort", error: str = "") -> list[Output]:
        """End every request; what its listeners are told."""
        outputs = []
        for generation in list(self._generations.values()):
            open_answers = [answer for answer in generation.answers if answer.finish_reason is None]
            self.abort(generation.request_id)
            for answer in open_answers:
                answer.finish_reason, answer.error = reason, error
                outputs.append(Output(answer, (), "", reason))
        return outputs

    def generate(self, prompts: Iterable[Sequence[int]], params: SamplingParams | None = None) -> list[Generation]:
        """Answer all prompts, batched; returns when all are done."""
        generations = [self.add(prompt, params) for prompt in prompts]
        while self.has_work:
            self.step()
        return generations

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing has changed, while a request runs."""
        return self.manager.reset_prefix_cache()

    # -- Steps ----------------------------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Compute one step: what is new of each answer. Listeners (`on_output`) have been told."""
        step = self.scheduler.schedule()
        self._count(step)
        outputs = [self._finish(self._answer(refused.request), "length") for refused in step.refused]
        copies, held = self.manager.take_kv_cache_block_copies()
        if self.settings.debug:
            self.storage.poison(
                [b for scheduled in step.scheduled for blocks in scheduled.new_blocks.blocks for b in blocks if b]
            )
        self.storage.copy(copies)
        self.stats.copied_blocks += len(copies)
        self.manager.release_blocks(held)
        if step.scheduled:
            outputs += self._compute(step.scheduled)
        elif not step.refused and not step.preempted and len(self.scheduler):
            raise IntegrityError(f"{len(self.scheduler)} requests wait and nothing runs: the pool is lost")
        if self.settings.debug:
            self.storage.check_null_block()
            self.scheduler.check()
        for output in outputs:
            if output.answer.generation.on_output is not None:
                output.answer.generation.on_output(output)
        return outputs

    def _count(self, step: Step) -> None:
        stats = self.stats
        stats.steps += 1
        stats.preemptions += len(step.preempted)
        stats.recomputed_tokens += step.num_recomputed_tokens
        stats.computed_tokens += step.num_tokens
        for admitted in step.admitted:
            answer = self._answer(admitted.request)
            if answer.num_cached_tokens is None:
                answer.num_cached_tokens = admitted.num_hit_tokens
                stats.prompt_tokens += answer.num_prompt_tokens
                stats.cached_tokens += admitted.num_hit_tokens

    def _compute(self, scheduled: Sequence[Scheduled]) -> list[Output]:
        tokens: list[int] = []
        spans: list[Span] = []
        rows: list[int] = []
        wanted: list[tuple[Answer, list[int]]] = []
        for request, num_tokens, _ in scheduled:
            answer = self._answer(request)
            computed = answer.num_computed_tokens - num_tokens
            drafts = self._draft(answer)
            start = len(tokens)
            tokens += answer.all_token_ids[computed : answer.num_computed_tokens] + drafts
            tables = tuple(group.tables[answer.request_id] for group in self.manager.groups)
            spans.append(Span(start, len(tokens), computed, tables))
            if answer.num_computed_tokens == answer.num_tokens:
                wanted.append((answer, drafts))
                rows += range(len(tokens) - len(drafts) - 1, len(tokens))
        with np.errstate(over="ignore", invalid="ignore" if self.settings.debug else "warn"):
            logits = self.model.forward(Batch.of(tokens, spans, rows), self.storage)
        if self.settings.debug and not np.isfinite(logits).all():
            raise IntegrityError("the logits are not finite: a block table leads to a slot that was never written")
        outputs = []
        at = 0
        for answer, drafts in wanted:
            outputs.append(self._extend(answer, drafts, logits[at : at + len(drafts) + 1]))
            at += len(drafts) + 1
        return outputs

    def _draft(self, answer: Answer) -> list[int]:
        """Tokens to guess after the answer's last one, as far as there are slots and the answer may go on."""
        if answer.drafter is None or answer.num_computed_tokens != answer.num_tokens:
            return []
        made = answer.num_tokens - answer.num_prompt_tokens
        slots = min(len(g.tables[answer.request_id]) * g.block_size for g in self.manager.groups)
        most = min(
            self.settings.num_draft_tokens,
            answer.generation.params.max_tokens - made - 1,
            min(slots, self.max_request_tokens) - answer.num_tokens,
        )
        drafts = answer.drafter.propose(answer.all_token_ids, most) if made and most > 0 else []
        self.stats.drafted_tokens += len(drafts)
        return drafts

    def _extend(self, answer: Answer, drafts: Sequence[int], logits: Array) -> Output:
        """Choose the next token, and further ones as long as the drafts are what would have been chosen."""
        new: list[int] = []
        text = ""
        reason: FinishReason | None = None
        for i, row in enumerate(logits):
            if self.on_logits is not None:
                self.on_logits(answer, row)
            token = answer.sampler.choose(row)
            new.append(token)
            answer.append_output_token_ids(token)
            part, reason = self._judge(answer, token)
            text += part
            if reason is not None or i == len(drafts) or drafts[i] != token:
                break
        accepted = len(new) - 1
        answer.num_computed_tokens += accepted  # their keys and values are in the lookahead slots
        answer.num_accepted_drafts += accepted
        self.stats.accepted_drafts += accepted
        self.stats.generated_tokens += len(new)
        if answer.first_token_s is None:
            answer.first_token_s = self.clock()
            self._start_others(answer.generation)
        if reason is None:
            return Output(answer, new, text, None)
        finished = self._finish(answer, reason)
        return Output(answer, new, text + finished.text, reason)

    def _judge(self, answer: Answer, token: int) -> tuple[str, FinishReason | None]:
        """The text that the token adds, and whether the answer ends with it."""
        params, text = answer.generation.params, ""
        if self.tokenizer is not None and token in self.tokenizer.end_ids and not params.ignore_end:
            return "", "stop"
        if answer.stream is not None:
            text = answer.stream.push(token)
            if answer.stream.stopped:
                return text, "stop"
        made = answer.num_tokens - answer.num_prompt_tokens
        ended = made >= params.max_tokens or answer.num_tokens >= self.max_request_tokens
        return text, "length" if ended else None

    def _finish(self, answer: Answer, reason: FinishReason) -> Output:
        self.scheduler.finish(answer.request_id)
        answer.finish_reason, answer.finished_s = reason, self.clock()
        generation = answer.generation
        if generation.finished:
            self._generations.pop(generation.request_id, None)
        return Output(answer, (), answer.stream.finish() if answer.stream is not None else "", reason)

    def _start_others(self, generation: Generation) -> None:
        for answer in generation.waiting:
            self.scheduler.add(answer)
        generation.waiting = []

    @staticmethod
    def _answer(request: object) -> Answer:
        assert isinstance(request, Answer)
        return request
