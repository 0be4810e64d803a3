"""The forward pass of a decoder over a batch: tokens to logits, through the blocks of the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.attention import Attention
from kvblocks.engine.model.batch import AttentionPlan, Batch, StatePlan, plan_attention, plan_states
from kvblocks.engine.model.linear import project, use_own_threads
from kvblocks.engine.model.rope import Rope
from kvblocks.engine.model.shape import ModelShape
from kvblocks.engine.model.state import state_layer
from kvblocks.engine.storage import KVStorage
from kvblocks.engine.weights import AttentionWeights, LayerWeights, ModelWeights, StateWeights
from kvblocks.kinds import MambaSpec
from kvblocks.kinds.grouping import LayerGroup

Array = NDArray[np.float32]


class Model:
    """A decoder with its weights; it keeps nothing between calls."""

    def __init__(self, shape: ModelShape, weights: ModelWeights, groups: Sequence[LayerGroup]) -> None:
        """`groups` are the KV-cache groups; their layers are named `layers.<number>`."""
        use_own_threads()
        self.shape = shape
        self.weights = weights
        self._groups = groups
        self._group_of = [0] * len(shape.layers)
        for i, group in enumerate(groups):
            for layer in group.layers:
                self._group_of[int(layer.name.rpartition(".")[2])] = i
        self._ropes: dict[str, Rope] = {}
        self._rope_of = [
            self._ropes.setdefault(repr((layer.rope_theta, layer.rope_scaling)), Rope(layer, shape.rotary))
            for layer in shape.layers
        ]
        self._attention = Attention(
            shape.heads, shape.kv_heads, shape.head_size, shape.attention_scale, shape.attention_softcap
        )

    def forward(self, batch: Batch, storage: KVStorage) -> Array:
        """Compute the batch's tokens and write their cache; logits [wanted rows, vocabulary].

        The tables must have slots for all tokens of the batch, and what stands before them must have been computed.
        """
        shape = self.shape
        plans = [self._plan(batch, i, group) for i, group in enumerate(self._groups)]
        turns = {id(rope): rope.at(batch.positions) for rope in self._ropes.values()} if shape.rotary else {}
        x = self.weights.embedding[batch.tokens]
        if shape.gemma:
            x *= np.float32(math.sqrt(shape.hidden))
        for number, weights in enumerate(self.weights.layers):
            plan = plans[self._group_of[number]]
            name = f"layers.{number}"
            normed = rms_norm(x, weights.norm, shape.eps)
            if isinstance(plan, StatePlan):
                assert isinstance(weights.mixer, StateWeights)
                mixed = state_layer(normed, weights.mixer, shape, storage.states[name], batch, plan)
            else:
                assert isinstance(weights.mixer, AttentionWeights)
                rope = self._rope_of[number]
                mixed = self._attend(normed, weights.mixer, rope, turns.get(id(rope)), storage, name, plan)
            if weights.post_norm is not None:
                mixed = rms_norm(mixed, weights.post_norm, shape.eps)
            x += mixed
            mixed = self._mlp(rms_norm(x, weights.mlp_norm, shape.eps), weights)
            if weights.post_mlp_norm is not None:
                mixed = rms_norm(mixed, weights.post_mlp_norm, shape.eps)
            x += mixed
        if not len(batch.logit_rows):
            return np.empty((0, shape.vocab_size), np.float32)
        x = rms_norm(x[batch.logit_rows], self.weights.norm, shape.eps)
        logits = project(x, self.weights.head)
        if shape.logit_softcap:
            cap = np.float32(shape.logit_softcap)
            logits = np.tanh(logits / cap) * cap
        return logits

    def _plan(self, batch: Batch, number: int, group: LayerGroup) -> AttentionPlan | StatePlan:
        spec = group.spec
        if isinstance(spec, MambaSpec):
            return plan_states(batch, number, spec.block_size)
        window = getattr(spec, "sliding_window", None)
        return plan_attention(batch, number, spec.block_size, window, 2 * self.shape.kv_heads * self.shape.head_size)

    def _attend(
        self,
        x: Array,
        weights: AttentionWeights,
        rope: Rope,
        turns: Array | None,
        storage: KVStorage,
        name: str,
        plan: AttentionPlan,
    ) -> Array:
        shape = self.shape
        projected = project(x, weights.qkv, weights.qkv_bias)
        split = shape.heads * shape.head_size
        queries = projected[:, :split].reshape(len(x), shape.heads, shape.head_size)
        both = projected[:, split:].reshape(len(x), 2, shape.kv_heads, shape.head_size)
        if weights.q_norm is not None and weights.k_norm is not None:
            queries = rms_norm(queries, weights.q_norm, shape.eps)
            both[:, 0] = rms_norm(both[:, 0], weights.k_norm, shape.eps)
        if turns is not None:
            rope.rotate(queries, turns)
            rope.rotate(both[:, 0], turns)
        mixed = self._attention(queries, both, storage.attention[name], plan)
        return project(mixed, weights.out, weights.out_bias)

    def _mlp(self, x: Array, weights: LayerWeights) -> Array:
        both = project(x, weights.gate_up, weights.gate_up_bias)
        gate, up = both[:, : self.shape.inner], both[:, self.shape.inner :]
        if self.shape.gemma:
            bent = gate + np.float32(0.044715) * gate * gate * gate
            gate *= np.float32(0.5) * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * bent))
        else:
            gate /= 1 + np.exp(-gate)
        return project(gate * up, weights.down, weights.down_bias)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root-mean-square norm over the last axis."""
    mean = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
    out: Array = x / np.sqrt(mean + np.float32(eps))
    out *= weight
    return out
