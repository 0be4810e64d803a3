"""MiniMax-M3: ordinary heads, and in the sparse layers an indexer's keys beside them."""

from __future__ import annotations

from dataclasses import replace

from kvblocks.sizing.architectures.base import Architecture, architecture, attention, decoder, num_layers
from kvblocks.sizing.layers import Indexer
from kvblocks.sizing.model_config import ModelConfig


@architecture("minimax_m3", "minimax_m3_vl", "minimax_m3_text")
def minimax_m3(config: ModelConfig) -> Architecture:
    """Full attention in every layer; `sparse_attention_freq` says in which an indexer chooses what it reads."""
    sparse = config.get("sparse_attention_config") or {}
    frequency = sparse.get("sparse_attention_freq") or [0] * num_layers(config)
    whole = attention(config)
    read_in_part = replace(whole, kernel_block_size=128)
    indexer = Indexer(head_size=int(sparse.get("sparse_index_dim") or 128), scaled_bytes=False, kernel_block_size=128)
    layers = [(indexer, read_in_part) if is_sparse else (whole,) for is_sparse in frequency[: num_layers(config)]]
    return replace(decoder(config, layers), default_block_size=128, mtp=(indexer, read_in_part), mtp_depth=1)
