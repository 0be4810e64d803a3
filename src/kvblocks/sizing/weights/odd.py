"""Families that one counter cannot describe: encoder-decoders, DeepSeek-V4, and the extras of Gemma 3n."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import layers as kinds
from kvblocks.sizing.weights.feed_forward import feed_forward
from kvblocks.sizing.weights.mixers import hidden
from kvblocks.sizing.weights.parts import WHOLE, Part, linear, small


def encoder_decoder(config: ModelConfig) -> Iterator[Part]:
    """Whisper, BART and their like: an encoder, and a decoder whose layers also attend to it."""
    width = hidden(config)
    encoder = config.whole("encoder_layers", "num_layers")
    decoder = config.whole("decoder_layers", "num_decoder_layers", "num_layers")
    for layer in range(encoder):
        yield from _block(config, f"encoder.layers.{layer}", "every", width, config.whole("encoder_ffn_dim"), 1)
    for layer in range(decoder):
        yield from _block(config, f"layers.{layer}", layer, width, config.whole("decoder_ffn_dim"), 2)
    if config.get("num_mel_bins"):
        mels = config.whole("num_mel_bins")
        yield Part("encoder.conv", 3 * width * (mels + width) + 2 * width, "every", WHOLE, linear=False)
    positions = config.whole("max_source_positions", "max_position_embeddings", default=0)
    positions += config.whole("max_target_positions", "max_position_embeddings", default=0)
    yield Part("embed_positions", positions * width, "every", WHOLE, linear=False)


def _block(config: ModelConfig, name: str, place: int | str, width: int, inner: int, attentions: int) -> Iterator[Part]:
    for number in range(attentions):
        attention = f"{name}.{'encoder_attn' if number else 'self_attn'}"
        for matrix in ("q_proj", "v_proj", "out_proj"):
            yield from linear(f"{attention}.{matrix}", place, width, width, bias=True)
        yield from linear(f"{attention}.k_proj", place, width, width)
    yield from linear(f"{name}.fc1", place, width, inner, bias=True)
    yield from linear(f"{name}.fc2", place, inner, width, bias=True)
    yield small(f"{name}.norms", place, 2 * width * (attentions + 1))


def deepseek_v4(config: ModelConfig, layer: int) -> Iterator[Part]:
    """One layer of DeepSeek-V4: one key-value head, grouped low-rank output, compressors, hyper-connections, experts.

    Compressors and the small projections are whole on every rank; the layers without compression have neither
    compressor nor indexer, and only those with the finest compression have an indexer.
    """
    width, heads, dim = hidden(config), config.whole("num_attention_heads"), config.whole("head_dim")
    q_rank, o_rank = config.whole("q_lora_rank"), config.whole("o_lora_rank")
    groups = config.whole("o_groups", default=1)
    name = f"layers.{layer}.self_attn"
    yield from linear(f"{name}.q_a_proj", layer, width, q_rank, share=WHOLE)
    yield from linear(f"{name}.q_b_proj", layer, q_rank, heads * dim)
    yield from linear(f"{name}.kv_proj", layer, width, dim, share=WHOLE)
    yield from linear(f"{name}.o_a_proj", layer, heads * dim // groups, groups * o_rank)
    yield from linear(f"{name}.o_b_proj", layer, groups * o_rank, width)
    ratios = config.get("compress_ratios", default=())
    ratio = int(ratios[layer]) if layer < len(ratios) else 0
    if ratio:
        wide = 2 if ratio == 4 else 1
        compressor = f"{name}.compressor"
        yield Part(f"{compressor}.kv_proj", 2 * width * wide * dim, layer, WHOLE, linear=False)
        yield small(f"{compressor}.position_bias", layer, ratio * wide * dim)
        if ratio == 4:
            index_heads, index_dim = config.whole("index_n_heads"), config.whole("index_head_dim")
            indexer = f"{compressor}.indexer"
            yield Part(f"{indexer}.kv_proj", 4 * width * index_dim, layer, WHOLE, linear=False)
            yield from linear(f"{indexer}.q_b_proj", layer, q_rank, index_heads * index_dim, share=WHOLE)
            yield Part(f"{indexer}.weights_proj", width * index_heads, layer, WHOLE, linear=False)
    streams = config.whole("hc_mult", default=1)
    yield small(f"layers.{layer}.hyper_connections", layer, 2 * (streams * (streams + 2)) * streams * width)
    yield from feed_forward(config, layer, kinds.MOE)


def gemma3n(config: ModelConfig) -> Iterator[Part]:
    """What Gemma 3n adds: embeddings per layer, low-rank residuals (laurel) and alternating updates (altup)."""
    width, count = hidden(config), kinds.num_layers(config)
    per_layer = config.whole("hidden_size_per_layer_input", default=0)
    rank, inputs = config.whole("laurel_rank", default=0), config.whole("altup_num_inputs", default=1)
    vocabulary = config.whole("vocab_size_per_layer_input", default=0)
    yield Part("embed_tokens_per_layer", vocabulary * count * per_layer, "every", linear=False, what="embeddings")
    yield Part("per_layer_model_projection", width * count * per_layer, "every", WHOLE)
    yield Part("altup_projections", 2 * (inputs - 1) * width * width, "every", WHOLE)
    for layer in range(count):
        yield Part(f"layers.{layer}.laurel", 2 * width * rank, layer, WHOLE)
        yield Part(f"layers.{layer}.per_layer", 2 * width * per_layer, layer, WHOLE)
        yield small(f"layers.{layer}.altup", layer, inputs * (width + inputs + inputs * inputs) + 5 * width)


def gemma4(config: ModelConfig) -> Iterator[Part]:
    """What the small Gemma 4 models add: embeddings per layer, and their projections."""
    width, count = hidden(config), kinds.num_layers(config)
    per_layer = config.whole("hidden_size_per_layer_input", default=0)
    if per_layer:
        vocabulary = config.whole("vocab_size_per_layer_input", "vocab_size")
        yield Part("embed_tokens_per_layer", vocabulary * count * per_layer, "every", linear=False, what="embeddings")
        yield Part("per_layer_model_projection", width * count * per_layer, "every", WHOLE)
        for layer in range(count):
            yield Part(f"layers.{layer}.per_layer", 2 * width * per_layer, layer, WHOLE)


WHOLE_MODEL: dict[str, Callable[[ModelConfig], Iterator[Part]]] = {
    "whisper": encoder_decoder,
    "bart": encoder_decoder,
    "mbart": encoder_decoder,
}
"""Families counted apart from the layers of the common counter."""
LAYER: dict[str, Callable[[ModelConfig, int], Iterator[Part]]] = {"deepseek_v4": deepseek_v4}
"""Families whose layers are counted apart."""
EXTRA: dict[str, Callable[[ModelConfig], Iterator[Part]]] = {
    "gemma3n_text": gemma3n,
    "gemma3n": gemma3n,
    "gemma4_text": gemma4,
    "gemma4": gemma4,
}
"""What a family has beside the common layers."""
