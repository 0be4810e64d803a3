"""Which mixer and which feed-forward each layer has, from all the fields in which families say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvblocks.sizing.model_config import ModelConfig

ATTENTION, WINDOW, MLA = "attention", "window", "mla"
MAMBA1, MAMBA2, GDN, KDA, CONV, LIGHTNING = "mamba1", "mamba2", "gdn", "kda", "conv", "lightning"
PARALLEL = "attention + mamba2"
DENSE, MOE, BOTH, NONE = "dense", "moe", "both", "none"

_MIXERS = {
    "full_attention": ATTENTION,
    "attention": ATTENTION,
    "global": ATTENTION,
    "deepseek_sparse_attention": ATTENTION,
    "sparse": ATTENTION,
    "minimax_m3_sparse": ATTENTION,
    "sliding_attention": WINDOW,
    "local": WINDOW,
    "swa": WINDOW,
    "chunked_attention": ATTENTION,
    "linear_attention": "linear",
    "gated_delta_net": GDN,
    "kda": KDA,
    "mamba": "mamba",
    "mamba2": MAMBA2,
    "recurrent": "mamba",
    "conv": CONV,
    "hybrid": ATTENTION,
}
"""Names of `layer_types` and of its like."""

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""`hybrid_override_pattern` of Nemotron-H: one letter a layer, each layer a mixer or a feed-forward."""
_BLOCK_MIXERS = {
    "mamba": MAMBA2,
    "linear_attention": MAMBA2,
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "mlp": NONE,
    "moe": NONE,
}
_BLOCK_FEEDS = {"mlp": DENSE, "moe": MOE}

PURE = {"mamba": MAMBA1, "falcon_mamba": MAMBA1, "mamba2": MAMBA2}
"""Families without attention and without feed-forward."""


def num_layers(config: ModelConfig) -> int:
    """Layers of the decoder. Raises UsageError naming the field when the config does not say."""
    blocks = _one_per_block(config)
    if blocks is not None:
        return len(blocks)
    return config.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")


def _one_per_block(config: ModelConfig) -> list[str] | None:
    """The kinds of Nemotron-H's layers, each of which is a mixer or a feed-forward; None for other families."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_PATTERN.get(letter, letter) for letter in pattern if letter != "|"]
    if config.text_type == "nemotron_h":
        return [str(name) for name in config.get("layers_block_type", "layer_types", default=())]
    return None


def num_experts(config: ModelConfig) -> int:
    """Routed experts of one layer; 0 without."""
    given = config.get(
        "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_moe_experts", default=0
    )
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = max((number for number in given if isinstance(number, int)), default=0)
    return int(given) if isinstance(given, (int, float)) else 0


def mixers(config: ModelConfig) -> tuple[list[str], list[str]]:
    """The mixer of each layer, and the names of layer types that were not understood (taken for attention)."""
    count, kind = num_layers(config), config.text_type
    unknown: list[str] = []
    if kind in PURE:
        return [PURE[kind]] * count, unknown
    blocks = _one_per_block(config)
    if blocks is not None:
        unknown = sorted(set(blocks) - set(_BLOCK_MIXERS))
        return [_BLOCK_MIXERS.get(name, ATTENTION) for name in blocks], unknown
    if kind == "falcon_h1":
        return [PARALLEL] * count, unknown
    given = config.get("layer_types", "layers_block_type")
    found: list[str]
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) >= count:
        unknown = sorted({str(name) for name in given if name not in _MIXERS})
        found = [_MIXERS.get(str(name), ATTENTION) for name in given[:count]]
        mamba = MAMBA1 if config.get("mamba_dt_rank", "time_step_rank") and kind != "bamba" else MAMBA2
        linear = _linear_kind(config, mamba)
        found = [{"mamba": mamba, "linear": linear}.get(name, name) for name in found]
    else:
        found = _from_other_fields(config, count, kind)
    if is_mla(config):
        found = [MLA if name in (ATTENTION, WINDOW) else name for name in found]
    return found, unknown


def _linear_kind(config: ModelConfig, mamba: str) -> str:
    """What a family means by `linear_attention`, told from the sizes that its config gives."""
    if config.get("linear_attn_config") is not None:
        return KDA
    if config.get("linear_num_value_heads") is not None:
        return GDN
    return LIGHTNING if config.text_type.startswith("minimax") else mamba


def is_mla(config: ModelConfig) -> bool:
    """Whether attention keeps one latent vector per token."""
    return config.get("kv_lora_rank") is not None and config.get("use_mla", default=True) is not False


def _from_other_fields(config: ModelConfig, count: int, kind: str) -> list[str]:
    linear = config.get("linear_attn_config")
    if isinstance(linear, dict) and linear.get("kda_layers"):
        kda = {int(number) - 1 for number in linear["kda_layers"]}
        return [KDA if layer in kda else ATTENTION for layer in range(count)]
    if config.get("full_attention_interval") and config.get("linear_num_value_heads"):
        step = config.whole("full_attention_interval")
        return [ATTENTION if layer % step == step - 1 else GDN for layer in range(count)]
    if config.get("attn_layer_period") and (config.get("mamba_d_state") or kind == "jamba"):
        step, offset = config.whole("attn_layer_period"), config.whole("attn_layer_offset", default=0)
        return [ATTENTION if layer % step == offset else MAMBA1 for layer in range(count)]
    if kind == "bamba":
        full = set(config.get("attn_layer_indices", default=()))
        return [ATTENTION if layer in full else MAMBA2 for layer in range(count)]
    if kind in ("lfm2", "lfm2_moe"):
        full = set(config.get("full_attn_idxs", default=()))
        return [ATTENTION if layer in full else CONV for layer in range(count)]
    if config.get("attn_type_list"):
        return [ATTENTION if flag else LIGHTNING for flag in config.get("attn_type_list")][:count]
    if config.get("hybrid_layer_pattern"):
        return [WINDOW if flag else ATTENTION for flag in config.get("hybrid_layer_pattern")][:count]
    return [ATTENTION] * count


def feed_forwards(config: ModelConfig) -> list[str]:
    """The feed-forward of each layer."""
    count, kind = num_layers(config), config.text_type
    if kind in PURE:
        return [NONE] * count
    blocks = _one_per_block(config)
    if blocks is not None:
        return [_BLOCK_FEEDS.get(name, NONE) for name in blocks]
    if not num_experts(config):
        return [DENSE] * count
    if config.get("enable_moe_block"):
        return [BOTH] * count
    named = config.get("mlp_layer_types")
    if isinstance(named, Sequence) and not isinstance(named, str) and len(named) >= count:
        return [MOE if name in ("sparse", "moe") else DENSE for name in named[:count]]
    return [MOE if _is_moe(config, layer) else DENSE for layer in range(count)]


def _is_moe(config: ModelConfig, layer: int) -> bool:
    """The rules by which families say which layers have experts, all of which must agree."""
    frequency: Any = config.get("moe_layer_freq")
    if isinstance(frequency, Sequence) and not isinstance(frequency, str):
        return layer < len(frequency) and bool(frequency[layer])
    enumerated = config.get("moe_layers_enum")
    if isinstance(enumerated, str):
        return str(layer) in enumerated.split(",")
    moe_layers = config.get("moe_layers")
    if isinstance(moe_layers, Sequence) and moe_layers:
        return layer in moe_layers
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    start = config.get(
        "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "n_dense_layers", default=0
    )
    if layer < int(start):
        return False
    if config.get("expert_layer_period"):
        return layer % config.whole("expert_layer_period") == config.whole("expert_layer_offset", default=0)
    step = config.get("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
    if step is None:
        step = frequency or 1
        return layer % max(1, int(step)) == 0
    return int(step) > 0 and (layer + 1) % int(step) == 0
