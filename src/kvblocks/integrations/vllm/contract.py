"""What the plugin relies on in vLLM, compared with the vLLM that is installed.

Nothing here is a guess about behaviour: the versions are those whose manager was compared with kvblocks' by the
conformance tests, and the signatures must be those that kvblocks' manager has itself. Any difference is a doubt, and in
doubt vLLM keeps its own manager.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

VERSIONS = ("0.32",)
"""Versions of vLLM whose manager kvblocks' was compared with."""

_REQUEST = {
    "_all_token_ids",
    "block_hashes",
    "num_computed_tokens",
    "num_in_flight_tokens",
    "num_preemptions",
    "num_prompt_tokens",
    "request_id",
    "shared_prefix_boundary",
    "skip_reading_prefix_cache",
    "status",
}
"""Attributes that vLLM sets on each request and kvblocks reads."""

_STATUSES = {"WAITING", "PREEMPTED", "RUNNING"}
_GROUP_FIELDS = {"host_resident", "is_eagle_group", "kv_cache_spec", "role"}
_CONFIG_FIELDS = {"hash_block_size", "kv_cache_groups", "num_blocks", "prefix_cache_retention_interval"}
_STATS_FIELDS = {"hits", "preempted_hits", "preempted_queries", "preempted_requests", "queries", "requests", "reset"}
_STORED_FIELDS = {
    "block_hashes",
    "block_size",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "lora_id",
    "lora_name",
    "medium",
    "parent_block_hash",
    "session_id",
    "token_ids",
}
_SPEC_FIELDS = {
    "AttentionSpec": {"block_size", "dcp_sharded", "dtype", "head_size", "head_size_v", "num_kv_heads"},
    "ChunkedLocalAttentionSpec": {"attention_chunk_size"},
    "SlidingWindowSpec": {"extra_retained_tokens", "sliding_window"},
    "MambaSpec": {"mamba_cache_mode", "num_prefill_checkpoint_blocks", "num_speculative_blocks"},
}


def doubts() -> list[str]:
    """Everything in which the installed vLLM is not what the plugin was made for; empty when nothing is.

    Imports vLLM. Raises ImportError when vLLM or one of its modules is missing.
    """
    import vllm
    from vllm.distributed import kv_events
    from vllm.v1 import kv_cache_interface as interface
    from vllm.v1 import request
    from vllm.v1.core import kv_cache_manager, kv_cache_utils
    from vllm.v1.core.sched import scheduler
    from vllm.v1.metrics import stats

    from kvblocks.integrations.vllm.blocks import BlockTables
    from kvblocks.integrations.vllm.manager import VLLMKVCacheManager

    found: list[str] = []
    if ".".join(vllm.__version__.split(".")[:2]) not in VERSIONS:
        found.append(f"vLLM {vllm.__version__} is not a version that kvblocks was compared with: {', '.join(VERSIONS)}")
    theirs = _original(scheduler, kv_cache_manager)
    found += _signatures(theirs, VLLMKVCacheManager, "KVCacheManager")
    found += _signatures(kv_cache_manager.KVCacheBlocks, BlockTables, "KVCacheBlocks")
    if "KVCacheManager" not in scheduler.Scheduler.__init__.__code__.co_names and not hasattr(
        scheduler.Scheduler.__init__, "__wrapped__"
    ):
        found.append("Scheduler does not make its manager by the name KVCacheManager any more")
    made = inspect.unwrap(request.Request.__init__).__code__.co_names
    found += _missing("Request", _REQUEST, made)
    found += _missing("RequestStatus", _STATUSES, request.RequestStatus.__members__)
    found += _missing("KVCacheGroupSpec", _GROUP_FIELDS, _fields(interface.KVCacheGroupSpec))
    found += _missing("KVCacheConfig", _CONFIG_FIELDS, _fields(interface.KVCacheConfig))
    found += _missing("PrefixCacheStats", _STATS_FIELDS, _fields(stats.PrefixCacheStats))
    found += _missing("BlockStored", _STORED_FIELDS, kv_events.BlockStored.__struct_fields__)
    found += _missing("BlockRemoved", {"block_hashes", "group_idx", "medium"}, kv_events.BlockRemoved.__struct_fields__)
    for name, fields in _SPEC_FIELDS.items():
        found += _missing(name, fields, _fields(getattr(interface, name)))
    found += _functions(kv_cache_utils)
    return found


def _original(scheduler: ModuleType, kv_cache_manager: ModuleType) -> type:
    """The manager that vLLM's scheduler would use by itself."""
    theirs = getattr(scheduler, "KVCacheManager", None)
    theirs = getattr(theirs, "kvblocks_original", theirs)
    return theirs if isinstance(theirs, type) else kv_cache_manager.KVCacheManager


def _signatures(theirs: type, ours: type, name: str) -> Iterator[str]:
    """Public methods and properties that we lack, or whose parameters differ."""
    for attribute, value in vars(theirs).items():
        if attribute.startswith("_") and not (attribute == "__init__" and theirs.__name__ == "KVCacheManager"):
            continue
        if not (inspect.isfunction(value) or isinstance(value, property)):
            continue
        mine = inspect.getattr_static(ours, attribute, None)
        if mine is None:
            yield f"{name}.{attribute} is new"
        elif inspect.isfunction(value):
            parameters, expected = (_parameters(function) for function in (value, mine))
            if parameters != expected:
                yield f"{name}.{attribute} takes {', '.join(parameters)}; kvblocks expects {', '.join(expected)}"


_OUR_OWN = {"observers", "settings", "vllm_config"}
"""Parameters that only our manager has."""


def _parameters(function: Any) -> list[str]:
    """The parameters as text: name, and `=default` where it has one that is a plain value."""
    return [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items()
        if name not in _OUR_OWN
    ]


def _fields(cls: Any) -> set[str]:
    """Names of a class's fields and properties, inherited ones included."""
    names: set[str] = set()
    for base in cls.__mro__:
        names.update(getattr(base, "__annotations__", ()), vars(base))
    return names


def _missing(name: str, wanted: set[str], there: Any) -> Iterator[str]:
    for attribute in sorted(wanted - set(there)):
        yield f"{name}.{attribute} is gone"


def _functions(utils: ModuleType) -> Iterator[str]:
    for name, parameters in {
        "maybe_convert_block_hash": ["hash_bytes"],
        "generate_block_hash_extra_keys": ["request", "start_token_idx", "end_token_idx", "start_mm_idx"],
        "to_event_extra_keys": ["extra_keys"],
    }.items():
        function = getattr(utils, name, None)
        if function is None or list(inspect.signature(function).parameters) != parameters:
            yield f"{name} is gone or takes other parameters than {', '.join(parameters)}"
