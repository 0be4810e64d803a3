"""Whatever the cache does, the words are the same: every kind of cache against a forward pass without blocks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvblocks.engine import Engine, Generation
from tests.engine.reference import Reference
from tests.engine.tiny import FULL, KINDS, STATES, WINDOWED, Recorder, make, prompt, run, tiny

TOLERANCE = 1e-4
CROWDED = {"mistral-window": 11, "gemma2": 15, "gemma3": 26, "bamba": 20}
"""Blocks with which four requests get in each other's way."""
TIGHT = {"mistral-window": 7, "gemma2": 20, "gemma3": 26, "bamba": 24}
"""Blocks with which the cache cannot keep three prompts."""


@cache
def judged(kind: str, length: int, seed: int, shared: int, max_tokens: int) -> tuple[list[int], NDArray[np.float64]]:
    """Greedy tokens and logits of a prompt, by the reference."""
    shape, _, source = tiny(kind)
    reference = Reference(shape, source)
    tokens, rows = prompt(length, seed, shared), []
    for _ in range(max_tokens):
        rows.append(reference.logits(tokens)[-1])
        tokens = [*tokens, int(rows[-1].argmax())]
    return tokens[length:], np.stack(rows)


def assert_judged(
    kind: str, recorder: Recorder, generation: Generation, seed: int, shared: int = 0, max_tokens: int = 12
) -> None:
    tokens, rows = judged(kind, len(generation.prompt_token_ids), seed, shared, max_tokens)
    for number, answer in enumerate(generation.answers):
        assert answer.output_token_ids == tokens
        assert np.abs(recorder.of(generation, number) - rows).max() < TOLERANCE


def check(kind: str, engine: Engine, cases: list[tuple[int, int, int]], max_tokens: int = 12) -> list[Generation]:
    """Run prompts (length, seed, shared tokens) together and judge each."""
    recorder = Recorder(engine)
    made = run(engine, [prompt(*case) for case in cases], max_tokens)
    for generation, (_, seed, shared) in zip(made, cases, strict=True):
        assert_judged(kind, recorder, generation, seed, shared, max_tokens)
    assert engine.manager.pool_usage.live == 0
    return made


def cached(generation: Generation) -> int:
    return generation.num_cached_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_cache(kind: str) -> None:
    check(kind, make(kind, enable_caching=False), [(37, 1, 0)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_cache_answers_as_a_cold_one(kind: str) -> None:
    engine = make(kind)
    cold, warm = (check(kind, engine, [(37, 1, 0)])[0] for _ in range(2))
    assert cached(cold) == 0
    assert cached(warm) >= 32


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_any_size(kind: str, size: int) -> None:
    engine = make(kind, max_num_batched_tokens=size)
    check(kind, engine, [(21, 1, 0)], 4)
    check(kind, engine, [(21, 1, 0)], 4)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_many_requests_at_once_answer_as_each_alone(kind: str, caching: bool) -> None:
    lengths = [5, 33, 18, 40, 26, 1, 9]
    cases = [(n, seed, min(16, n)) for seed, n in enumerate(lengths)]
    check(kind, make(kind, enable_caching=caching), cases)


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_and_resumed(kind: str) -> None:
    engine = make(kind, num_blocks=CROWDED.get(kind, 14), max_num_batched_tokens=8 if kind in WINDOWED else 20)
    check(kind, engine, [(26, seed, 0) for seed in range(4)], 20)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_evicted_and_computed_again(kind: str) -> None:
    engine = make(kind, num_blocks=TIGHT.get(kind, 10), max_num_batched_tokens=24)
    for seed in (1, 2, 3, 1, 2, 1, 1):
        check(kind, engine, [(37, seed, 0)])
    assert engine.cache_stats.stats.evicted_hashes > 0


@pytest.mark.parametrize("kind", [*FULL, *STATES])
def test_a_hit_inside_a_block_is_copied_before_it_is_written(kind: str) -> None:
    engine = make(kind, hash_block_size=2)
    check(kind, engine, [(39, 1, 0)])
    again = check(kind, engine, [(39, 1, 0), (39, 1, 0)])
    assert [cached(generation) for generation in again] == [38, 38]
    assert engine.stats.copied_blocks >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_part_in_the_middle(kind: str) -> None:
    """A shared system prompt: some hit it, at whatever point the kind can be entered."""
    engine = make(kind)
    for seed in (1, 2, 3, 4):
        made = check(kind, engine, [(44, seed, 27)])
    if kind != "mistral-window":  # with windows alone nobody sees the junction, so nobody keeps it
        assert cached(made[0]) >= 16


@pytest.mark.parametrize("kind", KINDS)
def test_samples_share_the_blocks_of_the_prompt(kind: str) -> None:
    engine = make(kind)
    recorder = Recorder(engine)
    (generation,) = run(engine, [prompt(29, 1)], n=3)
    assert_judged(kind, recorder, generation, 1)
    assert generation.num_cached_tokens == 0
    assert all((answer.num_cached_tokens or 0) >= 24 for answer in generation.answers[1:])


@pytest.mark.parametrize("kind", [*FULL, *WINDOWED])
def test_drafts_change_nothing_but_the_number_of_steps(kind: str) -> None:
    plain, drafting = make(kind), make(kind, num_draft_tokens=3)
    long: dict[str, Any] = {"max_tokens": 40}
    prompts = [(prompt(6, seed) * 4)[:22] for seed in range(3)]
    expected = [g.answers[0].output_token_ids for g in run(plain, prompts, **long)]
    made = [g.answers[0].output_token_ids for g in run(drafting, prompts, **long)]
    assert made == expected
    assert drafting.stats.accepted_drafts > 0
    assert drafting.stats.steps <= plain.stats.steps


@pytest.mark.parametrize("kind", ["llama", "gemma2", "bamba"])
def test_keys_and_values_in_half_precision_are_close(kind: str) -> None:
    engine = make(kind, kv_dtype="float16")
    recorder = Recorder(engine)
    for _ in range(2):
        (generation,) = run(engine, [prompt(37, 1)], 1)
        _, rows = judged(kind, 37, 1, 0, 12)
        assert np.abs(recorder.of(generation) - rows[:1]).max() < 0.05
