"""Observers for the tests, loaded into the engine's process by KVBLOCKS_OBSERVERS."""

from __future__ import annotations

import logging

from kvblocks.manager import Observer, PrefixHit, Request


class Failing(Observer):
    """Raises at its second look-up."""

    def __init__(self) -> None:
        self.lookups = 0

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        self.lookups += 1
        if self.lookups == 2:
            raise RuntimeError("an observer with a fault")


class Counting(Observer):
    """Logs what it saw when the cache is reset."""

    resets = 0

    def on_reset(self) -> None:
        self.resets += 1
        logging.getLogger("vllm.kvblocks.test").info("watched: %d reset", self.resets)
