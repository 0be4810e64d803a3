"""The exchange between the engine's thread, which owns the manager, and those that want to look at it.

Nobody holds a lock while the engine works. A reader leaves word that it wants a snapshot, and the engine's thread takes
it when its next step begins, between two calls of the manager. An engine that rests begins no step; then the reader
takes the snapshot itself, and throws it away when anything moved in the meantime.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from kvblocks.manager import Admission, CachedRun, KVCacheManager, Observer, Request
from kvblocks.observe import CountersObserver, Snapshot, take_snapshot

MIN_INTERVAL_S = 0.5
"""A snapshot that is younger than this is given out again, however many ask."""
QUIET_S = 0.05
"""An engine that told nothing for so long rests, or is in a forward pass."""
GIVE_UP_S = 3.0
"""After so long a reader is told that there is none."""


class LiveFeed(Observer):
    """Takes snapshots of one manager for other threads. It never raises into the engine."""

    def __init__(self, counters: CountersObserver, sample_tokens: int, logger: logging.Logger) -> None:
        self._counters, self._sample_tokens = counters, sample_tokens
        self._logger = logger
        self._manager: KVCacheManager | None = None
        self._moves = 0  # how often the engine's thread told of anything
        self._wanted = False
        self._taken = threading.Event()
        self._readers = threading.Lock()  # among readers only; the engine's thread never waits for it
        self._snapshot: Snapshot | None = None
        self._taken_at = float("-inf")
        self.pause_s = 0.0
        """Time that the engine's thread has spent on snapshots."""

    def on_attach(self, manager: KVCacheManager) -> None:
        """Begin: this is an observer of that manager."""
        self._manager = manager

    # -- In the engine's thread -----------------------------------------------------------------------------------

    def on_step(self) -> None:
        self._moves += 1
        if self._wanted:
            self._wanted = False
            started = time.perf_counter()
            self._take()
            self._taken.set()
            self.pause_s += time.perf_counter() - started

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        self._moves += 1

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        self._moves += 1

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        self._moves += 1

    def on_free(self, request_id: str) -> None:
        self._moves += 1

    def on_reset(self) -> None:
        self._moves += 1

    def _take(self) -> None:
        if self._manager is None:
            return
        try:
            self._snapshot = take_snapshot(self._manager, self._counters, self._sample_tokens)
            self._taken_at = time.monotonic()
        except Exception:
            self._logger.exception("kvblocks: the state cannot be copied; the engine is not affected")

    # -- In other threads -----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """The state of now, or of at most `MIN_INTERVAL_S` ago; None when the engine gives none for `GIVE_UP_S`."""
        with self._readers:
            if time.monotonic() - self._taken_at < MIN_INTERVAL_S:
                return self._snapshot
            give_up = time.monotonic() + GIVE_UP_S
            self._taken.clear()
            self._wanted = True
            while time.monotonic() < give_up:
                moves = self._moves
                if self._taken.wait(QUIET_S):
                    return self._snapshot if time.monotonic() - self._taken_at < GIVE_UP_S else None
                if moves == self._moves and self._take_at_rest(moves):
                    return self._snapshot
            self._wanted = False
            return None

    def _take_at_rest(self, moves: int) -> bool:
        """Copy the state from outside; whether nothing moved before, meanwhile and shortly after."""
        manager = self._manager
        if manager is None:
            return False
        try:
            found = take_snapshot(manager, self._counters, self._sample_tokens)
        except RuntimeError:  # something changed size while it was copied
            return False
        consistent = found.ref_count.count(0) - 1 == manager.block_pool.num_free
        if self._taken.wait(QUIET_S / 2) or moves != self._moves or not consistent:
            return False
        self._wanted = False
        self._snapshot, self._taken_at = found, time.monotonic()
        return True
