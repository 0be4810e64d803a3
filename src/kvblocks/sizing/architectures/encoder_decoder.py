"""Encoder-decoder models: attention of the decoder to itself and to the encoder's tokens."""

from __future__ import annotations

from kvblocks.sizing.architectures.base import Architecture, architecture
from kvblocks.sizing.layers import Attention, CrossAttention
from kvblocks.sizing.model_config import ModelConfig


@architecture("whisper")
def whisper(config: ModelConfig) -> Architecture:
    """Two caches per decoder layer; the encoder keeps nothing."""
    heads = config.whole("decoder_attention_heads", "num_attention_heads")
    size = config.whole("d_model", "hidden_size") // heads
    caches = (Attention(num_kv_heads=heads, head_size=size), CrossAttention(num_kv_heads=heads, head_size=size))
    return Architecture(
        layers=[caches] * config.whole("decoder_layers", "num_hidden_layers"),
        num_attention_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        encoder_decoder=True,
        pipelines=False,
    )
