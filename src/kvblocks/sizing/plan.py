"""How many tokens fit: a model, flags and memory to blocks, groups and concurrency, equal to what vLLM computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.kinds.grouping import CacheLayer, group_layers
from kvblocks.sizing.architectures import Architecture, describe
from kvblocks.sizing.block_sizes import for_stage
from kvblocks.sizing.capacity import Capacity, check_windows, with_override
from kvblocks.sizing.drafts import draft_specs
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.layers import State
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.resolve import resolve, stage_sizes
from kvblocks.sizing.result import Plan, group_plans, kind_of, no_memory, nothing_fits, too_long


@dataclass(frozen=True, slots=True)
class Layout:
    """A model's cache before memory is known: what its layers keep, in which groups, under which settings."""

    config: ModelConfig
    model: Architecture
    engine: Engine
    capacity: Capacity


def lay_out(
    config: ModelConfig,
    flags: EngineFlags,
    env: Mapping[str, str],
    *,
    device_bytes: int = 80 * GIB,
    device_name: str = "",
    capability: tuple[int, int] = (9, 0),
    assume_full_attention: bool = False,
    folders: Iterable[Path] = (),
) -> Layout:
    """Layers to groups. Raises UsageError for what vLLM refuses whatever the memory; see `plan` for the arguments."""
    if flags.hf_overrides:
        config = ModelConfig.from_data({**config.raw, **flags.hf_overrides}, config.path)
    with config.explained():
        model = describe(config, assume_full_attention=assume_full_attention)
        engine = resolve(
            config, model, flags, env, device_bytes=device_bytes, device_name=device_name, capability=capability
        )
        layers, engine = cache_layers(model, engine, env, folders)
        groups = group_layers(layers, block_outermost=engine.block_outermost, hybrid=engine.hybrid_manager)
    check_windows(groups, engine)
    return Layout(config, model, engine, Capacity.of(groups, engine))


def plan(
    config: ModelConfig | Mapping[str, Any] | str | Path,
    flags: EngineFlags | Mapping[str, Any] | None = None,
    *,
    available_bytes: int | Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
    assume_full_attention: bool = False,
    folders: Iterable[Path] = (),
) -> Plan:
    """Plan the cache of a model for memory that is known. `Setting` estimates it from a device.

    config: a config, its data, or the path of a config.json or of the folder that holds it.
    flags: vLLM's arguments, by their names.
    available_bytes: memory for the cache of each worker, one number or one per pipeline stage;
        `kv_cache_memory_bytes` of the flags when None.
    env: vLLM's environment variables.
    assume_full_attention: take an unknown family for ordinary attention over all tokens in every layer.
    folders: where to look for draft models named by a relative path.

    A plan that vLLM would refuse is returned with its status, not raised; a config that cannot be read, and a call
    without memory, raise UsageError.
    """
    if not isinstance(config, ModelConfig):
        config = ModelConfig.from_data(config) if isinstance(config, Mapping) else ModelConfig.load(config)
    try:
        if not isinstance(flags, EngineFlags):
            flags = EngineFlags.from_mapping(flags or {})
        layout = lay_out(config, flags, env or {}, assume_full_attention=assume_full_attention, folders=tuple(folders))
    except UsageError as error:
        return refused(config, error)
    memory = available_bytes if available_bytes is not None else flags.kv_cache_memory_bytes
    if memory is None:
        raise UsageError("no memory is given: pass available_bytes, or kv_cache_memory_bytes in the flags")
    return fill(layout, memory)


def refused(config: ModelConfig, error: UsageError) -> Plan:
    """The plan of what vLLM refuses."""
    return Plan(status="refused", error=str(error), model=config.name, architecture=_architecture(config))


def fill(layout: Layout, memory: int | Sequence[int]) -> Plan:
    """The plan of a layout for so many bytes per worker, one number or one per pipeline stage."""
    config, model, engine, capacity = layout.config, layout.model, layout.engine, layout.capacity
    memory = [memory] * engine.pp if isinstance(memory, int) else list(memory)
    if len(memory) != engine.pp:
        raise UsageError(f"available_bytes has {len(memory)} numbers for {engine.pp} pipeline stages; give one each")
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
        "groups": tuple(group_plans(capacity, max_len)),
    }
    usable = capacity.usable_bytes(memory)
    if auto and not longest:
        return Plan(
            status="does_not_fit", error=nothing_fits(capacity, memory), **(facts | {"available_bytes": min(usable)})
        )
    empty = next((have for have in usable if have <= 0), None)
    if empty is not None:
        return Plan(status="does_not_fit", error=no_memory(capacity, memory), **(facts | {"available_bytes": empty}))
    short = capacity.short_stage(max_len, memory)
    if short is not None:
        longest = capacity.longest_that_fits(memory, max_len, short)
        facts["estimated_max_model_len"] = longest
        error = too_long(capacity, max_len, short, usable[short], longest)
        return Plan(status="does_not_fit", error=error, **(facts | {"available_bytes": usable[short]}))
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


def cache_layers(
    model: Architecture, engine: Engine, env: Mapping[str, str], folders: Iterable[Path] = ()
) -> tuple[list[CacheLayer], Engine]:
    """Every cache of the model and its drafts, in the order in which vLLM makes them; the first stage's settings."""
    layers: list[CacheLayer] = []
    engines: list[Engine] = []
    first = 0
    sizes = stage_sizes(len(model.layers), engine.pp, env)
    for stage, size in enumerate(sizes):
        numbers = range(first, first + size)
        first += size
        engines.append(for_stage(engine, model, numbers))
        own = [
            (f"layers.{number}" if len(model.layers[number]) == 1 else f"layers.{number}.{i}", cache, number)
            for number in numbers
            for i, cache in enumerate(model.layers[number])
        ]
        if model.attention_first:
            own.sort(key=lambda entry: isinstance(entry[1], State))
        layers += [CacheLayer(name, cache.spec(engines[-1], number), stage) for name, cache, number in own]
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    for reader, target in model.reads.items():
        if stage_of[reader] != stage_of[target]:
            raise UsageError(
                f"pipeline_parallel_size={engine.pp}: layer {reader} reads the cache of layer {target}, which is on "
                f"another stage; use VLLM_PP_LAYER_PARTITION with both on one, or pipeline_parallel_size=1"
            )
    drafts = draft_specs(model, engines[-1], env, folders)
    layers += [CacheLayer(f"draft.{i}", spec, engine.pp - 1) for i, spec in enumerate(drafts)]
    return layers, engines[0]


def _notes(model: Architecture, capacity: Capacity) -> Iterable[str]:
    engine = capacity.engine
    asked = engine.flags.block_size
    if asked is not None and asked != engine.block_size:
        yield f"block_size={asked} becomes {engine.block_size}, so that an attention page holds a state"
    elif model.hybrid and engine.block_size != 16:
        yield f"the attention block is {engine.block_size} tokens, so that an attention page holds a state"
    if engine.kv_cache_dtype.startswith("nvfp4"):
        yield f"kv_cache_dtype={engine.kv_cache_dtype} needs FlashInfer; without it vLLM refuses to start"
    silent = sum(not caches for caches in model.layers)
    if silent:
        yield f"{silent} of {len(model.layers)} layers keep nothing of their own"
    if not engine.hybrid_manager and len({kind_of(group.spec)[0] for group in capacity.groups}) == 1 and model.chunked:
        yield "chunks are kept as full attention: vLLM turns its hybrid manager off for chunked local attention"
