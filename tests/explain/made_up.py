"""Traces whose misses have a known cause, and the same traces with the cause mended."""

from __future__ import annotations

import random

from kvblocks.traces import TraceRequest

SYSTEM = 400
"""Tokens of the system prompt, after the first few."""


def request(number: int, tokens: list[int], *, outputs: int = 20, salt: str | None = None) -> TraceRequest:
    return TraceRequest(
        f"r{number}", len(tokens), outputs, timestamp_s=float(number), token_ids=tokens, cache_salt=salt
    )


def system_prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(1000, 50_000) for _ in range(SYSTEM)]


def question(rng: random.Random) -> list[int]:
    return [rng.randrange(1000, 50_000) for _ in range(rng.randrange(20, 60))]


def with_a_time(requests: int, *, where: str, seed: int = 0) -> list[TraceRequest]:
    """Questions under one system prompt that tells the time, near its start ("front") or at its end ("end")."""
    rng = random.Random(seed)
    system = system_prompt(rng)
    found = []
    for number in range(requests):
        minute = [10 + number // 60 % 10, 5, 10 + number // 10 % 6, 10 + number % 10]
        if where == "front":
            tokens = [*system[:20], *minute, *system[20:]]
        else:
            tokens = [*system, *minute]
        found.append(request(number, tokens + question(rng)))
    return found


def with_tools(requests: int, *, shuffled: bool, seed: int = 0) -> list[TraceRequest]:
    """Questions under a system prompt with a list of twelve tools."""
    rng = random.Random(seed)
    system = system_prompt(rng)[:60]
    tools = [[rng.randrange(1000, 50_000) for _ in range(30)] for _ in range(12)]
    rest = system_prompt(rng)[:200]
    found = []
    for number in range(requests):
        order = list(tools)
        asked = question(rng)
        if shuffled:
            rng.shuffle(order)
        found.append(request(number, [*system, *(token for tool in order for token in tool), *rest, *asked]))
    return found


def with_salts(requests: int, *, salts: int, seed: int = 0) -> list[TraceRequest]:
    """Questions under one system prompt, from tenants with a salt each."""
    rng = random.Random(seed)
    system = system_prompt(rng)
    return [request(i, system + question(rng), salt=f"tenant {i % salts}") for i in range(requests)]


def documents(requests: int, *, documents: int, seed: int = 0) -> list[TraceRequest]:
    """Questions about documents that come back in turn."""
    rng = random.Random(seed)
    texts = [system_prompt(rng) for _ in range(documents)]
    return [request(i, texts[i % documents] + question(rng)) for i in range(requests)]


def strangers(requests: int, seed: int = 0) -> list[TraceRequest]:
    """Prompts that share nothing."""
    rng = random.Random(seed)
    return [request(i, question(rng)) for i in range(requests)]
