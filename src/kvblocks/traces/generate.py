"""Made-up workloads with the sharing patterns of real ones: chats, agents, retrieval. Seeded: the same every time.

Requests are written as content ids of 16 tokens each, so that sharing shows at fine block sizes. An answer comes back
as part of the next prompt of its conversation with the ids that it had. Lengths vary around their means (log-normal),
arrivals are a Poisson process.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice
from typing import IO

from kvblocks.errors import UsageError
from kvblocks.traces.request import TraceRequest

TOKENS_PER_ID = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to generate. Token counts are means where they say so; times are seconds."""

    requests: int = 1000
    seed: int = 0
    sessions_per_s: float = 1.0
    """Conversations (for `rag`: questions) that start per second."""
    turns: float = 5.0
    """Mean turns of a conversation."""
    think_time_s: float = 15.0
    """Mean time between an answer and the next turn."""
    system_tokens: int = 512
    """The system prompt that all share."""
    user_tokens: int = 160
    """Mean of what a turn adds: a user's message, or a tool's result."""
    output_tokens: int = 240
    """Mean of an answer."""
    documents: int = 200
    """Documents of the corpus, for `rag`."""
    document_tokens: int = 800
    """Mean length of a document."""
    documents_per_request: int = 3
    zipf: float = 1.1
    """How unequally popular the documents are; 0 is equally."""
    max_prompt_tokens: int = 32_768
    """A conversation ends before its prompt exceeds this."""

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UsageError(f"{name}={value} must be at least {least:,} and at most {most:,}")
        if self.documents_per_request > self.documents:
            raise UsageError(
                f"documents_per_request={self.documents_per_request} exceeds documents={self.documents}; "
                "give more documents, or fewer per request"
            )
        if self.max_prompt_tokens < self.system_tokens + _LEAST_TURN_TOKENS:
            raise UsageError(
                f"max_prompt_tokens={self.max_prompt_tokens} leaves no room after the system prompt: give at least "
                f"{self.system_tokens + _LEAST_TURN_TOKENS}, or system_tokens below {self.system_tokens}"
            )


_LEAST_TURN_TOKENS = 4 * TOKENS_PER_ID
_LIMITS: dict[str, tuple[float, float]] = {
    "requests": (1, 10**9),
    "sessions_per_s": (1e-6, 1e6),
    "turns": (1, 10**6),
    "think_time_s": (0, 10**6),
    "system_tokens": (0, 10**7),
    "user_tokens": (1, 10**7),
    "output_tokens": (1, 10**7),
    "documents": (1, 10**6),
    "document_tokens": (1, 10**7),
    "documents_per_request": (1, 1000),
    "zipf": (0, 10),
    "max_prompt_tokens": (_LEAST_TURN_TOKENS, 10**8),
}


class _Writer:
    """Draws lengths and hands out content that nobody has had."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.rng = random.Random(workload.seed)
        self._next_id = 0

    def length(self, mean: float) -> int:
        """A log-normal length around the mean, at least one token."""
        return max(1, round(mean * self.rng.lognormvariate(-0.245, 0.7)))

    def content(self, tokens: int) -> list[int]:
        """Fresh content of about so many tokens: at least one id."""
        ids = max(1, round(tokens / TOKENS_PER_ID))
        self._next_id += ids
        return list(range(self._next_id - ids, self._next_id))

    def room(self, context: list[int]) -> int:
        """How many ids may follow the context; one id's tokens are kept for the end of the prompt."""
        return self.workload.max_prompt_tokens // TOKENS_PER_ID - 1 - len(context)

    def request(self, number: int, time_s: float, session: str, ids: list[int], output_tokens: int) -> TraceRequest:
        tail = self.rng.randrange(TOKENS_PER_ID)  # most prompts do not end where an id ends
        return TraceRequest(
            request_id=f"{session}.{number}",
            num_prompt_tokens=len(ids) * TOKENS_PER_ID + tail,
            num_output_tokens=output_tokens,
            timestamp_s=round(time_s, 3),
            block_ids=ids,
            tokens_per_id=TOKENS_PER_ID,
            session=session,
        )


def _conversations(writer: _Writer, *, prefix_of: Callable[[], list[int]]) -> Iterator[TraceRequest]:
    """Conversations whose prompts grow by every answer and every new message; in time order."""
    workload, rng = writer.workload, writer.rng
    pending: list[tuple[float, int, Iterator[tuple[float, TraceRequest]]]] = []
    order = count()
    start = 0.0
    while True:
        start += rng.expovariate(workload.sessions_per_s)
        # All turns before the next conversation begins are due.
        while pending and pending[0][0] <= start:
            _, _, turns = heapq.heappop(pending)
            following = next(turns, None)
            if following is not None:
                yield following[1]
                heapq.heappush(pending, (following[0], next(order), turns))
        number = next(order)
        turns = _turns(writer, f"s{number}", start, prefix_of())
        heapq.heappush(pending, (start, next(order), turns))


def _turns(writer: _Writer, session: str, start_s: float, context: list[int]) -> Iterator[tuple[float, TraceRequest]]:
    """One conversation: each request with the time at which the next one is due."""
    workload, rng = writer.workload, writer.rng
    # The whole part of an exponential number is geometric; this rate makes the mean exact.
    turns = 1 if workload.turns == 1 else 1 + int(rng.expovariate(-math.log1p(-1 / workload.turns)))
    time_s = start_s
    for turn in range(turns):
        room = writer.room(context)
        message = writer.content(writer.length(workload.user_tokens))
        if len(message) > room:
            if turn:
                return
            message = message[:room]  # a conversation has at least one request
        context = context + message
        output = writer.length(workload.output_tokens)
        request = writer.request(turn, time_s, session, context, output)
        answer_s = 0.02 * output
        time_s += answer_s + rng.expovariate(1 / workload.think_time_s if workload.think_time_s else 1e9)
        yield time_s, request
        context = context + writer.content(output)


def _chat(writer: _Writer) -> Iterator[TraceRequest]:
    system = writer.content(writer.workload.system_tokens) if writer.workload.system_tokens else []
    yield from _conversations(writer, prefix_of=lambda: system)


def _rag(writer: _Writer) -> Iterator[TraceRequest]:
    """A system prompt, some documents of a common corpus, and a question."""
    workload, rng = writer.workload, writer.rng
    system = writer.content(workload.system_tokens) if workload.system_tokens else []
    corpus = [writer.content(writer.length(workload.document_tokens)) for _ in range(workload.documents)]
    weights = list(accumulate(1 / rank**workload.zipf for rank in range(1, workload.documents + 1)))
    time_s = 0.0
    for number in count():
        time_s += rng.expovariate(workload.sessions_per_s)
        context = list(system)
        for document in _draw(rng, weights, workload.documents_per_request):
            context += corpus[document][: writer.room(context) - 1]
        question = writer.content(writer.length(workload.user_tokens))
        context += question[: writer.room(context)]
        yield writer.request(0, time_s, f"q{number}", context, writer.length(workload.output_tokens))


def _draw(rng: random.Random, cumulative: list[float], how_many: int) -> list[int]:
    """Different numbers, each drawn by its weight, in the order of drawing."""
    drawn: dict[int, None] = {}
    for _ in range(20 * how_many):  # where a few have nearly all the weight, the others never come up
        drawn[rng.choices(range(len(cumulative)), cum_weights=cumulative)[0]] = None
        if len(drawn) == how_many:
            return list(drawn)
    rest = (number for number in range(len(cumulative)) if number not in drawn)
    return [*drawn, *islice(rest, how_many - len(drawn))]


KINDS: dict[str, tuple[Callable[[_Writer], Iterator[TraceRequest]], Workload]] = {
    "chat": (_chat, Workload()),
    "agent": (
        _chat,
        Workload(
            sessions_per_s=0.05,
            turns=40.0,
            think_time_s=4.0,
            system_tokens=8192,
            user_tokens=600,
            output_tokens=160,
        ),
    ),
    "rag": (_rag, Workload(sessions_per_s=4.0)),
}
"""By name: how to generate it, and the defaults."""


def generate(kind: str, workload: Workload | None = None) -> Iterator[TraceRequest]:
    """The requests of a workload, in time order. Raises UsageError for an unknown kind."""
    if kind not in KINDS:
        raise UsageError(f"workload {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    make, default = KINDS[kind]
    workload = workload or default
    for number, request in enumerate(make(_Writer(workload))):
        if number >= workload.requests:
            return
        yield request


def write_trace(requests: Iterable[TraceRequest], file: IO[str]) -> int:
    """Write requests as our JSONL; how many they were."""
    written = 0
    for request in requests:
        record = {
            "request_id": request.request_id,
            "timestamp": request.timestamp_s,
            "session": request.session,
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
            "tokens_per_id": request.tokens_per_id,
            "block_ids": list(request.block_ids or ()),
        }
        file.write(json.dumps(record, separators=(",", ":")) + "\n")
        written += 1
    return written
