"""All parts of a model, counted from its config: embeddings, layers, norms, vision tower, draft layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import layers as kinds
from kvblocks.sizing.weights import odd
from kvblocks.sizing.weights.feed_forward import feed_forward
from kvblocks.sizing.weights.mixers import MIXERS, hidden
from kvblocks.sizing.weights.parts import SPLIT, WHOLE, Part, small
from kvblocks.sizing.weights.vision import has_audio, vision_config, vision_shape, vision_tower

TIED_BY_DEFAULT = frozenset(
    "gpt2 opt bloom falcon gpt_bigcode starcoder2 mamba falcon_mamba gemma gemma2 gemma3 gemma3_text gemma3n "
    "gemma3n_text gemma4 gemma4_text cohere cohere2 lfm2 lfm2_moe whisper bart mbart t5 granitemoehybrid mpt".split()
)
"""Families whose configs leave `tie_word_embeddings` out and mean yes."""
WHOLE_EMBEDDING = frozenset({"whisper"})
"""Families whose embedding vLLM does not split (whisper-large-v3 on four ranks: 0.83 GiB in its log, 0.74 if split)."""
FOUR_NORMS = ("gemma2", "gemma3", "gemma4", "glm4", "exaone4", "olmo2")
KNOWN = frozenset(
    "llama mistral mixtral qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_next qwen3_vl_text "
    "qwen3_vl_moe_text qwen3_5_text qwen3_5_moe_text qwen3_5 qwen3_5_moe gemma gemma2 gemma3 gemma3_text "
    "gemma3n gemma3n_text gemma4 gemma4_text phi3 phi cohere cohere2 olmo olmo2 olmo3 olmoe gpt2 opt bloom "
    "falcon falcon_h1 falcon_mamba mamba mamba2 bamba jamba granite granitemoe granitemoehybrid nemotron "
    "nemotron_h lfm2 lfm2_moe llama4 llama4_text gpt_oss deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 "
    "kimi_k2 kimi_linear glm4 glm4_moe glm_moe_dsa minimax_m2 minimax_m3 minimax_m3_vl mimo mimo_v2_flash "
    "whisper bart gpt_neox starcoder2 internlm2 exaone4 seed_oss smollm3 arcee ernie4_5 ernie4_5_moe ministral "
    "ministral3 hunyuan_v1_dense hunyuan_v1_moe stablelm apertus aria_text bitnet exaone_moe glm glm4_moe_lite "
    "gptj gpt_bigcode granitemoeshared granite_swa granitemoe_swa helium hy_v3 phimoe mpt minicpm3 persimmon "
    "olmo_hybrid afmoe axk1 diffllama flex_olmo cwm laguna mellum solar_open vaultgemma youtu hyperclovax "
    "jais2 nanochat cohere2_moe minimax_m3_vl_text minimax inkling_text zaya".split()
)
"""Families whose layers the counter describes; the others are counted alike and said to be unknown."""


@dataclass(frozen=True, slots=True)
class Counted:
    """All parts of a model, and what the counter could not place."""

    parts: tuple[Part, ...]
    unknown: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Parameters of the checkpoint that are loaded, without what the engine derives from them."""
        return sum(part.numel for part in self.parts if part.what != "absorbed")


def is_tied(config: ModelConfig) -> bool:
    """Whether the head is the embedding."""
    given = config.get("tie_word_embeddings", "tie_embedding")
    return bool(given) if given is not None else config.text_type in TIED_BY_DEFAULT


def count(config: ModelConfig, flags: EngineFlags | None = None) -> Counted:
    """The parts that an engine with these flags loads. Raises UsageError naming a field that is missing or wrong."""
    flags = flags or EngineFlags()
    unknown: list[str] = []
    parts = [*_ends(config), *_decoder(config, unknown)]
    if config.text_type in odd.EXTRA:
        parts.extend(odd.EXTRA[config.text_type](config))
    if vision_config(config) is not None and not flags.language_model_only:
        parts.extend(vision_tower(config))
        if vision_shape(config) is None:
            unknown.append("a vision tower whose sizes the config does not give in fields that are known")
    if has_audio(config) and not flags.language_model_only:
        unknown.append("the audio tower")
    parts.extend(draft_layers(config, flags, unknown))
    if config.text_type not in KNOWN:
        unknown.append(f"model_type {config.text_type!r} has no rule of its own and is counted as a plain decoder")
    return Counted(tuple(parts), tuple(unknown))


def vocabulary(config: ModelConfig) -> int:
    """Rows of the embedding."""
    return config.whole("vocab_size", "padded_vocab_size")


def _ends(config: ModelConfig) -> Iterator[Part]:
    """Embeddings, head, last norm and the rotary table."""
    width, rows = hidden(config), vocabulary(config)
    tied = is_tied(config)
    share = WHOLE if config.text_type in WHOLE_EMBEDDING else SPLIT
    yield Part("embed_tokens", rows * width, "first", share, linear=False, what="embeddings")
    if not tied:
        yield Part("lm_head", rows * width, "last", linear=False, what="embeddings")
    yield small("norm", "last", width)
    positions = config.get("n_positions") if config.text_type == "gpt2" else None
    if config.text_type == "opt":
        positions = config.whole("max_position_embeddings") + 2
    if positions:
        yield Part("embed_positions", int(positions) * width, "first", WHOLE, linear=False, what="embeddings")


def _decoder(config: ModelConfig, unknown: list[str]) -> Iterator[Part]:
    if config.text_type in odd.WHOLE_MODEL:
        yield from odd.WHOLE_MODEL[config.text_type](config)
        return
    if config.get("is_encoder_decoder"):
        unknown.append("the encoder of an encoder-decoder that has no rule of its own")
    if config.text_type in odd.LAYER:
        for layer in range(kinds.num_layers(config)):
            yield from odd.LAYER[config.text_type](config, layer)
            yield small(f"layers.{layer}.norms", layer, 2 * hidden(config))
        return
    mixers, strange = kinds.mixers(config)
    if strange:
        unknown.append(f"layer types {', '.join(strange)} are counted as attention")
    norms = hidden(config) * (4 if config.text_type.startswith(FOUR_NORMS) else 2)
    for layer, (mixer, feed) in enumerate(zip(mixers, kinds.feed_forwards(config), strict=True)):
        yield from MIXERS[mixer](config, layer, mixer)
        yield from feed_forward(config, layer, feed)
        yield small(f"layers.{layer}.norms", layer, norms)


def draft_layers(config: ModelConfig, flags: EngineFlags, unknown: list[str]) -> Iterator[Part]:
    """The layers that draft tokens, when the flags use them: MTP layers of the model itself, or a model of their own.

    An MTP layer is a layer like the last one, and a projection of two hidden states to one; embedding and head are the
    target's. A draft model is counted when its folder is there, otherwise it is named as unknown.
    """
    draft = flags.draft
    if not draft:
        return
    method, model = str(draft.get("method") or ""), draft.get("model")
    if method in ("ngram", "suffix", "ngram_gpu"):
        return
    if method.endswith("mtp") or (not model and method != "medusa"):
        number = config.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=1) or 1
        mixers, _ = kinds.mixers(config) if config.text_type not in odd.LAYER else ([kinds.ATTENTION], [])
        width = hidden(config)
        for offset in range(number):
            layer = kinds.num_layers(config) + offset
            if config.text_type in odd.LAYER:
                found = list(odd.LAYER[config.text_type](config, layer))
            else:
                mixer = kinds.MLA if kinds.MLA in mixers else kinds.ATTENTION
                feed = kinds.MOE if kinds.num_experts(config) else kinds.DENSE
                found = [*MIXERS[mixer](config, layer, mixer), *feed_forward(config, layer, feed)]
            found.append(Part(f"layers.{layer}.eh_proj", 2 * width * width, "last", WHOLE))
            for part in found:
                yield Part(part.name, part.numel, "last", part.share, part.linear, part.heads, "draft")
        return
    unknown.append(f"the draft model {model!r} of the speculative configuration")
