"""What a trace looks like: sizes, times, and how much of it an unbounded cache would save."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kvblocks.traces.request import TraceRequest

TOKENS_PER_UNIT = 16
"""Token-id prompts are compared in units of so many tokens."""
NUM_PREFIXES = 5


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Counts of a trace; tokens unless they say otherwise."""

    requests: int
    sessions: int
    duration_s: float | None
    requests_per_s: float | None
    prompt_tokens: dict[str, float]
    """total, mean, p50, p90, p99, max."""
    output_tokens: dict[str, float]
    content: dict[str, int]
    """How many requests say what their prompt is, and how."""
    reusable_tokens: int
    """Prompt tokens that an unbounded cache would hold: whole content units after a prefix that came before."""
    reusable_share: float
    shared_prefixes: list[dict[str, int]]
    """Prefixes that save most: the longest one for a number of requests that share it, in tokens and requests."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(requests: Iterable[TraceRequest]) -> TraceSummary:
    """Read all requests; memory grows with the distinct content units only."""
    prompts, outputs = array("q"), array("q")
    seen: dict[bytes, int] = {}  # prefix -> how many requests share it
    length_of: dict[bytes, int] = {}
    sessions: set[str] = set()
    content: Counter[str] = Counter()
    first = last = None
    reusable = 0
    for request in requests:
        prompts.append(request.num_prompt_tokens)
        outputs.append(request.num_output_tokens)
        if request.session is not None:
            sessions.add(request.session)
        if request.timestamp_s is not None:
            first = request.timestamp_s if first is None else first
            last = request.timestamp_s
        content[
            "token ids" if request.token_ids is not None else "content ids" if request.block_ids else "length only"
        ] += 1
        known = 0
        for prefix, tokens in _prefixes(request):
            count = seen.get(prefix, 0)
            seen[prefix] = count + 1
            if count:
                known = tokens
            elif len(length_of) < 2_000_000:
                length_of[prefix] = tokens
        reusable += min(known, request.num_prompt_tokens - 1)
    total = sum(prompts)
    duration = None if first is None or last is None else last - first
    return TraceSummary(
        requests=len(prompts),
        sessions=len(sessions),
        duration_s=duration,
        requests_per_s=len(prompts) / duration if duration else None,
        prompt_tokens=_spread(prompts),
        output_tokens=_spread(outputs),
        content=dict(content),
        reusable_tokens=reusable,
        reusable_share=reusable / total if total else 0.0,
        shared_prefixes=_longest(seen, length_of),
    )


def _prefixes(request: TraceRequest) -> Iterator[tuple[bytes, int]]:
    """Each whole content unit as a digest of everything up to its end, and that end in tokens."""
    keys = f"{request.namespace}\0{request.cache_salt}\0{request.lora}".encode("utf-8", "surrogatepass")
    chain = hashlib.blake2b(keys, digest_size=16)
    if request.token_ids is not None:
        whole = len(request.token_ids) // TOKENS_PER_UNIT * TOKENS_PER_UNIT
        data, size, step = array("I", request.token_ids[:whole]).tobytes(), TOKENS_PER_UNIT, 4 * TOKENS_PER_UNIT
    elif request.block_ids:
        size = request.tokens_per_id
        whole = min(len(request.block_ids), request.num_prompt_tokens // size)
        data, step = array("Q", request.block_ids[:whole]).tobytes(), 8
    else:
        return
    for at in range(0, len(data), step):
        chain.update(data[at : at + step])
        yield chain.copy().digest(), (at // step + 1) * size


def _spread(values: array[int]) -> dict[str, float]:
    if not values:
        return dict.fromkeys(("total", "mean", "p50", "p90", "p99", "max"), 0.0)
    ordered = sorted(values)
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}
    total = sum(ordered)
    return {"total": total, "mean": total / len(ordered), **at, "max": ordered[-1]}


def _longest(seen: dict[bytes, int], length_of: dict[bytes, int]) -> list[dict[str, int]]:
    """The longest prefix for each of the most common counts: the end of every stretch that the same requests share."""
    best: dict[int, int] = {}
    for prefix, tokens in length_of.items():
        count = seen[prefix]
        if count > 1 and tokens > best.get(count, 0):
            best[count] = tokens
    rows = sorted(best.items(), key=lambda row: -row[0] * row[1])
    return [{"tokens": tokens, "requests": count} for count, tokens in rows[:NUM_PREFIXES]]
