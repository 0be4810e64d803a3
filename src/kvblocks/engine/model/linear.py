"""Matrix products in the ways that are fast on a CPU, from one row to a prompt.

One row is a matrix-vector product and costs a pass over the weights. A few rows (a batch that decodes) should cost
little more, but an ordinary product first repacks the matrix; cut into slices of some rows each, it is multiplied as
it lies. Large matrices are shared between two threads of ours, with BLAS itself kept to one: its own threads wait for
each other at every call, which on a busy machine costs more than the product.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

FEW_ROWS = 32
UNPACKED = 10**6
"""Multiplications up to which OpenBLAS multiplies without repacking."""
SHARED = 2**18
"""Numbers of a matrix from which on two threads share it."""

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
_helper: ThreadPoolExecutor | None = None


def use_own_threads() -> None:
    """Keep OpenBLAS to one thread and start the helper; once per process. Another BLAS is left as it is."""
    global _helper
    if _helper is not None or (os.cpu_count() or 1) < 2:
        return
    np.dot(np.ones(2, np.float32), np.ones(2, np.float32))
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for path in {line.split()[-1] for line in maps.splitlines() if "openblas" in line}:
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            if hasattr(library, name):
                getattr(library, name)(1)
                _helper = ThreadPoolExecutor(1, "kvblocks-blas")
                break


def project(x: Array, matrix: Array, bias: Array | None = None) -> Array:
    """[rows, inputs] times the matrix [outputs, inputs]: [rows, outputs]."""
    out = np.empty((len(x), len(matrix)), np.float32)
    half = len(matrix) // 64 * 32
    if _helper is None or matrix.size < SHARED or not half:
        _multiply(x, matrix, out)
    else:
        other = _helper.submit(_multiply, x, matrix[half:], out[:, half:])
        _multiply(x, matrix[:half], out[:, :half])
        other.result()
    if bias is not None:
        out += bias
    return out


def _multiply(x: Array, matrix: Array, out: Array) -> None:
    rows, (outputs, inputs) = len(x), matrix.shape
    if rows == 1:
        np.matmul(matrix, x[0], out=out[0])
        return
    if rows <= FEW_ROWS:
        for size in (32, 16, 8):
            if outputs % size == 0 and rows * size * inputs <= UNPACKED:
                slices = matrix.reshape(-1, size, inputs).swapaxes(1, 2)
                np.matmul(x, slices, out=out.reshape(rows, -1, size).swapaxes(0, 1))
                return
    np.matmul(x, matrix.T, out=out)
