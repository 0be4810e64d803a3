"""SmolLM2-135M-Instruct, the real thing: what it says does not depend on the cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from kvblocks.engine import Engine, EngineSettings, LoadedModel, SamplingParams, demo_model, load_model
from kvblocks.engine.weights import GGUFFile
from kvblocks.engine.workload import DOCUMENTS, SYSTEM, pairs, serve_chats
from kvblocks.errors import UsageError
from tests.engine.reference import Reference
from tests.engine.tiny import Recorder

try:
    demo_model()
except UsageError as missing:
    pytest.skip(str(missing), allow_module_level=True)

TOKENS = 6


@cache
def loaded() -> LoadedModel:
    return load_model()


def engine(**settings: Any) -> Engine:
    model = loaded()
    return Engine(
        model.shape, model.weights, model.tokenizer, EngineSettings(**{"num_blocks": 120, "debug": True, **settings})
    )


@cache
def prompts() -> list[list[int]]:
    """Three chats with one system prompt; two about one document."""
    asked = [
        f"{DOCUMENTS['ferry'][:300]}\nWhat does a ticket cost?",
        f"{DOCUMENTS['ferry'][:300]}\nMay I bring a dog?",
        "Hello!",
    ]
    return [
        loaded().tokenizer.encode_chat([{"role": "system", "content": SYSTEM[:150]}, {"role": "user", "content": text}])
        for text in asked
    ]


@cache
def judged() -> tuple[list[list[int]], list[Any]]:
    """Greedy tokens and logits by the reference. The engine proposes the tokens, and is judged for them at once."""
    reference = Reference(loaded().shape, GGUFFile(demo_model()))
    params = SamplingParams(max_tokens=TOKENS, ignore_end=True)
    tokens, rows = [], []
    for prompt in prompts():
        (generation,) = engine(enable_caching=False).generate([prompt], params)
        proposed = generation.answers[0].output_token_ids
        logits = reference.logits([*prompt, *proposed[:-1]])[len(prompt) - 1 :]
        assert logits.argmax(axis=1).tolist() == proposed
        tokens.append(proposed)
        rows.append(logits)
    return tokens, rows


@pytest.mark.parametrize(
    "settings, together, times",
    [
        ({"enable_caching": False}, False, 1),
        ({}, False, 2),
        ({"max_num_batched_tokens": 17}, True, 2),
        ({"max_num_batched_tokens": 7}, False, 1),
        ({"num_blocks": 14, "max_num_batched_tokens": 64}, True, 2),
        ({"num_draft_tokens": 3}, True, 2),
        ({"hash_block_size": 1}, True, 2),
    ],
)
def test_the_tokens_and_logits_are_those_of_the_reference(settings: dict[str, Any], together: bool, times: int) -> None:
    made = engine(**settings)
    recorder = Recorder(made)
    params = SamplingParams(max_tokens=TOKENS, ignore_end=True)
    tokens, rows = judged()
    for _ in range(times):
        batches = [prompts()] if together else [[prompt] for prompt in prompts()]
        generations = [generation for batch in batches for generation in made.generate(batch, params)]
        for generation, expected, logits in zip(generations, tokens, rows, strict=True):
            assert generation.answers[0].output_token_ids == expected
            assert np.abs(recorder.of(generation) - logits).max() < 1e-4
    assert made.manager.pool_usage.live == 0


def test_it_knows_the_capital_of_france() -> None:
    ids = loaded().tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    (generation,) = engine().generate([ids], SamplingParams(max_tokens=20))
    assert generation.answers[0].text == "The capital of France is Paris."
    assert generation.answers[0].finish_reason == "stop"


def test_the_workload_hits_the_cache_and_says_the_same_without() -> None:
    def served(caching: bool) -> Any:
        settings = EngineSettings(num_blocks=80, enable_caching=caching)
        return serve_chats(loaded(), settings, chats=2, turns=2, at_once=2, max_tokens=3)

    on, off = served(True), served(False)
    assert [a.answer for a, _ in pairs(on, off)] == [b.answer for _, b in pairs(on, off)]
    assert [a.cached_tokens > 300 for a, _ in pairs(on, off)] == [False, True, False, True]
    assert off.cached_tokens == 0
