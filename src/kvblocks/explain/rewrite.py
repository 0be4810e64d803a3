"""The trace as it would be if its prompts were written otherwise, for replays that simulate a cure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from kvblocks.explain.divergence import Rewritten, Tokens
from kvblocks.replay.content import TraceHasher
from kvblocks.traces import TraceRequest

OpenTrace = Callable[[], Iterable[TraceRequest]]


def prompts_of(open_trace: OpenTrace, numbers: Collection[int]) -> dict[int, tuple[TraceRequest, Tokens]]:
    """Some requests by their number in the trace, with their token ids as far as the trace tells them."""
    found: dict[int, tuple[TraceRequest, Tokens]] = {}
    if not numbers:
        return found
    hasher = TraceHasher(1)
    for number, request in enumerate(islice(open_trace(), max(numbers) + 1)):
        if number in numbers:
            found[number] = (request, tokens_of(hasher, request))
    return found


def tokens_of(hasher: TraceHasher, request: TraceRequest) -> Tokens:
    """The prompt's token ids, of a trace of content ids those that the hasher gives them."""
    return np.asarray(hasher.tokens(request), dtype=np.uint32)


def rewritten(open_trace: OpenTrace, rewrite: Callable[[Tokens], Rewritten | None]) -> OpenTrace:
    """The trace with each prompt rewritten; those for which that gives None stay as they are."""

    def requests() -> Iterator[TraceRequest]:
        hasher = TraceHasher(1)
        for request in open_trace():
            tokens = tokens_of(hasher, request)
            changed = rewrite(tokens)
            ids: Any = tokens if changed is None else changed.tokens
            yield replace(request, token_ids=ids, block_ids=None)

    return requests


def without_salts(open_trace: OpenTrace) -> OpenTrace:
    """The trace as if all requests had the same salt."""

    def requests() -> Iterator[TraceRequest]:
        for request in open_trace():
            yield replace(request, cache_salt=None)

    return requests
