"""Weights: sources of named arrays (GGUF, safetensors, random) and the layers that are built from them."""

from kvblocks.engine.weights.build import (
    AttentionWeights,
    LayerWeights,
    ModelWeights,
    StateWeights,
    build_weights,
    parameter_shapes,
)
from kvblocks.engine.weights.gguf import GGUFFile
from kvblocks.engine.weights.random import RandomSource
from kvblocks.engine.weights.safetensors import SafetensorsFolder
from kvblocks.engine.weights.source import WeightSource

__all__ = [
    "AttentionWeights",
    "GGUFFile",
    "LayerWeights",
    "ModelWeights",
    "RandomSource",
    "SafetensorsFolder",
    "StateWeights",
    "WeightSource",
    "build_weights",
    "parameter_shapes",
]
