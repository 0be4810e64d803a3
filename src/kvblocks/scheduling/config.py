"""The limits of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvblocks.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What a step may hold, and who goes first. Counts are tokens unless they say requests.

    The defaults are those of a vLLM server on a large GPU.
    """

    max_num_batched_tokens: int = 8192
    """Tokens that one step computes at most, over all requests."""
    max_num_seqs: int = 256
    """Requests that run at once at most."""
    chunked_prefill: bool = True
    """Cut a prompt that exceeds the step's budget; without it a prompt waits for a step that takes it whole."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    """First come, first served; or lower `priority` values first, then arrival."""
    full_sequence_must_fit: bool = True
    """Admit a request only when all its tokens fit now, not just its first chunk."""
    num_lookahead_tokens: int = 0
    """Slots for draft tokens that each request gets beyond its own tokens."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name}={value!r} must be at least 1")
        if self.num_lookahead_tokens < 0:
            raise UsageError(f"num_lookahead_tokens={self.num_lookahead_tokens} must not be negative")
        if self.policy not in ("fcfs", "priority"):
            raise UsageError(f"policy={self.policy!r} is unknown: choose 'fcfs' or 'priority'")
