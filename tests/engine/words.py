"""A vocabulary of bytes and a tiny model over it, for tests that need text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from kvblocks.engine import Engine, EngineSettings, LoadedModel, Tokenizer
from kvblocks.engine.model.shape import read_shape
from kvblocks.engine.weights import RandomSource, build_weights, parameter_shapes
from kvblocks.manager import Observer
from kvblocks.sizing import ModelConfig
from kvblocks.traces.text import compile_template
from tests.engine.tiny import BASE

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


@cache
def fast() -> Any:
    """The `tokenizers` object: one token per byte, and the template's marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Fast(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def tokenizer() -> Tokenizer:
    """Byte tokens, with a chat template; `<|end|>` ends an answer."""
    return Tokenizer(fast(), compile_template(TEMPLATE, Path("words")), {}, frozenset([fast().token_to_id("<|end|>")]))


@cache
def talker() -> LoadedModel:
    """A tiny Llama that says nonsense in bytes."""
    config = {**BASE, "model_type": "llama", "vocab_size": 256 + len(SPECIAL), "max_position_embeddings": 2048}
    shape = read_shape(ModelConfig.from_data(config))
    weights = build_weights(shape, RandomSource(parameter_shapes(shape), seed=3))
    return LoadedModel("talker", shape, weights, tokenizer())


def engine(observers: Sequence[Observer] = (), **settings: Any) -> Engine:
    """An engine over the talker."""
    model = talker()
    settings = {"block_size": 8, "num_blocks": 400, "debug": True, **settings}
    return Engine(model.shape, model.weights, model.tokenizer, EngineSettings(**settings), observers=observers)
