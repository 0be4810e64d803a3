"""From groups and bytes to blocks, tokens and concurrency, by vLLM's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.errors import UsageError
from kvblocks.kinds import RequestLimits
from kvblocks.kinds.grouping import LayerGroup, bytes_per_block
from kvblocks.sizing.engine import Engine


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage's view of the pool."""

    groups: tuple[LayerGroup, ...]
    bytes_per_block: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """How a model's groups share memory. `memory` is in bytes of one worker of each pipeline stage."""

    groups: tuple[LayerGroup, ...]
    stages: tuple[Stage, ...]
    engine: Engine

    @classmethod
    def of(cls, groups: Sequence[LayerGroup], engine: Engine) -> Capacity:
        """Groups of the whole model, as its stages see them."""
        stages = []
        for number in range(engine.pp):
            own = tuple(group.on_stage(number) for group in groups)
            stages.append(Stage(own, bytes_per_block(own, block_outermost=engine.block_outermost)))
        return cls(tuple(groups), tuple(stages), engine)

    def limits(self, max_model_len: int) -> RequestLimits:
        """What a request of at most so many tokens can hold."""
        return RequestLimits(
            max_model_len=max_model_len,
            max_in_flight_tokens=self.engine.max_in_flight_tokens,
            dcp_world_size=self.engine.dcp,
            max_encoder_tokens=self.engine.max_num_batched_tokens,  # vLLM counts a batch, not the encoder's own limit
        )

    def blocks_per_request(self, max_model_len: int) -> list[int]:
        """Blocks of each group that a request of so many tokens holds at most."""
        limits = self.limits(max_model_len)
        return [group.blocks_per_request(limits) for group in self.groups]

    def needed_bytes(self, max_model_len: int) -> list[int]:
        """Bytes of each stage that a request of so many tokens takes."""
        blocks = sum(self.blocks_per_request(max_model_len))
        return [blocks * stage.bytes_per_block for stage in self.stages]

    def num_blocks(self, memory: Sequence[int]) -> int:
        """Blocks of the pool, the null block included: as many as the stage with the least room has."""
        return min(
            have // stage.bytes_per_block
            for have, stage in zip(memory, self.stages, strict=True)
            if stage.bytes_per_block
        )

    def usable_bytes(self, memory: Sequence[int]) -> list[int]:
        """What each stage has for requests: all but the null block."""
        return [have - stage.bytes_per_block for have, stage in zip(memory, self.stages, strict=True)]

    def short_stage(self, max_model_len: int, memory: Sequence[int]) -> int | None:
        """The first stage in which a request of so many tokens does not fit; None when it fits everywhere."""
        needed, usable = self.needed_bytes(max_model_len), self.usable_bytes(memory)
        return next((i for i, (need, have) in enumerate(zip(needed, usable, strict=True)) if need > have), None)

    def longest_that_fits(self, memory: Sequence[int], at_most: int, stage: int | None = None) -> int:
        """The longest request that fits, up to `at_most` tokens, in one stage or in all; 0 if none does.

        A binary search, as vLLM does it: the need grows with the length.
        """
        usable = self.usable_bytes(memory)
        stages = range(len(self.stages)) if stage is None else (stage,)

        def fits(length: int) -> bool:
            needed = self.needed_bytes(length)
            return all(needed[i] <= usable[i] for i in stages)

        if not fits(1):
            return 0
        low, high = 1, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def concurrency(self, num_blocks: int, max_model_len: int) -> float:
        """How many requests of that length fit at once, by vLLM's count (which counts the null block as usable)."""
        return num_blocks / sum(self.blocks_per_request(max_model_len))

    def fixed_and_marginal(self) -> tuple[int, float]:
        """Bytes that every long request holds however long it gets, and bytes for each further token; widest stage.

        A request of n tokens holds about `fixed + n * marginal` bytes once n is beyond every window: states, windows
        and encoder tokens are fixed, full attention grows.
        """
        block = max((stage.bytes_per_block for stage in self.stages), default=0)
        fixed, marginal = 0, 0.0
        far, farther = self.limits(_FAR), self.limits(2 * _FAR)
        for group in self.groups:
            blocks = group.blocks_per_request(farther)
            if blocks > group.blocks_per_request(far):
                ranks = self.engine.dcp if group.spec.dcp_sharded else 1
                marginal += block / (group.spec.block_size * ranks)
            else:
                fixed += block * blocks
        return fixed, marginal


_FAR = 2**40  # tokens beyond any window


def check_windows(groups: Sequence[LayerGroup], engine: Engine) -> None:
    """Raise UsageError for windows whose tokens decode context parallelism would spread over ranks."""
    for group in groups:
        if engine.dcp > 1 and group.spec.dcp_sharded and getattr(group.spec, "sliding_window", None) is not None:
            raise UsageError(
                f"decode_context_parallel_size={engine.dcp}: DCP not support sliding window; use 1 with this model"
            )


def with_override(memory: Sequence[int], capacity: Capacity, override: int | None) -> list[int]:
    """The memory that `num_gpu_blocks_override` blocks take in each stage; the memory itself without one."""
    if override is None:
        return list(memory)
    return [override * stage.bytes_per_block for stage in capacity.stages]
