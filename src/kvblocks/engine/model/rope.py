"""Rotary positions: cosines and sines of every position, once."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.shape import LayerShape

Array = NDArray[np.float32]


def frequencies(layer: LayerShape, rotary: int) -> NDArray[np.float64]:
    """The angle by which each pair of numbers turns per position, [rotary / 2]."""
    turns = layer.rope_theta ** -(np.arange(0, rotary, 2, dtype=np.float64) / rotary)
    scaling = layer.rope_scaling
    if not scaling:
        return turns
    factor = float(scaling["factor"])
    if scaling.get("rope_type", scaling.get("type")) == "linear":
        return turns / factor
    original = float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    cycles = original * turns / (2 * math.pi)  # how often the pair turns within the original context
    smooth = np.clip((cycles - low) / (high - low), 0.0, 1.0)
    return turns * (smooth + (1 - smooth) / factor)


class Rope:
    """The tables of one kind of layer, grown as positions are asked for."""

    def __init__(self, layer: LayerShape, rotary: int) -> None:
        self._turns = frequencies(layer, rotary)
        self._half = rotary // 2
        self._table: Array = np.empty((0, 2, self._half), np.float32)

    def at(self, positions: NDArray[np.int64]) -> Array:
        """Cosines and sines [n, 2, rotary / 2]."""
        most = int(positions.max()) + 1
        if most > len(self._table):
            angles = np.arange(-(-most // 1024) * 1024)[:, None] * self._turns
            self._table = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        return self._table[positions]

    def rotate(self, heads: Array, at: Array) -> None:
        """Turn [n, heads, head_size] in place; number i is paired with number i + rotary / 2."""
        half = self._half
        cos, sin = at[:, None, 0], at[:, None, 1]
        first, second = heads[..., :half], heads[..., half : 2 * half]
        turned = first * cos - second * sin
        second *= cos
        second += first * sin
        first[...] = turned
