"""Small seeded random weights: a model that says nonsense, always the same, for tests of the cache."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class RandomSource:
    """Arrays of these shapes. Each depends on the seed and its name alone.

    The standard deviation is large enough that different prompts give different tokens.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> None:
        self._shapes = shapes
        self._seed = seed

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        return self._shapes.get(name)

    def read_into(self, name: str, out: Array) -> None:
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        if name.endswith("A_log"):
            out[...] = np.log(rng.uniform(1, 4, out.shape))
        elif name.endswith("dt_bias"):
            out[...] = rng.uniform(-3, 0, out.shape)
        elif name.endswith(("norm.weight", "layernorm.weight", ".D")):
            out[...] = 1 + 0.1 * rng.standard_normal(out.shape)
        else:
            out[...] = 0.15 * rng.standard_normal(out.shape)
