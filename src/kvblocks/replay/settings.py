"""What a replay is run with."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from kvblocks.errors import UsageError
from kvblocks.scheduling import SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The time that a step takes in a timed replay.

    `decode_step_s` for any step (reading the weights and the caches once), plus the step's prompt tokens divided by
    `prefill_tokens_per_s`. It leaves out that attention grows with the context: compare cache sizes with it, do not
    predict a machine's latency. The defaults are of the order of an 8-billion-parameter model on one large GPU.
    """

    prefill_tokens_per_s: float = 20_000.0
    decode_step_s: float = 0.020

    def __post_init__(self) -> None:
        # Within these no sum of steps is infinite, and none too small to count.
        if not 1e-3 <= self.prefill_tokens_per_s <= 1e15:
            raise UsageError(
                f"prefill_tokens_per_s={self.prefill_tokens_per_s} must be at least 0.001 and at most 1e15"
            )
        if not 1e-9 <= self.decode_step_s <= 1e6:
            raise UsageError(f"decode_step_s={self.decode_step_s} must be at least 1e-9 and at most 1e6 seconds")

    def step_s(self, num_prefill_tokens: int) -> float:
        """Seconds for a step with so many prompt tokens."""
        return self.decode_step_s + num_prefill_tokens / self.prefill_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """One replay: a block size, a way to run, and its limits. Sizes of the cache are given apart."""

    block_size: int = 16
    serial: bool = False
    outputs: bool = True
    """Whether generated tokens take blocks."""
    hash_algorithm: str = "sha256"
    limit: int | None = None
    """Read so many requests of the trace at most."""
    max_model_len: int | None = None
    """Refuse longer requests; None refuses only what exceeds the cache."""
    watermark: float = 0.0
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cost: StepCost = field(default_factory=StepCost)

    def __post_init__(self) -> None:
        if not 1 <= self.block_size < 2**32:
            raise UsageError(f"block_size={self.block_size} must be at least 1 token and below {2**32}")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise UsageError(f"max_model_len={self.max_model_len} must be at least 1 token")
        if self.limit is not None and not 1 <= self.limit <= sys.maxsize:
            raise UsageError(f"limit={self.limit} must be at least 1 request and at most {sys.maxsize}; None reads all")

    @property
    def mode(self) -> str:
        return "serial" if self.serial else "timed"
