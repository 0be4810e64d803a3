"""Observers inside somebody else's engine: one that fails is logged once and dropped, and the engine goes on."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from kvblocks.errors import UsageError
from kvblocks.manager import Admission, CachedRun, KVCacheManager, Observer, PrefixHit, Request


class GuardedObservers(Observer):
    """Tells several observers in order. An exception of one is logged with its traceback, and it is told no more."""

    def __init__(self, observers: Iterable[Observer], logger: logging.Logger) -> None:
        self.observers = list(observers)
        self._logger = logger

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in tuple(self.observers):
            try:
                call(observer)
            except Exception:
                self.observers.remove(observer)
                self._logger.exception(
                    "kvblocks: the observer %s failed and is dropped; the cache and the engine are not affected",
                    type(observer).__qualname__,
                )

    def on_attach(self, manager: KVCacheManager) -> None:
        self._tell(lambda observer: observer.on_attach(manager))

    def on_step(self) -> None:
        self._tell(lambda observer: observer.on_step())

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        self._tell(lambda observer: observer.on_lookup(request, hit))

    def on_admit(self, request: Request, admission: Admission) -> None:
        self._tell(lambda observer: observer.on_admit(request, admission))

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        self._tell(lambda observer: observer.on_allocate(request, new_blocks, admission))

    def on_refuse(self, request: Request, blocks_needed: int, blocks_free: int) -> None:
        self._tell(lambda observer: observer.on_refuse(request, blocks_needed, blocks_free))

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        self._tell(lambda observer: observer.on_cache(request, group_id, run, parent_hash))

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        self._tell(lambda observer: observer.on_evict(group_id, block_hash, block, last_copy))

    def on_evict_blocks(self, blocks: Collection[int]) -> None:
        self._tell(lambda observer: observer.on_evict_blocks(blocks))

    def on_free(self, request_id: str) -> None:
        self._tell(lambda observer: observer.on_free(request_id))

    def on_reset(self) -> None:
        self._tell(lambda observer: observer.on_reset())


def load_observers(names: Sequence[str], logger: logging.Logger) -> list[Observer]:
    """The observers of `KVBLOCKS_OBSERVERS`. One that cannot be made is logged and left out."""
    observers = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            observer = getattr(importlib.import_module(module), attribute)()
            if not isinstance(observer, Observer):
                raise UsageError(f"it returned {type(observer).__qualname__}, not a kvblocks.manager.Observer")
            observers.append(observer)
        except Exception:
            logger.exception("kvblocks: the observer %s cannot be made and is left out", name)
    return observers
