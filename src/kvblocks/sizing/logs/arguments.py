"""From the arguments that a log states to the engine's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import ALIASES, EngineFlags
from kvblocks.sizing.logs.values import read_keywords

OF_CONFIG = {
    "dtype": "dtype",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
    "speculative_config": "speculative_config",
}
"""What the line `Initializing ... with config:` calls the flags."""

UTILIZATION_BEFORE_0_20 = 0.9
"""The default of `gpu_memory_utilization` before vLLM 0.20 (raised to 0.92 by vLLM pull request 38284)."""

_FLAGS = frozenset(f.name for f in fields(EngineFlags))
_PREFIXES = ("torch.", "LoadFormat.")
_ENUM = re.compile(r"<?(?:\w+\.)+(\w+)(?::.*)?>?")


def flags_of(
    arguments: Mapping[str, Any],
    config: Mapping[str, Any],
    lines: Mapping[str, Any],
    release: tuple[int, int] | None,
) -> tuple[EngineFlags, frozenset[str], dict[str, str]]:
    """The flags, the names of those that are stated, and what could not be taken over (name to reason).

    What the user gave (`arguments`) goes before what the engine made of it (`config`), and that before single `lines`.
    """
    stated: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for given in (_named(arguments), _of_config(config), lines):
        for name, value in given.items():
            if name not in _FLAGS or name in stated or value is None:
                continue
            try:
                EngineFlags.from_mapping({name: value})
            except (UsageError, TypeError, ValueError) as error:
                refused.setdefault(name, str(error))
            else:
                stated[name] = value
    assumed: dict[str, Any] = {}
    if "gpu_memory_utilization" not in stated and release is not None and release < (0, 20):
        assumed["gpu_memory_utilization"] = UTILIZATION_BEFORE_0_20
    return EngineFlags.from_mapping({**assumed, **stated}), frozenset(stated), refused


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of `EngineFlags`, with values in its words."""
    named = {ALIASES.get(name, name): _plain(value) for name, value in arguments.items()}
    if isinstance(named.get("speculative_config"), str):
        named["speculative_config"] = _speculation(named["speculative_config"])
    return named


def _of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own summary, by the names of `EngineFlags`."""
    found = {flag: _plain(config[name]) for name, flag in OF_CONFIG.items() if name in config}
    if isinstance(found.get("speculative_config"), str):
        found["speculative_config"] = _speculation(found["speculative_config"])
    return found


def _plain(value: Any) -> Any:
    """`bfloat16` of `torch.bfloat16`, `FLASH_ATTN` of `<Backend.FLASH_ATTN: 1>`; other values as they are."""
    if not isinstance(value, str):
        return value
    for prefix in _PREFIXES:
        value = value.removeprefix(prefix)
    enum = _ENUM.fullmatch(value)
    return enum[1] if enum and value.startswith(("<", "AttentionBackend", "_Backend")) else value


def _speculation(text: str) -> dict[str, Any] | None:
    """The method, the draft model and the number of tokens of a printed `SpeculativeConfig(...)`."""
    inside = text.partition("(")[2]
    found = read_keywords(inside)
    tokens = found.get("num_spec_tokens", found.get("num_speculative_tokens"))
    if tokens is None:
        return None
    kept = {name: found[name] for name in ("method", "model") if found.get(name) is not None}
    return {**kept, "num_speculative_tokens": tokens}
