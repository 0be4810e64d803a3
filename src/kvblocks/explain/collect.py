"""What is kept of a replay's misses: tokens by reason for every request, and groups of misses with the same cause."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvblocks.manager import Admission, Request
from kvblocks.observe import REASONS, Evicted, FirstSeen, KeyDiffers, Miss, MissReasons, Reason, RequestMisses

MAX_UNITS = 8_000_000
MAX_TOKEN_BYTES = 512 * 2**20
"""More than the observer's own bounds: an explanation is asked for once, and shall not end in `unknown`."""
MAX_GROUPS = 20_000
"""Groups that are told apart; beyond, those with fewest tokens are dropped."""
MAX_EXAMPLES = 16
NEAR_TOKENS = 64
"""Prompts that part within so many tokens of each other, after the same beginning, part at the same place: a time
that differs in the minute for one and in the hour for another."""


class Example(NamedTuple):
    """Two requests of the trace, by number, and the token of both at which they part."""

    number: int
    other: int | None
    position: int


@dataclass(slots=True)
class Group:
    """Misses of one reason at one place of the same prefix."""

    reason: Reason
    key: bytes
    above: tuple[bytes, ...] = ()
    """Where else it could belong to: the hashes of the units before, nearest first."""
    tokens: int = 0
    requests: int = 0
    first: int = 2**62
    """The smallest and the largest token at which the misses begin."""
    last: int = 0
    examples: list[Example] = field(default_factory=list)
    stride: int = 1
    """Every so manieth request is an example."""
    more_blocks: list[int] = field(default_factory=list)

    def add(self, miss: Miss, example: Example) -> None:
        self.tokens += miss.num_tokens
        self.first, self.last = min(self.first, miss.start), max(self.last, miss.start)
        if not self.requests % self.stride:
            self.examples.append(example)
            if len(self.examples) >= 2 * MAX_EXAMPLES:  # those that stay are spread over the whole trace
                del self.examples[1::2]
                self.stride *= 2
        if isinstance(miss.detail, Evicted) and miss.detail.more_blocks is not None:
            self.more_blocks.append(miss.detail.more_blocks)
            if len(self.more_blocks) > 1000:
                del self.more_blocks[::2]
        self.requests += 1

    def chosen(self) -> list[Example]:
        """At most `MAX_EXAMPLES`, evenly spread over the trace, the first and the last among them."""
        ordered = sorted(self.examples, key=lambda example: example.number)
        last = len(ordered) - 1
        most = MAX_EXAMPLES
        return ordered if last < most else [ordered[i * last // (most - 1)] for i in range(most)]

    def take(self, other: Group) -> None:
        """Join another group to this one."""
        self.tokens += other.tokens
        self.requests += other.requests
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.examples += other.examples
        self.more_blocks = (self.more_blocks + other.more_blocks)[:1000]


class Collector(MissReasons):
    """Miss reasons that are remembered by request and by group.

    Only first admissions count, whose parts add up to the prompts; what a preempted request computes again is
    `again_tokens`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock, on_request=self._collect, max_units=MAX_UNITS, max_token_bytes=MAX_TOKEN_BYTES)
        self.hits = array("Q")
        self.missed: dict[Reason, array[int]] = {reason: array("Q") for reason in REASONS}
        """By reason, the tokens of each request."""
        self.again_tokens = 0
        self.resumed = 0
        self._groups: dict[tuple[Reason, bytes], Group] = {}
        self._admitting: Request | None = None

    def on_admit(self, request: Request, admission: Admission) -> None:
        self._admitting = request
        super().on_admit(request, admission)
        self._admitting = None

    def _collect(self, found: RequestMisses) -> None:
        if found.resumed:
            self.resumed += 1
            self.again_tokens += found.reasons.get("preempted", 0)
            return
        self.hits.append(found.hit_tokens + found.external_tokens)
        tokens = found.reasons
        for reason, counts in self.missed.items():
            counts.append(tokens.get(reason, 0))
        assert self._admitting is not None
        for miss in found.misses:
            self._group(self._admitting, miss)

    def _group(self, request: Request, miss: Miss) -> None:
        hashes, unit = request.block_hashes, self._unit
        number = _number(request.request_id)
        above: tuple[bytes, ...] = ()
        if miss.reason == "first_seen":
            position = miss.detail.position if isinstance(miss.detail, FirstSeen) else miss.start
            at = min(position // unit, len(hashes))
            key = hashes[at - 1] if at else b""
            reach = -(-NEAR_TOKENS // unit)
            above = tuple(hashes[i - 1] if i else b"" for i in range(at - 1, max(at - 1 - reach, -1), -1))
            other = miss.detail.request_id if isinstance(miss.detail, FirstSeen) else None
            example = Example(number, None if other is None else _number(other), position)
        elif isinstance(miss.detail, KeyDiffers):
            key = miss.detail.key.encode()
            example = Example(number, _number(miss.detail.request_id), miss.start)
        else:
            at = miss.start // unit
            key = hashes[at] if at < len(hashes) else b""
            example = Example(number, None, miss.start)
        group = self._groups.get((miss.reason, key))
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                heavy = sorted(self._groups.items(), key=lambda item: -item[1].tokens)
                self._groups = dict(heavy[: MAX_GROUPS // 2])
            group = self._groups[miss.reason, key] = Group(miss.reason, key, above)
        group.add(miss, example)

    def groups(self, most: int) -> tuple[list[Group], list[Group]]:
        """The groups of `first_seen`, `most` of them, and those of other reasons; most missed tokens first.

        Those of `first_seen` that part near each other are one.
        """
        joined: dict[bytes, Group] = {}
        where: dict[bytes, bytes] = {}  # key -> the key of the group that it is part of
        groups = sorted(self._groups.values(), key=lambda group: (group.first, -group.tokens))
        others = [group for group in groups if group.reason != "first_seen"]
        for group in groups:
            if group.reason != "first_seen":
                continue
            root = next((where[key] for key in group.above if key in where), None)
            if root is not None and group.first - joined[root].first <= NEAR_TOKENS:
                joined[root].take(group)
                where[group.key] = root
            else:
                joined[group.key] = group
                where[group.key] = group.key
        by_tokens = sorted([*joined.values(), *others], key=lambda group: -group.tokens)
        first_seen = [group for group in by_tokens if group.reason == "first_seen"][:most]
        return first_seen, [group for group in by_tokens if group.reason != "first_seen"]


def _number(request_id: str) -> int:
    """The request's place in the trace, with which a replay begins its id."""
    return int(request_id.split(":", 1)[0])
