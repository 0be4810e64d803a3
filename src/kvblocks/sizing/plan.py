"""How many tokens fit: a model, flags and memory to blocks, groups and concurrency, equal to what vLLM computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
from kvblocks.kinds.grouping import CacheLayer, LayerGroup, group_layers
from kvblocks.sizing.architectures import Architecture, describe
from kvblocks.sizing.capacity import Capacity, check_windows, with_override
from kvblocks.sizing.drafts import draft_specs
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.resolve import resolve, stage_sizes

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
    notes: tuple[str, ...] = ()
    """What a reader should know: settings that vLLM changes, padding, layers that keep nothing."""
    capacity: Capacity | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON would have it."""
        names = [name for name in self.__dataclass_fields__ if name != "capacity"]
        data: dict[str, Any] = {name: getattr(self, name) for name in names}
        data["groups"] = [{name: getattr(group, name) for name in group.__dataclass_fields__} for group in self.groups]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def cache_layers(
    model: Architecture, engine: Engine, env: Mapping[str, str], folders: Iterable[Path] = ()
) -> list[CacheLayer]:
    """Every cache of the model and its drafts, in the order in which vLLM makes them."""
    layers = []
    sizes = stage_sizes(len(model.layers), engine.pp, env)
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    for number, caches in enumerate(model.layers):
        for i, cache in enumerate(caches):
            name = f"layers.{number}" if len(caches) == 1 else f"layers.{number}.{i}"
            layers.append(CacheLayer(name, cache.spec(engine, number), stage_of[number]))
    drafts = draft_specs(model, engine, folders)
    return layers + [CacheLayer(f"draft.{i}", spec, engine.pp - 1) for i, spec in enumerate(drafts)]


def plan(
    config: ModelConfig | Mapping[str, Any] | str | Path,
    flags: EngineFlags | Mapping[str, Any] | None = None,
    *,
    available_bytes: int | Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    device_bytes: int = 80 * GIB,
    device_name: str = "",
    capability: tuple[int, int] = (9, 0),
    assume_full_attention: bool = False,
    folders: Iterable[Path] = (),
) -> Plan:
    """Plan the cache of a model.

    config: a config, its data, or the path of a config.json or of the folder that holds it.
    flags: vLLM's arguments, by their names.
    available_bytes: memory for the cache of each worker, one number or one per pipeline stage;
        `kv_cache_memory_bytes` of the flags when None.
    env: vLLM's environment variables.
    folders: where to look for draft models named by a relative path.

    A plan that vLLM would refuse is returned with its status, not raised; a config that cannot be read raises
    UsageError.
    """
    if not isinstance(config, ModelConfig):
        config = ModelConfig.from_data(config) if isinstance(config, Mapping) else ModelConfig.load(config)
    env = env or {}
    try:
        if not isinstance(flags, EngineFlags):
            flags = EngineFlags.from_mapping(flags or {})
        if flags.hf_overrides:
            config = ModelConfig.from_data({**config.raw, **flags.hf_overrides}, config.path)
        model = describe(config, assume_full_attention=assume_full_attention)
        engine = resolve(
            config, model, flags, env, device_bytes=device_bytes, device_name=device_name, capability=capability
        )
        layers = cache_layers(model, engine, env, folders)
        groups = group_layers(layers, block_outermost=engine.block_outermost, hybrid=engine.hybrid_manager)
        check_windows(groups, engine)
    except UsageError as error:
        return Plan(status="refused", error=str(error), model=config.name, architecture=_architecture(config))
    memory = available_bytes if available_bytes is not None else flags.kv_cache_memory_bytes
    if memory is None:
        raise UsageError("no memory is given: pass available_bytes, or kv_cache_memory_bytes in the flags")
    per_stage = [memory] * engine.pp if isinstance(memory, int) else list(memory)
    if len(per_stage) != engine.pp:
        raise UsageError(f"available_bytes has {len(per_stage)} numbers for {engine.pp} pipeline stages; give one each")
    return _fill(config, model, Capacity.of(groups, engine), per_stage)


def _fill(config: ModelConfig, model: Architecture, capacity: Capacity, memory: list[int]) -> Plan:
    engine = capacity.engine
    memory = with_override(memory, capacity, engine.flags.num_gpu_blocks_override)
    max_len = engine.max_model_len
    fixed, marginal = capacity.fixed_and_marginal()
    facts: dict[str, Any] = {
        "model": config.name,
        "architecture": _architecture(config),
        "block_size": engine.block_size,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "dtype": engine.dtype,
        "bytes_per_block": tuple(stage.bytes_per_block for stage in capacity.stages),
        "memory_bytes": min(memory),
        "available_bytes": min(memory),
        "derived_max_model_len": engine.derived_max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "max_in_flight_tokens": engine.max_in_flight_tokens,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "fixed_bytes_per_request": fixed,
        "bytes_per_token": marginal,
        "notes": tuple(_notes(model, capacity)),
        "capacity": capacity,
    }
    if not capacity.groups:  # nothing to keep: vLLM makes a pool of the null block alone
        return Plan(status="ok", num_blocks=1, max_model_len=max_len, **facts)
    longest = capacity.longest_that_fits(memory, max_len)
    auto = engine.flags.max_model_len == -1
    if auto and longest:
        max_len = longest
    facts |= {
        "max_model_len": max_len,
        "estimated_max_model_len": longest,
        "needed_bytes_max_len": tuple(capacity.needed_bytes(max_len)),
        "groups": tuple(_group_plans(capacity, max_len)),
    }
    usable = capacity.usable_bytes(memory)
    if auto and not longest:
        return Plan(status="does_not_fit", error=_nothing_fits(capacity, memory), **_refusal(facts, min(usable)))
    empty = next((have for have in usable if have <= 0), None)
    if empty is not None:
        return Plan(status="does_not_fit", error=_no_memory(capacity, memory), **_refusal(facts, empty))
    short = capacity.short_stage(max_len, memory)
    if short is not None:
        longest = capacity.longest_that_fits(memory, max_len, short)
        facts["estimated_max_model_len"] = longest
        error = _too_long(capacity, max_len, short, usable[short], longest)
        return Plan(status="does_not_fit", error=error, **_refusal(facts, usable[short]))
    num_blocks = capacity.num_blocks(memory)
    if engine.flags.num_gpu_blocks_override is not None:
        num_blocks = engine.flags.num_gpu_blocks_override
    concurrency = capacity.concurrency(num_blocks, max_len)
    if not auto:
        facts["estimated_max_model_len"] = capacity.longest_that_fits(memory, _far(engine))
    return Plan(
        status="ok",
        num_blocks=num_blocks,
        tokens=int(concurrency * max_len),
        max_concurrency=concurrency,
        **facts,
    )


def _far(engine: Engine) -> int:
    """How far to look for the longest request that fits."""
    return max(engine.derived_max_model_len or 0, engine.max_model_len)


def _architecture(config: ModelConfig) -> str:
    return config.architectures[0] if config.architectures else config.model_type


def kind_of(spec: KVCacheSpec) -> tuple[str, str]:
    """Our name of a spec's kind, and vLLM's."""
    return next((ours, theirs) for cls, ours, theirs in KINDS if isinstance(spec, cls))


def _group_plans(capacity: Capacity, max_len: int) -> Iterable[GroupPlan]:
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


def _refusal(facts: dict[str, Any], available: int) -> dict[str, Any]:
    return facts | {"available_bytes": available}


def gib(size: float) -> str:
    """Bytes as vLLM prints them: GiB with two decimals, zeros at the end left out."""
    return f"{round(size / GIB, 2)}"


def _too_long(capacity: Capacity, max_len: int, stage: int, usable: int, longest: int) -> str:
    needed = capacity.needed_bytes(max_len)[stage]
    where = f" of pipeline stage {stage}" if len(capacity.stages) > 1 else ""
    fix = f"use max_model_len={longest} or less" if longest else "not even one token fits"
    return (
        f"max_model_len={max_len} needs {gib(needed)} GiB of KV cache for one request, {gib(usable)} GiB are usable"
        f"{where} (all but the null block): {gib(needed - usable)} GiB too little; {fix}, or make room with a higher "
        "gpu_memory_utilization, kv_cache_dtype=fp8 or more tensor_parallel_size"
    )


def _no_memory(capacity: Capacity, memory: Sequence[int]) -> str:
    block = max(stage.bytes_per_block for stage in capacity.stages)
    return (
        f"no memory is left for the KV cache: {gib(min(memory))} GiB are available and the null block alone takes "
        f"{block:,} bytes; raise gpu_memory_utilization, or use a smaller model, fewer batched tokens or more GPUs"
    )


def _nothing_fits(capacity: Capacity, memory: Sequence[int]) -> str:
    needed = max(capacity.needed_bytes(1))
    return (
        f"max_model_len=auto: a request of one token needs {gib(needed)} GiB of KV cache besides the null block, and "
        f"{gib(min(memory))} GiB are available; raise gpu_memory_utilization or use more GPUs"
    )


def _notes(model: Architecture, capacity: Capacity) -> Iterable[str]:
    engine = capacity.engine
    asked = engine.flags.block_size
    if asked is not None and asked != engine.block_size:
        yield f"block_size={asked} becomes {engine.block_size}, so that an attention page holds a state"
    elif model.hybrid and engine.block_size != 16:
        yield f"the attention block is {engine.block_size} tokens, so that an attention page holds a state"
    silent = sum(not caches for caches in model.layers)
    if silent:
        yield f"{silent} of {len(model.layers)} layers keep nothing of their own"
    if not engine.hybrid_manager and len({kind_of(group.spec)[0] for group in capacity.groups}) == 1 and model.chunked:
        yield "chunks are kept as full attention: vLLM turns its hybrid manager off for chunked local attention"
