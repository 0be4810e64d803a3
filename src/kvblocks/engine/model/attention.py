"""Attention that reads keys and values through block tables.

Prompts go tile by tile, so that the scores stay small; requests that decode are gathered together and multiplied at
once. A masked slot is never multiplied: what it holds may be anything, NaN included.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.batch import AttentionPlan, Bucket, Chunk, Reach
from kvblocks.engine.storage import Numbers

Array = NDArray[np.float32]


class Attention:
    """Grouped-query attention with these numbers; `softcap` 0 for none."""

    def __init__(self, heads: int, kv_heads: int, head_size: int, scale: float, softcap: float) -> None:
        self._heads, self._kv_heads, self._head_size = heads, kv_heads, head_size
        self._group = heads // kv_heads
        self._scale, self._softcap = np.float32(scale), np.float32(softcap)

    def __call__(self, queries: Array, keys_and_values: Array, layer: Numbers, plan: AttentionPlan) -> Array:
        """Write [n, 2, kv_heads, head_size] into the layer's blocks, then attend; [n, heads * head_size].

        All tokens of the step are written before any is read: requests may share blocks that this step fills.
        """
        layer[plan.blocks, plan.offsets] = keys_and_values
        out = np.empty((len(queries), self._heads * self._head_size), np.float32)
        for bucket in plan.buckets:
            out[bucket.rows] = self._decode(queries[bucket.rows], layer, bucket)
        for chunk in plan.chunks:
            self._chunk(queries, layer, chunk, out)
        return out

    def _gather(self, layer: Numbers, reach: Reach) -> Array:
        """The tokens of a reach, [slots, 2, kv_heads, head_size]; the memory itself where it can be."""
        tokens = layer[reach.blocks].reshape(-1, 2, self._kv_heads, self._head_size)
        return tokens[: reach.end - reach.first].astype(np.float32, copy=False)

    def _scores(self, queries: Array, keys: Array) -> Array:
        scores: Array = queries @ keys
        scores *= self._scale
        if self._softcap:
            np.divide(scores, self._softcap, out=scores)
            np.tanh(scores, out=scores)
            scores *= self._softcap
        return scores

    def _decode(self, queries: Array, layer: Numbers, bucket: Bucket) -> Array:
        count, slots = bucket.valid.shape
        tokens = layer[bucket.tables].reshape(count, slots, 2, self._kv_heads, self._head_size)
        tokens = tokens.astype(np.float32, copy=False)
        tokens[~bucket.valid] = 0  # what may not be read must not even be multiplied by 0
        keys = tokens[:, :, 0].transpose(0, 2, 3, 1)
        scores = self._scores(queries.reshape(count, self._kv_heads, self._group, self._head_size), keys)
        np.copyto(scores, -np.inf, where=~bucket.valid[:, None, None])
        weights, sums = _exponentials(scores)
        out = weights @ tokens[:, :, 1].transpose(0, 2, 1, 3)
        out /= sums
        return out.reshape(count, -1)

    def _chunk(self, queries: Array, layer: Numbers, chunk: Chunk, out: Array) -> None:
        tokens = self._gather(layer, chunk.reach)
        keys, values = tokens[:, 0].transpose(1, 2, 0), tokens[:, 1].transpose(1, 0, 2)
        size = self._head_size
        for start, end, first, last in chunk.tiles():
            count = end - start
            at = slice(first - chunk.reach.first, last - chunk.reach.first)
            heads = queries[start:end].reshape(count, self._kv_heads, self._group, size)
            tile = heads.transpose(1, 2, 0, 3).reshape(self._kv_heads, self._group * count, size)
            scores = self._scores(tile, keys[:, :, at])
            if count > 1:
                _mask(
                    scores.reshape(self._kv_heads, self._group, count, last - first), last - count - first, chunk.window
                )
            weights, sums = _exponentials(scores)
            mixed = weights @ values[:, at]
            mixed /= sums
            heads = mixed.reshape(self._kv_heads, self._group, count, size).transpose(2, 0, 1, 3)
            out[start:end] = heads.reshape(count, -1)


def _mask(scores: Array, before: int, window: int | None) -> None:
    """Hide from query i, the token at `before` + i, what is later, and what has left its window."""
    count, slots = scores.shape[-2:]
    distance = np.arange(before, before + count)[:, None] - np.arange(slots)
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    np.copyto(scores, -np.inf, where=hidden)


def _exponentials(scores: Array) -> tuple[Array, Array]:
    """Softmax in place, not yet divided by the sums."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores, scores.sum(axis=-1, keepdims=True)
