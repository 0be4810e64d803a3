"""The official `openai` client talks to the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from kvblocks.engine import SamplingParams
from tests.engine.words import engine as make_engine
from tests.engine.words import tokenizer
from tests.serving.server import Running, server

MESSAGES = [{"role": "system", "content": "You are short."}, {"role": "user", "content": "Say something long, please."}]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server() as made:
        yield made


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def expected(max_tokens: int = 20) -> str:
    text = tokenizer().encode_chat(MESSAGES)
    (generation,) = make_engine().generate([text], SamplingParams(max_tokens=max_tokens))
    return generation.answers[0].text


def test_a_chat_is_answered_and_its_prompt_cached(client: openai.OpenAI) -> None:
    replies = [
        client.chat.completions.create(model="talker", messages=MESSAGES, temperature=0, max_tokens=20)  # type: ignore[arg-type]
        for _ in range(2)
    ]
    assert [reply.choices[0].message.content for reply in replies] == [expected()] * 2
    usage = replies[1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= usage.prompt_tokens - 3
    assert usage.completion_tokens <= 20
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    asked: Any = {"messages": MESSAGES, "stream_options": {"include_usage": True}}
    stream = client.chat.completions.create(model="talker", temperature=0, max_tokens=20, stream=True, **asked)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected()
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage is not None


def test_completions_take_texts_and_tokens_and_several_answers(client: openai.OpenAI) -> None:
    ids = tokenizer().encode("abc")
    text = client.completions.create(model="talker", prompt="abc", temperature=0, max_tokens=5)
    both = client.completions.create(model="talker", prompt=[ids, ids], temperature=0, max_tokens=5, n=2)
    assert [choice.text for choice in both.choices] == [text.choices[0].text] * 4
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]


def test_a_seed_makes_answers_repeat_and_a_salt_keeps_caches_apart(client: openai.OpenAI) -> None:
    def ask(salt: str, seed: int) -> tuple[str | None, int]:
        reply = client.chat.completions.create(
            model="talker", messages=MESSAGES, temperature=1, top_p=0.9, seed=seed, max_tokens=12,  # type: ignore[arg-type]
            extra_body={"cache_salt": salt},
        )  # fmt: skip
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens or 0

    first, again, other, another_seed = ask("a", 1), ask("a", 1), ask("b", 1), ask("a", 2)
    assert first[1] == other[1] == 0
    assert again[1] > 0
    assert first[0] == again[0] == other[0] != another_seed[0]


def test_a_stop_string_ends_the_answer_before_itself(client: openai.OpenAI) -> None:
    whole = expected()
    stop = whole[6:8]
    reply = client.chat.completions.create(
        model="talker", messages=MESSAGES, temperature=0, max_tokens=20, stop=[stop]  # type: ignore[arg-type]
    )  # fmt: skip
    assert reply.choices[0].message.content == whole[: whole.index(stop)]
    assert reply.choices[0].finish_reason == "stop"


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["talker"]


@pytest.mark.parametrize(
    "change, status, words",
    [
        ({"model": "gpt-5"}, 404, "no model 'gpt-5'"),
        ({"temperature": 3}, 400, "temperature=3"),
        ({"n": 1000}, 400, "n=1000"),
        ({"max_tokens": 10**6}, 400, "max_tokens=1000000"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0]"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "2,047 at most"),
    ],
)
def test_what_cannot_be_done_is_said(client: openai.OpenAI, change: dict[str, object], status: int, words: str) -> None:
    asked = {"model": "talker", "messages": MESSAGES, "max_tokens": 5, **change}
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**asked)  # type: ignore[call-overload]
    assert caught.value.status_code == status
    assert words in caught.value.message


def test_no_block_is_held_when_all_is_answered(client: openai.OpenAI, running: Running) -> None:
    assert running.live_blocks() == 0
    assert not running.engine.has_work
