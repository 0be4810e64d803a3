"""What a replay is run with."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field

from kvblocks.errors import UsageError
from kvblocks.kinds import FullAttentionSpec, KVCacheSpec
from kvblocks.manager import KVCacheManager
from kvblocks.scheduling import SchedulerConfig
from kvblocks.sizing import Plan


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


UNLIMITED = 2**40
"""A model length that no request exceeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """The groups of a model's cache; `of_plan` takes them from a plan. Without a layout one group keeps all tokens."""

    name: str
    """The model, for people."""
    groups: tuple[KVCacheSpec, ...]
    tokens_per_block: float
    """Tokens of a longest request for each block that it takes; what vLLM's "KV cache size" counts by."""
    max_in_flight_tokens: int
    enable_caching: bool = True
    use_eagle: bool = False
    eagle_groups: tuple[int, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan) -> CacheLayout:
        """The layout of a plan that came out. Raises UsageError for another."""
        config = plan.kv_cache_config()
        assert plan.num_blocks
        assert plan.max_concurrency
        assert plan.max_model_len
        return cls(
            name=plan.model,
            groups=tuple(config["groups"]),
            tokens_per_block=plan.max_concurrency * plan.max_model_len / plan.num_blocks,
            max_in_flight_tokens=config["max_in_flight_tokens"],
            enable_caching=config["enable_caching"],
            use_eagle=config["use_eagle"],
            eagle_groups=tuple(config["eagle_groups"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """One replay: a block size or a model's groups, a way to run, and its limits. The cache's sizes are given apart."""

    block_size: int = 16
    """Tokens per block; with a layout, of the block that vLLM names, attention's."""
    layout: CacheLayout | None = None
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
    def hash_block_size(self) -> int:
        """Tokens of one block hash: the greatest common divisor of the cacheable groups' block sizes."""
        if self.layout is None:
            return self.block_size
        return math.gcd(*(spec.block_size for spec in self.layout.groups if spec.prefix_cacheable)) or self.block_size

    @property
    def tokens_per_block(self) -> float:
        """Tokens that one block of the pool stands for."""
        return self.block_size if self.layout is None else self.layout.tokens_per_block

    def make_manager(self, num_blocks: int) -> KVCacheManager:
        """A manager of a cache of that size."""
        layout = self.layout
        watermark = 0.0 if self.serial else self.watermark
        max_model_len = self.max_model_len or UNLIMITED
        if layout is None:
            groups = [FullAttentionSpec(block_size=self.block_size)]
            return KVCacheManager(num_blocks, groups, max_model_len=max_model_len, watermark=watermark)
        return KVCacheManager(
            num_blocks,
            layout.groups,
            max_model_len=max_model_len,
            max_in_flight_tokens=layout.max_in_flight_tokens,
            enable_caching=layout.enable_caching,
            use_eagle=layout.use_eagle,
            eagle_groups=layout.eagle_groups,
            watermark=watermark,
        )

    @property
    def mode(self) -> str:
        return "serial" if self.serial else "timed"
