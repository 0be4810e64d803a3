"""Number formats: how many bytes an element takes, and what a head keeps per token in each cache format."""

from __future__ import annotations

from kvblocks.errors import UsageError

ELEMENT_BYTES = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
"""Bytes of an element, by dtype name."""

PACKED_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of one token's latent (512 + 64 numbers) with its scales, in DeepSeek's packed formats (FlashMLA's layout)."""

_TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_SCALE_BYTES = 4  # one float32 scale for the keys of a head and one for its values


def element_bytes(dtype: str) -> int:
    """Bytes of an element; formats that pack their scales beside the numbers count their storage unit, a byte."""
    return ELEMENT_BYTES.get(dtype, 1)


def packed_bytes(cache_format: str, head_size: int, head_size_v: int) -> int | None:
    """Bytes of the keys and values of one head and token in a packed format; None where they lie one after another.

    The rules are vLLM 0.32's: per-token-head formats keep a float32 scale each for keys and values; nvfp4 a byte of
    scale for 16 numbers; TurboQuant a 2-byte norm for keys and 4 bytes of scale and zero for values; UltraQuant a
    byte of scale for 32 numbers.
    """
    both = head_size + head_size_v
    if cache_format in ("int8_per_token_head", "fp8_per_token_head"):
        return both + 2 * _SCALE_BYTES
    if cache_format == "int4_per_token_head":
        return head_size // 2 + head_size_v // 2 + 2 * _SCALE_BYTES
    if cache_format in ("nvfp4", "nvfp4_4over6"):
        if head_size != head_size_v:
            raise UsageError(
                f"kv_cache_dtype={cache_format!r} needs keys and values of one size; these heads have {head_size} and "
                f"{head_size_v}; choose fp8"
            )
        return 2 * (head_size // 2 + head_size // 16)
    if cache_format in _TURBOQUANT_BITS:
        key_bits, value_bits = _TURBOQUANT_BITS[cache_format]
        keys = head_size if key_bits == 8 else -(-head_size * key_bits // 8) + 2
        slot = keys + -(-head_size * value_bits // 8) + 4
        return slot + slot % 2
    if cache_format == "ultraquant_4bit":
        return 2 * (head_size // 2 + head_size // 32)
    return None


def kernel_block(cache_format: str) -> int | None:
    """The largest of the few block sizes that the kernels of a format take; None where any multiple of 16 does."""
    if cache_format in _TURBOQUANT_BITS:
        return 128
    return 64 if cache_format.startswith("nvfp4") else None


def keeps_boundary_layers(cache_format: str) -> bool:
    """Whether vLLM keeps the first and last two layers in the model's own dtype with this format."""
    return cache_format.startswith("turboquant_") or cache_format == "ultraquant_4bit"
