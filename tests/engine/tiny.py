"""Tiny models of every kind of cache, with seeded random weights, and ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine import Engine, EngineSettings, Generation, SamplingParams
from kvblocks.engine.model.shape import ModelShape, read_shape
from kvblocks.engine.weights import ModelWeights, RandomSource, build_weights, parameter_shapes
from kvblocks.sizing import ModelConfig

BASE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama3-scaled": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1},
    "mistral-window": {"model_type": "mistral", "sliding_window": 11},
    "gemma2": {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "sliding_window": 9,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 15.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 7,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 8,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "bamba": {"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [1, 3], **MAMBA},
}
KINDS = tuple(CONFIGS)
WINDOWED = ("mistral-window", "gemma2", "gemma3")
STATES = ("bamba",)
FULL = tuple(kind for kind in KINDS if kind not in (*WINDOWED, *STATES))


@cache
def tiny(kind: str) -> tuple[ModelShape, ModelWeights, RandomSource]:
    """A model, and the arrays that it was built from."""
    shape = read_shape(ModelConfig.from_data({**BASE, **CONFIGS[kind]}))
    source = RandomSource(parameter_shapes(shape), seed=5)
    return shape, build_weights(shape, source), source


def make(kind: str, **settings: Any) -> Engine:
    """An engine over the tiny model that checks itself after every step."""
    shape, weights, _ = tiny(kind)
    settings = {"block_size": 8, "num_blocks": 200, "max_num_batched_tokens": 64, "debug": True, **settings}
    return Engine(shape, weights, settings=EngineSettings(**settings))


def prompt(length: int, seed: int = 0, shared: int = 0) -> list[int]:
    """Tokens of the vocabulary; prompts with equal `shared` begin with so many equal tokens."""
    rng = np.random.default_rng(seed)
    return [
        *np.random.default_rng(999).integers(0, 101, shared).tolist(),
        *rng.integers(0, 101, length - shared).tolist(),
    ]


class Recorder:
    """The logits of every position that an engine answers, by answer."""

    def __init__(self, engine: Engine) -> None:
        self.rows: dict[str, list[NDArray[np.float32]]] = {}
        engine.on_logits = lambda answer, row: self.rows.setdefault(answer.request_id, []).append(row.copy())

    def of(self, generation: Generation, number: int = 0) -> NDArray[np.float32]:
        return np.stack(self.rows[generation.answers[number].request_id])


def run(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int = 12, **params: Any) -> list[Generation]:
    """Answer the prompts together."""
    return engine.generate(prompts, SamplingParams(max_tokens=max_tokens, **params))
