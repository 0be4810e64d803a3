"""Decoders of ordinary attention in every layer, full or windowed as the config says: most families."""

from __future__ import annotations

from dataclasses import replace

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures.base import (
    Architecture,
    architecture,
    attention,
    decoder,
    head_size,
    num_heads,
    num_layers,
    windows,
)
from kvblocks.sizing.layers import Attention
from kvblocks.sizing.model_config import ModelConfig

WINDOW_UNLESS_SAID = {"mistral": 4096, "starcoder2": None, "exaone4": 4096, "olmo3": 4096, "afmoe": 1024}
"""`sliding_window` of a config that does not have the field, as the families' config classes fill it in."""


@architecture(
    "afmoe", "apertus", "arcee", "aya_vision_text", "bailing_moe", "bailing_moe_v2", "bloom", "chatglm", "codegen",
    "cohere", "cwm", "deepseek", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone4_5", "gemma", "glm", "glm4",
    "glm4_moe", "glm4v_text", "glm4v_moe_text", "gpt2", "gpt_j", "gptj", "gpt_neox", "granite", "granitemoe",
    "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "internlm", "internlm2",
    "internlm3", "jais2", "laguna", "llama", "mimo", "minicpm", "ministral", "ministral3", "mistral", "mixtral",
    "nanbeige", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "orion", "persimmon", "phi", "phi3", "phimoe",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text",
    "qwen3_vl_moe_text", "qwen3_omni_moe_text", "qwen2_5_omni_text", "rnj1", "sarvam_moe", "seed_oss", "smollm3",
    "solar", "stablelm", "starcoder2", "step1", "telechat", "telechat2", "telechat3", "teleflm", "vaultgemma", "dots1",
    "arctic", "baichuan", "aquila", "minicpm4", "granite_swa", "granitemoe_swa", "flex_olmo", "mellum", "hrm_text",
    "pangu_embedded", "param2moe", "plamo3",
)  # fmt: skip
def dense_decoder(config: ModelConfig) -> Architecture:
    """Keys and values of every token, or of a window where `layer_types` or `sliding_window` says so."""
    default = WINDOW_UNLESS_SAID.get(config.text_type)
    if config.text_type.startswith(("qwen2", "qwen3")) and not config.get("use_sliding_window"):
        layers = [(attention(config),)] * num_layers(config)
    else:
        _check_windowed_layers(config)
        layers = [(attention(config, window),) for window in windows(config, default)]
    depth = config.whole("num_nextn_predict_layers", default=0)
    return replace(decoder(config, layers), mtp=(attention(config),) * min(depth, 1), mtp_depth=depth)


def _check_windowed_layers(config: ModelConfig) -> None:
    """vLLM does not run Qwen2 with windows from layer `max_window_layers` on only."""
    first, layers = config.get("max_window_layers"), num_layers(config)
    if not config.text_type.startswith("qwen2") or not config.get("sliding_window") or config.get("layer_types"):
        return
    if first is not None and int(first) < layers:
        raise UsageError(
            f"{config.name}: use_sliding_window with max_window_layers={first} of {layers} layers: vLLM runs windows "
            "in all layers or in none; set use_sliding_window to false"
        )


@architecture("minimax_m2")
def minimax_m2(config: ModelConfig) -> Architecture:
    """Full attention in every layer."""
    return decoder(config, [(attention(config),)] * num_layers(config))


@architecture("qwen", "mpt")
def multi_head(config: ModelConfig) -> Architecture:
    """As many heads of keys and values as of queries, however the config names them."""
    heads = num_heads(config)
    inner = config.get("attn_config") or {}
    kv_heads = int(inner.get("kv_n_heads") or heads)
    cache = Attention(num_kv_heads=kv_heads, head_size=head_size(config))
    return replace(decoder(config, [(cache,)] * num_layers(config)), num_kv_heads=kv_heads)


@architecture("falcon", "RefinedWeb", "RefinedWebModel", "gpt_bigcode", "dbrx")
def multi_query(config: ModelConfig) -> Architecture:
    """One head of keys and values, unless the config says otherwise."""
    heads = num_heads(config)
    kv_heads = heads
    if config.text_type == "dbrx":
        kv_heads = int((config.get("attn_config") or {}).get("kv_n_heads") or heads)
    elif config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    elif config.get("n_head_kv", "num_kv_heads"):
        kv_heads = config.whole("n_head_kv", "num_kv_heads")
    falcon = config.text_type in ("falcon", "RefinedWeb", "RefinedWebModel")
    cache = Attention(num_kv_heads=kv_heads, head_size=head_size(config), own_dtype=falcon)
    return replace(decoder(config, [(cache,)] * num_layers(config)), num_kv_heads=kv_heads)


@architecture("cohere2", "cohere2_moe")
def cohere2(config: ModelConfig) -> Architecture:
    """Windows of one token more than `sliding_window`, and every fourth layer full: Cohere counts without the token."""
    pattern = config.whole("sliding_window_pattern", default=4)
    types = config.get("layer_types") or [
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(num_layers(config))
    ]
    window = config.whole("sliding_window", default=4096) + 1
    return decoder(config, [(attention(config, window if name == "sliding_attention" else None),) for name in types])


@architecture("gpt_oss")
def gpt_oss(config: ModelConfig) -> Architecture:
    """A window in every even layer."""
    window = config.whole("sliding_window", default=128)
    layers = [(attention(config, None if i % 2 else window),) for i in range(num_layers(config))]
    return replace(decoder(config, layers), replicates_kv_heads=False)


@architecture("llama4", "llama4_text")
def llama4(config: ModelConfig) -> Architecture:
    """Chunks in the layers with positions, full attention in every fourth layer, which has none."""
    chunk = config.get("attention_chunk_size", default=8192 if "attention_chunk_size" not in config.text else None)
    without_positions = config.get("no_rope_layers") or [
        int((i + 1) % config.whole("no_rope_layer_interval", default=4) != 0) for i in range(num_layers(config))
    ]
    whole = attention(config)
    local = replace(whole, chunk=chunk)
    layers = [(local if has_positions else whole,) for has_positions in without_positions[: num_layers(config)]]
    return replace(decoder(config, layers), chunked=chunk is not None)


@architecture("mimo_v2", "mimo_v2_flash")
def mimo_v2(config: ModelConfig) -> Architecture:
    """Full attention and windows with heads of their own, as `hybrid_layer_pattern` says; values smaller than keys."""
    full = Attention(
        num_kv_heads=config.whole("num_key_value_heads"),
        head_size=head_size(config),
        head_size_v=config.whole("v_head_dim", default=head_size(config)),
    )
    window = Attention(
        num_kv_heads=config.whole("swa_num_key_value_heads"),
        head_size=config.whole("swa_head_dim"),
        head_size_v=config.whole("swa_v_head_dim", default=config.whole("swa_head_dim")),
        window=config.whole("sliding_window_size", "sliding_window"),
    )
    layers = [(window if windowed else full,) for windowed in config.get("hybrid_layer_pattern", default=())]
    return replace(decoder(config, layers), mtp=(window,), mtp_depth=1)


@architecture("step3p5", "step3p7", "step3_text")
def step(config: ModelConfig) -> Architecture:
    """Windows where `layer_types` says so, with heads of their own where `attention_other_setting` gives them."""
    other = config.get("attention_other_setting") or {}
    types = config.get("layer_types") or []
    window = config.get("sliding_window")
    layers = []
    for i in range(num_layers(config)):
        kind = types[i] if types else ("sliding_attention" if i % 2 == 0 else "full_attention")
        special = other if other and types and kind == other.get("attention_type") else {}
        layers.append(
            (
                Attention(
                    num_kv_heads=int(special.get("num_attention_groups") or config.whole("num_attention_groups")),
                    head_size=int(special.get("head_dim") or head_size(config)),
                    window=window if kind == "sliding_attention" and window else None,
                ),
            )
        )
    depth = config.whole("num_nextn_predict_layers", default=0)
    return replace(decoder(config, layers), mtp=layers[0][:1] if depth else (), mtp_depth=depth)


@architecture("exaone_moe")
def exaone_moe(config: ModelConfig) -> Architecture:
    """Windows where `layer_types` says so, each of a size of its own where `sliding_windows` lists them."""
    types = config.get("layer_types") or ["full_attention"] * num_layers(config)
    sizes = config.get("sliding_windows") or [config.get("sliding_window")] * num_layers(config)
    layers = [
        (attention(config, None if kind == "full_attention" else int(size)),)
        for kind, size in zip(types, sizes, strict=False)
    ]
    depth = config.whole("num_nextn_predict_layers", default=0)
    # vLLM builds the prediction layer without the cache's format.
    drafts = tuple(replace(cache, own_dtype=True) for cache in layers[0]) if depth else ()
    return replace(decoder(config, layers), mtp=drafts, mtp_depth=depth)


@architecture("minicpm3")
def minicpm3(config: ModelConfig) -> Architecture:
    """Compressed keys and values that are kept uncompressed: as many heads as queries."""
    size = config.whole("qk_nope_head_dim") + config.whole("qk_rope_head_dim")
    cache = Attention(num_kv_heads=num_heads(config), head_size=size)
    return replace(decoder(config, [(cache,)] * num_layers(config)), num_kv_heads=num_heads(config), head_size=size)


@architecture("nemotron-nas")
def nemotron_nas(config: ModelConfig) -> Architecture:
    """Heads that a search chose for each layer; `block_configs` says them, and which layers have no attention."""
    heads, size = num_heads(config), head_size(config)
    layers = []
    for block in config.get("block_configs", default=()):
        inner = block.get("attention") or {}
        skipped = inner.get("no_op") or inner.get("replace_with_linear")
        layers.append(
            () if skipped else (Attention(num_kv_heads=heads // int(inner["n_heads_in_group"]), head_size=size),)
        )
    kept = next((caches[0].num_kv_heads for caches in layers if caches), heads)
    return Architecture(layers=layers, num_attention_heads=heads, num_kv_heads=kept, head_size=size)
