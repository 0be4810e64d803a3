"""What a plan says: blocks, groups, tokens and concurrency, and the words for what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.kinds import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from kvblocks.kinds.grouping import LayerGroup
from kvblocks.sizing.capacity import Capacity
from kvblocks.sizing.flags import GIB

KINDS: tuple[tuple[type[KVCacheSpec], str, str], ...] = (
    (SlidingWindowMLASpec, "sliding_window_mla", "SlidingWindowMLASpec"),
    (MLASpec, "mla_attention", "MLAAttentionSpec"),
    (FullAttentionSpec, "full_attention", "FullAttentionSpec"),
    (SlidingWindowSpec, "sliding_window", "SlidingWindowSpec"),
    (ChunkedLocalSpec, "chunked_local_attention", "ChunkedLocalAttentionSpec"),
    (MambaSpec, "mamba", "MambaSpec"),
    (CrossAttentionSpec, "cross_attention", "CrossAttentionSpec"),
)
"""Names of kinds, ours and vLLM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """One KV-cache group."""

    kind: str
    vllm_type: str
    n_layers: int
    """Layers of the first pipeline stage; `n_layers_per_stage` has all."""
    n_layers_per_stage: tuple[int, ...]
    block_size: int
    """Tokens of a block."""
    page_size_bytes: int
    """Bytes of a block in the group's first layer, padding included."""
    padding_bytes: int
    """Bytes of that page that hold nothing."""
    unused_bytes_per_block: int
    """Bytes of a block that this group's layers leave unused, in the first stage."""
    blocks_per_request: int
    """Blocks that a request of max_model_len tokens holds at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What fits. All sizes are bytes of one worker; counts are tokens unless they say blocks."""

    status: str
    """`ok`, `does_not_fit` (vLLM stops at start-up for want of memory) or `refused` (it does not take the flags)."""
    error: str | None = None
    model: str = ""
    architecture: str = ""
    num_blocks: int | None = None
    """Blocks of the pool, the null block included."""
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    groups: tuple[GroupPlan, ...] = ()
    bytes_per_block: tuple[int, ...] = ()
    """One per pipeline stage."""
    tokens: int | None = None
    """vLLM's "KV cache size"."""
    max_concurrency: float | None = None
    """vLLM's "Maximum concurrency" for requests of max_model_len."""
    memory_bytes: int | None = None
    """Memory for the cache, as given or estimated."""
    available_bytes: int | None = None
    """That memory; when a request does not fit, without the null block, as vLLM's message says it."""
    needed_bytes_max_len: tuple[int, ...] = ()
    """Bytes that one request of max_model_len takes, one per pipeline stage."""
    max_model_len: int | None = None
    derived_max_model_len: int | None = None
    estimated_max_model_len: int | None = None
    """The longest request that fits."""
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_in_flight_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    fixed_bytes_per_request: int | None = None
    bytes_per_token: float | None = None
    memory: tuple[Mapping[str, Any], ...] = ()
    """How the memory was estimated, per pipeline stage: terms with their formulas; empty when it was given."""
    notes: tuple[str, ...] = ()
    """What a reader should know: settings that vLLM changes, padding, layers that keep nothing."""
    capacity: Capacity | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON would have it."""
        data: dict[str, Any] = {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value
            for name in self.__dataclass_fields__
            if name != "capacity"
        }
        data["groups"] = [{name: getattr(group, name) for name in group.__dataclass_fields__} for group in self.groups]
        data["requests_by_length"] = [{"tokens": length, "requests": n} for length, n in self.requests_by_length()]
        return data

    def requests_at(self, num_tokens: int) -> int:
        """How many requests of that many tokens (prompt and output) the cache holds at once, each whole.

        Exact, by the same rule as vLLM's admission: what each group holds at most for a request of that length. The
        null block does not count, as it holds nothing; vLLM's "maximum concurrency" counts it, and is not rounded.
        `max_num_seqs` limits how many run at once besides.

        Raises UsageError when the plan did not come out, keeps nothing, or takes no request of that length.
        """
        if self.capacity is None or self.num_blocks is None or self.max_model_len is None or not self.groups:
            raise UsageError(f"{self.model}: there is no cache to hold requests: {self.error or 'it keeps nothing'}")
        if not 1 <= num_tokens <= self.max_model_len:
            raise UsageError(
                f"a request of {num_tokens} tokens: give 1 to max_model_len={self.max_model_len}; vLLM refuses others"
            )
        return (self.num_blocks - 1) // sum(self.capacity.blocks_per_request(num_tokens))

    def requests_by_length(self) -> list[tuple[int, int]]:
        """Lengths and `requests_at` each: 16, 24, 32, 48, 64 ... and max_model_len; empty where nothing is held."""
        if self.num_blocks is None or self.max_model_len is None or not self.groups:
            return []
        longest = self.max_model_len
        steps = [n for power in range(4, longest.bit_length()) for n in (2**power, 3 * 2 ** (power - 1)) if n < longest]
        return [(length, self.requests_at(length)) for length in (*steps, longest)]

    def kv_cache_config(self) -> dict[str, Any]:
        """What a manager of this cache is made of: `KVCacheManager(**plan.kv_cache_config())`.

        Decode context parallelism spreads a block's tokens over ranks, so that the manager's blocks span more tokens.

        Raises UsageError when the plan did not come out.
        """
        if self.capacity is None or self.num_blocks is None or self.max_model_len is None:
            raise UsageError(f"{self.model}: there is no cache to manage: {self.error}")
        engine = self.capacity.engine
        specs = [
            replace(group.spec, block_size=group.spec.block_size * engine.dcp)
            if engine.dcp > 1 and group.spec.dcp_sharded
            else group.spec
            for group in self.capacity.groups
        ]
        drafts = [
            i
            for i, group in enumerate(self.capacity.groups)
            if any(layer.name.startswith("draft.") for layer in group.layers)
        ]
        return {
            "num_blocks": self.num_blocks,
            "groups": specs,
            "max_model_len": self.max_model_len,
            "enable_caching": engine.enable_prefix_caching and all(spec.prefix_cacheable for spec in specs),
            "max_in_flight_tokens": engine.max_in_flight_tokens,
            "use_eagle": bool(drafts),
            "eagle_groups": drafts,
        }


def kind_of(spec: KVCacheSpec) -> tuple[str, str]:
    """Our name of a spec's kind, and vLLM's."""
    return next((ours, theirs) for cls, ours, theirs in KINDS if isinstance(spec, cls))


def group_plans(capacity: Capacity, max_len: int) -> Iterable[GroupPlan]:
    for i, (group, blocks) in enumerate(zip(capacity.groups, capacity.blocks_per_request(max_len), strict=True)):
        per_stage = tuple(len(stage.groups[i].layers) for stage in capacity.stages)
        kind, vllm_type = kind_of(group.spec)
        first: LayerGroup = capacity.stages[0].groups[i]
        used = sum(layer.spec.content_size_bytes for layer in first.layers)
        yield GroupPlan(
            kind=kind,
            vllm_type=vllm_type,
            n_layers=per_stage[0],
            n_layers_per_stage=per_stage,
            block_size=group.spec.block_size,
            page_size_bytes=group.spec.page_size_bytes,
            padding_bytes=group.spec.page_size_bytes - group.spec.content_size_bytes,
            unused_bytes_per_block=capacity.stages[0].bytes_per_block - used,
            blocks_per_request=blocks,
        )


def gib(size: float) -> str:
    """Bytes as vLLM prints them: GiB with two decimals, zeros at the end left out."""
    return f"{round(size / GIB, 2)}"


def too_long(capacity: Capacity, max_len: int, stage: int, usable: int, longest: int) -> str:
    needed = capacity.needed_bytes(max_len)[stage]
    where = f" of pipeline stage {stage}" if len(capacity.stages) > 1 else ""
    fix = f"use max_model_len={longest} or less" if longest else "not even one token fits"
    return (
        f"max_model_len={max_len} needs {gib(needed)} GiB of KV cache for one request, {gib(usable)} GiB are usable"
        f"{where} (all but the null block): {gib(needed - usable)} GiB too little; {fix}, or make room with a higher "
        "gpu_memory_utilization, kv_cache_dtype=fp8 or more tensor_parallel_size"
    )


def no_memory(capacity: Capacity, memory: Sequence[int]) -> str:
    block = max(stage.bytes_per_block for stage in capacity.stages)
    return (
        f"no memory is left for the KV cache: {gib(min(memory))} GiB are available and the null block alone takes "
        f"{block:,} bytes; raise gpu_memory_utilization, or use a smaller model, fewer batched tokens or more GPUs"
    )


def nothing_fits(capacity: Capacity, memory: Sequence[int]) -> str:
    needed = max(capacity.needed_bytes(1))
    return (
        f"max_model_len=auto: a request of one token needs {gib(needed)} GiB of KV cache besides the null block, and "
        f"{gib(min(memory))} GiB are available; raise gpu_memory_utilization or use more GPUs"
    )
