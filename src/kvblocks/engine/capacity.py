"""From a model and memory to groups and blocks, by `sizing`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from kvblocks.engine.model.shape import ModelShape
from kvblocks.errors import UsageError
from kvblocks.kinds import AttentionSpec, KVCacheSpec
from kvblocks.kinds.grouping import CacheLayer, group_layers
from kvblocks.sizing import EngineFlags
from kvblocks.sizing.capacity import Capacity
from kvblocks.sizing.engine import Engine as SizingEngine

DTYPES = ("float32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine runs. Counts are tokens unless they say blocks or requests."""

    block_size: int = 16
    hash_block_size: int | None = None
    """Hits may end on multiples of this inside a block, whose content is then copied. None: a quarter of the block
    where the model's layers allow it."""
    kv_memory_bytes: int | None = None
    """None: enough for `max_num_seqs` requests of full length, at most half of the machine's free memory."""
    num_blocks: int | None = None
    """Overrides the memory. The null block counts."""
    kv_dtype: str = "float32"
    max_model_len: int | None = None
    """None: what the model was made for."""
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    enable_caching: bool = True
    num_draft_tokens: int = 0
    """Tokens that are guessed from the request's own text and checked in one step; 0 for none."""
    debug: bool = False
    """Poison fresh blocks and the null block, and check the manager and the logits after each step."""

    def __post_init__(self) -> None:
        for name, least in (("block_size", 1), ("max_num_batched_tokens", 1), ("max_num_seqs", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.kv_dtype not in DTYPES:
            raise UsageError(f"kv_dtype={self.kv_dtype!r} is unknown; choose {' or '.join(DTYPES)}")
        if not 0 <= self.num_draft_tokens <= 16:
            raise UsageError(f"num_draft_tokens={self.num_draft_tokens} must be from 0 to 16")
        if self.hash_block_size is not None and (self.hash_block_size < 1 or self.block_size % self.hash_block_size):
            raise UsageError(f"hash_block_size={self.hash_block_size} must divide block_size={self.block_size}")


def resolve(shape: ModelShape, settings: EngineSettings) -> tuple[Capacity, int, int]:
    """The groups of the model, the blocks of the pool and the longest request.

    Raises UsageError when not even the shortest request fits.
    """
    longest = shape.max_positions if settings.max_model_len is None else settings.max_model_len
    if not 1 <= longest <= shape.max_positions:
        raise UsageError(f"max_model_len={longest} must be from 1 to {shape.max_positions}, the model's own limit")
    align = settings.enable_caching
    engine = SizingEngine(
        flags=EngineFlags(mamba_cache_dtype="float32"),
        dtype=settings.kv_dtype,
        max_model_len=longest,
        max_num_batched_tokens=settings.max_num_batched_tokens + settings.num_draft_tokens,
        max_num_seqs=settings.max_num_seqs,
        async_scheduling=False,
        enable_prefix_caching=settings.enable_caching,
        mamba_cache_mode="align" if align else "none",
        block_size=settings.block_size,
        mamba_block_size=settings.block_size if align else longest,
    )
    layers = [
        CacheLayer(f"layers.{number}", _any_block(cache.spec(engine, number), settings.block_size))
        for number, caches in enumerate(shape.architecture.layers)
        for cache in caches
    ]
    capacity = Capacity.of(group_layers(layers), engine)
    if settings.num_blocks is not None:
        return capacity, settings.num_blocks, longest
    memory = settings.kv_memory_bytes
    if memory is None:
        wanted = settings.max_num_seqs * capacity.needed_bytes(longest)[0] + capacity.stages[0].bytes_per_block
        memory = min(wanted, free_memory_bytes() // 2)
    num_blocks = capacity.num_blocks([memory])
    if num_blocks < 2 or capacity.longest_that_fits([memory], longest) < min(longest, settings.block_size):
        least = capacity.needed_bytes(min(longest, 1024))[0] + capacity.stages[0].bytes_per_block
        raise UsageError(
            f"--kv-memory of {memory:,} bytes holds {num_blocks} blocks of {capacity.stages[0].bytes_per_block:,} "
            f"bytes, too few for any request; give at least {least:,} for 1,024 tokens"
        )
    return capacity, num_blocks, longest


def _any_block(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    """The spec with the block that was asked for: what GPU kernels demand of windows does not bind numpy."""
    return replace(spec, block_size=block_size) if isinstance(spec, AttentionSpec) else spec


def free_memory_bytes() -> int:
    """What the machine can give without swapping."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:"))
    except (OSError, StopIteration) as error:
        raise UsageError("the machine's free memory is unknown here; give --kv-memory") from error


def hash_unit(capacity: Capacity, settings: EngineSettings) -> tuple[int | None, bool]:
    """(hash_block_size, fine_hits) of the manager."""
    specs = [group.spec for group in capacity.groups]
    fits = settings.enable_caching and all(spec.group_class.supports_fine_hits for spec in specs)
    if settings.hash_block_size is None:
        if not fits or settings.block_size % 4:
            return None, False
        return settings.block_size // 4, True
    if not fits:
        raise UsageError(
            f"hash_block_size={settings.hash_block_size}: hits cannot end inside a block of this model (windows); "
            "leave it out"
        )
    return settings.hash_block_size, settings.hash_block_size < settings.block_size
