"""How a checkpoint keeps its weights: bytes per parameter of matrices, of experts, and of what is left as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Bytes per parameter."""

    name: str
    linear_bytes: float
    expert_bytes: float
    plain_bytes: float
    spread: float = 0.0
    """How far the whole may be off, as a share: which layers are left alone differs between checkpoints."""
    not_modelled: tuple[str, ...] = ()


ASKED: Mapping[str, Mapping[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "mxfp4": {"quant_method": "mxfp4"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "modelopt_fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
}
"""What `--quantization` stands for where the config does not say."""


def quantization_of(config: ModelConfig, plain_bytes: float, method: str | None = None) -> Quantization:
    """The checkpoint's format, from `quantization_config`, else from `method`; the model's dtype without either.

    Raises UsageError for a method that is not known.
    """
    given = config.raw.get("quantization_config") or config.get("quantization_config", "compression_config")
    if not isinstance(given, Mapping) and method is not None:
        asked = method.lower().removesuffix("_marlin")
        if asked not in ASKED:
            raise UsageError(f"quantization={method!r} is unknown; choose one of {', '.join(ASKED)}")
        given = ASKED[asked]
    if not isinstance(given, Mapping):
        return Quantization(
            name="not quantised", linear_bytes=plain_bytes, expert_bytes=plain_bytes, plain_bytes=plain_bytes
        )
    form = str(given.get("quant_method") or "").lower().replace("_", "-")
    inner = given.get("quantization") or given
    algorithm = str(inner.get("quant_algo") or "").lower()
    left = ("which layers the checkpoint leaves unquantised",)

    def of(name: str, size: float, *, experts_only: bool = False, spread: float = 0.04) -> Quantization:
        return Quantization(
            name=name,
            linear_bytes=plain_bytes if experts_only else size,
            expert_bytes=size,
            plain_bytes=plain_bytes,
            spread=spread,
            not_modelled=left,
        )

    if form == "mxfp4" or "mxfp4" in str(given.get("format")):
        return of("mxfp4 experts", 0.5 + 1 / 32, experts_only=True)
    if "nvfp4" in algorithm or "nvfp4" in str(given.get("format")):
        return of("nvfp4", 0.5 + 1 / 16, spread=0.08)
    if form in ("fp8", "fbgemm-fp8", "deepseek-v4-fp8") or algorithm.startswith("fp8"):
        block = given.get("weight_block_size")
        scales = 4 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 else 0.0
        if str(config.get("expert_dtype")) == "fp4":
            return Quantization(
                name="fp8, experts fp4",
                linear_bytes=1 + scales,
                expert_bytes=0.5 + 1 / 32,
                plain_bytes=plain_bytes,
                spread=0.04,
                not_modelled=left,
            )
        return of("fp8", 1 + scales)
    if form in ("awq", "gptq", "awq-marlin", "gptq-marlin", "auto-round"):
        bits = int(given.get("bits") or given.get("w_bit") or 4)
        group = int(given.get("group_size") or given.get("q_group_size") or 128)
        return of(f"{form}, {bits} bits", bits / 8 + (0 if group < 0 else (2 + bits / 8) / group))
    if form == "compressed-tensors":
        experts_only = any("attn" in str(name) for name in given.get("ignore") or ())
        return of(*_compressed_tensors(given, plain_bytes), experts_only=experts_only)
    if form == "bitsandbytes":
        four = bool(given.get("load_in_4bit"))
        return of("bitsandbytes", 0.5 + 0.03 if four else 1.0)
    return Quantization(
        name=f"{form or 'unnamed'} quantisation, taken as unquantised",
        linear_bytes=plain_bytes,
        expert_bytes=plain_bytes,
        plain_bytes=plain_bytes,
        spread=0.5,
        not_modelled=(f"quantisation by {form or 'an unnamed method'}",),
    )


def _compressed_tensors(given: Mapping[str, Any], plain_bytes: float) -> tuple[str, float]:
    """The name and the bytes per parameter of the first group of weights."""
    for group in (given.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        bits = weights.get("num_bits")
        if bits:
            size = weights.get("group_size")
            scales = 2 / size if isinstance(size, int) and size > 0 else 0.0
            return f"compressed-tensors, {bits} bits", bits / 8 + scales
    return "compressed-tensors", plain_bytes
