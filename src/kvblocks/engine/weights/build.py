"""From named arrays to layers: what is multiplied by the same input becomes one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.shape import LayerShape, ModelShape
from kvblocks.engine.weights.source import WeightSource
from kvblocks.errors import UsageError

Array = NDArray[np.float32]


@dataclass(slots=True, kw_only=True)
class AttentionWeights:
    """The arrays of attention; matrices are [outputs, inputs]."""

    qkv: Array
    qkv_bias: Array | None
    out: Array
    out_bias: Array | None
    q_norm: Array | None
    k_norm: Array | None


@dataclass(slots=True, kw_only=True)
class StateWeights:
    """The arrays of a Mamba2 layer."""

    inward: Array
    conv: Array
    """[kernel, channels]"""
    conv_bias: Array
    dt_bias: Array
    decay: Array
    """-exp(A_log), per head."""
    skip: Array
    norm: Array
    out: Array


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """The arrays of one layer."""

    norm: Array
    mixer: AttentionWeights | StateWeights
    post_norm: Array | None
    mlp_norm: Array
    gate_up: Array
    gate_up_bias: Array | None
    down: Array
    down_bias: Array | None
    post_mlp_norm: Array | None


@dataclass(slots=True, kw_only=True)
class ModelWeights:
    """All arrays of a model."""

    embedding: Array
    layers: list[LayerWeights]
    norm: Array
    head: Array
    """The embedding itself where the model ties them."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, shared ones once."""
        parts: list[object] = [self, *self.layers, *(layer.mixer for layer in self.layers)]
        found = [getattr(part, name) for part in parts for name in part.__slots__]  # type: ignore[attr-defined]
        return sum({id(array): array.nbytes for array in found if isinstance(array, np.ndarray)}.values())


class _Names:
    """Hugging Face's names of one layer."""

    def __init__(self, shape: ModelShape, number: int) -> None:
        self.prefix = f"model.layers.{number}."
        if shape.gemma:
            self.mlp_norm = "pre_feedforward_layernorm"
        else:
            self.mlp_norm = "post_attention_layernorm"
        self.mlp = "mlp."
        if shape.family == "bamba":
            self.mlp_norm, self.mlp = "pre_ff_layernorm", "feed_forward."


def _final_norm(shape: ModelShape) -> str:
    return "model.final_layernorm.weight" if shape.family == "bamba" else "model.norm.weight"


def parameter_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every array that the model has, by Hugging Face's name."""
    hidden, inner = shape.hidden, shape.inner
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, hidden),
        _final_norm(shape): (hidden,),
    }
    if not shape.tied:
        found["lm_head.weight"] = (shape.vocab_size, hidden)
    for number, layer in enumerate(shape.layers):
        names = _Names(shape, number)
        own: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            f"{names.mlp_norm}.weight": (hidden,),
            f"{names.mlp}gate_proj.weight": (inner, hidden),
            f"{names.mlp}up_proj.weight": (inner, hidden),
            f"{names.mlp}down_proj.weight": (hidden, inner),
        }
        if shape.mlp_bias:
            own |= {f"{names.mlp}{part}_proj.bias": (inner,) for part in ("gate", "up")}
            own[f"{names.mlp}down_proj.bias"] = (hidden,)
        if shape.gemma:
            own |= {"post_attention_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
        own |= _attention_shapes(shape) if layer.kind == "attention" else _state_shapes(shape)
        found |= {names.prefix + name: dims for name, dims in own.items()}
    return found


def _attention_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    own: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, shape.hidden),
        "self_attn.k_proj.weight": (keys, shape.hidden),
        "self_attn.v_proj.weight": (keys, shape.hidden),
        "self_attn.o_proj.weight": (shape.hidden, queries),
    }
    if shape.attention_bias:
        own |= {"self_attn.q_proj.bias": (queries,), "self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
    if shape.output_bias:
        own["self_attn.o_proj.bias"] = (shape.hidden,)
    if shape.qk_norm:
        own |= {"self_attn.q_norm.weight": (shape.head_size,), "self_attn.k_norm.weight": (shape.head_size,)}
    return own


def _state_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    state = shape.state
    assert state is not None
    return {
        "mamba.in_proj.weight": (state.inner + state.channels + state.heads, shape.hidden),
        "mamba.conv1d.weight": (state.channels, 1, state.kernel),
        "mamba.conv1d.bias": (state.channels,),
        "mamba.dt_bias": (state.heads,),
        "mamba.A_log": (state.heads,),
        "mamba.D": (state.heads,),
        "mamba.norm.weight": (state.inner,),
        "mamba.out_proj.weight": (shape.hidden, state.inner),
    }


def build_weights(
    shape: ModelShape, source: WeightSource, on_progress: Callable[[int, int], None] | None = None
) -> ModelWeights:
    """Read every array into its place. Raises UsageError naming the array that is missing or of another shape."""
    expected = parameter_shapes(shape)
    for name, dims in expected.items():
        found = source.shape_of(name)
        if found is None:
            raise UsageError(f"{shape.config.name}: the weights have no {name}; fetch them again")
        if found != dims:
            raise UsageError(f"{shape.config.name}: {name} is {list(found)}, the config says {list(dims)}")

    def read(*names: str) -> Array:
        dims = [expected[name] for name in names]
        whole = np.empty((sum(d[0] for d in dims), *dims[0][1:]), np.float32)
        at = 0
        for name, (rows, *_) in zip(names, dims, strict=True):
            source.read_into(name, whole[at : at + rows])
            at += rows
        return whole

    def maybe(*names: str) -> Array | None:
        return read(*names) if names[0] in expected else None

    def norm(name: str) -> Array:
        weight = read(name)
        if shape.gemma:
            weight += 1
        return weight

    embedding = read("model.embed_tokens.weight")
    layers = []
    for number, layer in enumerate(shape.layers):
        if on_progress is not None:
            on_progress(number, len(shape.layers))
        layers.append(_layer(shape, layer, number, expected, read, maybe, norm))
    return ModelWeights(
        embedding=embedding,
        layers=layers,
        norm=norm(_final_norm(shape)),
        head=embedding if shape.tied else read("lm_head.weight"),
    )


def _layer(
    shape: ModelShape,
    layer: LayerShape,
    number: int,
    expected: dict[str, tuple[int, ...]],
    read: Callable[..., Array],
    maybe: Callable[..., Array | None],
    norm: Callable[[str], Array],
) -> LayerWeights:
    names = _Names(shape, number)

    def own(*parts: str) -> Sequence[str]:
        return [names.prefix + part for part in parts]

    def own_norm(part: str) -> Array | None:
        name = f"{names.prefix}{part}.weight"
        return norm(name) if name in expected else None

    mixer: AttentionWeights | StateWeights
    if layer.kind == "attention":
        mixer = AttentionWeights(
            qkv=read(*own(*(f"self_attn.{part}_proj.weight" for part in "qkv"))),
            qkv_bias=maybe(*own(*(f"self_attn.{part}_proj.bias" for part in "qkv"))),
            out=read(*own("self_attn.o_proj.weight")),
            out_bias=maybe(*own("self_attn.o_proj.bias")),
            q_norm=own_norm("self_attn.q_norm"),
            k_norm=own_norm("self_attn.k_norm"),
        )
    else:
        mixer = StateWeights(
            inward=read(*own("mamba.in_proj.weight")),
            conv=np.ascontiguousarray(read(*own("mamba.conv1d.weight"))[:, 0].T),
            conv_bias=read(*own("mamba.conv1d.bias")),
            dt_bias=read(*own("mamba.dt_bias")),
            decay=-np.exp(read(*own("mamba.A_log"))),
            skip=read(*own("mamba.D")),
            norm=read(*own("mamba.norm.weight")),
            out=read(*own("mamba.out_proj.weight")),
        )
    mlp = names.mlp
    return LayerWeights(
        norm=norm(f"{names.prefix}input_layernorm.weight"),
        mixer=mixer,
        post_norm=own_norm("post_attention_layernorm") if shape.gemma else None,
        mlp_norm=norm(f"{names.prefix}{names.mlp_norm}.weight"),
        gate_up=read(*own(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")),
        gate_up_bias=maybe(*own(f"{mlp}gate_proj.bias", f"{mlp}up_proj.bias")),
        down=read(*own(f"{mlp}down_proj.weight")),
        down_bias=maybe(*own(f"{mlp}down_proj.bias")),
        post_mlp_norm=own_norm("post_feedforward_layernorm") if shape.gemma else None,
    )
