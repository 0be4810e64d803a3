"""How many bytes a parameter takes: the model's dtype, or what `quantization_config` makes of linear layers."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights.parts import EXPERTS, Part

DTYPE_BYTES = {"half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4, "float8_e4m3fn": 1}

AWQ = 0.5 + 2 / 128 + 0.5 / 128
"""4-bit weights in groups of 128, each with a 16-bit scale and a 4-bit zero point."""
NVFP4 = 0.5 + 1 / 16
"""4-bit floats, one 8-bit scale for 16."""
MXFP4 = 0.5 + 1 / 32
"""4-bit floats, one 8-bit exponent for 32."""
BNB4 = 0.5 + 4 / 64
"""bitsandbytes NF4: one 32-bit maximum for 64 weights (nested maxima are expanded when the engine loads them)."""
FP8_BLOCK = 1 + 4 / (128 * 128)
"""8-bit floats, one 32-bit scale for a block of 128 x 128."""


@dataclass(frozen=True, slots=True)
class Format:
    """Bytes per parameter of quantised layers, and which layers stay in the model's dtype."""

    name: str
    best: float
    low: float
    high: float
    plain: float
    """Bytes per parameter of everything else."""
    kept: frozenset[str] = frozenset()
    kept_patterns: tuple[re.Pattern[str], ...] = ()
    only_experts: bool = False
    expert: float | None = None
    """Bytes per parameter of routed experts, where they have a format of their own."""
    head: bool = False
    """Whether the head is quantised too."""
    vision: bool = False
    note: str = ""

    def bytes_of(self, part: Part) -> tuple[float, float, float]:
        """Low, best and high bytes per parameter."""
        if not self._quantised(part):
            return self.plain, self.plain, self.plain
        if part.share == EXPERTS and self.expert is not None:
            return self.expert, self.expert, self.expert
        return self.low, self.best, self.high

    def _quantised(self, part: Part) -> bool:
        if self.best == self.plain and self.expert is None:
            return False
        if part.name == "lm_head":
            return self.head
        if not part.linear and part.share != EXPERTS:
            return False
        if self.only_experts and part.share != EXPERTS:
            return False
        if part.what == "vision" and not self.vision:
            return False
        return not self._is_kept(part.name)

    def _is_kept(self, name: str) -> bool:
        """Whether a list of unquantised modules names it: whole, by its end, by the module around it, or by pattern."""
        if not self.kept and not self.kept_patterns:
            return False
        pieces = name.split(".")
        for end in range(len(pieces), 0, -1):
            for start in range(end):
                if ".".join(pieces[start:end]) in self.kept:
                    return True
        full = f"model.{name}"
        return any(pattern.search(full) or pattern.search(name) for pattern in self.kept_patterns)


def quantisation_config(config: ModelConfig) -> Mapping[str, Any]:
    """What the checkpoint says about its quantisation, or nothing. ModelOpt keeps it in a file of its own."""
    given = config.get("quantization_config", "compression_config")
    if isinstance(given, Mapping):
        return given
    if config.path is not None:
        file = config.path / "hf_quant_config.json"
        if file.is_file():
            try:
                data = json.loads(file.read_bytes())
            except (OSError, ValueError):
                return {}
            inner = data.get("quantization") if isinstance(data, dict) else None
            return {"quant_method": "modelopt", **inner} if isinstance(inner, dict) else {}
    return {}


def plain_bytes(config: ModelConfig, flags: EngineFlags) -> int:
    """Bytes of an unquantised parameter. `auto` takes the config's dtype; vLLM loads 32-bit models in 16 bits."""
    if flags.dtype != "auto":
        return DTYPE_BYTES[flags.dtype]
    given = str(config.get("dtype", "torch_dtype", default="bfloat16")).removeprefix("torch.")
    found = DTYPE_BYTES.get(given, 2)
    return 2 if found == 4 or found == 1 else found


def weight_format(config: ModelConfig, flags: EngineFlags) -> Format:
    """The format of the weights as the engine holds them."""
    plain = plain_bytes(config, flags)
    given = quantisation_config(config)
    method = str(given.get("quant_method") or flags.quantization or "").lower().replace("_", "-")
    if not method:
        return Format("unquantised", plain, plain, plain, plain)
    kept, patterns = _kept(given)
    common: dict[str, Any] = {"plain": float(plain), "kept": kept, "kept_patterns": patterns}
    if method.startswith("modelopt") or given.get("quant_algo"):
        return _modelopt(given, method, common)
    if method == "mxfp4":
        return _mxfp4(config, common)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed(given, common)
    if method in ("awq", "awq-marlin", "gptq", "gptq-marlin", "auto-round", "autoround", "inc", "moe-wna16"):
        return _grouped(given, method, common)
    if method in ("bitsandbytes", "bnb"):
        if given.get("load_in_8bit"):
            return Format("bitsandbytes 8-bit", 1.0, 1.0, 1.01, **common)
        return Format("bitsandbytes 4-bit", BNB4, 0.5 + 1 / 64, BNB4, **common)
    if "fp8" in method or method in ("fbgemm-fp8", "ptpc-fp8"):
        expert = MXFP4 if str(config.get("expert_dtype", default="")) == "fp4" else None
        return Format("FP8", FP8_BLOCK, 1.0, FP8_BLOCK + 0.002, expert=expert, **common)
    bits = given.get("bits", given.get("w_bit", given.get("weight_bits")))
    if isinstance(bits, (int, float)):
        best = bits / 8 + 2 / 128
        return Format(
            f"{method} {bits}-bit", best, bits / 8, best * 1.1, note=f"{method} is read as groups of 128", **common
        )
    return Format(method, 1.0, 0.5, float(plain), note=f"the bytes per weight of {method!r} are not known", **common)


def _mxfp4(config: ModelConfig, common: dict[str, Any]) -> Format:
    """Experts in MXFP4, padded as their kernels need it: the hidden size to 256, with Marlin the inner one to 128 too.

    gpt-oss-120b on an H100 logs 64.38 GiB with the Triton kernels and 65.97 with Marlin, as this computes.
    """
    width, inner = config.whole("hidden_size"), config.whole("intermediate_size")
    wide, deep = -(-width // 256) * 256 / width, -(-inner // 128) * 128 / inner
    return Format("MXFP4 experts", MXFP4 * wide, MXFP4, MXFP4 * wide * deep, only_experts=True, note=PADDED, **common)


PADDED = "some kernels pad the experts' sizes to multiples of 128 or 256"


def _kept(given: Mapping[str, Any]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Names and patterns of modules that stay unquantised, from all the fields in which checkpoints list them."""
    names: set[str] = set()
    patterns: list[re.Pattern[str]] = []
    for field in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"):
        for name in given.get(field) or ():
            text = str(name)
            if text.startswith("re:"):
                try:
                    patterns.append(re.compile(text[3:]))
                except re.error:
                    continue
            elif "*" in text:
                patterns.append(re.compile(fnmatch.translate(_short(text))))
            else:
                names.add(_short(text))
    return frozenset(names), tuple(patterns)


def _short(name: str) -> str:
    """A module's name without the model's prefix and by the names used here."""
    for prefix in ("model.language_model.", "language_model.model.", "language_model.", "model.", "backbone."):
        name = name.removeprefix(prefix)
    name = name.removesuffix(".weight")
    for old, new in (("block_sparse_moe", "mlp"), ("feed_forward", "mlp"), ("mlp.router", "mlp.gate")):
        name = name.replace(old, new)
    return name


def _modelopt(given: Mapping[str, Any], method: str, common: dict[str, Any]) -> Format:
    algorithm = str(given.get("quant_algo") or ("NVFP4" if "fp4" in method else "FP8")).upper()
    if "MIXED" in algorithm:
        note = "layers of a mixed-precision checkpoint are taken as NVFP4; those in FP8 take twice as much"
        return Format("ModelOpt mixed", NVFP4, NVFP4, 1.0, note=note, **common)
    if "NVFP4" in algorithm:
        return Format("NVFP4", NVFP4, NVFP4, NVFP4 * 1.02, note=PADDED, **common)
    if "MXFP8" in algorithm:
        return Format("MXFP8", 1 + 1 / 32, 1 + 1 / 32, 1 + 1 / 32, **common)
    if "W4A16" in algorithm or "INT4" in algorithm:
        return Format("INT4", AWQ, 0.5, AWQ, **common)
    return Format("FP8", 1.0, 1.0, FP8_BLOCK, **common)


def _grouped(given: Mapping[str, Any], method: str, common: dict[str, Any]) -> Format:
    """AWQ, GPTQ and their like: packed integers, one scale and one zero point per group."""
    bits = int(given.get("bits") or given.get("w_bit") or 4)
    group = int(given.get("group_size") or given.get("q_group_size") or 128)
    group = group if group > 0 else 4096
    best = bits / 8 + 2 / group + bits / 8 / group
    note = (
        "" if given else f"quantization={method!r} without a quantization_config: 4 bits in groups of 128 are assumed"
    )
    if given.get("dynamic"):
        note = "the per-module rules of `dynamic` are not applied"
    return Format(
        f"{method} {bits}-bit, groups of {group}",
        best,
        bits / 8,
        best * 1.02,
        head=bool(given.get("lm_head")),
        note=note,
        **common,
    )


def _compressed(given: Mapping[str, Any], common: dict[str, Any]) -> Format:
    """compressed-tensors: each group of targets has its own weights; the widest group of Linear is taken."""
    groups = given.get("config_groups")
    sizes: list[float] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        bits = int(weights.get("num_bits") or 8)
        size = int(weights.get("group_size") or 0)
        if str(weights.get("type")) == "float" and bits == 4:
            sizes.append(MXFP4 if size == 32 else NVFP4)
        elif size > 0 and str(weights.get("strategy")) in ("group", "tensor_group"):
            sizes.append(bits / 8 + 2 / size)
        elif isinstance(weights.get("block_structure"), Sequence):
            sizes.append(bits / 8 + 4 / (128 * 128))
        else:
            sizes.append(bits / 8 + 0.001)
    if not sizes:
        return Format("compressed-tensors", 1.0, 0.5, common["plain"], note="no config_groups are given", **common)
    note = (
        ""
        if max(sizes) == min(sizes)
        else "groups of targets with different formats are taken as the widest or narrowest"
    )
    best = sizes[0] if len(set(sizes)) == 1 else sum(sizes) / len(sizes)
    return Format("compressed-tensors", best, min(sizes), max(sizes) * 1.005, note=note, **common)
