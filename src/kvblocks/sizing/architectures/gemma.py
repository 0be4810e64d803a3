"""Gemma 2, 3, 3n and 4: windows between layers of full attention; 3n and 4 let the last layers read earlier caches."""

from __future__ import annotations

from dataclasses import replace

from kvblocks.sizing.architectures.base import (
    Architecture,
    architecture,
    decoder,
    head_size,
    layer_types,
    num_kv_heads,
    num_layers,
)
from kvblocks.sizing.layers import Attention
from kvblocks.sizing.model_config import ModelConfig


def _types(config: ModelConfig, pattern: int) -> list[str]:
    """`layer_types`, or every n-th layer full."""
    every = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=pattern)
    return layer_types(config) or [
        "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(num_layers(config))
    ]


def _windowed(config: ModelConfig, *, pattern: int, window: int) -> Architecture:
    size = head_size(config, default=256)
    full = Attention(num_kv_heads=num_kv_heads(config), head_size=size)
    local = replace(full, window=config.whole("sliding_window", default=window))
    layers = [(local if name == "sliding_attention" else full,) for name in _types(config, pattern)]
    return replace(decoder(config, layers), head_size=size)


@architecture("gemma2")
def gemma2(config: ModelConfig) -> Architecture:
    """Window and full attention in turn."""
    return _windowed(config, pattern=2, window=4096)


@architecture("gemma3_text")
def gemma3(config: ModelConfig) -> Architecture:
    """Five windows, then full attention."""
    return _windowed(config, pattern=6, window=4096)


@architecture("gemma3n_text")
def gemma3n(config: ModelConfig) -> Architecture:
    """Four windows, then full attention; the last `num_kv_shared_layers` keep nothing of their own."""
    found = _windowed(config, pattern=5, window=512)
    own = num_layers(config) - config.whole("num_kv_shared_layers", default=15)
    layers = [caches if i < own else () for i, caches in enumerate(found.layers)]
    return replace(found, layers=layers, pipelines=False)


@architecture("gemma4_text", "gemma4_unified_text")
def gemma4(config: ModelConfig) -> Architecture:
    """Five windows, then full attention with heads of another size and number."""
    local = Attention(
        num_kv_heads=num_kv_heads(config),
        head_size=head_size(config, default=256),
        window=config.whole("sliding_window", default=512),
    )
    shares_keys = bool(config.get("attention_k_eq_v"))
    full = Attention(
        num_kv_heads=config.whole("num_global_key_value_heads", default=local.num_kv_heads)
        if shares_keys
        else local.num_kv_heads,
        head_size=config.whole("global_head_dim", default=512),
    )
    own = num_layers(config) - config.whole("num_kv_shared_layers", default=0)
    types = _types(config, 6)
    layers = [((local if name == "sliding_attention" else full,) if i < own else ()) for i, name in enumerate(types)]
    last = {name: i for i, name in enumerate(types[:own])}
    reads = {i: last[name] for i, name in enumerate(types) if i >= own and name in last}
    return replace(decoder(config, layers), head_size=max(local.head_size, full.head_size), reads=reads)
