"""A Mamba2 layer that reads and writes its state through block tables.

The recurrence goes token by token, so that the state is the same whatever the chunks were. Requests that decode go
together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.batch import Batch, StatePlan
from kvblocks.engine.model.linear import project
from kvblocks.engine.model.shape import ModelShape, StateShape
from kvblocks.engine.weights import StateWeights

Array = NDArray[np.float32]


def state_layer(
    x: Array,
    weights: StateWeights,
    model: ModelShape,
    memory: tuple[Array, Array],
    batch: Batch,
    plan: StatePlan,
) -> Array:
    """[n, hidden] to [n, hidden]; the states after each span are in their blocks when it returns."""
    shape = model.state
    assert shape is not None
    projected = project(x, weights.inward)
    gate = projected[:, : shape.inner]
    inputs = projected[:, shape.inner : shape.inner + shape.channels]
    steps = _softplus(projected[:, shape.inner + shape.channels :] + weights.dt_bias)
    mixed = np.empty((len(x), shape.inner), np.float32)
    convolutions, sums = memory
    # Read everything before anything is written: one request's target may be another's source.
    before = [_read(memory, source, shape) for source in plan.sources]
    by_length: dict[int, list[int]] = {}
    for i, span in enumerate(batch.spans):
        by_length.setdefault(span.end - span.start, []).append(i)
    for length, members in by_length.items():
        rows = np.array([batch.spans[i].start for i in members])[:, None] + np.arange(length)
        window = np.concatenate([np.stack([before[i][0] for i in members]), inputs[rows]], axis=1)
        state = np.stack([before[i][1] for i in members])
        mixed[rows] = _scan(_convolve(window, weights, length), steps[rows], state, weights, shape)
        for n, i in enumerate(members):
            convolutions[plan.targets[i]] = window[n, length:]
            sums[plan.targets[i]] = state[n]
    mixed *= gate / (1 + np.exp(-gate))
    mixed /= np.sqrt(np.mean(np.square(mixed), axis=-1, keepdims=True) + np.float32(model.eps))
    mixed *= weights.norm
    return project(mixed, weights.out)


def _read(memory: tuple[Array, Array], source: int | None, shape: StateShape) -> tuple[Array, Array]:
    if source is None:
        return np.zeros(shape.convolution, np.float32), np.zeros(shape.recurrent, np.float32)
    return memory[0][source].copy(), memory[1][source].copy()


def _convolve(window: Array, weights: StateWeights, length: int) -> Array:
    """[requests, length, channels] from [requests, kernel - 1 + length, channels]."""
    out = np.zeros((window.shape[0], length, window.shape[2]), np.float32)
    for at, factor in enumerate(weights.conv):
        out += window[:, at : at + length] * factor
    out += weights.conv_bias
    out /= 1 + np.exp(-out)
    return out


def _scan(inputs: Array, steps: Array, state: Array, weights: StateWeights, shape: StateShape) -> Array:
    """The recurrence over time; changes `state` [requests, heads, head_size, state_size] in place."""
    count, length = inputs.shape[:2]
    share = shape.heads // shape.groups
    x = inputs[..., : shape.inner].reshape(count, length, shape.heads, shape.head_size)
    both = inputs[..., shape.inner :].reshape(count, length, 2, shape.groups, shape.state_size)
    both = np.repeat(both, share, axis=3)
    kept = np.exp(steps * weights.decay)
    out = np.empty_like(x)
    for t in range(length):
        state *= kept[:, t, :, None, None]
        state += (x[:, t] * steps[:, t, :, None])[..., None] * both[:, t, 0, :, None, :]
        out[:, t] = (state @ both[:, t, 1, :, :, None])[..., 0]
    out += x * weights.skip[:, None]
    return out.reshape(count, length, shape.inner)


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.float32(0))
