"""Miss reasons as data: for each admitted request, where its tokens came from or why they had to be computed.

This is what consumers (reports, metrics, live pages) read; `MissReasons` in `misses.py` makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Reason = Literal[
    "first_seen",
    "partial_block",
    "last_token",
    "evicted",
    "key_differs",
    "group_veto",
    "in_flight",
    "draft_head",
    "opted_out",
    "preempted",
    "reset",
    "unknown",
]

REASONS: Final[Mapping[Reason, str]] = {
    "first_seen": "beyond the longest prefix that this cache ever computed",
    "partial_block": "computed before, but after the last full block, and only full blocks can be hit",
    "last_token": "computed before, but the block of the last token is computed again: one token must be",
    "evicted": "was cached, and made room for something else",
    "key_differs": "cached, for the same tokens under another salt, adapter or image",
    "group_veto": "some group of layers had it, another did not, and a hit needs all",
    "in_flight": "another request is computing it now",
    "draft_head": "cached, but the draft head computes the end of each hit again",
    "opted_out": "the request may not read the cache, or caching is off",
    "preempted": "computed by this very request, which lost its blocks to another",
    "reset": "was cached before the cache was reset",
    "unknown": "what was known about it has been forgotten, to bound memory",
}
"""Every reason and what it means. A token has exactly one."""

VetoCause = Literal["window", "checkpoint_spacing", "retention", "alignment"]


class FirstSeen(NamedTuple):
    """Where a prompt parts from the earlier one with which it shares most."""

    request_id: str | None
    """That earlier request, the one that computed the last common token first; None when not even one token is
    shared."""
    position: int
    """The first token in which the two differ, counted from 0."""


class Evicted(NamedTuple):
    """What happened to content that was cached."""

    displaced_by: str | None
    """The request whose allocation took the first missing block; None when it was evicted on request
    (`evict_blocks`), or when that has been forgotten."""
    admissions_ago: int | None
    """Requests admitted since; None like `displaced_by`."""
    seconds_ago: float | None
    """By the observer's clock; None without a clock, and like `displaced_by`."""
    more_blocks: int | None
    """With so many more blocks under LRU, and the same traffic, all of it would still be cached. It is the least such
    number unless something evicted meanwhile came back. None for other policies, and when it was evicted on request."""


class KeyDiffers(NamedTuple):
    """The same tokens are cached for another key."""

    key: Literal["cache_salt", "lora", "image", "prompt_embeds", "other"]
    request_id: str
    """A request whose key would have hit."""
    ours: str | None
    theirs: str | None
    """The adapter's name or the image's identifier, ours and theirs; None for no such key. Salts are secrets: they are
    never told."""


class GroupVeto(NamedTuple):
    """Which group of layers lacked what another had."""

    group_id: int
    cause: VetoCause
    """`window`: its blocks left the window before they could be cached. `checkpoint_spacing`: no state was saved there.
    `retention`: sparse retention did not keep it findable. `alignment`: hits end on a multiple of all groups' block
    sizes."""


class InFlight(NamedTuple):
    """Who computes it now."""

    request_id: str


Detail = FirstSeen | Evicted | KeyDiffers | GroupVeto | InFlight


class Miss(NamedTuple):
    """Tokens [start, end) of a request, which had to be computed, and why."""

    reason: Reason
    start: int
    end: int
    detail: Detail | None = None

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


class RequestMisses(NamedTuple):
    """One admission: hits, external tokens and misses add up to `num_tokens`, always."""

    request_id: str
    num_tokens: int
    """The prompt's tokens; for a request that resumes after a preemption, those that it had generated too."""
    hit_tokens: int
    external_tokens: int
    """Loaded by a connector."""
    resumed: bool
    misses: tuple[Miss, ...]
    """In token order, without gaps."""

    @property
    def reasons(self) -> dict[Reason, int]:
        """Tokens by reason; only reasons that occur."""
        tokens: dict[Reason, int] = {}
        for miss in self.misses:
            tokens[miss.reason] = tokens.get(miss.reason, 0) + miss.end - miss.start
        return tokens


class Totals:
    """Sums over admissions; `hit_tokens + external_tokens + sum(reasons.values()) == tokens`."""

    __slots__ = ("external_tokens", "hit_tokens", "reasons", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.hit_tokens = 0
        self.external_tokens = 0
        self.reasons: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        """Tokens by reason; every reason is there."""

    def add(self, request: RequestMisses) -> None:
        self.requests += 1
        self.tokens += request.num_tokens
        self.hit_tokens += request.hit_tokens
        self.external_tokens += request.external_tokens
        reasons = self.reasons
        for miss in request.misses:
            reasons[miss.reason] += miss.end - miss.start
