"""Statistics of a manager: what was looked up, hit, allocated and evicted, in tokens and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvblocks.manager import Admission, Observer, Request


@dataclass(slots=True)
class CacheStats:
    """Counts since the start or the last `take`. Tokens unless they say blocks or requests."""

    requests: int = 0
    """Admissions of requests that had not been preempted."""
    queries: int = 0
    """Their tokens. A request that waits for room is looked up again and again, and counts once: when it enters."""
    hits: int = 0
    """Their tokens that the cache held."""
    external_tokens: int = 0
    """Their tokens that a connector brought."""
    preempted_requests: int = 0
    """Admissions after a preemption, apart: what they find again is their own."""
    preempted_queries: int = 0
    preempted_hits: int = 0
    refusals: int = 0
    """Allocations that did not fit."""
    allocated_blocks: int = 0
    """New blocks of allocations; those for external tokens are not in them."""
    evicted_hashes: int = 0
    """Hashes that blocks lost, because the block was handed out again or on request."""
    reset: bool = False
    """Whether the cache was reset."""

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0


class StatsObserver(Observer):
    """Counts. Requests that must not read the cache (`skip_reading_prefix_cache`) are not in the hit rate."""

    def __init__(self) -> None:
        self.stats = CacheStats()

    def take(self) -> CacheStats:
        """The counts so far; counting starts again at zero."""
        taken, self.stats = self.stats, CacheStats()
        return taken

    def snapshot(self) -> CacheStats:
        """A copy of the counts so far."""
        return replace(self.stats)

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        stats = self.stats
        stats.allocated_blocks += sum(len(blocks) - blocks.count(0) for blocks in new_blocks)
        if admission is None or request.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            stats.preempted_requests += 1
            stats.preempted_queries += request.num_tokens
            stats.preempted_hits += admission.num_hit_tokens
        else:
            stats.requests += 1
            stats.queries += request.num_tokens
            stats.hits += admission.num_hit_tokens
            stats.external_tokens += admission.num_external_tokens

    def on_refuse(self, request: Request, blocks_needed: int, blocks_free: int) -> None:
        self.stats.refusals += 1

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        self.stats.evicted_hashes += 1

    def on_reset(self) -> None:
        self.stats.reset = True
