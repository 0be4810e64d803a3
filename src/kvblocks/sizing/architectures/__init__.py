"""Model families, a small file each; `describe` says what the layers of a model keep."""

from __future__ import annotations

from kvblocks.errors import UsageError
from kvblocks.sizing.architectures import (
    deepseek_v4,
    dense,
    encoder_decoder,
    gemma,
    latent,
    minimax_m3,
    states,
    wrappers,
)
from kvblocks.sizing.architectures.base import Architecture, family_of, known_types
from kvblocks.sizing.model_config import ModelConfig


def describe(config: ModelConfig, *, assume_full_attention: bool = False) -> Architecture:
    """What each layer of the model keeps. Raises UsageError for a family that is not known, or an unusable field.

    assume_full_attention: take every layer of an unknown family for ordinary attention over all tokens.
    """
    if assume_full_attention and not is_known(config):
        return dense.dense_decoder(config)
    return family_of(config)(config)


def is_known(config: ModelConfig) -> bool:
    """Whether the model's family is."""
    try:
        family_of(config)
    except UsageError:
        return False
    return True


__all__ = [
    "Architecture",
    "deepseek_v4",
    "dense",
    "describe",
    "encoder_decoder",
    "gemma",
    "is_known",
    "known_types",
    "latent",
    "minimax_m3",
    "states",
    "wrappers",
]
