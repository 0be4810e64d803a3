"""What a model family says of a model, and the registry of families."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvblocks.errors import UsageError
from kvblocks.sizing.layers import Attention, Cache
from kvblocks.sizing.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model as far as its cache goes. Per layer the caches that it keeps, in the order in which vLLM makes them."""

    layers: Sequence[Sequence[Cache]]
    """One entry per decoder layer; empty for a layer that keeps nothing or reads another layer's cache."""
    num_attention_heads: int
    """Query heads, in all; tensor parallelism divides them."""
    num_kv_heads: int
    head_size: int
    """Those of the model as a whole, by which attention pages are made as large as states."""
    latent: bool = False
    """Multi-head latent attention."""
    hybrid: bool = False
    """Attention next to states, which share pages."""
    attention_free: bool = False
    encoder_decoder: bool = False
    pipelines: bool = True
    """Whether vLLM can cut the model into pipeline stages."""
    chunked: bool = False
    """Chunked local attention, for which vLLM turns the hybrid manager off unless asked not to."""
    default_block_size: int | None = None
    """The block that the attention kernels of this family want; None for the engine's default."""
    block_unit: int = 16
    """Tokens of the smallest block that the kernels take."""
    packs_blocks: bool = False
    """Whether pages of several sizes lie side by side in a block (layout BLHNC)."""
    cache_dtype: str | None = None
    """A cache format that the family uses whatever is asked for."""
    vocab_size: int = 0
    """Tokens of the vocabulary, which a draft model must share; 0 where the config does not say."""
    reads: Mapping[int, int] = field(default_factory=dict)
    """Layers that read another layer's cache, and whose; both must be on one pipeline stage."""
    attention_first: bool = False
    """Whether the attention layers are made before the states, since several layers share them."""
    mtp: Sequence[Cache] = ()
    """Caches of the layers for multi-token prediction."""
    mtp_depth: int = 0
    """How many of them run one after another; 0 for a family without."""
    requires_sparse_fp8_for_dcp: bool = False
    replicates_kv_heads: bool = True
    """Whether ranks in excess of the KV heads hold copies; vLLM's code of some families does not foresee that."""


MOST_LAYERS = 10_000
"""No model has more decoder layers."""

Family = Callable[[ModelConfig], Architecture]

_FAMILIES: dict[str, Family] = {}
_WRAPPERS: set[str] = set()


def architecture(*model_types: str) -> Callable[[Family], Family]:
    """Register a family under the `model_type` of its configs."""

    def register(family: Family) -> Family:
        for name in model_types:
            assert name not in _FAMILIES, name
            _FAMILIES[name] = family
        return family

    return register


def wrapper(*model_types: str) -> None:
    """Register models around a language model that alone keeps a cache: with images, sound, or for embedding."""
    _WRAPPERS.update(model_types)


def known_types() -> list[str]:
    """Every `model_type` that is known."""
    return sorted({*_FAMILIES, *_WRAPPERS})


def family_of(config: ModelConfig) -> Family:
    """The family of a model. Raises UsageError naming the type, its fields and the nearest known ones."""
    outer, text = config.model_type, config.text_type
    if outer in _FAMILIES and (config.text is config.raw or text not in _FAMILIES):
        return _FAMILIES[outer]
    if outer in _WRAPPERS and config.text is config.raw:
        return _FAMILIES["llama"]  # older files have the language model's fields at the top
    if text in _FAMILIES and (outer in _WRAPPERS or outer in _FAMILIES or outer == text):
        return _FAMILIES[text]
    if not outer:
        raise UsageError(
            f"{config.name}: the config has no model_type, so its layers are unknown; add the model_type of its "
            "family, or use --assume full-attention if every layer is full attention"
        )
    unknown = outer if outer not in _WRAPPERS else text
    near = difflib.get_close_matches(unknown, known_types(), 3)
    inside = f" (its language part, {text!r}, is known)" if text in _FAMILIES and unknown != text else ""
    raise UsageError(
        f"{config.name}: model_type {unknown!r} is unknown{inside}, so what its layers keep is not: "
        f"{_open_questions(config)}. "
        + (f"The nearest known: {', '.join(near)}. " if near else "")
        + "Use --assume full-attention if every layer keeps ordinary keys and values of all tokens"
    )


_TELLING = (
    "layer_types sliding_window sliding_window_pattern attention_chunk_size kv_lora_rank linear_attn_config "
    "mamba_d_state ssm_state_size state_size conv_kernel linear_num_value_heads index_topk compress_ratios "
    "num_kv_shared_layers hybrid_override_pattern block_types cross_attention_layers full_attention_interval"
).split()


def _open_questions(config: ModelConfig) -> str:
    """The fields that would change the cache and cannot be placed."""
    found = [name for name in _TELLING if config.get(name) is not None]
    if found:
        return f"its fields {', '.join(f'{name}={_short(config.get(name))}' for name in found)} cannot be placed"
    return "none of its fields tells of anything but full attention, but nobody has checked"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


# -- What most families share -----------------------------------------------------------------------------------------


def num_layers(config: ModelConfig) -> int:
    """Decoder layers."""
    layers = config.whole("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if not 1 <= layers <= MOST_LAYERS:
        raise UsageError(f"{config.name}: num_hidden_layers={layers} must be 1 to {MOST_LAYERS:,}; correct the config")
    return layers


def num_heads(config: ModelConfig) -> int:
    """Query heads."""
    return config.whole("num_attention_heads", "n_head", "num_heads", "n_heads")


def num_kv_heads(config: ModelConfig) -> int:
    """Heads of keys and values; as many as query heads where the config names none."""
    return config.whole(
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
        default=num_heads(config),
    )


def head_size(config: ModelConfig, default: int | None = None) -> int:
    """Numbers per head: given, else the hidden size divided by the query heads."""
    given = config.get("head_dim", "attention_head_dim", "hidden_size_per_head", default=default)
    if given:
        return config.whole("head_dim", "attention_head_dim", "hidden_size_per_head", default=default)
    hidden, heads = config.whole("hidden_size", "n_embd", "d_model"), num_heads(config)
    if not heads:
        raise UsageError(f"{config.name}: num_attention_heads=0; give head_dim")
    return hidden // heads


def layer_types(config: ModelConfig) -> list[str] | None:
    """The type of each layer, where the config lists them; checked against the number of layers."""
    given = config.get("layer_types")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) < num_layers(config):
        raise UsageError(
            f"{config.name}: layer_types has {len(given) if isinstance(given, list) else repr(given)} entries for "
            f"num_hidden_layers={num_layers(config)}; give one per layer"
        )
    return [str(name) for name in given[: num_layers(config)]]


def windows(config: ModelConfig, default: int | None = None) -> list[int | None]:
    """The window of each layer, None for full attention: those named by `layer_types`, else all or none.

    A model whose layers are all of one type takes `sliding_window` for each, as vLLM does.
    """
    window = config.get("sliding_window", default=None if "sliding_window" in config.text else default)
    if config.get("use_sliding_window") is False:
        window = None
    types = layer_types(config)
    per_layer = config.get("interleaved_sliding_window")
    if types is None and isinstance(per_layer, list) and len(per_layer) >= num_layers(config):
        return [int(size) if size else None for size in per_layer[: num_layers(config)]]
    if not window:
        return [None] * num_layers(config)
    window = config.whole("sliding_window", default=default)
    if types is None or all(name == "sliding_attention" for name in types):
        return [window] * num_layers(config)
    return [window if name == "sliding_attention" else None for name in types]


def attention(config: ModelConfig, window: int | None = None) -> Attention:
    """Ordinary attention with the model's heads."""
    return Attention(num_kv_heads=num_kv_heads(config), head_size=head_size(config), window=window)


def decoder(config: ModelConfig, layers: Sequence[Sequence[Cache]]) -> Architecture:
    """A model of such layers, with the heads that its config names."""
    return Architecture(
        layers=layers,
        num_attention_heads=num_heads(config),
        num_kv_heads=num_kv_heads(config),
        head_size=head_size(config),
        vocab_size=config.whole("vocab_size", default=0),
    )
