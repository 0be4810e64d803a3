"""Bytes of a model's weights on one rank: exact from the files beside its config, else counted from the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.resolve import stage_sizes
from kvblocks.sizing.weights import files
from kvblocks.sizing.weights.count import Counted, count, is_tied
from kvblocks.sizing.weights.layers import num_layers
from kvblocks.sizing.weights.parts import EXPERTS, WHOLE, Part
from kvblocks.sizing.weights.quantisation import plain_bytes, weight_format

UNKNOWN_LOW, UNKNOWN_HIGH = 0.5, 1.6
"""What an unknown family's count is multiplied by at the ends of its range.

Counted as plain decoders before they had a rule, 37 of 48 families were within 2 % of the real number and all but
three in this range."""
LOADED = 1.01
"""What weights take at most above their tensors once loaded: rounding of allocations, packed copies, rotary tables.

In the logs of the error table the line `Model loading took` is 0 to 1 % above the counted bytes."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the weights on one rank of one pipeline stage, as a range with its reason."""

    low: int
    best: int
    high: int
    source: str
    """`files` (headers), `index` (its total, shared out by the count) or `config` (counted)."""
    reason: str
    parameters: int
    """Of the whole model, as loaded; 0 when only the files' bytes are known."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Best bytes by group: embeddings, layers, experts, vision, draft, absorbed."""
    not_modelled: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {
            "low_bytes": self.low,
            "best_bytes": self.best,
            "high_bytes": self.high,
            "source": self.source,
            "reason": self.reason,
            "parameters": self.parameters,
            "groups": dict(self.groups),
            "not_modelled": list(self.not_modelled),
        }


def stage_of(config: ModelConfig, flags: EngineFlags, stage: int, env: Mapping[str, str] | None = None) -> range:
    """The layers of a pipeline stage. Raises UsageError when there is no such stage or the partition does not fit."""
    stages = flags.pipeline_parallel_size
    if not 0 <= stage < stages:
        raise UsageError(f"stage={stage} must be at least 0 and below pipeline_parallel_size={stages}")
    sizes = stage_sizes(num_layers(config), stages, env or {})
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


def weights_per_rank(
    config: ModelConfig, flags: EngineFlags | None = None, stage: int = 0, env: Mapping[str, str] | None = None
) -> Weights:
    """Bytes of the weights on one rank.

    Tensor parallelism cuts what it can (heads, widths, vocabulary, experts; with fewer key-value heads than ranks each
    rank holds one) and leaves norms, routers and latent down-projections whole; expert parallelism deals the experts
    out over the same ranks, which is the same bytes; a pipeline stage has its layers, the first also the embedding,
    the last the head. `env` has vLLM's environment variables. Raises UsageError naming the file or the field that is
    wrong.
    """
    flags = flags or EngineFlags()
    layers = stage_of(config, flags, stage, env)
    estimate = _from_count(config, flags, stage, layers, count(config, flags))
    if config.path is None:
        return estimate
    tensors = files.find_tensors(config.path)
    if tensors is not None:
        return _from_files(config, flags, stage, layers, tensors, estimate)
    total = files.index_bytes(config.path)
    return estimate if total is None else _from_index(config, flags, total, estimate)


def _on_stage(part: Part, layers: range, first: bool, last: bool, tied: bool) -> bool:
    """Whether a stage holds a part; with a tied head the last stage has the embedding too."""
    if isinstance(part.place, int):
        return part.place in layers
    if part.place == "first":
        return first or (last and tied and part.name == "embed_tokens")
    return last if part.place == "last" else True


def _from_count(config: ModelConfig, flags: EngineFlags, stage: int, layers: range, counted: Counted) -> Weights:
    stages, tp = flags.pipeline_parallel_size, flags.tensor_parallel_size
    form, tied = weight_format(config, flags), is_tied(config)
    groups: dict[str, float] = {}
    low = high = 0.0
    for part in counted.parts:
        if not _on_stage(part, layers, stage == 0, stage == stages - 1, tied):
            continue
        numel = part.on_rank(tp)
        least, best, most = form.bytes_of(part)
        low, high = low + numel * least, high + numel * most
        groups[part.what] = groups.get(part.what, 0.0) + numel * best
    groups["rotary"] = rotary = _rotary_bytes(config, flags)
    if counted.unknown:
        low, high = low * UNKNOWN_LOW, high * UNKNOWN_HIGH
    quantised = f", {form.best:.4g} bytes per quantised and" if form.best != form.plain else ","
    return Weights(
        low=round(low),
        best=round(sum(groups.values())),
        high=round((high + rotary) * LOADED),
        source="config",
        reason=f"{counted.parameters / 1e9:.2f} billion parameters counted from the config, {form.name}{quantised} "
        f"{form.plain:g} per other parameter, rank of {tp}, stage {stage} of {stages}",
        parameters=counted.parameters,
        groups={name: round(size) for name, size in groups.items()},
        not_modelled=(*counted.unknown, *((form.note,) if form.note else ())),
    )


def _rotary_bytes(config: ModelConfig, flags: EngineFlags) -> float:
    """The table of sines and cosines: positions x rotary width, in the model's dtype, one for all layers."""
    positions = config.get("max_position_embeddings")
    width = config.get("qk_rope_head_dim", "head_dim", default=128)
    if not isinstance(positions, int) or not isinstance(width, int):
        return 0.0
    return float(positions * width * plain_bytes(config, flags))


def _from_files(
    config: ModelConfig,
    flags: EngineFlags,
    stage: int,
    layers: range,
    tensors: list[files.Tensor],
    estimate: Weights,
) -> Weights:
    """The tensors that the engine loads on this rank and stage, by their names."""
    stages, tp = flags.pipeline_parallel_size, flags.tensor_parallel_size
    drafts = (
        bool(flags.draft) and not flags.draft.get("model") and str(flags.draft.get("method", "mtp")).endswith("mtp")
    )
    first, last, tied, total = stage == 0, stage == stages - 1, is_tied(config), num_layers(config)
    cast = plain_bytes(config, flags) / 4
    groups: dict[str, float] = {"absorbed": estimate.groups.get("absorbed", 0)}
    for tensor in tensors:
        draft, vision = files.is_draft(tensor.name, total), files.is_vision(tensor.name)
        head = tensor.name.endswith("lm_head.weight")
        if (draft and not drafts) or (vision and flags.language_model_only) or (head and tied):
            continue
        if draft:
            here, what = last, "draft"
        elif vision:
            here, what = first, "vision"
        elif tensor.layer is not None:
            here, what = tensor.layer in layers, "experts" if tensor.share == EXPERTS else "layers"
        elif "embed" in tensor.name or "wte" in tensor.name:
            here, what = first or (last and tied), "embeddings"
        else:
            here, what = last, "embeddings"
        if here:
            size = tensor.size * (cast if tensor.wide else 1) / (1 if tensor.share == WHOLE else tp)
            groups[what] = groups.get(what, 0.0) + size
    best = sum(groups.values())
    return Weights(
        low=round(best),
        best=round(best),
        high=round(best * LOADED * (1.0 if tp == 1 else 1.02)),
        source="files",
        reason=f"{len(tensors)} tensors in the safetensors files, rank of {tp}, stage {stage} of {stages}",
        parameters=estimate.parameters,
        groups={name: round(size) for name, size in groups.items() if size},
        not_modelled=tuple(note for note in estimate.not_modelled if "draft model" in note),
    )


def _from_index(config: ModelConfig, flags: EngineFlags, total: int, estimate: Weights) -> Weights:
    """The index's total, shared out over ranks and stages in the proportions of the count."""
    alone = EngineFlags(dtype=flags.dtype, quantization=flags.quantization)
    whole = _from_count(config, alone, 0, range(num_layers(config)), count(config, alone))
    stored = whole.best - whole.groups.get("absorbed", 0) - whole.groups.get("rotary", 0)
    derived = estimate.groups.get("absorbed", 0) + estimate.groups.get("rotary", 0)
    factor = total / max(1, stored)
    best = (estimate.best - derived) * factor + derived
    notes = list(estimate.not_modelled)
    if abs(factor - 1) > 0.1:
        drafts = "; the file may hold layers that are not loaded" if factor > 1 else ""
        notes.append(f"the index's {total} bytes are {factor:.2f} times the counted {stored}{drafts}")
    return Weights(
        low=round(min(best, estimate.low)),
        best=round(best),
        high=round(max(best, estimate.best) * LOADED),
        source="index",
        reason=f"total_size={total} of the index, shared out as counted: {estimate.reason}",
        parameters=estimate.parameters,
        groups=estimate.groups,
        not_modelled=tuple(notes),
    )


__all__ = ["Weights", "stage_of", "weights_per_rank"]
