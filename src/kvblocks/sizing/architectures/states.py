"""Models whose layers keep a state instead of tokens: Mamba alone, and the hybrids with attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures.base import (
    Architecture,
    architecture,
    attention,
    decoder,
    head_size,
    layer_types,
    num_heads,
    num_layers,
)
from kvblocks.sizing.architectures.latent import latent_size
from kvblocks.sizing.layers import Attention, Cache, Latent, State
from kvblocks.sizing.model_config import ModelConfig

ATTENTION = ("attention", "full_attention", "hybrid", "*")
"""Names of layers that keep keys and values."""


def _hybrid(config: ModelConfig, state: State, types: Sequence[str], cache: Cache | None = None) -> Architecture:
    """Attention where the type says so, the state elsewhere. A model that has one kind only is no hybrid."""
    whole: Cache = cache or attention(config)
    layers = [(whole,) if name in ATTENTION else (state,) for name in types]
    return replace(decoder(config, layers), hybrid=any(name not in ATTENTION for name in types))


def _mamba1(inner: int, state_size: int, kernel: int) -> State:
    return State(
        kind="mamba1", convolution=(kernel - 1, inner), recurrent=(inner, state_size), drafts_in_convolution=False
    )


@architecture("mamba", "falcon_mamba")
def mamba(config: ModelConfig) -> Architecture:
    """Mamba in every layer: a state of `state_size` numbers per channel."""
    inner = config.whole("intermediate_size", default=config.whole("expand", default=2) * config.whole("hidden_size"))
    state = _mamba1(inner, config.whole("state_size", default=16), config.whole("conv_kernel", default=4))
    return Architecture(
        layers=[(state,)] * num_layers(config),
        num_attention_heads=0,
        num_kv_heads=0,
        head_size=0,
        attention_free=True,
    )


def mamba2_state(*, inner: int, groups: int, heads: int, head: int, state_size: int, kernel: int) -> State:
    """Mamba2: a matrix of `head` x `state_size` per head, and the convolution over its inputs.

    The channels of the convolution are the inner ones and two times `groups` x `state_size`; groups that do not
    divide among the ranks are copied, which the number of ranks decides (see `State.parts`).
    """
    return State(
        kind="mamba2",
        convolution=(kernel - 1, inner),
        groups=(groups, state_size),
        recurrent=(heads, head, state_size),
        saves_in_prefill=True,
    )


@architecture("mamba2")
def mamba2(config: ModelConfig) -> Architecture:
    """Mamba2 in every layer."""
    state = mamba2_state(
        inner=config.whole("expand", default=2) * config.whole("hidden_size"),
        groups=config.whole("n_groups", default=8),
        heads=config.whole("num_heads"),
        head=config.whole("head_dim"),
        state_size=config.whole("state_size", default=128),
        kernel=config.whole("conv_kernel", default=4),
    )
    return Architecture(
        layers=[(state,)] * num_layers(config),
        num_attention_heads=0,
        num_kv_heads=0,
        head_size=0,
        attention_free=True,
        pipelines=False,
    )


@architecture("jamba")
def jamba(config: ModelConfig) -> Architecture:
    """Mamba, and attention in every `attn_layer_period`-th layer."""
    inner = config.whole("mamba_expand", default=2) * config.whole("hidden_size")
    state = _mamba1(inner, config.whole("mamba_d_state", default=16), config.whole("mamba_d_conv", default=4))
    period, offset = config.whole("attn_layer_period", default=8), config.whole("attn_layer_offset", default=4)
    types = layer_types(config) or ["attention" if i % period == offset else "mamba" for i in range(num_layers(config))]
    return _hybrid(config, state, types)


@architecture("granitemoehybrid", "bamba")
def granite_hybrid(config: ModelConfig) -> Architecture:
    """Mamba2 next to attention, as `layer_types` (or `attn_layer_indices`) says."""
    state = mamba2_state(
        inner=config.whole("mamba_expand", default=2) * config.whole("hidden_size"),
        groups=config.whole("mamba_n_groups", default=1),
        heads=config.whole("mamba_n_heads", default=128),
        head=config.whole("mamba_d_head", default=64),
        state_size=config.whole("mamba_d_state", default=256),
        kernel=config.whole("mamba_d_conv", default=4),
    )
    types = layer_types(config)
    if types is None:
        at = set(config.get("attn_layer_indices", default=()))
        types = ["attention" if i in at else "mamba" for i in range(num_layers(config))]
    return _hybrid(config, state, types)


@architecture("falcon_h1")
def falcon_h1(config: ModelConfig) -> Architecture:
    """Mamba2 and attention side by side in every layer."""
    inner = config.get("mamba_d_ssm")
    state = mamba2_state(
        inner=config.whole("mamba_d_ssm")
        if inner is not None
        else config.whole("mamba_expand", default=2) * config.whole("hidden_size"),
        groups=config.whole("mamba_n_groups", default=1),
        heads=config.whole("mamba_n_heads", default=128),
        head=config.whole("mamba_d_head", default=64),
        state_size=config.whole("mamba_d_state", default=256),
        kernel=config.whole("mamba_d_conv", default=4),
    )
    layers = [(attention(config), state)] * num_layers(config)
    return replace(decoder(config, layers), hybrid=True)


@architecture("zamba2")
def zamba2(config: ModelConfig) -> Architecture:
    """Mamba2 in every layer, and in the hybrid ones a shared attention before it."""
    state = mamba2_state(
        inner=config.whole("mamba_expand", default=2) * config.whole("hidden_size"),
        groups=config.whole("mamba_ngroups", default=1),
        heads=config.whole("n_mamba_heads", default=8),
        head=config.whole("mamba_headdim"),
        state_size=config.whole("mamba_d_state", default=64),
        kernel=config.whole("mamba_d_conv", default=4),
    )
    size = config.whole("attention_head_dim", default=2 * config.whole("hidden_size") // num_heads(config))
    shared = Attention(num_kv_heads=num_heads(config), head_size=size)
    types = config.get("layers_block_type") or []
    layers = [(shared, state) if name == "hybrid" else (state,) for name in types]
    return replace(
        decoder(config, layers),
        hybrid=True,
        attention_first=True,
        head_size=size,
        num_kv_heads=num_heads(config),
    )


@architecture("nemotron_h", "nemotron_h_puzzle")
def nemotron_h(config: ModelConfig) -> Architecture:
    """Mamba2 (M), attention (*), and layers that keep nothing: `hybrid_override_pattern` has a letter for each."""
    state = mamba2_state(
        inner=config.whole("mamba_num_heads") * config.whole("mamba_head_dim"),
        groups=config.whole("n_groups", default=8),
        heads=config.whole("mamba_num_heads"),
        head=config.whole("mamba_head_dim"),
        state_size=config.whole("ssm_state_size", default=128),
        kernel=config.whole("conv_kernel", default=4),
    )
    state = replace(state, recurrent_dtype=config.get("mamba_ssm_cache_dtype", default="float32"))
    cache = attention(config, config.get("sliding_window"))
    letters = config.get("hybrid_override_pattern")
    names = config.get("layers_block_type")
    if letters is None and names is None:
        raise UsageError(f"{config.name}: nemotron_h needs hybrid_override_pattern, a letter per layer (M, *, -, E)")
    kinds = list(letters) if letters is not None else [str(name) for name in names]
    keeps: dict[str, tuple[Cache, ...]] = {"M": (state,), "mamba": (state,), "*": (cache,), "attention": (cache,)}
    layers = [keeps.get(kind, ()) for kind in kinds]
    depth = config.whole("num_nextn_predict_layers", default=0)
    return replace(decoder(config, layers), hybrid=True, mtp=(cache,), mtp_depth=max(depth, 1))


@architecture("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "olmo_hybrid")
def gated_delta_net(config: ModelConfig) -> Architecture:
    """Gated delta nets, and full attention in every fourth layer."""
    keys = config.whole("linear_num_key_heads") * config.whole("linear_key_head_dim")
    values = config.whole("linear_num_value_heads") * config.whole("linear_value_head_dim")
    state = State(
        kind="gdn",
        convolution=(config.whole("linear_conv_kernel_dim", default=4) - 1, 2 * keys + values),
        recurrent=(
            config.whole("linear_num_value_heads"),
            config.whole("linear_value_head_dim"),
            config.whole("linear_key_head_dim"),
        ),
        recurrent_dtype=config.get("mamba_ssm_dtype") if "qwen3_5" in config.text_type else None,
    )
    every = config.whole("full_attention_interval", default=4)
    types = layer_types(config) or [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(num_layers(config))
    ]
    depth = config.whole("mtp_num_hidden_layers", "num_nextn_predict_layers", default=1)
    return replace(_hybrid(config, state, types), mtp=(attention(config),) * min(depth, 1), mtp_depth=depth)


@architecture("lfm2", "lfm2_moe")
def lfm2(config: ModelConfig) -> Architecture:
    """Short convolutions next to full attention."""
    channels = config.whole("conv_dim", default=config.whole("hidden_size"))
    state = State(
        kind="short_conv",
        convolution=(config.whole("conv_L_cache", default=3) - 1, channels),
        drafts_in_convolution=False,
    )
    types = layer_types(config)
    if types is None:
        at = set(config.get("full_attn_idxs", default=range(num_layers(config))))
        types = ["full_attention" if i in at else "conv" for i in range(num_layers(config))]
    return _hybrid(config, state, types)


@architecture("kimi_linear")
def kimi_linear(config: ModelConfig) -> Architecture:
    """Delta attention in the layers that `linear_attn_config` lists (from 1), latent attention in the others."""
    inner = config.get("linear_attn_config") or {}
    heads, size = int(inner["num_heads"]), int(inner["head_dim"])
    is_k3 = config.model_type == "kimi_k3" or bool(inner.get("use_full_rank_gate"))
    state = State(
        kind="kda",
        convolution=(int(inner.get("short_conv_kernel_size") or 4) - 1, 3 * heads * size),
        recurrent=(heads, size, size),
        recurrent_dtype="float32",
        saves_in_prefill=is_k3,
    )
    latent = Latent(head_size=latent_size(config))
    deltas = set(inner.get("kda_layers") or ())
    types = ["linear_attention" if i + 1 in deltas else "full_attention" for i in range(num_layers(config))]
    return replace(_hybrid(config, state, types, latent), latent=True, head_size=latent_size(config))


@architecture("bailing_moe_linear", "bailing_hybrid", "minimax", "minimax_text_01")
def linear_attention(config: ModelConfig) -> Architecture:
    """Linear attention: a square matrix per head, with full (or latent) attention in between."""
    size = head_size(config)
    state = State(kind="linear", recurrent=(num_heads(config), size, size))
    types = layer_types(config)
    if types is None and config.get("attn_type_list"):
        types = ["full_attention" if kind else "linear_attention" for kind in config.get("attn_type_list")]
    if types is None:
        every = config.whole("layer_group_size", default=1)
        types = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(num_layers(config))]
    if config.get("kv_lora_rank") is not None:
        latent = Latent(head_size=latent_size(config))
        return replace(_hybrid(config, state, types, latent), latent=True, head_size=latent_size(config))
    return _hybrid(config, state, types)
