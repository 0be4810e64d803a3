"""Bytes of a model's weights on one rank: counted from its config, or from the safetensors files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures.base import Architecture, head_size, num_layers
from kvblocks.sizing.architectures.feed_forward import Expert, feed_forward
from kvblocks.sizing.formats import element_bytes
from kvblocks.sizing.layers import Attention, Cache, CrossAttention, Indexer, Latent, State
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.quantization import Quantization, quantization_of

VOCABULARY_PADDING = 64
"""vLLM rounds the rows of the embedding up to a multiple of this."""


@dataclass(slots=True)
class Tally:
    """Parameters by how they are kept: divided among ranks or copied to each, quantised or not."""

    linear: float = 0
    """Matrices that are divided, and quantised where the checkpoint is."""
    copied_linear: float = 0
    """Matrices that every rank holds, quantised where the checkpoint is."""
    experts: float = 0
    """Matrices of experts, divided; some checkpoints quantise only these."""
    plain: float = 0
    """Divided, in the model's dtype: embeddings, convolutions."""
    copied: float = 0
    """Held by every rank in the model's dtype: norms, routers."""
    absorbed: float = 0
    """Copies in the model's dtype that the engine makes for decoding, divided; no parameters of their own."""

    @property
    def total(self) -> float:
        """All parameters, of all ranks together."""
        return self.linear + self.copied_linear + self.experts + self.plain + self.copied

    def add(self, other: Tally, times: float = 1) -> None:
        """Add another tally, so many times."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))

    def rank_bytes(self, tp: int, formats: Quantization) -> float:
        """Bytes of one tensor-parallel rank."""
        return (
            (self.linear / tp + self.copied_linear) * formats.linear_bytes
            + self.experts / tp * formats.expert_bytes
            + ((self.plain + self.absorbed) / tp + self.copied) * formats.plain_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights of one rank of one pipeline stage."""

    parameters: int
    """Of the whole model."""
    low_bytes: int
    best_bytes: int
    high_bytes: int
    how: str
    """Where the figure comes from, with its numbers."""
    not_modelled: tuple[str, ...] = field(default=())


def weights_of(
    config: ModelConfig,
    model: Architecture,
    *,
    dtype: str,
    tp: int,
    stages: list[int],
    stage: int,
    drafts: bool,
    language_model_only: bool,
    method: str | None = None,
) -> Weights:
    """Weights of one rank.

    stages: decoder layers of each pipeline stage.
    drafts: whether the layers for multi-token prediction are loaded.
    method: how the weights are quantised, where the config does not say.

    Raises UsageError when a safetensors file beside the config cannot be read.
    """
    formats = quantization_of(config, element_bytes(dtype), method)
    whole, own = Tally(), Tally()
    first = sum(stages[:stage])
    for number in range(len(model.layers)):
        layer = _layer(config, model, number)
        whole.add(layer)
        if first <= number < first + stages[stage]:
            own.add(layer)
    ends = _embeddings(config)
    for at_start, tally in ends:
        whole.add(tally)
        if (stage == 0) if at_start else (stage == len(stages) - 1):
            own.add(tally)
    if config.get("tie_word_embeddings") and 0 < stage == len(stages) - 1:
        own.add(ends[0][1])  # the last stage has a copy of the tied embedding
    if drafts and model.mtp and stage == len(stages) - 1:
        own.add(_layer(config, model, len(model.layers) - 1, model.mtp))
    vision = 0.0 if language_model_only else _vision_parameters(config)
    missing = list(formats.not_modelled)
    if vision:
        missing.append("the vision tower is counted from its width and depth alone")
    counted = own.rank_bytes(tp, formats) + (vision * formats.plain_bytes if stage == 0 else 0)
    all_bytes = whole.rank_bytes(1, formats) + vision * formats.plain_bytes
    total = round(whole.total + vision)
    known = _checkpoint_bytes(config.path)
    if known is not None:
        best = known * counted / all_bytes
        share = "" if counted == all_bytes else f" x {counted / all_bytes:.3f}, this rank's share"
        how = f"{known / 1e9:.2f} GB in the safetensors files{share}"
        return Weights(
            parameters=total, low_bytes=int(best * 0.99), best_bytes=int(best), high_bytes=int(best * 1.02), how=how
        )
    spread = 0.01 + formats.spread
    how = f"{total / 1e9:.2f}e9 parameters, {all_bytes / total:.2f} bytes each ({formats.name})"
    if tp > 1 or len(stages) > 1:
        how += f", this rank's share of {tp} x {len(stages)}"
    return Weights(
        parameters=total,
        low_bytes=int(counted * (1 - spread)),
        best_bytes=int(counted),
        high_bytes=int(counted * (1 + spread)),
        how=how,
        not_modelled=tuple(missing),
    )


# -- Counting ---------------------------------------------------------------------------------------------------------


def _hidden(config: ModelConfig) -> int:
    return config.whole("hidden_size", "n_embd", "d_model")


def _embeddings(config: ModelConfig) -> list[tuple[bool, Tally]]:
    """The first stage's embedding and the last one's head."""
    vocabulary = config.whole("vocab_size")
    rows = -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    hidden = _hidden(config)
    found = [(True, Tally(plain=rows * hidden))]
    tied = config.get("tie_word_embeddings", default=config.text_type in TIED_UNLESS_SAID)
    if not tied:
        found.append((False, Tally(plain=rows * hidden)))
    positions = config.get("max_position_embeddings", "n_positions") if config.text_type in ("gpt2", "opt") else 0
    if positions:
        found.append((True, Tally(copied=positions * hidden)))
    per_layer = config.get("hidden_size_per_layer_input")
    if per_layer:
        rows = config.whole("vocab_size_per_layer_input", default=vocabulary)
        found.append((True, Tally(plain=rows * per_layer * num_layers(config))))
    return found


TIED_UNLESS_SAID = ("gpt2", "opt", "bloom", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "cohere",
                    "cohere2", "falcon", "mamba", "whisper", "starcoder2", "lfm2", "granitemoehybrid")  # fmt: skip
"""Families whose head is the embedding where the config does not say."""


def _layer(config: ModelConfig, model: Architecture, number: int, caches: Any = None) -> Tally:
    """One decoder layer: what mixes tokens, what follows it, and the norms."""
    hidden = _hidden(config)
    tally = Tally(copied=2 * hidden)
    mixers = model.layers[number] if caches is None else caches
    for cache in mixers or _borrowed(config, model, number):
        tally.add(_mixer(config, model, cache))
    for part in feed_forward(config, number, bool(mixers)):
        if isinstance(part, Expert):
            tally.experts += part.parameters
            tally.copied += part.router
        else:
            tally.linear += part
    return tally


def _borrowed(config: ModelConfig, model: Architecture, number: int) -> Iterator[Cache]:
    """The attention of a layer that reads another layer's cache: it has queries of its own."""
    if config.get("num_kv_shared_layers") or config.text_type == "gemma3n_text":
        yield Attention(num_kv_heads=0, head_size=head_size(config, 256))


def _mixer(config: ModelConfig, model: Architecture, cache: Cache) -> Tally:
    hidden = _hidden(config)
    if isinstance(cache, (Attention, CrossAttention)):
        heads = max(model.num_attention_heads, 1)
        values = getattr(cache, "head_size_v", None) or cache.head_size
        queries = heads * cache.head_size
        gate = 2 if config.get("attn_output_gate") or config.text_type in ("qwen3_next",) else 1
        return Tally(
            linear=hidden * queries * gate
            + hidden * cache.num_kv_heads * (cache.head_size + values)
            + heads * values * hidden
        )
    if isinstance(cache, Latent):
        return _latent(config, model)
    if isinstance(cache, Indexer):
        size, heads = cache.head_size, config.whole("index_n_heads", default=32)
        query = config.whole("q_lora_rank", default=hidden)
        return Tally(copied_linear=query * heads * size + hidden * size + hidden * heads)
    if isinstance(cache, State):
        return _state(config, cache)
    return _compressed(config, model, cache)


def _latent(config: ModelConfig, model: Architecture) -> Tally:
    hidden, heads = _hidden(config), model.num_attention_heads
    kv, rope = config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim", default=0)
    nope, values = config.whole("qk_nope_head_dim"), config.whole("v_head_dim")
    tally = Tally(copied_linear=hidden * (kv + rope))
    rank = config.get("q_lora_rank")
    if rank:
        tally.copied_linear += hidden * rank
        tally.linear += rank * heads * (nope + rope)
    else:
        tally.linear += hidden * heads * (nope + rope)
    tally.linear += kv * heads * (nope + values) + heads * values * hidden
    tally.absorbed = kv * heads * (nope + values)
    return tally


def _state(config: ModelConfig, state: State) -> Tally:
    hidden = _hidden(config)
    if state.kind == "short_conv":
        assert state.convolution is not None
        channels = state.convolution[1]
        return Tally(linear=3 * hidden * channels + channels * hidden, plain=channels * (state.convolution[0] + 1))
    assert state.recurrent is not None
    if state.kind == "linear":
        heads, size, _ = state.recurrent
        return Tally(linear=5 * hidden * heads * size)
    assert state.convolution is not None
    kernel, channels = state.convolution[0] + 1, state.convolution[1]
    if state.kind == "mamba1":
        inner, size = state.recurrent
        rank = config.get("time_step_rank", "mamba_dt_rank")
        rank = -(-hidden // 16) if not isinstance(rank, int) else rank
        return Tally(
            linear=2 * hidden * inner + inner * (rank + 2 * size) + rank * inner + inner * hidden,
            plain=inner * (size + kernel + 3),
        )
    if state.kind == "mamba2":
        heads, _, size = state.recurrent
        groups = state.groups[0] if state.groups else 1
        inputs = 2 * channels + 2 * groups * size + heads
        mixed = channels + 2 * groups * size
        return Tally(linear=hidden * inputs + channels * hidden, plain=mixed * (kernel + 1) + 3 * heads + channels)
    heads, size = state.recurrent[0], state.recurrent[1]
    values = heads * size
    if state.kind == "gdn":
        return Tally(linear=hidden * (channels + values + 2 * heads) + values * hidden, plain=channels * kernel)
    return Tally(  # KDA: low-rank gates beside the projections
        linear=hidden * channels + 2 * (hidden * size + size * values) + hidden * heads + values * hidden,
        plain=channels * kernel,
    )


def _compressed(config: ModelConfig, model: Architecture, cache: Any) -> Tally:
    """DeepSeek-V4: the window's attention is the layer's; compressors and indexers are small beside it."""
    hidden, heads = _hidden(config), model.num_attention_heads
    size, rank = head_size(config), config.whole("q_lora_rank")
    if type(cache).__name__ == "WindowLatent":
        groups, low = config.whole("o_groups", default=1), config.whole("o_lora_rank", default=hidden)
        return Tally(
            copied_linear=hidden * rank + hidden * size,
            linear=rank * heads * size + heads * size * low + groups * low * hidden,
        )
    if type(cache).__name__ == "CompressorState":
        overlap = 2 if cache.ratio == 4 else 1
        return Tally(copied_linear=2 * overlap * hidden * cache.head_size)
    if getattr(cache, "indexer", False):
        return Tally(copied_linear=rank * config.whole("index_n_heads", default=64) * cache.head_size)
    return Tally()


def _vision_parameters(config: ModelConfig) -> float:
    """A vision transformer, from its width and depth."""
    vision = config.raw.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0.0
    width = vision.get("hidden_size") or vision.get("embed_dim") or vision.get("width")
    depth = vision.get("depth") or vision.get("num_hidden_layers") or vision.get("layers")
    if not isinstance(width, int) or not isinstance(depth, int):
        return 0.0
    inner = vision.get("intermediate_size") or 4 * width
    return float(depth * (4 * width * width + 3 * width * int(inner)))


# -- Checkpoints ------------------------------------------------------------------------------------------------------


def _checkpoint_bytes(folder: Path | None) -> int | None:
    """Bytes of all tensors in the folder's safetensors files; None when it has none. Reads headers only."""
    if folder is None:
        return None
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            size = json.loads(index.read_bytes())["metadata"]["total_size"]
        except (ValueError, KeyError, TypeError):
            size = None
        if isinstance(size, int) and size > 0:
            return size
    files = sorted(folder.glob("*.safetensors"))
    return sum(_tensor_bytes(path) for path in files) if files else None


def _tensor_bytes(path: Path) -> int:
    """Bytes of the tensors of one file, from its header."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= 100_000_000:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        return sum(
            tensor["data_offsets"][1] - tensor["data_offsets"][0]
            for name, tensor in header.items()
            if name != "__metadata__"
        )
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path}: is no whole safetensors file ({error}); download it again") from None
