"""How many bytes are left for the cache: the engine's share of a device, minus weights, peak, graphs and the rest.

The subtraction is vLLM's: `requested = ceil(total x gpu_memory_utilization)`; a dummy run of `max_num_batched_tokens`
tokens measures what stays allocated and how much more is needed at the highest moment; a trial capture measures the
CUDA graphs; what is left is the cache. The terms here are computed, not
measured, so each is a range; a log's own line makes the answer exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.activations import (
    Peak,
    distinct_layers,
    encoder_peak,
    expert_workspace,
    forward_peak,
    sampler_peak,
)
from kvblocks.sizing.devices import SPREAD, Device
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import Weights, stage_of, weights_per_rank

MIB = 2**20
ENGINE = (0, 32)
"""The version of vLLM whose subtraction is computed unless another is asked for."""
GRAPHS_CHARGED = (0, 21)
"""From this version on the estimate of the graphs is taken from the cache (its log: "default since v0.21.0")."""
PER_LOGIT = (
    ((0, 17), (30.0, 38.65, 42.0)),
    ((0, 26), (12.0, 16.0, 38.65)),
    ((99, 0), (6.0, 7.0, 16.0)),
)
"""Bytes per logit in the sampler's dummy run, up to a version: low, best, high.

First a full sort of the vocabulary (32-bit logits, sorted values and 64-bit positions, both twice for the sort itself,
probabilities and their sum: 38.65 fits six logs from 0.9 to 0.15); then kernels without a sort (16-bit and 32-bit
logits, probabilities, random numbers: 15.6 in one log of 0.26 with the first model runner); with the second model
runner only the two forms of the logits and block-wise maxima (7 in two logs of 0.27)."""
GRAPH_FIRST, GRAPH_PIECE, GRAPH_WHOLE = 50 * MIB, 0.22 * MIB, 0.05 * MIB
"""CUDA graphs: one pool, and per layer 0.22 MiB of a piecewise graph and 0.05 of a whole one.

Pieces keep their results between layers, whole graphs reuse one pool. Fits ten logged estimates to a factor of 0.6
to 1.7."""
CONTEXT = (60 * MIB, 250 * MIB, 600 * MIB)
"""Kernels loaded on first use, library workspaces, persistent input buffers: 0.07 to 0.34 GiB in logs of one GPU."""
COMMUNICATION = (100 * MIB, 600 * MIB, 1800 * MIB)
"""NCCL channels, all-reduce buffers and workspaces with tensor or pipeline parallelism: 0.2 to 1.7 GiB in logs."""
COMMUNICATION_INSIDE = (400 * MIB, 1400 * MIB, 3600 * MIB)
"""The same where the first measurement came before NCCL was set up, on GPUs with NVLink (1.1 to 3.6 GiB in logs)."""
NVLINKED = ((8, 0), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs that are mostly linked by NVLink."""
NCCL_BEFORE = (0, 12)
"""From this version on NCCL is set up before the first measurement, so that its buffers are not charged."""
FLASHINFER = 394 * MIB
"""FlashInfer's attention workspace (vLLM's default size for it); vLLM picks this backend on Blackwell or when asked."""
UNIFIED = (-2 * GIB, 0, 6 * GIB)
"""On devices that share memory with the host, file pages and other programs move the measured use between boots."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the subtraction, in bytes per worker: positive for what there is, negative for what is taken.

    `low_bytes` is the worst case for the cache (the most that is taken), `high_bytes` the best.
    """

    name: str
    formula: str
    low_bytes: int
    best_bytes: int
    high_bytes: int
    not_modelled: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {
            "name": self.name,
            "formula": self.formula,
            "low_bytes": self.low_bytes,
            "best_bytes": self.best_bytes,
            "high_bytes": self.high_bytes,
            "not_modelled": list(self.not_modelled),
        }


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What one worker of a pipeline stage has left for the cache, in bytes. Negative when the model does not fit."""

    terms: tuple[Term, ...]
    """The engine's share of the device first, then what is taken from it."""
    device: Device
    requested_bytes: int
    weights: Weights
    stage: int = 0

    @property
    def available_best(self) -> int:
        """The sum of all terms."""
        return sum(term.best_bytes for term in self.terms)

    @property
    def available_low(self) -> int:
        """If every term takes as much as it may."""
        return sum(term.low_bytes for term in self.terms)

    @property
    def available_high(self) -> int:
        """If every term takes as little as it may."""
        return sum(term.high_bytes for term in self.terms)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Everything that the terms leave out."""
        return tuple(dict.fromkeys(note for term in self.terms for note in term.not_modelled))

    def to_dict(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {
            "device": self.device.name,
            "total_bytes": self.device.total_bytes,
            "requested_bytes": self.requested_bytes,
            "stage": self.stage,
            "terms": [term.to_dict() for term in self.terms],
            "weights": self.weights.to_dict(),
            "available_low": self.available_low,
            "available_best": self.available_best,
            "available_high": self.available_high,
            "not_modelled": list(self.not_modelled),
        }


def estimate_available(
    config: ModelConfig,
    flags: EngineFlags,
    device: Device,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    stage: int = 0,
    env: Mapping[str, str] | None = None,
    engine: tuple[int, int] = ENGINE,
) -> MemoryEstimate:
    """Bytes left for the cache on each worker of a pipeline stage.

    `max_num_batched_tokens` and `max_num_seqs` are what the engine ends up with, defaults applied; `env` has vLLM's
    environment variables. `engine` is the version of vLLM, which decides what the sampler needs and whether graphs are
    charged. With `kv_cache_memory_bytes` the answer is that value and nothing is subtracted. Raises UsageError naming
    the field, the value and the fix when the config lacks a size, a stage does not exist or weight files are broken.
    """
    for name, value in (("max_num_batched_tokens", max_num_batched_tokens), ("max_num_seqs", max_num_seqs)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name}={value!r} must be a whole number of at least 1")
    requested = math.ceil(device.total_bytes * flags.gpu_memory_utilization)
    weights = weights_per_rank(config, flags, stage, env)
    if flags.kv_cache_memory_bytes is not None:
        given = flags.kv_cache_memory_bytes
        term = Term("given", f"kv_cache_memory_bytes={given}: nothing is subtracted", given, given, given)
        return MemoryEstimate((term,), device, requested, weights, stage)
    layers = stage_of(config, flags, stage, env)
    terms = [
        _requested(flags, device, requested),
        _weights_term(weights),
        _peak_term(config, flags, max_num_batched_tokens, max_num_seqs, layers, stage, engine),
    ]
    workspace = expert_workspace(config, flags, max_num_batched_tokens, layers)
    if workspace is not None:
        terms.append(_term("expert workspaces", workspace, "what other expert kernels than the fused ones hold"))
    graphs = _graphs(flags, device, max_num_batched_tokens, max_num_seqs, len(layers))
    if graphs is not None and engine >= GRAPHS_CHARGED:
        terms.append(_term("CUDA graphs", graphs, "the trial capture's own measurement of graphs"))
    terms.extend(_other(flags, device, engine))
    return MemoryEstimate(tuple(terms), device, requested, weights, stage)


def _requested(flags: EngineFlags, device: Device, requested: int) -> Term:
    """The engine's share; drivers differ in the total, so a device of the table has a range."""
    spread = 0 if device.source == "given" else round(requested * SPREAD)
    formula = f"{flags.gpu_memory_utilization:g} x {device.total_gib:.2f} GiB of {device.name}"
    return Term("requested", formula, requested - spread, requested, requested + spread)


def _term(name: str, peak: Peak, *not_modelled: str) -> Term:
    """What is taken: the most of it leaves the least."""
    return Term(name, peak.formula, -round(peak.high), -round(peak.best), -round(peak.low), not_modelled)


def _weights_term(weights: Weights) -> Term:
    return Term("weights", weights.reason, -weights.high, -weights.best, -weights.low, weights.not_modelled)


def _peak_term(
    config: ModelConfig, flags: EngineFlags, tokens: int, seqs: int, layers: range, stage: int, engine: tuple[int, int]
) -> Term:
    """The highest moment of the profiling run: encoder, forward pass and sampler follow each other."""
    forward = forward_peak(config, flags, tokens, distinct_layers(config, layers))
    moments = [("the forward pass", forward)]
    if stage == flags.pipeline_parallel_size - 1:
        cost = next(cost for until, cost in PER_LOGIT if engine < until)
        moments.append(("the sampler", sampler_peak(config, flags, tokens, seqs, cost)))
    held, notes = 0.0, ["attention kernels of the dummy run"]
    encoder = encoder_peak(config, flags, tokens) if stage == 0 else None
    if encoder is not None:
        held = encoder[1]
        notes.append("video inputs and processors with other limits than the family's own")
    moments = [
        (
            name,
            Peak(peak.low, peak.best + held, peak.high + held, peak.formula + (" + encoder results" if held else "")),
        )
        for name, peak in moments
    ]
    if encoder is not None:
        moments.append(("the vision encoder", encoder[0]))
    name, top = max(moments, key=lambda moment: moment[1].best)
    peak = Peak(max(p.low for _, p in moments), top.best, max(p.high for _, p in moments), f"{name}: {top.formula}")
    return _term("activation peak", peak, *notes)


def capture_sizes(flags: EngineFlags, device: Device, tokens: int, seqs: int) -> tuple[int, int]:
    """How many graphs are captured piecewise and how many whole, by vLLM's default list of sizes.

    Sizes are 1, 2, 4, every 8th below 256 and every 16th up to twice the sequences, at most 512 (1024 on data-centre
    Blackwell); whole graphs only for decode batches, so up to the number of sequences.
    """
    query = 1 + flags.num_speculative_tokens
    ceiling = 1024 if device.capability[0] == 10 else 512
    most = min(seqs * query * 2, ceiling, tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, ceiling + 1, 16)]
    piecewise = [size for size in sizes if size <= most]
    return len(piecewise), sum(size <= seqs * query for size in piecewise)


def _graphs(flags: EngineFlags, device: Device, tokens: int, seqs: int, layers: int) -> Peak | None:
    if flags.enforce_eager:
        return None
    piecewise, whole = capture_sizes(flags, device, tokens, seqs)
    best = GRAPH_FIRST + layers * (piecewise * GRAPH_PIECE + whole * GRAPH_WHOLE)
    formula = (
        f"{GRAPH_FIRST // MIB} MiB + {layers} layers x ({piecewise} piecewise graphs x {GRAPH_PIECE / MIB:g} MiB + "
        f"{whole} whole ones x {GRAPH_WHOLE / MIB:g} MiB)"
    )
    return Peak(best * 0.5, best, best * 2.5 + 0.25 * GIB, formula)


def _other(flags: EngineFlags, device: Device, engine: tuple[int, int]) -> list[Term]:
    """What neither weights nor tensors of the run explain."""
    context = "kernels, libraries and input buffers: 250 MiB, 60 to 600 in logs of one GPU"
    terms = [_term("libraries", Peak(*CONTEXT, context), "fragmentation of the allocator, other programs on the GPU")]
    if flags.tensor_parallel_size * flags.pipeline_parallel_size > 1:
        linked = device.capability in NVLINKED
        low, best, high = COMMUNICATION_INSIDE if engine < NCCL_BEFORE and linked else COMMUNICATION
        text = f"NCCL and all-reduce buffers: {best // MIB} MiB, {low // MIB} to {high // MIB} in logs of several GPUs"
        terms.append(_term("communication", Peak(low, best, high, text), "the topology of the links"))
    asked = str(flags.attention_backend or "").upper()
    blackwell = device.capability[0] in (10, 12)
    if "FLASHINFER" in asked or (not asked and blackwell):
        low = FLASHINFER if "FLASHINFER" in asked else 0
        text = f"FlashInfer's workspace: {FLASHINFER // MIB} MiB"
        terms.append(_term("attention workspace", Peak(low, FLASHINFER, 2 * FLASHINFER, text)))
    if device.unified:
        text = "memory shared with the host: what is free changes from boot to boot"
        terms.append(_term("shared memory", Peak(*UNIFIED, text), "file pages and other programs of the host"))
    return terms
