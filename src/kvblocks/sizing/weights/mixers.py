"""Parameters of the mixers: attention in its forms, latent attention, state-space and convolution layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import layers as kinds
from kvblocks.sizing.weights.parts import SPLIT, WHOLE, Part, linear, small

QKV_BIAS = frozenset(
    "qwen2 qwen2_moe qwen2_vl qwen2_5_vl gpt2 opt bloom gpt_neox phi starcoder2 gpt_bigcode gptj".split()
)
"""Families whose query, key and value have a bias without a field that says so."""
OUT_BIAS = frozenset("gpt2 opt bloom gpt_neox phi starcoder2 gpt_bigcode".split())
GATED_OUTPUT = ("qwen3_next", "qwen3_5")
"""Families whose queries carry a gate of the same size, whether or not `attn_output_gate` says so."""


def hidden(config: ModelConfig) -> int:
    """The width of the residual stream."""
    return config.whole("hidden_size", "n_embd", "d_model", "dim")


def attention(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """Query, key, value and output of MHA, GQA or MQA, with the sizes of windowed or global layers if they differ."""
    width = hidden(config)
    heads, kv_heads, dim, value_dim, has_value = attention_shape(config, mixer)
    bias = bool(config.get("attention_bias", "qkv_bias", "bias", default=config.text_type in QKV_BIAS))
    out_bias = bias and (config.text_type in OUT_BIAS or config.text_type == "gpt_oss")
    gate = config.get("attn_output_gate", "attention_output_gate")
    gated = bool(gate) if gate is not None else config.text_type.startswith(GATED_OUTPUT)
    name = f"layers.{layer}.self_attn"
    yield from linear(f"{name}.q_proj", layer, width, heads * dim * (2 if gated else 1), bias=bias)
    if layer < kinds.num_layers(config) - config.whole("num_kv_shared_layers", default=0):
        yield from linear(f"{name}.k_proj", layer, width, kv_heads * dim, bias=bias, heads=kv_heads)
        if has_value:
            yield from linear(f"{name}.v_proj", layer, width, kv_heads * value_dim, bias=bias, heads=kv_heads)
    yield from linear(f"{name}.o_proj", layer, heads * value_dim, width, bias=out_bias)
    if config.get("use_head_wise_attn_gate"):
        yield from linear(f"{name}.g_proj", layer, width, heads)
    if config.get("qk_norm_type") != "per_head" and config.text_type in ("minimax_m2", "olmo2", "olmo3", "olmoe"):
        yield small(f"{name}.qk_norm", layer, (heads + kv_heads) * dim)
    else:
        yield small(f"{name}.qk_norm", layer, 2 * dim)
    yield from _block_indexer(config, layer)


def attention_shape(config: ModelConfig, mixer: str) -> tuple[int, int, int, int, bool]:
    """Heads, key-value heads, their width, that of values, and whether values have a matrix of their own."""
    heads = config.whole("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
    kv_heads = config.whole("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", default=heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    dim = config.whole("head_dim", "attention_head_dim", "kv_channels", default=hidden(config) // max(1, heads))
    value_dim = config.whole("v_head_dim", default=dim)
    has_value = True
    if mixer == kinds.WINDOW:
        heads = config.whole("swa_num_attention_heads", default=heads)
        kv_heads = config.whole("swa_num_key_value_heads", default=kv_heads)
        dim, value_dim = config.whole("swa_head_dim", default=dim), config.whole("swa_v_head_dim", default=value_dim)
    elif config.text_type.startswith("gemma4"):
        dim = value_dim = config.whole("global_head_dim", default=_widest_head(config, dim))
        if config.get("attention_k_eq_v"):
            has_value, kv_heads = False, config.whole("num_global_key_value_heads", default=kv_heads)
    return heads, kv_heads, dim, value_dim, has_value


def _widest_head(config: ModelConfig, default: int) -> int:
    """The head width of global layers where a config lists exceptions by layer."""
    given = config.get("per_layer_config")
    exceptions = given.values() if isinstance(given, dict) else ()
    return max((int(each["head_dim"]) for each in exceptions if "head_dim" in each), default=default)


def mla(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """Latent attention: down-projections held whole by every rank, up-projections split by heads.

    After loading, vLLM keeps a second copy of the key-value up-projection in the model's dtype, in the two forms in
    which decode absorbs it (its MLA layer after loading); that copy is `absorbed` here.
    """
    width, heads = hidden(config), config.whole("num_attention_heads")
    nope, rope = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim", default=0)
    value, rank = config.whole("v_head_dim"), config.whole("kv_lora_rank")
    q_rank = config.get("q_lora_rank")
    name = f"layers.{layer}.self_attn"
    if q_rank:
        yield from linear(f"{name}.q_a_proj", layer, width, int(q_rank), share=WHOLE)
        yield from linear(f"{name}.q_b_proj", layer, int(q_rank), heads * (nope + rope))
        yield small(f"{name}.q_a_layernorm", layer, int(q_rank))
    else:
        yield from linear(f"{name}.q_proj", layer, width, heads * (nope + rope))
    yield from linear(f"{name}.kv_a_proj_with_mqa", layer, width, rank + rope, share=WHOLE)
    yield small(f"{name}.kv_a_layernorm", layer, rank)
    yield from linear(f"{name}.kv_b_proj", layer, rank, heads * (nope + value))
    yield from linear(f"{name}.o_proj", layer, heads * value, width)
    if config.get("mla_use_output_gate"):
        yield from linear(f"{name}.g_proj", layer, width, heads * value)
    yield Part(f"{name}.absorbed", rank * heads * (nope + value), layer, SPLIT, linear=False, what="absorbed")
    yield from _token_indexer(config, layer, width)


def _token_indexer(config: ModelConfig, layer: int, width: int) -> Iterator[Part]:
    """The indexer of DeepSeek sparse attention, whole on every rank; layers that share another's have none."""
    if not config.get("index_n_heads"):
        return
    types = config.get("indexer_types")
    if isinstance(types, list) and layer < len(types) and types[layer] == "shared":
        return
    heads, dim = config.whole("index_n_heads"), config.whole("index_head_dim")
    inside = config.whole("q_lora_rank", default=width)
    name = f"layers.{layer}.self_attn.indexer"
    yield from linear(f"{name}.wq_b", layer, inside, heads * dim, share=WHOLE)
    yield from linear(f"{name}.wk", layer, width, dim, share=WHOLE)
    yield from linear(f"{name}.weights_proj", layer, width, heads, share=WHOLE)


def _block_indexer(config: ModelConfig, layer: int) -> Iterator[Part]:
    """The indexer of MiniMax's block-sparse attention."""
    sparse = config.get("sparse_attention_config")
    if not isinstance(sparse, dict):
        return
    frequency = sparse.get("sparse_attention_freq") or []
    if layer < len(frequency) and frequency[layer]:
        dim, heads = int(sparse.get("sparse_index_dim") or 0), int(sparse.get("sparse_num_index_heads") or 0)
        name = f"layers.{layer}.self_attn.indexer"
        yield from linear(f"{name}.q_proj", layer, hidden(config), heads * dim, share=WHOLE)
        yield from linear(f"{name}.k_proj", layer, hidden(config), dim, share=WHOLE)


def mamba1(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    width = hidden(config)
    inner = width * config.whole("mamba_expand", "expand", default=2)
    if config.text_type in kinds.PURE:
        inner = config.whole("intermediate_size", default=inner)
    state = config.whole("mamba_d_state", "state_size", "ssm_state_size", default=16)
    rank = config.get("mamba_dt_rank", "time_step_rank")
    rank = int(rank) if isinstance(rank, int) else -(-width // 16)
    name = f"layers.{layer}.mixer"
    yield from linear(f"{name}.in_proj", layer, width, 2 * inner)
    yield from linear(f"{name}.x_proj", layer, inner, rank + 2 * state)
    yield from linear(f"{name}.dt_proj", layer, rank, inner)
    yield from linear(f"{name}.out_proj", layer, inner, width)
    vectors = inner * (config.whole("mamba_d_conv", "conv_kernel", default=4) + state + 3)
    yield Part(f"{name}.conv1d", vectors, layer, linear=False)


def mamba2(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    width = hidden(config)
    heads = config.whole("mamba_num_heads", "mamba_n_heads", "num_heads")
    inner = heads * config.whole("mamba_head_dim", "mamba_d_head", "head_dim")
    inner = config.whole("mamba_d_ssm", default=inner)
    state = config.whole("ssm_state_size", "mamba_d_state", "state_size")
    groups = config.whole("n_groups", "mamba_n_groups", default=1)
    channels = inner + 2 * groups * state
    name = f"layers.{layer}.mixer"
    yield from linear(f"{name}.in_proj", layer, width, inner + channels + heads)
    yield from linear(f"{name}.out_proj", layer, inner, width)
    kernel = config.whole("conv_kernel", "mamba_d_conv", default=4)
    yield Part(f"{name}.conv1d", channels * (kernel + 1) + inner + 3 * heads, layer, linear=False)


def gdn(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """Gated delta net: queries and keys, values and gates, two scalars per head, a short convolution."""
    width = hidden(config)
    v_heads = config.whole("linear_num_value_heads")
    keys = config.whole("linear_num_key_heads") * config.whole("linear_key_head_dim")
    values = v_heads * config.whole("linear_value_head_dim")
    name = f"layers.{layer}.linear_attn"
    yield from linear(f"{name}.in_proj_qkv", layer, width, 2 * keys + values)
    yield from linear(f"{name}.in_proj_z", layer, width, values)
    yield from linear(f"{name}.in_proj_b", layer, width, v_heads)
    yield from linear(f"{name}.in_proj_a", layer, width, v_heads)
    yield from linear(f"{name}.out_proj", layer, values, width)
    kernel = config.whole("linear_conv_kernel_dim", default=4)
    yield Part(f"{name}.conv1d", (2 * keys + values) * kernel + 2 * v_heads, layer, linear=False)


def kda(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """Kimi delta attention: full-width queries, keys and values, low-rank decay and gate."""
    width, given = hidden(config), dict(config.get("linear_attn_config") or {})
    heads, dim = int(given.get("num_heads") or 0), int(given.get("head_dim") or 0)
    inner = heads * dim
    name = f"layers.{layer}.self_attn"
    for letter in "qkv":
        yield from linear(f"{name}.{letter}_proj", layer, width, inner)
    yield from linear(f"{name}.f_a_proj", layer, width, dim, share=WHOLE)
    yield from linear(f"{name}.f_b_proj", layer, dim, inner)
    yield from linear(f"{name}.b_proj", layer, width, heads)
    if given.get("use_full_rank_gate"):
        yield from linear(f"{name}.g_proj", layer, width, inner)
    else:
        yield from linear(f"{name}.g_a_proj", layer, width, dim, share=WHOLE)
        yield from linear(f"{name}.g_b_proj", layer, dim, inner)
    yield from linear(f"{name}.o_proj", layer, inner, width)
    yield Part(f"{name}.conv1d", 3 * inner * int(given.get("short_conv_kernel_size") or 4) + inner, layer, linear=False)


def conv(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """LFM2's gated short convolution."""
    width = hidden(config)
    inner = config.whole("conv_dim", default=width)
    name = f"layers.{layer}.conv"
    yield from linear(f"{name}.in_proj", layer, width, 3 * inner)
    yield from linear(f"{name}.out_proj", layer, inner, config.whole("conv_dim_out", default=width))
    yield Part(f"{name}.conv", inner * config.whole("conv_L_cache", default=3), layer, linear=False)


def lightning(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """MiniMax's lightning attention: queries, keys, values, an output gate and the output."""
    width = hidden(config)
    inner = config.whole("num_attention_heads") * config.whole(
        "head_dim", default=width // config.whole("num_attention_heads")
    )
    name = f"layers.{layer}.self_attn"
    yield from linear(f"{name}.qkv_proj", layer, width, 3 * inner)
    yield from linear(f"{name}.output_gate", layer, width, inner)
    yield from linear(f"{name}.out_proj", layer, inner, width)


def parallel(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    """Falcon-H1: attention and a state-space mixer side by side in every layer."""
    yield from attention(config, layer, kinds.ATTENTION)
    yield from mamba2(config, layer, kinds.MAMBA2)


def none(config: ModelConfig, layer: int, mixer: str) -> Iterator[Part]:
    yield from ()


Counter = Callable[[ModelConfig, int, str], Iterator[Part]]
MIXERS: dict[str, Counter] = {
    kinds.ATTENTION: attention,
    kinds.WINDOW: attention,
    kinds.MLA: mla,
    kinds.MAMBA1: mamba1,
    kinds.MAMBA2: mamba2,
    kinds.GDN: gdn,
    kinds.KDA: kda,
    kinds.CONV: conv,
    kinds.LIGHTNING: lightning,
    kinds.PARALLEL: parallel,
    kinds.NONE: none,
}


def activation_widths(config: ModelConfig, mixer: str) -> tuple[int, int]:
    """Elements per token that a mixer's input projections and its output before the last projection take, unsplit."""
    inside = outside = 0
    sample: dict[str, Any] = {}
    for part in MIXERS[mixer](config, 0, mixer):
        if part.linear and not part.name.endswith(("wq_b", "wk", "weights_proj")):
            sample[part.name.rsplit(".", 1)[-1]] = part.numel
    width = hidden(config)
    for name, numel in sample.items():
        if name in ("o_proj", "out_proj"):
            outside = numel // width
        elif name not in ("q_b_proj", "kv_b_proj", "f_b_proj", "g_b_proj", "dt_proj", "x_proj"):
            inside += numel // width
    if mixer == kinds.MLA:
        heads = config.whole("num_attention_heads")
        nope, rope = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim", default=0)
        inside += heads * (2 * nope + 2 * rope + config.whole("v_head_dim"))
    return inside, outside
