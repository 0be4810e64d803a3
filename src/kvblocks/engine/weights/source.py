"""What gives weights: named arrays under Hugging Face's names, read into place one at a time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class WeightSource(Protocol):
    """A file or folder of weights."""

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of an array; None when there is none of that name."""
        ...

    def read_into(self, name: str, out: Array) -> None:
        """Write the array, as float32, into `out`, which has its shape. Needs little memory besides."""
        ...
