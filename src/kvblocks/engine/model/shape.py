"""The shape of a model, from its config: what each layer is, and the numbers that its arithmetic needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from kvblocks.errors import UsageError
from kvblocks.sizing import ModelConfig
from kvblocks.sizing.architectures import Architecture, describe
from kvblocks.sizing.architectures.base import head_size, num_heads, num_kv_heads
from kvblocks.sizing.layers import Attention, State

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "bamba")
"""Values of `model_type` that the engine can run."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """A Mamba2 layer: heads of `head_size` with a state of `state_size` for each of its numbers."""

    heads: int
    head_size: int
    state_size: int
    groups: int
    kernel: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_size

    @property
    def channels(self) -> int:
        """Inputs of the convolution: the inner ones and both inputs of the state."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def convolution(self) -> tuple[int, int]:
        """The convolution's last inputs."""
        return self.kernel - 1, self.channels

    @property
    def recurrent(self) -> tuple[int, int, int]:
        return self.heads, self.head_size, self.state_size


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer: attention (over a window, if given), or a state."""

    kind: Literal["attention", "state"]
    window: int | None = None
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """All that the forward pass needs to know besides the weights."""

    config: ModelConfig
    architecture: Architecture
    family: str
    vocab_size: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_size: int
    layers: tuple[LayerShape, ...]
    state: StateShape | None
    eps: float
    tied: bool
    max_positions: int
    rotary: int
    """Numbers of a head that are rotated by their position."""
    attention_scale: float
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gemma: bool = False
    """Gemma's ways: norms around and after each part, their weights less one, scaled embeddings, tanh GELU."""
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0


def read_shape(config: ModelConfig) -> ModelShape:
    """The shape of a model. Raises UsageError naming the field for whatever the engine cannot run."""
    family = config.text_type
    if family not in FAMILIES:
        raise UsageError(
            f"{config.name}: model_type {family!r} has no engine here; choose a model of {', '.join(FAMILIES)}"
        )
    for name in ("num_local_experts", "num_experts", "n_routed_experts", "quantization_config"):
        if config.get(name):
            raise UsageError(f"{config.name}: {name}={str(config.get(name))[:40]} has no engine here")
    architecture = describe(config)
    gemma = family.startswith("gemma")
    size = head_size(config, default=256 if gemma else None)
    activation = config.get("hidden_activation", "hidden_act", default="gelu_pytorch_tanh" if gemma else "silu")
    if activation != ("gelu_pytorch_tanh" if gemma else "silu"):
        raise UsageError(f"{config.name}: hidden_act={activation!r} is not this family's; it has no engine here")
    caches = [layer[0] for layer in architecture.layers]
    scale = config.get("query_pre_attn_scalar") if gemma else None
    rotary = int(size * float(config.get("partial_rotary_factor", default=0.5 if family == "bamba" else 1.0)))
    return ModelShape(
        config=config,
        architecture=architecture,
        family=family,
        vocab_size=config.whole("vocab_size"),
        hidden=config.whole("hidden_size"),
        inner=config.whole("intermediate_size"),
        heads=num_heads(config),
        kv_heads=num_kv_heads(config),
        head_size=size,
        layers=tuple(_layer(config, cache) for cache in caches),
        state=next((_state(config, cache) for cache in caches if isinstance(cache, State)), None),
        eps=float(config.get("rms_norm_eps", default=1e-6)),
        tied=bool(config.get("tie_word_embeddings", default=gemma)),
        max_positions=config.whole("max_position_embeddings", default=8192),
        rotary=rotary - rotary % 2,
        attention_scale=1 / math.sqrt(float(scale or size)),
        attention_bias=family == "qwen2" or bool(config.get("attention_bias")),
        output_bias=family in ("llama", "mistral") and bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=family in ("qwen3", "gemma3_text"),
        gemma=gemma,
        attention_softcap=float(config.get("attn_logit_softcapping") or 0) if gemma else 0.0,
        logit_softcap=float(config.get("final_logit_softcapping") or 0) if gemma else 0.0,
    )


def _layer(config: ModelConfig, cache: object) -> LayerShape:
    if isinstance(cache, State):
        return LayerShape("state")
    if not isinstance(cache, Attention) or cache.chunk is not None:
        raise UsageError(f"{config.name}: a layer keeps {type(cache).__name__}; it has no engine here")
    given = config.get("rope_parameters") or {}
    local = cache.window is not None
    if isinstance(given.get("full_attention"), dict):
        given = given["sliding_attention" if local else "full_attention"]
    scaling = dict(config.get("rope_scaling") or given)
    theta = float(given.get("rope_theta") or config.get("rope_theta", default=10_000.0))
    if local and config.text_type == "gemma3_text" and "rope_theta" not in given:
        theta, scaling = float(config.get("rope_local_base_freq", default=10_000.0)), {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UsageError(f"{config.name}: rope_scaling type {kind!r} has no engine here; 'linear' and 'llama3' have")
    return LayerShape("attention", cache.window, theta, scaling if kind != "default" else {})


def _state(config: ModelConfig, cache: State) -> StateShape:
    if cache.kind != "mamba2" or cache.recurrent is None or cache.groups is None or cache.convolution is None:
        raise UsageError(f"{config.name}: states of kind {cache.kind!r} have no engine here")
    heads, size, state_size = cache.recurrent
    return StateShape(heads, size, state_size, cache.groups[0], cache.convolution[0] + 1)
