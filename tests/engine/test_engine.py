"""The life of requests in the engine: ends, aborts, samples, seeds, texts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvblocks.engine import Output, SamplingParams
from kvblocks.engine.drafts import NGramDrafter
from kvblocks.engine.model.linear import project
from kvblocks.engine.sampling import Sampler
from kvblocks.engine.tokenizer import TextStream
from kvblocks.errors import UsageError
from tests.engine.tiny import KINDS, make, prompt, run
from tests.engine.words import engine as words_engine
from tests.engine.words import tokenizer


def test_an_answer_ends_at_max_tokens_or_at_the_longest_request() -> None:
    engine = make("llama", max_model_len=30)
    first, second = run(engine, [prompt(10), prompt(26)], max_tokens=8)
    assert [len(g.answers[0].output_token_ids) for g in (first, second)] == [8, 4]
    assert first.answers[0].finish_reason == second.answers[0].finish_reason == "length"


@pytest.mark.parametrize(
    "tokens, words", [([], "empty"), ([500], "outside the vocabulary"), ([1] * 400, "the prompt has 400 tokens")]
)
def test_a_prompt_that_cannot_run_is_refused(tokens: list[int], words: str) -> None:
    engine = make("llama", num_blocks=40)
    with pytest.raises(UsageError, match=words):
        engine.add(tokens)
    assert not engine.has_work


@pytest.mark.parametrize("kind", KINDS)
def test_random_traffic_with_aborts_leaks_nothing_and_says_what_each_prompt_says_alone(kind: str) -> None:
    rng = random.Random(7)
    prompts = [prompt(rng.randrange(1, 40), seed % 6, 0) for seed in range(18)]
    alone = [run(make(kind), [p], 6)[0].answers[0].output_token_ids for p in prompts]
    engine = make(kind, num_blocks=40, max_num_batched_tokens=24, max_num_seqs=6)
    generations = {}
    for number, tokens in enumerate(prompts):
        generations[number] = engine.add(tokens, SamplingParams(max_tokens=6))
        engine.step()
        if rng.random() < 0.3:
            victim = rng.choice(list(generations))
            engine.abort(generations.pop(victim).request_id)
    while engine.has_work:
        engine.step()
    for number, generation in generations.items():
        assert generation.answers[0].output_token_ids == alone[number]
    assert engine.manager.pool_usage.live == 0


def test_listeners_hear_every_token_once() -> None:
    heard: list[Output] = []
    engine = words_engine()
    generation = engine.add(tokenizer().encode("hello"), SamplingParams(max_tokens=30), on_output=heard.append)
    while engine.has_work:
        engine.step()
    (answer,) = generation.answers
    assert [token for output in heard for token in output.token_ids] == answer.output_token_ids
    assert "".join(output.text for output in heard) == answer.text == tokenizer().decode(answer.output_token_ids)
    assert heard[-1].finish_reason == answer.finish_reason


def test_a_seed_repeats_answers_whatever_runs_beside_them() -> None:
    params = SamplingParams(max_tokens=10, temperature=1.0, top_p=0.9, seed=5, n=3)
    alone = make("llama").generate([prompt(20)], params)[0]
    crowded = make("llama", num_blocks=14)
    beside = crowded.add(prompt(20), params)
    run(crowded, [prompt(25, seed) for seed in range(3)])
    tokens = [[answer.output_token_ids for answer in generation.answers] for generation in (alone, beside)]
    assert tokens[0] == tokens[1]
    assert len({tuple(answer) for answer in tokens[0]}) == 3


def test_top_p_leaves_out_the_unlikely_and_temperature_flattens() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))

    def shares(**params: float) -> list[float]:
        sampler = Sampler(SamplingParams(seed=1, **params))  # type: ignore[arg-type]
        drawn = [sampler.choose(logits) for _ in range(4000)]
        return [drawn.count(token) / 4000 for token in range(4)]

    assert np.allclose(shares(temperature=1.0), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    assert np.allclose(shares(temperature=1.0, top_p=0.7), [0.625, 0.375, 0, 0], atol=0.03)
    assert np.allclose(shares(temperature=0.01), [1, 0, 0, 0])
    assert Sampler(SamplingParams()).choose(logits) == 0


@pytest.mark.parametrize(
    "params", [{"temperature": -1.0}, {"top_p": 0.0}, {"n": 0}, {"max_tokens": 0}, {"seed": -1}, {"stop": ("",)}]
)
def test_params_out_of_range_are_refused_by_name(params: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(params))):
        SamplingParams(**params)  # type: ignore[arg-type]


def test_a_text_stream_holds_back_half_characters_and_half_stop_strings() -> None:
    stream = TextStream(tokenizer(), ("STOP",))
    parts = [stream.push(token) for token in tokenizer().encode("aé€STxSTOP")]
    assert "".join(parts) == stream.text == "aé€STx"
    assert stream.stopped
    assert all("\ufffd" not in part for part in parts)
    open_ended = TextStream(tokenizer(), ("STOP",))
    text = "".join(open_ended.push(token) for token in tokenizer().encode("abcST")) + open_ended.finish()
    assert text == "abcST"


def test_drafts_repeat_what_followed_before() -> None:
    drafter = NGramDrafter()
    assert drafter.propose([1, 2, 3, 4], 3) == []
    assert drafter.propose([1, 2, 3, 4, 9, 2, 3], 3) == [4, 9, 2]


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 32, 33, 100])
@pytest.mark.parametrize("outputs, inputs", [(96, 64), (40, 16), (33, 64), (1024, 512)])
def test_products_are_the_same_in_every_way_of_computing_them(rows: int, outputs: int, inputs: int) -> None:
    make("llama")  # starts the helper thread
    rng = np.random.default_rng(rows)
    x, matrix = (rng.standard_normal(dims).astype(np.float32) for dims in ((rows, inputs), (outputs, inputs)))
    assert np.allclose(project(x, matrix), x.astype(np.float64) @ matrix.T.astype(np.float64), atol=1e-3)
