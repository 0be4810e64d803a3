"""Parameters of vision towers, from the names that their configs share; audio towers are named, not counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights.mixers import hidden
from kvblocks.sizing.weights.parts import WHOLE, Part

GATED_MLP = ("qwen2_5_vl", "gemma4", "pixtral", "mistral3", "glm4v")
"""Families whose vision layers have a gate in the feed-forward."""


def vision_config(config: ModelConfig) -> Mapping[str, Any] | None:
    """The part about the vision tower, or None."""
    for name in ("vision_config", "visual", "vit_config"):
        part = config.raw.get(name)
        if isinstance(part, Mapping) and part:
            return part
    return None


def _number(part: Mapping[str, Any], *names: str, default: int = 0) -> int:
    for name in names:
        value = part.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default


def vision_shape(config: ModelConfig) -> tuple[int, int, int, int] | None:
    """Layers, width, inner width and merged patches per token of the tower; None where the config does not say."""
    part = vision_config(config)
    if part is None:
        return None
    depth = _number(part, "depth", "num_hidden_layers", "vt_num_hidden_layers", "layers", "num_layers")
    width = _number(part, "embed_dim", "vt_hidden_size", "hidden_size", "width")
    if config.model_type == "qwen2_5_vl":
        width = _number(part, "hidden_size")
    inner = _number(part, "intermediate_size", "vt_intermediate_size", "mlp_dim")
    inner = inner or int(width * float(part.get("mlp_ratio") or 4))
    merge = _number(part, "spatial_merge_size", "pooling_kernel_size", default=0)
    kernel = part.get("merge_kernel_size")
    if not merge:
        merge = int(kernel[0]) if isinstance(kernel, list) and kernel else 2
    return (depth, width, inner, merge * merge) if depth and width else None


def vision_tower(config: ModelConfig) -> Iterator[Part]:
    """The tower's layers, patch and position embeddings, and the projector to the language model's width."""
    part, shape = vision_config(config), vision_shape(config)
    if part is None or shape is None:
        return
    depth, width, inner, merged = shape
    matrices = 3 if config.model_type.startswith(GATED_MLP) else 2
    qkv = _number(part, "qkv_hidden_size", default=width)
    yield Part("vision.layers", depth * (4 * width * qkv + matrices * width * inner), "first", what="vision")
    patch = _number(part, "patch_size", default=14)
    channels = 3 * _number(part, "temporal_patch_size", default=1)
    positions = _number(part, "num_position_embeddings")
    positions = positions or _number(part, "init_pos_emb_height") * _number(part, "init_pos_emb_width")
    positions = positions or 2 * _number(part, "position_embedding_size")
    vectors = width * (patch * patch * channels + positions + depth * 10)
    yield Part("vision.embeddings", vectors, "first", WHOLE, linear=False, what="vision")
    yield Part("vision.projector", _projector(config, part, width, merged), "first", linear=False, what="vision")


def _projector(config: ModelConfig, part: Mapping[str, Any], width: int, merged: int) -> int:
    """From the tower's width to the language model's: a merger of patches, or one matrix."""
    out = hidden(config)
    if config.model_type.startswith("gemma"):
        return width * out
    wide = width * merged
    mergers = 1 + len(part.get("deepstack_visual_indexes") or ())
    if config.model_type.startswith("minimax_m3"):
        return width * out + out * out * 2 + out * out * merged
    return mergers * (wide * wide + wide * out)


def has_audio(config: ModelConfig) -> bool:
    """Whether the config has an audio tower, which is not counted."""
    return any(isinstance(config.raw.get(name), Mapping) for name in ("audio_config", "audio_tower_config"))
