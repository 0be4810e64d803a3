"""Latent attention: DeepSeek V2 to V3.2 and those built like it; with an indexer where attention is sparse."""

from __future__ import annotations

from dataclasses import replace

from kvblocks.sizing.architectures.base import Architecture, architecture, attention, decoder, num_layers
from kvblocks.sizing.layers import Cache, Indexer, Latent
from kvblocks.sizing.model_config import ModelConfig


def latent_size(config: ModelConfig) -> int:
    """Numbers of a latent: the compressed keys and values, and the keys' part with positions."""
    return config.whole("kv_lora_rank") + config.whole("qk_rope_head_dim", default=0)


@architecture(
    "axk1", "deepseek_v2", "deepseek_v3", "kimi_k2", "longcat_flash", "pangu_ultra_moe", "sarvam_mla",
    "glm4_moe_lite", "deepseek_vl_v2",
)  # fmt: skip
def latent_decoder(config: ModelConfig) -> Architecture:
    """A latent per token in every layer; DeepSeek-V2-Lite's relatives without one have ordinary heads."""
    if config.get("kv_lora_rank") is None:
        return decoder(config, [(attention(config),)] * num_layers(config))
    size = latent_size(config)
    caches: tuple[Cache, ...] = (Latent(head_size=size),)
    if config.text_type == "longcat_flash":
        caches *= 2  # two attentions in a layer
    depth = config.whole("num_nextn_predict_layers", default=0)
    count = config.whole("num_layers", default=num_layers(config)) if len(caches) == 2 else num_layers(config)
    return replace(
        decoder(config, [caches] * count), latent=True, head_size=size, mtp=caches[:1] if depth else (), mtp_depth=depth
    )


@architecture("deepseek_v32", "glm_moe_dsa")
def sparse_latent_decoder(config: ModelConfig) -> Architecture:
    """A latent per token and an indexer's key beside it, in the layers whose indexer is not another layer's."""
    size = latent_size(config)
    latent = Latent(head_size=size, sparse=True)
    indexer = Indexer(head_size=config.whole("index_head_dim", default=128))
    layers = [(indexer, latent) if _has_indexer(config, i) else (latent,) for i in range(num_layers(config))]
    depth = config.whole("num_nextn_predict_layers", default=0)
    return replace(
        decoder(config, layers),
        latent=True,
        head_size=size,
        default_block_size=64,
        block_unit=64,
        mtp=(indexer, latent) if depth else (),
        mtp_depth=depth,
        requires_sparse_fp8_for_dcp=True,
    )


def _has_indexer(config: ModelConfig, layer: int) -> bool:
    types = config.get("indexer_types")
    return not types or types[layer] == "full"
