"""Counters for whoever watches a running cache: what statistics count, and what only a long life shows.

Eviction ages, preemptions and what they cost, requests that found no room, and a history of the hit rate. Memory is
bounded: by the number of blocks, of requests that hold some, and by constants.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kvblocks.manager import Admission, CachedRun, KVCacheManager, Request
from kvblocks.observe.history import History, Sample, TokenCounts
from kvblocks.observe.misses import MissReasons
from kvblocks.observe.stats import StatsObserver

T = TypeVar("T")

AGE_BOUNDS_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10_800.0, 36_000.0, 86_400.0)
"""Upper bounds of the histogram of ages at eviction."""
MAX_REMEMBERED = 10_000
"""Requests that are remembered after they lost their blocks, or while they wait for room; the oldest are forgotten."""


class Admitted(NamedTuple):
    """How a request that holds blocks entered."""

    at_s: float
    num_hit_tokens: int
    request: Request


@dataclass(frozen=True, slots=True)
class CounterValues:
    """All counts since the start, at one moment. Tokens unless they say otherwise."""

    tokens: TokenCounts
    preemptions: int
    """Requests that entered again after they had lost their blocks; each time counts."""
    recomputed_tokens: int
    """Tokens that such a request had computed before and found no more."""
    stored_blocks: tuple[int, ...]
    """Blocks that became findable, per group."""
    evicted_blocks: tuple[int, ...]
    """Hashes that blocks lost, per group."""
    age_buckets: tuple[int, ...]
    """Evictions by the time since the block's content was stored: one count per bound of `AGE_BOUNDS_S`, and beyond."""
    age_sum_s: float
    waiting_refusals: int
    """Allocations that were refused to a request that wanted to enter; every try counts."""
    running_refusals: int
    """Allocations that were refused to a request that runs: somebody is preempted for it."""
    refused_requests: Mapping[str, int]
    """Requests that had to wait or were turned away, each once per reason."""
    resets: int


class CountersObserver(StatsObserver):
    """Counts for metrics and live pages. Attach it to its manager before the first call."""

    def __init__(self, clock: Callable[[], float], reasons: MissReasons) -> None:
        """`clock` gives seconds. `reasons` is an observer of the same manager, told before this one."""
        super().__init__()
        self.clock = clock
        self.reasons = reasons
        self.admitted: dict[str, Admitted] = {}
        """The requests that hold blocks."""
        self.history = History()
        self._stored_at_s = array("d")
        self._num_usable = 0
        self._stored: list[int] = []
        self._evicted: list[int] = []
        self._age_buckets = [0] * (len(AGE_BOUNDS_S) + 1)
        self._age_sum_s = 0.0
        self._lost: dict[str, int] = {}  # computed tokens of requests that hold no blocks any more
        self._delayed: dict[str, None] = {}
        self._preemptions = self._recomputed = self._waiting_refusals = self._running_refusals = self._resets = 0
        self._refused: Counter[str] = Counter()

    def on_attach(self, manager: KVCacheManager) -> None:
        """Learn the sizes of the manager that this is an observer of."""
        self._stored_at_s = array("d", bytes(8 * manager.block_pool.num_blocks))
        self._num_usable = manager.block_pool.num_blocks - 1
        self._stored, self._evicted = [0] * len(manager.groups), [0] * len(manager.groups)

    def reject(self, reason: str) -> None:
        """Count a request that the engine turned away; `reason` is one of a few fixed words."""
        self._refused[reason] += 1

    def values(self) -> CounterValues:
        """A copy of all counts."""
        return CounterValues(
            tokens=self.tokens(),
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed,
            stored_blocks=tuple(self._stored),
            evicted_blocks=tuple(self._evicted),
            age_buckets=tuple(self._age_buckets),
            age_sum_s=self._age_sum_s,
            waiting_refusals=self._waiting_refusals,
            running_refusals=self._running_refusals,
            refused_requests=dict(self._refused),
            resets=self._resets,
        )

    def tokens(self) -> TokenCounts:
        """What admitted requests brought, found and missed."""
        found = self.reasons.totals
        missed = {str(reason): tokens for reason, tokens in found.reasons.items()}
        return TokenCounts(found.requests, found.tokens, found.hit_tokens, found.external_tokens, missed)

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        super().on_allocate(request, new_blocks, admission)
        if admission is None:
            return
        now_s, name = self.clock(), request.request_id
        self.admitted[name] = Admitted(now_s, admission.num_hit_tokens, request)
        self._delayed.pop(name, None)
        lost = self._lost.pop(name, None)
        if request.num_preemptions and lost is not None:
            self._preemptions += 1
            found = admission.num_hit_tokens + admission.num_external_tokens
            self._recomputed += max(0, lost - found)
        if self.history.is_due(now_s):
            self.history.add(Sample(now_s, self.tokens()))

    def on_refuse(self, request: Request, blocks_needed: int, blocks_free: int) -> None:
        super().on_refuse(request, blocks_needed, blocks_free)
        name = request.request_id
        if name in self.admitted:
            self._running_refusals += 1
            return
        self._waiting_refusals += 1
        if name not in self._delayed:
            _remember(self._delayed, name, None)
            self._refused["exceeds_cache" if blocks_needed > self._num_usable else "no_room"] += 1

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        now_s, stored_at_s = self.clock(), self._stored_at_s
        self._stored[group_id] += len(run.hashes)
        for block in run.blocks:
            stored_at_s[block] = now_s

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        super().on_evict(group_id, block_hash, block, last_copy)
        self._evicted[group_id] += 1
        stored_at_s = self._stored_at_s[block]
        if not stored_at_s:  # content that moved here from another block
            return
        age_s = self.clock() - stored_at_s
        self._age_buckets[bisect_left(AGE_BOUNDS_S, age_s)] += 1
        self._age_sum_s += age_s

    def on_free(self, request_id: str) -> None:
        admitted = self.admitted.pop(request_id, None)
        if admitted is not None:  # ended or preempted: only a later admission tells which
            _remember(self._lost, request_id, admitted.request.num_computed_tokens)

    def on_reset(self) -> None:
        super().on_reset()
        self._resets += 1


def _remember(memory: dict[str, T], name: str, value: T) -> None:
    """Enter it; the oldest entry goes when there are too many."""
    memory[name] = value
    if len(memory) > MAX_REMEMBERED:
        del memory[next(iter(memory))]
