"""Attention kernels: which cache formats, block sizes and layouts each can run, and so what vLLM refuses.

The tables are those of vLLM 0.32 on CUDA, FlashInfer installed. vLLM takes the first kernel in its order that accepts
everything; a flag that none accepts is refused before any memory is looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures.base import Architecture
from kvblocks.sizing.engine import DEFAULT_BLOCK_SIZE, Engine
from kvblocks.sizing.layers import Attention, Cache, CrossAttention, Latent

_NATIVE = frozenset(("auto", "float16", "bfloat16"))
_FP8 = frozenset(("fp8", "fp8_e4m3"))
_TURBOQUANT = frozenset(("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"))
_PER_TOKEN_HEAD = frozenset(("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head"))

_HEADS: Mapping[str, frozenset[str]] = {
    "FLASH_ATTN": _NATIVE | _FP8,
    "FLASHINFER": _NATIVE | _FP8 | {"fp8_e5m2", "nvfp4", "nvfp4_4over6"},
    "TRITON_ATTN": _NATIVE | _FP8 | _PER_TOKEN_HEAD | {"fp8_e5m2", "fp8_inc"},
    "FLEX_ATTENTION": _NATIVE,
    "TURBOQUANT": _TURBOQUANT,
}
"""Kernels for keys and values of heads, and the formats that they read."""
_LATENTS: Mapping[str, frozenset[str]] = {
    "FLASH_ATTN_MLA": _NATIVE,
    "FLASHMLA": _NATIVE | _FP8,
    "FLASHINFER_MLA": _NATIVE | _FP8,
    "CUTLASS_MLA": _NATIVE | _FP8,
    "TRITON_MLA": _NATIVE | _FP8,
}
_SPARSE: Mapping[str, frozenset[str]] = {
    "FLASH_ATTN_MLA_SPARSE": _NATIVE,
    "FLASHMLA_SPARSE": _NATIVE | {"fp8", "fp8_ds_mla"},
    "FLASHINFER_MLA_SPARSE": _NATIVE | {"fp8", "nvfp4_ds_mla"},
}
_FAMILY_FORMATS = frozenset(("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"))
"""Formats under which a family that has a packed format of its own still runs; it uses its own for all of them."""
_NEEDS_CAPABILITY_10 = ("CUTLASS_MLA", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE")
_ONLY_BLOCKS = {"FLASHMLA": 64}
"""Kernels that take blocks of this many tokens and no other."""
_SPARSE_BLOCK = 64


def fixed_block(engine: Engine, model: Architecture) -> int | None:
    """The one block size that the kernel asked for takes; None when it is not asked for or takes others."""
    return _ONLY_BLOCKS.get(engine.flags.attention_backend or "") if model.latent else None


def check_kernels(engine: Engine, model: Architecture) -> None:
    """Refuse what no kernel, or not the one that is asked for, can run.

    Raises UsageError naming the flag, its value and what is possible.
    """
    caches = [cache for layer in model.layers for cache in layer]
    if not any(isinstance(cache, (Attention, CrossAttention, Latent)) for cache in caches) and not model.packs_blocks:
        return
    if model.cache_dtype is not None:
        asked = engine.flags.kv_cache_dtype
        if asked not in _FAMILY_FORMATS:
            raise UsageError(
                f"kv_cache_dtype={asked!r}: this family keeps {model.cache_dtype} whatever is asked for, and vLLM "
                "refuses others; use auto or fp8"
            )
        return
    sparse = any(isinstance(cache, Latent) and cache.sparse for cache in caches)
    kernels = _SPARSE if sparse else _LATENTS if model.latent else _HEADS
    kernels = _of_the_one_asked_for(engine, kernels, sparse=sparse)
    cache_format = engine.kv_cache_dtype
    if not any(cache_format in formats for formats in kernels.values()):
        possible = sorted(frozenset[str]().union(*kernels.values()))
        what = f"attention_backend={next(iter(kernels))}" if len(kernels) == 1 else _family_words(model, sparse)
        raise UsageError(
            f"kv_cache_dtype={cache_format!r} does not go with {what}; choose one of {', '.join(possible)}"
        )
    if engine.dtype == "float32" and (model.latent or cache_format in _TURBOQUANT):
        raise UsageError("dtype='float32': no kernel of this attention and cache format computes in it; use bfloat16")
    if cache_format in _TURBOQUANT:
        _check_turboquant(engine, model)
    _check_block_size(engine, caches, sparse=sparse)


def _of_the_one_asked_for(
    engine: Engine, kernels: Mapping[str, frozenset[str]], *, sparse: bool
) -> Mapping[str, frozenset[str]]:
    asked = engine.flags.attention_backend
    if asked is None:
        return kernels
    if asked not in kernels:
        everyone = (*_HEADS, *_LATENTS, *_SPARSE)
        near = difflib.get_close_matches(asked, kernels, 1, 0)
        known = "is for another kind of attention" if asked in everyone else "is not a kernel for CUDA that is known"
        raise UsageError(f"attention_backend={asked!r} {known}; leave it out, or use {near[0]} ({', '.join(kernels)})")
    if asked in _NEEDS_CAPABILITY_10 and engine.capability[0] != 10:
        raise UsageError(
            f"attention_backend={asked!r} runs on compute capability 10 only, this device has "
            f"{'.'.join(map(str, engine.capability))}; leave it out"
        )
    wanted = _ONLY_BLOCKS.get(asked)
    given = engine.flags.block_size
    if wanted and given and given % wanted:
        raise UsageError(f"block_size={given}: attention_backend={asked} takes blocks of {wanted} tokens; use {wanted}")
    return {asked: kernels[asked]}


def _family_words(model: Architecture, sparse: bool) -> str:
    if sparse:
        return "sparse latent attention (MLA with an indexer)"
    return "latent attention (MLA)" if model.latent else "attention over keys and values of heads on CUDA"


def _check_turboquant(engine: Engine, model: Architecture) -> None:
    asked = engine.kv_cache_dtype
    for number, layer in enumerate(model.layers):
        for cache in layer:
            windowed = isinstance(cache, Attention) and cache.window is not None
            if engine.cache_format(number, windowed=windowed) == "auto":
                continue
            if windowed or isinstance(cache, CrossAttention):
                what = "a window" if windowed else "cross attention"
                fix = "; add sliding_window to kv_cache_dtype_skip_layers, or use fp8" if windowed else "; use fp8"
                raise UsageError(f"kv_cache_dtype={asked!r}: layer {number} is {what}, which TurboQuant cannot do{fix}")


def _check_block_size(engine: Engine, caches: Iterable[Cache], *, sparse: bool) -> None:
    given = engine.flags.block_size
    unit = _SPARSE_BLOCK if sparse else DEFAULT_BLOCK_SIZE
    # Families with keys and values of unequal size name their kernel, and vLLM then looks at no other.
    chosen = any(isinstance(cache, Attention) and cache.head_size_v not in (None, cache.head_size) for cache in caches)
    if given is None or given % unit == 0 or chosen:
        return
    raise UsageError(
        f"block_size={given}: the attention kernels take multiples of {unit}; use {max(unit, given // unit * unit)}"
    )
