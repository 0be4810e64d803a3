"""From what was asked for to what vLLM runs: defaults that depend on the model and the device, and what follows.

Every rule is that of vLLM 0.32 on CUDA. `resolve` refuses what vLLM refuses before it looks at memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures.base import Architecture
from kvblocks.sizing.block_sizes import has_states, with_block_sizes
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.formats import keeps_boundary_layers
from kvblocks.sizing.kernels import check_kernels
from kvblocks.sizing.limits import derived_max_model_len, longest_model_len
from kvblocks.sizing.model_config import ModelConfig

ASYNC_METHODS = ("eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dspark", "dflash")
"""Ways to speculate that asynchronous scheduling supports."""
NO_FLOAT16 = ("gemma2", "gemma3", "gemma3_text", "glm4")
"""Families that vLLM does not run in float16."""
PP_PARTITION = "VLLM_PP_LAYER_PARTITION"
LAYOUT = "VLLM_KV_CACHE_LAYOUT"
CHUNKED_HYBRID = "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"
ENVIRONMENT = (PP_PARTITION, LAYOUT, CHUNKED_HYBRID, "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_CPU_KVCACHE_SPACE")
"""vLLM's environment variables that are looked at."""
LAYOUTS = ("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC")
_OLD_LAYOUT_NAMES = {"NHD": "LBNHC", "HND": "LBHNC"}


def resolve(
    config: ModelConfig,
    model: Architecture,
    flags: EngineFlags,
    env: Mapping[str, str],
    *,
    device_bytes: int = 80 * GIB,
    device_name: str = "",
    capability: tuple[int, int] = (9, 0),
) -> Engine:
    """The settings that the engine would run with.

    device_bytes: the device's memory; small devices get smaller batches by default.

    Raises UsageError naming the flag, its value and the fix.
    """
    dtype = _dtype(config, flags, capability)
    _check_parallel(model, flags, env)
    longest = derived_max_model_len(config)
    max_model_len = longest_model_len(config, flags, env, longest)
    batched, seqs = _batch(flags, device_bytes, device_name, max_model_len)
    caching = flags.enable_prefix_caching
    if caching is None:
        caching = not (model.encoder_decoder or model.attention_free)
    cache_dtype = _cache_dtype(config, model, flags)
    skip = frozenset(flags.kv_cache_dtype_skip_layers)
    if keeps_boundary_layers(cache_dtype) and not model.hybrid:
        n = min(2, len(model.layers) // 2)
        skip |= {str(i) for i in (*range(n), *range(len(model.layers) - n, len(model.layers)))}
    engine = Engine(
        flags=flags,
        env=env,
        capability=capability,
        dtype=dtype,
        kv_cache_dtype=cache_dtype,
        skip_layers=skip,
        max_model_len=max_model_len,
        derived_max_model_len=longest,
        max_num_batched_tokens=batched,
        max_num_seqs=seqs,
        async_scheduling=_async(flags),
        enable_prefix_caching=caching,
        hybrid_manager=_hybrid_manager(model, flags, env),
        mamba_cache_mode=("align" if caching else "none") if has_states(model) else "none",
        layout=_layout(model, cache_dtype, env),
    )
    engine = with_block_sizes(engine, model)
    check_kernels(engine, model)
    return engine


# -- Formats ----------------------------------------------------------------------------------------------------------


def _dtype(config: ModelConfig, flags: EngineFlags, capability: tuple[int, int]) -> str:
    names = {"half": "float16", "float": "float32"}
    preferred = "bfloat16" if capability >= (8, 0) else "float16"
    if flags.dtype != "auto":
        dtype = names.get(flags.dtype, flags.dtype)
        if dtype == "float16" and config.text_type in NO_FLOAT16:
            raise UsageError(f"dtype='float16': {config.text_type} is unstable in it; use bfloat16 or float32")
        return dtype
    vision = config.raw.get("vision_config") or {}
    given = config.raw.get("torch_dtype") or config.raw.get("dtype") or config.get("torch_dtype", "dtype")
    given = given or vision.get("torch_dtype") or vision.get("dtype") or "float32"
    dtype = names.get(str(given).removeprefix("torch."), str(given).removeprefix("torch."))
    if dtype not in ("float16", "bfloat16", "float32"):
        raise UsageError(f"{config.name}: torch_dtype={given!r} is unknown; give --dtype bfloat16, float16 or float32")
    if dtype == "float32" or (dtype == "bfloat16" and capability < (8, 0)):
        return preferred
    return "bfloat16" if dtype == "float16" and config.text_type in NO_FLOAT16 else dtype


def _cache_dtype(config: ModelConfig, model: Architecture, flags: EngineFlags) -> str:
    """The cache's format; what a quantised checkpoint asks for where the flag does not say."""
    if model.cache_dtype is not None:
        return model.cache_dtype
    if flags.kv_cache_dtype != "auto":
        return (
            "auto" if flags.kv_cache_dtype == "bfloat16" and model.requires_sparse_fp8_for_dcp else flags.kv_cache_dtype
        )
    quantization = config.raw.get("quantization_config") or config.get("quantization_config") or {}
    inner = quantization.get("quantization") or quantization
    scheme = inner.get("kv_cache_scheme") or quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return "nvfp4" if scheme.get("num_bits") == 4 else "fp8"
    algorithm = str(inner.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo") or "").lower()
    return {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}.get(algorithm, "auto")


# -- Parallelism ------------------------------------------------------------------------------------------------------


def _check_parallel(model: Architecture, flags: EngineFlags, env: Mapping[str, str]) -> None:
    tp, pp, dcp = flags.tensor_parallel_size, flags.pipeline_parallel_size, flags.decode_context_parallel_size
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    if heads and heads % tp:
        fits = max(n for n in range(1, tp + 1) if heads % n == 0)
        raise UsageError(
            f"tensor_parallel_size={tp} does not divide the {heads} attention heads; use {fits}, or split the layers "
            f"with pipeline_parallel_size"
        )
    if tp > kv_heads and kv_heads and not model.replicates_kv_heads:
        raise UsageError(
            f"tensor_parallel_size={tp} exceeds the {kv_heads} KV heads, which vLLM cannot copy for this family; use "
            f"{kv_heads}"
        )
    if pp > 1 and not model.pipelines:
        raise UsageError(f"pipeline_parallel_size={pp}: vLLM cannot cut this model into stages; use 1")
    if pp > len(model.layers):
        raise UsageError(f"pipeline_parallel_size={pp} exceeds the {len(model.layers)} layers")
    if dcp > 1:
        _check_dcp(model, flags)


def _check_dcp(model: Architecture, flags: EngineFlags) -> None:
    tp, dcp = flags.tensor_parallel_size, flags.decode_context_parallel_size
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads
    if tp % dcp:
        raise UsageError(f"decode_context_parallel_size={dcp} must divide tensor_parallel_size={tp}")
    if model.latent:
        if model.requires_sparse_fp8_for_dcp and not flags.kv_cache_dtype.startswith("fp8"):
            raise UsageError(
                f"decode_context_parallel_size={dcp}: sparse latent attention supports it with an fp8 cache only; "
                "add kv_cache_dtype=fp8"
            )
        return
    if not kv_heads:
        raise UsageError(f"decode_context_parallel_size={dcp}: this model has no attention to share; use 1")
    if tp <= kv_heads:
        raise UsageError(
            f"decode_context_parallel_size={dcp} needs tensor_parallel_size ({tp}) above the {kv_heads} KV heads: it "
            "shares the tokens among ranks that hold the same head; use 1"
        )
    if dcp > tp // kv_heads:
        raise UsageError(
            f"decode_context_parallel_size={dcp} exceeds the {tp // kv_heads} ranks that hold the same KV head; use "
            f"{tp // kv_heads}"
        )
    if heads // kv_heads % dcp:
        raise UsageError(
            f"decode_context_parallel_size={dcp} does not divide the {heads // kv_heads} query heads per KV head"
        )


def stage_sizes(num_layers: int, pp: int, env: Mapping[str, str]) -> list[int]:
    """Layers of each pipeline stage: as `VLLM_PP_LAYER_PARTITION` says, else even; a rest goes to the middle stages."""
    given = env.get(PP_PARTITION)
    if given:
        try:
            sizes = [int(part) for part in given.split(",")]
        except ValueError:
            raise UsageError(f"{PP_PARTITION}={given!r} must be whole numbers separated by commas") from None
        if len(sizes) != pp or sum(sizes) != num_layers:
            raise UsageError(
                f"{PP_PARTITION}={given!r} must have pipeline_parallel_size={pp} numbers that sum up to {num_layers}"
            )
        return sizes
    sizes = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        sizes[-i] += 1
    return sizes


# -- Scheduling -------------------------------------------------------------------------------------------------------


def _batch(flags: EngineFlags, device_bytes: int, device_name: str, max_model_len: int) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs, as `vllm serve` chooses them for the device."""
    if device_bytes >= 160 * GIB:
        tokens, seqs = 16384, 1024
    elif device_bytes >= 70 * GIB and "a100" not in device_name.lower():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    if flags.max_num_seqs is not None:
        seqs = flags.max_num_seqs
    if flags.max_num_batched_tokens is not None:
        tokens = flags.max_num_batched_tokens
        if tokens < seqs and flags.max_num_seqs is not None:
            raise UsageError(
                f"max_num_batched_tokens={tokens} must be at least max_num_seqs={seqs}: each request needs a token"
            )
    else:
        tokens = min(seqs * max_model_len, tokens)
    return tokens, min(seqs, tokens) if flags.max_num_seqs is None else seqs


def _async(flags: EngineFlags) -> bool:
    method = flags.draft.get("method")
    supported = not flags.draft or method in ASYNC_METHODS or (method is None and "model" in flags.draft)
    if flags.async_scheduling and not supported:
        raise UsageError(f"async_scheduling=true does not go with speculation by {method!r}; leave it out")
    return supported if flags.async_scheduling is None else flags.async_scheduling


def _hybrid_manager(model: Architecture, flags: EngineFlags, env: Mapping[str, str]) -> bool:
    if flags.disable_hybrid_kv_cache_manager:
        if model.packs_blocks:
            raise UsageError(
                "disable_hybrid_kv_cache_manager: vLLM 0.32 cannot treat this family's windows as full attention; "
                "leave the hybrid manager on"
            )
        return False
    if model.chunked:
        drafts = flags.draft.get("method") in ("eagle", "eagle3", "mtp")
        return not drafts and env.get(CHUNKED_HYBRID, "1") != "0"
    return True


def _layout(model: Architecture, cache_format: str, env: Mapping[str, str]) -> str:
    given = env.get(LAYOUT)
    if not given:
        return "BLHNC" if model.packs_blocks else "LBNHC"
    if given not in LAYOUTS and given not in _OLD_LAYOUT_NAMES:
        raise UsageError(f"{LAYOUT}={given!r} is unknown; choose one of {', '.join((*LAYOUTS, *_OLD_LAYOUT_NAMES))}")
    layout = _OLD_LAYOUT_NAMES.get(given, given)
    if model.packs_blocks and not layout.startswith("B"):
        raise UsageError(f"{LAYOUT}={given!r}: this model needs one that begins with the block; use BLHNC or BLNHC")
    if cache_format.startswith("turboquant_") and layout != "LBNHC":
        raise UsageError(f"{LAYOUT}={given!r}: kv_cache_dtype={cache_format} works in LBNHC only")
    mixed = model.hybrid or len({type(cache) for caches in model.layers for cache in caches}) > 1
    if mixed and layout == "LHBNC":
        raise UsageError(f"{LAYOUT}={given!r}: layers of several kinds need layer and block outermost; use LBHNC")
    return layout
