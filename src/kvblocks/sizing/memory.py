"""What is left for the cache on a GPU: the share that vLLM takes, less weights, activations, CUDA graphs and the rest.

vLLM 0.32 measures each term while it starts. Here weights are counted and the others estimated, by formulas whose few
constants come from public start-up logs (`docs/memory-estimate.md` has the table of errors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kvblocks.sizing.architectures import Architecture
from kvblocks.sizing.architectures.feed_forward import EXPERTS, has_experts
from kvblocks.sizing.devices import Device
from kvblocks.sizing.drafts import MTP, draft_method
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.flags import GIB
from kvblocks.sizing.formats import element_bytes
from kvblocks.sizing.layers import Latent, State
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.resolve import stage_sizes
from kvblocks.sizing.weights import weights_of

MIB = 2**20
SAMPLER_BYTES = 20
"""Bytes per request and entry of the vocabulary while sampling: logits in 2 and 4 bytes, sorted, and their indices."""
GRAPH_BYTES = MIB // 4
"""Bytes of CUDA graphs per layer and captured batch size."""
LARGEST_GRAPH = 512
"""vLLM captures graphs for batches up to so many tokens."""
OTHER_BYTES = 256 * MIB
"""What is neither PyTorch's nor the cache: kernels, workspaces of attention, fragmentation."""
NCCL_BYTES = 640 * MIB
"""Buffers for communication when ranks share layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the subtraction; positive for what there is, negative for what is taken."""

    name: str
    formula: str
    low_bytes: int
    best_bytes: int
    high_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The term as JSON would have it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What is available for the cache on one worker, and how that comes. Bytes."""

    device: str
    total_bytes: int
    """Memory of the GPU, as a program sees it."""
    requested_bytes: int
    terms: tuple[Term, ...]
    not_modelled: tuple[str, ...]

    @property
    def available_best(self) -> int:
        return sum(term.best_bytes for term in self.terms)

    @property
    def available_low(self) -> int:
        """If every term takes as much as it may."""
        return sum(term.low_bytes for term in self.terms)

    @property
    def available_high(self) -> int:
        return sum(term.high_bytes for term in self.terms)

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON would have it."""
        return {
            "device": self.device,
            "total_bytes": self.total_bytes,
            "requested_bytes": self.requested_bytes,
            "terms": [term.to_dict() for term in self.terms],
            "available_low": self.available_low,
            "available_best": self.available_best,
            "available_high": self.available_high,
            "not_modelled": list(self.not_modelled),
        }


def estimate_available(
    config: ModelConfig, model: Architecture, engine: Engine, device: Device, stage: int = 0
) -> MemoryEstimate:
    """What one worker of a pipeline stage has for its cache.

    Raises UsageError when the config does not say what the weights are made of.
    """
    flags = engine.flags
    requested = math.ceil(device.total_bytes * flags.gpu_memory_utilization)
    stages = stage_sizes(len(model.layers), engine.pp, engine.env)
    weights = weights_of(
        config,
        model,
        dtype=engine.dtype,
        tp=engine.tp,
        stages=stages,
        stage=stage,
        drafts=draft_method(flags) == MTP,
        language_model_only=flags.language_model_only,
        method=flags.quantization,
    )
    terms = [
        Term(
            name="requested",
            formula=f"{flags.gpu_memory_utilization:g} x {device.total_bytes / GIB:.2f} GiB",
            low_bytes=requested,
            best_bytes=requested,
            high_bytes=requested,
        ),
        Term(
            name="weights",
            formula=weights.how,
            low_bytes=-weights.high_bytes,
            best_bytes=-weights.best_bytes,
            high_bytes=-weights.low_bytes,
        ),
        _activations(config, model, engine),
        _graphs(engine, stages[stage]),
        _other(engine),
    ]
    missing = [
        *weights.not_modelled,
        *(("encoders of images and sound while they run",) if config.raw.get("vision_config") else ()),
        *(("what other programs take of the shared memory",) if device.unified else ()),
    ]
    if flags.draft and draft_method(flags) in ("eagle", "eagle3", "draft_model"):
        missing.append("the draft model's weights")
    return MemoryEstimate(
        device=device.name,
        total_bytes=device.total_bytes,
        requested_bytes=requested,
        terms=tuple(terms),
        not_modelled=tuple(missing),
    )


def _taken(name: str, formula: str, size: float, less: float, more: float) -> Term:
    """A term that takes memory: `less` to `more` times its best value."""
    return Term(
        name=name,
        formula=formula,
        low_bytes=-int(size * more),
        best_bytes=-int(size),
        high_bytes=-int(size * less),
    )


def _activations(config: ModelConfig, model: Architecture, engine: Engine) -> Term:
    """The peak of a step of `max_num_batched_tokens` tokens, or of sampling for `max_num_seqs` requests."""
    tokens, size = engine.max_num_batched_tokens, element_bytes(engine.dtype)
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    heads = model.num_attention_heads * max(model.head_size, 1) / engine.tp
    inner = _inner_width(config, engine)
    mixing = 3 * heads if not any(isinstance(c, Latent) for layer in model.layers for c in layer) else 4 * heads
    widest_state = max(
        (cache.convolution[1] / engine.tp for layer in model.layers for cache in layer
         if isinstance(cache, State) and cache.convolution is not None),
        default=0.0,
    )  # fmt: skip
    width = 3 * hidden + max(inner, mixing, 3 * widest_state)
    step = tokens * width * size
    sampling = engine.max_num_seqs * config.whole("vocab_size") * SAMPLER_BYTES
    if step > sampling:
        formula = f"a step of {tokens:,} tokens x {width:,.0f} numbers of {size} bytes"
    else:
        entries = config.whole("vocab_size")
        formula = f"sampling {engine.max_num_seqs:,} requests x {entries:,} entries x {SAMPLER_BYTES} bytes"
    return _taken("activations", formula, max(step, sampling), 0.6, 1.6)


def _inner_width(config: ModelConfig, engine: Engine) -> float:
    """Numbers per token inside the feed-forward network of the widest layer, on one rank."""
    given = config.get("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size")
    inner = float(
        max(given) if isinstance(given, list) else given or 4 * config.whole("hidden_size", "n_embd", "d_model")
    )
    if not config.get(*EXPERTS) or not any(has_experts(config, i) for i in range(8)):
        return 3 * inner / engine.tp
    chosen = config.get("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", default=1)
    chosen = int(chosen[0] if isinstance(chosen, list) else chosen)
    each = config.get("moe_intermediate_size", "intermediate_size")
    each = float(each[0] if isinstance(each, list) else each) / engine.tp
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    return chosen * (max(2 * each, hidden) + each)


def _graphs(engine: Engine, layers: int) -> Term:
    if engine.flags.enforce_eager:
        return _taken("CUDA graphs", "none: enforce_eager", 0, 1, 1)
    largest = min(2 * engine.max_num_seqs, LARGEST_GRAPH)
    sizes = 3 + min(largest, 256) // 8 + max(0, largest - 256) // 16
    return _taken(
        "CUDA graphs",
        f"{layers} layers x {sizes} batch sizes x {GRAPH_BYTES / MIB:g} MiB",
        layers * sizes * GRAPH_BYTES,
        0.4,
        2.0,
    )


def _other(engine: Engine) -> Term:
    if engine.tp * engine.pp == 1:
        return _taken("other", "kernels, workspaces, fragmentation", OTHER_BYTES, 0.4, 3.0)
    return _taken("other", "kernels, workspaces, fragmentation, NCCL", OTHER_BYTES + NCCL_BYTES, 0.5, 2.0)
