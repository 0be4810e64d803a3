"""The sizes of blocks: what the kernels want, what states need, and what layers of other formats need.

The rules are vLLM 0.32's. Each pipeline stage decides for itself, by its own first attention layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvblocks.errors import UsageError
from kvblocks.kinds import blocks_for
from kvblocks.sizing.architectures.base import Architecture
from kvblocks.sizing.engine import DEFAULT_BLOCK_SIZE, Engine
from kvblocks.sizing.formats import element_bytes, packed_bytes
from kvblocks.sizing.kernels import fixed_block
from kvblocks.sizing.layers import State

LATENT_ALIGNMENT = 128
"""Blocks of latents next to states are a multiple of so many tokens: what the decode kernels take at once."""


def has_states(model: Architecture) -> bool:
    """Whether any layer keeps a state instead of tokens."""
    return model.hybrid or model.attention_free


def with_block_sizes(engine: Engine, model: Architecture) -> Engine:
    """The engine with the sizes that the whole model wants; `for_stage` adds what single layers want."""
    flags = engine.flags
    unit = _kernel_block(engine, model, engine.kv_cache_dtype)
    block_size = flags.block_size or max(model.default_block_size or DEFAULT_BLOCK_SIZE, unit)
    if model.attention_free:
        block_size = flags.block_size or DEFAULT_BLOCK_SIZE
    engine = replace(engine, block_size=block_size)
    mamba_block = flags.mamba_block_size
    if not engine.enable_prefix_caching:
        if mamba_block not in (None, engine.max_model_len):
            raise UsageError(
                f"mamba_block_size={mamba_block} has a meaning with prefix caching only; add enable_prefix_caching, or "
                "leave it out"
            )
        mamba_block = engine.max_model_len
    engine = replace(engine, mamba_block_size=mamba_block or block_size)
    return _with_pages_for_states(engine, model, unit) if model.hybrid else engine


def for_stage(engine: Engine, model: Architecture, layers: Sequence[int]) -> Engine:
    """The settings of the pipeline stage that holds these layers: wider blocks where some keep the model's dtype."""
    if not engine.skip_layers:
        return engine
    attention = (i for i in layers if any(not isinstance(cache, State) for cache in model.layers[i]))
    first = next(attention, None)
    return engine if first is None else _with_pages_for_skipped(engine, model, first)


def _kernel_block(engine: Engine, model: Architecture, cache_format: str) -> int:
    """Tokens of the smallest block that the attention kernels take, on this device and in this format."""
    fixed = fixed_block(engine, model)
    if fixed:
        return fixed
    if model.packs_blocks or model.block_unit != DEFAULT_BLOCK_SIZE:
        return model.block_unit
    if model.latent:
        flash = cache_format.startswith("fp8") and engine.flags.attention_backend != "TRITON_MLA"
        return 64 if flash else DEFAULT_BLOCK_SIZE  # FlashMLA
    if engine.window_kernel_block_is_fixed(model.head_size, cache_format):
        return engine.window_kernel_block(model.head_size, cache_format)
    return DEFAULT_BLOCK_SIZE


def _one_token(engine: Engine, model: Architecture, cache_format: str) -> int:
    """Bytes of a token in one attention layer of one rank."""
    if model.latent:
        return model.head_size * element_bytes(engine.dtype if cache_format == "auto" else cache_format)
    return _both(engine, model, cache_format)


def _with_pages_for_states(engine: Engine, model: Architecture, unit: int) -> Engine:
    """Attention's block grows until its page holds a state; then the state is padded to that page."""
    state = next((cache for caches in model.layers for cache in caches if isinstance(cache, State)), None)
    if state is None:
        return engine
    needed = state.bytes(engine)
    one_token = _one_token(engine, model, engine.kv_cache_dtype)
    step = max(unit, engine.block_size)
    if model.latent:
        step = max(step, LATENT_ALIGNMENT)
    block = step * blocks_for(needed, step * one_token)
    block = max(engine.block_size, unit * blocks_for(block, unit))
    page = block * one_token
    return replace(
        engine,
        block_size=block,
        mamba_block_size=block if engine.mamba_cache_mode == "align" else engine.mamba_block_size,
        state_page_bytes=None if page == needed else page,
    )


def _with_pages_for_skipped(engine: Engine, model: Architecture, first: int) -> Engine:
    """Layers that keep the model's dtype share the pool: the block grows until a small page of theirs fits.

    `first` is the first attention layer; its kernel decides how the others are counted. vLLM counts latents here as
    if keys and values were kept.
    """
    cache_format = engine.cache_format(first)
    unit = _kernel_block(engine, model, cache_format if model.latent else engine.kv_cache_dtype)
    primary = _both(engine, model, engine.kv_cache_dtype, packed=cache_format != "auto")
    skipped = _both(engine, model, "auto")
    if primary == skipped:
        return engine
    step = max(unit, engine.block_size)
    needed = max(skipped * unit, engine.state_page_bytes or 0)
    block = max(engine.block_size, step * blocks_for(needed, step * primary))
    page = block * primary
    return replace(
        engine,
        block_size=block,
        skip_page_bytes=page,
        state_page_bytes=None if engine.state_page_bytes is None else page,
    )


def _both(engine: Engine, model: Architecture, cache_format: str, *, packed: bool = True) -> int:
    """Bytes of the keys and values of a token in one layer of one rank."""
    own = engine.dtype if cache_format == "auto" else cache_format
    heads = 1 if model.latent else max(1, model.num_kv_heads // engine.tp)
    size = packed_bytes(cache_format, model.head_size, model.head_size) if packed else None
    return heads * (size or 2 * model.head_size * element_bytes(own))
