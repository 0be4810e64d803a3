"""vLLM's cache configuration as kvblocks' groups, or the reason why it has to stay with vLLM."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from kvblocks.errors import KVBlocksError
from kvblocks.kinds import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    EncoderOnlySpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)


class UnsupportedError(KVBlocksError):
    """The configuration stays with vLLM's own manager; the text says why."""


def _heads(spec: Any) -> dict[str, Any]:
    return {
        "num_kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
        "head_size_v": spec.head_size_v,
        "dtype_bytes": spec.dtype.itemsize,
    }


def _latent(spec: Any) -> dict[str, Any]:
    return {"head_size": spec.head_size, "dtype_bytes": spec.dtype.itemsize}


def _window(spec: Any) -> dict[str, Any]:
    return {"sliding_window": spec.sliding_window, "extra_retained_tokens": spec.extra_retained_tokens}


def _mamba(spec: Any, size: int) -> KVCacheSpec:
    if spec.mamba_cache_mode not in ("none", "align"):
        raise UnsupportedError(f"the Mamba cache mode {spec.mamba_cache_mode!r} is not one that kvblocks knows")
    if spec.mamba_cache_mode == "align" and spec.num_prefill_checkpoint_blocks:
        raise UnsupportedError("the Mamba backend exports checkpoints inside a prefill")
    return MambaSpec(
        block_size=size,
        state_bytes=max(1, spec.page_size_bytes),
        cache_mode=spec.mamba_cache_mode,
        num_speculative_blocks=spec.num_speculative_blocks,
    )


_KINDS: dict[str, tuple[str, Callable[[Any, int], KVCacheSpec]]] = {
    "FullAttentionSpec": (
        "FullAttentionManager",
        lambda spec, size: FullAttentionSpec(block_size=size, **_heads(spec)),
    ),
    "MLAAttentionSpec": ("FullAttentionManager", lambda spec, size: MLASpec(block_size=size, **_latent(spec))),
    "SlidingWindowSpec": (
        "SlidingWindowManager",
        lambda spec, size: SlidingWindowSpec(block_size=size, **_heads(spec), **_window(spec)),
    ),
    "SlidingWindowMLASpec": (
        "SlidingWindowManager",
        lambda spec, size: SlidingWindowMLASpec(block_size=size, **_latent(spec), **_window(spec)),
    ),
    "ChunkedLocalAttentionSpec": (
        "ChunkedLocalAttentionManager",
        lambda spec, size: ChunkedLocalSpec(
            block_size=size, attention_chunk_size=spec.attention_chunk_size, **_heads(spec)
        ),
    ),
    "MambaSpec": ("MambaManager", _mamba),
    "CrossAttentionSpec": (
        "CrossAttentionManager",
        lambda spec, size: CrossAttentionSpec(block_size=size, **_heads(spec)),
    ),
    "EncoderOnlyAttentionSpec": ("", lambda spec, size: EncoderOnlySpec(block_size=size, **_heads(spec))),
}
"""By the class of vLLM's spec: the class that manages it in vLLM, and its counterpart here."""

CONNECTORS = frozenset(
    {
        "DecodeBenchConnector",
        "ExampleConnector",
        "HF3FSKVConnector",
        "LMCacheConnectorV1",
        "LMCacheMPConnector",
        "MoRIIOConnector",
        "MooncakeConnector",
        "NixlConnector",
        "NixlPullConnector",
        "NixlPushConnector",
    }
)
"""KV connectors that read block numbers, or blocks through the attributes that a view has."""

_DIVERGENT = frozenset({"MoRIIOConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"})
"""Connectors that look up the groups of a model with states one by one, which kvblocks does not offer."""


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """What kvblocks' manager is made from."""

    num_blocks: int
    groups: tuple[KVCacheSpec, ...]
    eagle_groups: tuple[int, ...]
    fine_hits: bool
    zeroed_groups: tuple[int, ...]
    retention_interval: int | None
    kinds: tuple[str, ...] = field(default=())
    """Per group, a few words for people: `full 16`."""


def translate(
    config: Any,
    *,
    scheduler_block_size: int,
    hash_block_size: int,
    enable_caching: bool,
    use_eagle: bool,
    dcp_world_size: int = 1,
    pcp_world_size: int = 1,
    metrics_collector: Any = None,
    enable_mamba_shared_prefix_checkpoint: bool = False,
) -> CacheSetup:
    """kvblocks' setup for a `KVCacheConfig` of vLLM. Raises UnsupportedError with the reason."""
    if pcp_world_size != 1:
        raise UnsupportedError("prefill context parallelism")
    if metrics_collector is not None:
        raise UnsupportedError("--kv-cache-metrics samples vLLM's own block objects")
    for name in ("hisparse_host_num_blocks", "hisparse_host_block_stride"):
        if getattr(config, name, None) is not None:
            raise UnsupportedError("HiSparse manages a pool on the host")
    groups = config.kv_cache_groups
    specs = [_spec(group, i, dcp_world_size) for i, group in enumerate(groups)]
    theirs = [group.kv_cache_spec for group in groups]
    for (i, a), (j, b) in combinations(enumerate(theirs), 2):
        if (a == b) != (specs[i] == specs[j]):
            raise UnsupportedError(f"groups {i} and {j} differ in something that kvblocks does not tell apart")
    if enable_caching:
        _check_caching(specs, theirs, scheduler_block_size, hash_block_size, dcp_world_size)
    flagged = tuple(i for i, group in enumerate(groups) if group.is_eagle_group)
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    fine = enable_caching and len(specs) > 1 and _fine_hits(specs, hash_block_size, dcp_world_size)
    if flagged and not use_eagle and states:
        raise UnsupportedError(
            "a draft head's groups are marked but --speculative-config drops no block, beside states"
        )
    if enable_mamba_shared_prefix_checkpoint and fine and (flagged or use_eagle):
        raise UnsupportedError("--enable-mamba-shared-prefix-checkpoint keeps states at junctions inside blocks")
    zeroed: tuple[int, ...] = ()
    if config.needs_kv_cache_zeroing:
        zeroed = tuple(i for i, spec in enumerate(specs) if not isinstance(spec, MambaSpec))
    return CacheSetup(
        num_blocks=config.num_blocks,
        groups=tuple(specs),
        eagle_groups=flagged if flagged or not use_eagle else tuple(range(len(specs))),
        fine_hits=fine,
        zeroed_groups=zeroed,
        retention_interval=config.prefix_cache_retention_interval,
        kinds=tuple(_words(spec) for spec in specs),
    )


def check_connector(vllm_config: Any, has_states: bool) -> None:
    """Raise UnsupportedError when a KV connector is configured that needs vLLM's own classes."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    if transfer is None or transfer.kv_connector is None:
        return
    names = [transfer.kv_connector]
    if names == ["MultiConnector"]:
        names = [part["kv_connector"] for part in transfer.get_from_extra_config("connectors", [])]
    for name in names:
        if name not in CONNECTORS or getattr(transfer, "kv_connector_module_path", None):
            raise UnsupportedError(f"the KV connector {name} is not known to work without vLLM's own block objects")
        if has_states and (name in _DIVERGENT or len(names) > 1):
            raise UnsupportedError(f"the KV connector {name} looks up each group by itself when a model has states")


def _spec(group: Any, group_id: int, dcp_world_size: int) -> KVCacheSpec:
    spec = group.kv_cache_spec
    name = type(spec).__name__
    known = _KINDS.get(name)
    if known is None or not type(spec).__module__.startswith("vllm."):
        raise UnsupportedError(f"group {group_id} is a {name}, which kvblocks does not manage")
    manager, make = known
    if manager and (actual := _manager_class(spec)) != manager:
        raise UnsupportedError(f"group {group_id} ({name}) is managed by {actual}, not by vLLM's {manager}")
    if getattr(group, "host_resident", False) or getattr(group.role, "value", "default") != "default":
        raise UnsupportedError(f"group {group_id} ({name}) has a role of its own in the cache")
    if spec.prefix_replay_tokens:
        raise UnsupportedError(f"group {group_id} ({name}) replays a window after a hit")
    sharded = dcp_world_size if spec.dcp_sharded else 1
    if sharded > 1 and name not in ("FullAttentionSpec", "MLAAttentionSpec"):
        raise UnsupportedError(f"decode context parallelism shards group {group_id}, a {name}")
    ours = make(spec, spec.block_size * sharded)
    # What cannot be found by a prefix only matters while prefixes are looked up; the manager itself refuses the rest.
    if spec.prefix_cacheable != ours.prefix_cacheable and name not in _NEVER_HIT and not isinstance(ours, MambaSpec):
        raise UnsupportedError(f"group {group_id} ({name}) opts out of prefix caching")
    return ours


_NEVER_HIT = ("CrossAttentionSpec", "EncoderOnlyAttentionSpec")


def _manager_class(spec: Any) -> str:
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    return str(KVCacheSpecRegistry.get_manager_class(spec).__name__)


def _check_caching(
    specs: list[KVCacheSpec], theirs: list[Any], scheduler_block_size: int, hash_block_size: int, dcp: int
) -> None:
    for spec, name in zip(specs, (type(spec).__name__ for spec in theirs), strict=True):
        if not spec.prefix_cacheable:
            raise UnsupportedError(f"prefix caching is on, but a {name} cannot be found by a prefix")
    whole = math.lcm(*(spec.block_size for spec in specs)) if specs else scheduler_block_size
    if scheduler_block_size != whole:
        raise UnsupportedError(f"the scheduler aligns to {scheduler_block_size} tokens, the groups to {whole}")
    if len(specs) == 1 and hash_block_size != whole:
        raise UnsupportedError(f"one group of {whole}-token blocks, but hashes of {hash_block_size} tokens")
    if any(spec.block_size % hash_block_size for spec in specs):
        raise UnsupportedError(f"hashes of {hash_block_size} tokens do not divide every group's blocks")


def _fine_hits(specs: list[KVCacheSpec], unit: int, dcp: int) -> bool:
    """Whether hits may end inside a block: with states, and if every group that cannot has blocks of one unit."""
    states = [spec for spec in specs if isinstance(spec, MambaSpec) and spec.cache_mode == "align"]
    if not any(spec.block_size > unit or (dcp > 1 and spec.block_size == unit) for spec in states):
        return False
    return all(spec.group_class.supports_fine_hits or spec.block_size == unit for spec in specs)


def _words(spec: KVCacheSpec) -> str:
    name = type(spec).__name__.removesuffix("Spec").removesuffix("Attention")
    words = "".join(f" {c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
    words = {"m l a": "MLA", "sliding window m l a": "sliding window MLA", "mamba": "Mamba"}.get(words, words)
    return f"{words} {spec.block_size}"
