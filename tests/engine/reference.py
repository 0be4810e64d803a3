"""The judge: a forward pass without cache, blocks or batches, in float64, straight from the models' definitions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.shape import LayerShape, ModelShape
from kvblocks.engine.weights import WeightSource

Array = NDArray[np.float64]


class Reference:
    """A model as its arrays; every call computes all tokens."""

    def __init__(self, shape: ModelShape, source: WeightSource) -> None:
        self.shape, self.source = shape, source
        self._kept: dict[str, Array] = {}

    def weight(self, name: str) -> Array:
        if name not in self._kept:
            dims = self.source.shape_of(name)
            assert dims is not None, name
            raw = np.empty(dims, np.float32)
            self.source.read_into(name, raw)
            self._kept[name] = raw.astype(np.float64)
        return self._kept[name]

    def has(self, name: str) -> bool:
        return self.source.shape_of(name) is not None

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if self.has(f"{name}.bias") else y

    def norm(self, x: Array, name: str) -> Array:
        weight = self.weight(f"{name}.weight") + (1 if self.shape.gemma else 0)
        normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.shape.eps) * weight
        return normed

    def logits(self, tokens: list[int]) -> Array:
        """[tokens, vocabulary]"""
        s = self.shape
        x = self.weight("model.embed_tokens.weight")[tokens]
        if s.gemma:
            x = x * math.sqrt(s.hidden)
        for number, layer in enumerate(s.layers):
            p = f"model.layers.{number}."
            normed = self.norm(x, p + "input_layernorm")
            y = self.attention(normed, p, layer) if layer.kind == "attention" else self.mamba(normed, p)
            if s.gemma:
                x = x + self.norm(y, p + "post_attention_layernorm")
                y = self.mlp(self.norm(x, p + "pre_feedforward_layernorm"), p + "mlp.")
                x = x + self.norm(y, p + "post_feedforward_layernorm")
            elif s.family == "bamba":
                x = x + y
                x = x + self.mlp(self.norm(x, p + "pre_ff_layernorm"), p + "feed_forward.")
            else:
                x = x + y
                x = x + self.mlp(self.norm(x, p + "post_attention_layernorm"), p + "mlp.")
        x = self.norm(x, "model.final_layernorm" if s.family == "bamba" else "model.norm")
        out = x @ self.weight("model.embed_tokens.weight" if s.tied else "lm_head.weight").T
        return np.tanh(out / s.logit_softcap) * s.logit_softcap if s.logit_softcap else out

    def mlp(self, x: Array, p: str) -> Array:
        gate = self.linear(x, p + "gate_proj")
        if self.shape.gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.linear(gate * self.linear(x, p + "up_proj"), p + "down_proj")

    def attention(self, x: Array, p: str, layer: LayerShape) -> Array:
        s, n = self.shape, len(x)
        q = self.linear(x, p + "self_attn.q_proj").reshape(n, s.heads, s.head_size)
        k = self.linear(x, p + "self_attn.k_proj").reshape(n, s.kv_heads, s.head_size)
        v = self.linear(x, p + "self_attn.v_proj").reshape(n, s.kv_heads, s.head_size)
        if s.qk_norm:
            q, k = self.norm(q, p + "self_attn.q_norm"), self.norm(k, p + "self_attn.k_norm")
        q, k = self.rope(q, layer), self.rope(k, layer)
        out = np.empty((n, s.heads, s.head_size))
        behind = np.arange(n)[:, None] - np.arange(n)
        hidden = (behind < 0) | (behind >= (n if layer.window is None else layer.window))
        for h in range(s.heads):
            g = h // (s.heads // s.kv_heads)
            scores = q[:, h] @ k[:, g].T * s.attention_scale
            if s.attention_softcap:
                scores = np.tanh(scores / s.attention_softcap) * s.attention_softcap
            weights = np.exp(np.where(hidden, -np.inf, scores - scores.max(axis=1, keepdims=True)))
            out[:, h] = weights @ v[:, g] / weights.sum(axis=1, keepdims=True)
        return self.linear(out.reshape(n, -1), p + "self_attn.o_proj")

    def rope(self, x: Array, layer: LayerShape) -> Array:
        r = self.shape.rotary
        out = x.copy()
        for pair in range(r // 2):
            turn = layer.rope_theta ** (-2 * pair / r)
            if layer.rope_scaling:
                f, length = layer.rope_scaling, 2 * math.pi / turn
                original = f["original_max_position_embeddings"]
                if length > original / f["low_freq_factor"]:
                    turn /= f["factor"]
                elif length > original / f["high_freq_factor"]:
                    share = (original / length - f["low_freq_factor"]) / (f["high_freq_factor"] - f["low_freq_factor"])
                    turn = (1 - share) * turn / f["factor"] + share * turn
            angle = np.arange(len(x)) * turn
            c, w = np.cos(angle)[:, None], np.sin(angle)[:, None]
            a, b = x[..., pair], x[..., pair + r // 2]
            out[..., pair], out[..., pair + r // 2] = a * c - b * w, b * c + a * w
        return out

    def mamba(self, x: Array, p: str) -> Array:
        st = self.shape.state
        assert st is not None
        p += "mamba."
        z, u, dt = np.split(self.linear(x, p + "in_proj"), [st.inner, st.inner + st.channels], axis=1)
        kernel, bias = self.weight(p + "conv1d.weight")[:, 0], self.weight(p + "conv1d.bias")
        decay, skip = -np.exp(self.weight(p + "A_log")), self.weight(p + "D")
        state = np.zeros((st.heads, st.head_size, st.state_size))
        out = np.empty((len(x), st.inner))
        for t in range(len(x)):
            c = bias.copy()
            for back in range(st.kernel):
                if t - back >= 0:
                    c += u[t - back] * kernel[:, st.kernel - 1 - back]
            c = c / (1 + np.exp(-c))
            step = np.log1p(np.exp(dt[t] + self.weight(p + "dt_bias")))
            for h in range(st.heads):
                g = h // (st.heads // st.groups)
                xs = c[h * st.head_size : (h + 1) * st.head_size]
                b = c[st.inner + g * st.state_size : st.inner + (g + 1) * st.state_size]
                second = st.inner + st.groups * st.state_size
                o = c[second + g * st.state_size : second + (g + 1) * st.state_size]
                state[h] = state[h] * np.exp(step[h] * decay[h]) + step[h] * np.outer(xs, b)
                out[t, h * st.head_size : (h + 1) * st.head_size] = state[h] @ o + skip[h] * xs
        out *= z / (1 + np.exp(-z))
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + self.shape.eps) * self.weight(p + "norm.weight")
        return self.linear(out, p + "out_proj")
