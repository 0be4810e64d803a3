"""The live view of one manager: what a page, a terminal and Prometheus are told, made from a snapshot.

`LiveView` is used from two sides. The engine's thread tells its observers, which only count and, when somebody has
asked, copy lists. Any other thread calls `state` and `metrics`, which work on such a copy (`feed.py` says why it is
whole), so that whatever they cost is not the engine's time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvblocks.errors import KVBlocksError
from kvblocks.live.exposition import Metric
from kvblocks.live.feed import LiveFeed
from kvblocks.live.figures import (
    block_map,
    block_states,
    count_figures,
    history_columns,
    largest_requests,
    pool_figures,
    prefix_rows,
    request_rows,
    victim_rows,
)
from kvblocks.live.metrics import cache_metrics
from kvblocks.manager import Observer
from kvblocks.observe import (
    CountersObserver,
    MissReasons,
    PrefixTreeObserver,
    RequestCopy,
    Sample,
    Snapshot,
    Stretch,
    stretches,
)

SAMPLE_TOKENS = 24
"""So many tokens of a prompt or a prefix are shown, when text is shown."""
MAX_PREFIXES = 60


class NoSnapshotError(KVBlocksError):
    """The engine gave no snapshot in time."""


class LiveView:
    """Give `observers` to the manager that it is to show."""

    def __init__(
        self,
        *,
        title: str = "",
        reasons: MissReasons | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        """
        title: what is served, for the page.
        reasons: says why tokens missed; give one for requests whose tokens and keys it must be told how to read.
        decode: from tokens to text. With it beginnings of prompts are shown; without it no token leaves the process.
        """
        sample_tokens = 0 if decode is None else SAMPLE_TOKENS
        self.title = title
        self.reasons = reasons or MissReasons(clock=clock)
        self.counters = CountersObserver(clock, self.reasons)
        self._decode = decode
        self._prefixes = PrefixTreeObserver(sample_tokens)
        self._feed = LiveFeed(self.counters, sample_tokens, logger or logging.getLogger("kvblocks.live"))
        self._started_s = clock()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """To be told of everything, in this order."""
        return (self.reasons, self.counters, self._prefixes, self._feed)

    def reject(self, reason: str) -> None:
        """Count a request that was turned away before the manager saw it; `reason` is one of a few fixed words."""
        self.counters.reject(reason)

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, as data for JSON. Raises NoSnapshotError."""
        snapshot = self._snapshot()
        states = block_states(snapshot)
        requests = largest_requests(snapshot)
        order = {request.request_id: at for at, (request, _) in enumerate(requests)}
        found = stretches(self._prefixes.nodes.copy(), self._prefixes.unit_tokens, MAX_PREFIXES)
        now = Sample(snapshot.time_s, snapshot.counters.tokens)
        return {
            "title": self.title,
            "up_s": round(snapshot.time_s - self._started_s, 3),
            "pool": pool_figures(snapshot, states),
            "map": block_map(snapshot, states, order),
            "counts": count_figures(snapshot.counters),
            "history": history_columns(self.counters.history.samples(), now),
            "num_requests": len(snapshot.requests),
            "requests": request_rows(snapshot, requests, self._text_of_request),
            "next_victims": victim_rows(snapshot),
            "prefixes": prefix_rows(found, self._text_of_stretch),
        }

    def metrics(self) -> list[Metric]:
        """The metrics. Raises NoSnapshotError."""
        snapshot = self._snapshot()
        pool = pool_figures(snapshot, block_states(snapshot))
        return list(cache_metrics(pool, snapshot.counters, len(snapshot.requests)))

    def _snapshot(self) -> Snapshot:
        snapshot = self._feed.snapshot()
        if snapshot is None:
            raise NoSnapshotError("the engine does not answer: it is in one long step, or it hangs")
        return snapshot

    def _text_of_request(self, request: RequestCopy) -> str | None:
        return self._text(request.sample)

    def _text_of_stretch(self, stretch: Stretch) -> str | None:
        node = self._prefixes.nodes.get(stretch.first)
        return None if node is None else self._text(node.sample)

    def _text(self, tokens: Sequence[int]) -> str | None:
        return self._decode(tokens) if self._decode is not None and tokens else None
