"""What a trace looks like: sizes, times, and how much of it an unbounded cache would save."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvblocks.traces.request import TraceRequest

TOKENS_PER_UNIT = 16
"""Token-id prompts are compared in units of so many tokens."""
NUM_PREFIXES = 5
_NUM_CANDIDATES = 1000
_OPTIONAL = {
    "timestamp_s": "timestamp",
    "num_output_tokens": "output_length",
    "session": "session",
    "cache_salt": "cache_salt",
    "lora": "lora",
    "priority": "priority",
}
"""Attributes of a request, and what our own format calls them."""
_NOTHING_SAID = {"num_output_tokens": 0, "priority": 0}
"""The values of attributes that are never None when the trace does not say them."""


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Counts of a trace; tokens unless they say otherwise."""

    requests: int
    sessions: int
    duration_s: float | None
    """From the first request to the last; None when the trace has no times."""
    requests_per_s: float | None
    without_timestamp: int
    prompt_tokens: dict[str, float]
    """total, mean, p50, p90, p99, max."""
    output_tokens: dict[str, float]
    content: dict[str, int]
    """How many requests say what their prompt is, and how."""
    fields: list[str]
    """What at least one request says beyond its prompt, by the names of our own format."""
    distinct_units: int
    """Content units (an id's tokens, or 16 token ids) that differ in content or in what comes before them."""
    distinct_tokens: int
    reusable_tokens: int
    """Prompt tokens that an unbounded cache would hit: whole content units after a prefix that came before, at most
    all but the prompt's last token, which an engine always computes."""
    reusable_share: float
    shared_prefixes: list[dict[str, int]]
    """The prefixes that save most, in tokens and requests that have them; one of several that are nearly the same."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(requests: Iterable[TraceRequest]) -> TraceSummary:
    """Read all requests; memory grows with the distinct content units only."""
    prompts, outputs = array("q"), array("q")
    prefixes = _Prefixes()
    sessions: set[str] = set()
    content: Counter[str] = Counter()
    fields: set[str] = set()
    first = last = None
    reusable = without_timestamp = 0
    for request in requests:
        prompts.append(request.num_prompt_tokens)
        outputs.append(request.num_output_tokens)
        if request.session is not None:
            sessions.add(request.session)
        if request.timestamp_s is None:
            without_timestamp += 1
        else:
            first = request.timestamp_s if first is None else first
            last = request.timestamp_s
        content[
            "token ids" if request.token_ids is not None else "content ids" if request.block_ids else "length only"
        ] += 1
        fields.update(
            name for name in _OPTIONAL if name not in fields and getattr(request, name) != _NOTHING_SAID.get(name)
        )
        reusable += prefixes.add(request)
    total = sum(prompts)
    duration = None if first is None or last is None else last - first
    return TraceSummary(
        requests=len(prompts),
        sessions=len(sessions),
        duration_s=duration,
        requests_per_s=len(prompts) / duration if duration else None,
        without_timestamp=without_timestamp,
        prompt_tokens=_spread(prompts),
        output_tokens=_spread(outputs),
        content=dict(content),
        fields=[shown for name, shown in _OPTIONAL.items() if name in fields],
        distinct_units=len(prefixes),
        distinct_tokens=prefixes.num_tokens,
        reusable_tokens=reusable,
        reusable_share=reusable / total if total else 0.0,
        shared_prefixes=prefixes.most_saving(),
    )


class _Prefixes:
    """A tree of every distinct prefix in whole content units: how long it is, how many requests have it.

    Prefixes are numbered. Those of no tokens are the roots: one for each set of requests that can share at all.
    """

    def __init__(self) -> None:
        self._root: dict[tuple[object, ...], int] = {}
        self._unit: dict[int | bytes, int] = {}
        """Content units by small numbers, so that an edge of the tree is one machine word."""
        self._longer: dict[int, int] = {}
        """Prefix and unit, as `prefix << 32 | unit`, to the prefix that is longer by that unit."""
        self._tokens, self._requests, self._parent = array("I"), array("I"), array("q")
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._longer)

    def add(self, request: TraceRequest) -> int:
        """Count the request's prefixes; how many of its tokens a cache that forgets nothing would have had."""
        space, size, units = _content(request)
        if not units:
            return 0
        prefix = self._root.get(space)
        if prefix is None:
            prefix = self._root[space] = self._add(-1, 0)
        known = len(units)
        numbers, longer, requests = self._unit, self._longer, self._requests
        for at, unit in enumerate(units):
            edge = prefix << 32 | numbers.setdefault(unit, len(numbers))
            found = longer.get(edge)
            if found is None:
                known = min(known, at)
                found = longer[edge] = self._add(prefix, size)
            prefix = found
            requests[prefix] += 1
        return min(known, (request.num_prompt_tokens - 1) // size) * size

    def _add(self, parent: int, size: int) -> int:
        self._tokens.append(size + (self._tokens[parent] if parent >= 0 else 0))
        self._requests.append(0)
        self._parent.append(parent)
        self.num_tokens += size
        return len(self._parent) - 1

    def most_saving(self) -> list[dict[str, int]]:
        """The prefixes that save most tokens, without those that are nearly another one.

        In a conversation every turn is a prefix of the next. Of prefixes of which one extends the other, and which
        about as many requests have (less than half as many more), only the one that saves most is shown.
        """
        requests = self._requests
        inner = bytearray(len(requests))  # whether the same requests have a longer prefix in common
        for number, parent in enumerate(self._parent):
            if parent >= 0 and requests[number] == requests[parent]:
                inner[parent] = 1
        saved = (
            (self._tokens[i] * (requests[i] - 1), i) for i in range(len(requests)) if requests[i] > 1 and not inner[i]
        )
        chosen: list[int] = []
        above: list[set[int]] = []
        for _, candidate in heapq.nlargest(_NUM_CANDIDATES, saved):
            if len(chosen) == NUM_PREFIXES:
                break
            line = set(self._line(candidate))
            if not any(
                (other in line or candidate in others)
                and 2 * max(requests[other], requests[candidate]) < 3 * min(requests[other], requests[candidate])
                for other, others in zip(chosen, above, strict=True)
            ):
                chosen.append(candidate)
                above.append(line)
        return [{"tokens": self._tokens[i], "requests": requests[i]} for i in chosen]

    def _line(self, number: int) -> Iterator[int]:
        """The prefix and all that it extends."""
        while number >= 0:
            yield number
            number = self._parent[number]


def _content(request: TraceRequest) -> tuple[tuple[object, ...], int, Sequence[int | bytes]]:
    """Who the request shares with, the size of a content unit, and its whole units."""
    if request.token_ids is not None:
        size = TOKENS_PER_UNIT
        tokens = array("I", request.token_ids)
        data, step = tokens.tobytes(), tokens.itemsize * size
        units = [data[at : at + step] for at in range(0, len(data) - step + 1, step)]
        return ("", size, request.cache_salt, request.lora), size, units
    ids, size = request.block_ids or (), request.tokens_per_id
    space = (request.namespace, size, request.cache_salt, request.lora)
    return space, size, ids[: request.num_prompt_tokens // size] if ids else ()


def _spread(values: array[int]) -> dict[str, float]:
    """Total, mean, maximum and nearest-rank percentiles."""
    if not values:
        return dict.fromkeys(("total", "mean", "p50", "p90", "p99", "max"), 0.0)
    ordered = sorted(values)
    at = {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] for p in (50, 90, 99)}
    total = sum(ordered)
    return {"total": total, "mean": total / len(ordered), **at, "max": ordered[-1]}
