"""Many clients at once, some of which hang up: every answer that arrives is the one that the prompt gets alone."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvblocks.engine import SamplingParams
from tests.engine.words import engine
from tests.serving.server import Running

MAX_TOKENS = 10


@dataclass
class Outcome:
    """What the clients saw."""

    answered: int = 0
    hung_up: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def prompts(count: int) -> list[str]:
    """Beginnings that several prompts share, and ends of their own."""
    rng = random.Random(4)
    shared = ["".join(rng.choice("abcdefgh ") for _ in range(rng.randrange(20, 70))) for _ in range(5)]
    return [rng.choice(shared) + "".join(rng.choice("xyz ") for _ in range(rng.randrange(1, 30))) for _ in range(count)]


def answers(texts: list[str]) -> dict[str, str]:
    """What each prompt is answered alone, without a cache."""
    alone = engine(enable_caching=False)
    found = {}
    for text in texts:
        assert alone.tokenizer is not None
        params = SamplingParams(max_tokens=MAX_TOKENS, ignore_end=True)
        found[text] = alone.generate([alone.tokenizer.encode(text)], params)[0].answers[0].text
    return found


async def _client(http: httpx.AsyncClient, seed: int, count: int, expected: dict[str, str], seen: Outcome) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(list(expected))
        asked: dict[str, Any] = {"prompt": text, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
        if rng.random() < 0.5:
            reply = await http.post("/v1/completions", json=asked)
            if reply.status_code == 429:
                seen.refused += 1
                continue
            said = reply.json()["choices"][0]["text"] if reply.status_code == 200 else reply.text
        else:
            leave_after = rng.randrange(4) if rng.random() < 0.4 else None
            said, lines = "", 0
            async with http.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: {"):
                        data = json.loads(line[6:])
                        said += data["choices"][0]["text"] if "choices" in data else line
                        lines += 1
                    if lines == leave_after:
                        break
            if leave_after is not None and lines == leave_after:
                seen.hung_up += 1
                continue
        seen.answered += 1
        if said != expected[text]:
            seen.wrong.append(f"{text!r}: {said!r}, alone {expected[text]!r}")


async def storm(running: Running, clients: int, requests: int) -> Outcome:
    """`requests` requests of `clients` clients."""
    expected = answers(prompts(60))
    seen = Outcome()
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=running.url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(_client(http, i, requests // clients, expected, seen) for i in range(clients)))
    return seen
