"""Sparse retention: which points of a request can serve a later hit, for kinds that can only be entered at few points.

A sliding window or a state can be resumed at a point only if the blocks just before it are findable. Keeping all of
them findable would fill the free queue with blocks that nobody will ever hit, so by default only these points are
kept: where the same prompt sent again would resume, where the junction with other prompts was seen
(`shared_prefix_boundary`), and every n-th token if asked. The rule is vLLM's `prefix_cache_retention_interval`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RetentionRequest(Protocol):
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def shared_prefix_boundary(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Retention:
    """The points to keep. `interval`: None keeps all where hits can end, 0 the replay points and junctions, n every
    n-th token too."""

    interval: int | None
    alignment: int
    """Hits end on multiples of this."""
    drop_step: int = 0
    """With a draft head a hit ends one such step of tokens earlier, on a multiple of it; 0 without."""

    def keeps_all_within(self, reach_tokens: int) -> bool:
        """Whether every block is kept of a kind that keeps `reach_tokens` before each point."""
        every = self.alignment if self.interval is None else self.interval
        return 0 < every <= reach_tokens

    def points(self, request: RetentionRequest, first: int, last: int) -> set[int]:
        """The token counts in [first, last] at which a hit should be able to end; all aligned."""
        unit, step = self.alignment, self.drop_step
        if self.interval == 0 and first > request.num_prompt_tokens and first > request.shared_prefix_boundary:
            return set()  # what was generated: the rule for most blocks, so it comes first
        points: set[int] = set()
        every = unit if self.interval is None else self.interval
        if every:
            start = max(-(-first // every), 1) * every
            points.update(range(start, last + 1, every))
        if self.interval is not None:
            if step:  # the same prompt again, and a longer one that extends it
                for tokens in (request.num_prompt_tokens - 1, request.num_prompt_tokens):
                    points.add(max(tokens // step - 1, 0) * step // unit * unit)
            else:
                points.add((request.num_prompt_tokens - 1) // unit * unit)
            if request.shared_prefix_boundary >= unit:
                points.add(request.shared_prefix_boundary // unit * unit)
        return {point for point in points if first <= point <= last}
