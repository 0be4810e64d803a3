"""The entry point: puts kvblocks' manager where vLLM's scheduler makes its own, or says why not.

vLLM calls `register` in each of its processes, more than once. Only the process with the scheduler makes a manager, so
only there something is logged: one line when kvblocks is active, one warning when vLLM's own manager stays.
"""

from __future__ import annotations

import functools
import logging
import os
from contextvars import ContextVar
from typing import Any

from kvblocks.errors import KVBlocksError

_building: ContextVar[Any] = ContextVar("kvblocks_building_for", default=None)
"""The configuration of the scheduler that is being built: its manager is not told it."""


def logger() -> logging.Logger:
    """A logger below vLLM's own, so that what is said appears where vLLM's lines do."""
    return logging.getLogger("vllm.kvblocks")


def register() -> None:
    """Entry point of the group `vllm.general_plugins`. Never raises: a server starts with or without kvblocks."""
    try:
        _register()
    except Exception as error:
        _stay(f"{type(error).__name__}: {error}")


def _register() -> None:
    from kvblocks.integrations.vllm.settings import read_settings

    try:
        settings = read_settings(os.environ)
    except KVBlocksError as error:
        _stay(str(error))
        return
    if not settings.enabled:
        return
    from vllm.v1.core.sched import scheduler

    if hasattr(scheduler.KVCacheManager, "kvblocks_original"):
        return
    from kvblocks.integrations.vllm.contract import doubts

    found = doubts()
    if found:
        _stay("; ".join(found))
        return
    theirs = scheduler.KVCacheManager

    @functools.wraps(theirs, updated=())
    def make_manager(*args: Any, **kwargs: Any) -> Any:
        return build(theirs, *args, **kwargs)

    make_manager.kvblocks_original = theirs  # type: ignore[attr-defined]
    scheduler.KVCacheManager = make_manager
    _tell_configuration(scheduler.Scheduler)
    if settings.check_steps:
        _check_at_the_end(scheduler.Scheduler)


def _tell_configuration(scheduler: Any) -> None:
    """Remember, while a scheduler is built, for which configuration."""
    original = scheduler.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        token = _building.set(kwargs.get("vllm_config", args[0] if args else None))
        try:
            original(self, *args, **kwargs)
        finally:
            _building.reset(token)

    scheduler.__init__ = init


def _check_at_the_end(scheduler: Any) -> None:
    """Have the manager check itself when its scheduler is shut down: the engine's process may not end by itself."""
    original = scheduler.shutdown

    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        check = getattr(getattr(self, "kv_cache_manager", None), "check_at_end", None)
        if check is not None:
            check()
        original(self, *args, **kwargs)

    scheduler.shutdown = shutdown


def build(theirs: Any, *args: Any, **kwargs: Any) -> Any:
    """kvblocks' manager for these arguments of vLLM's, or vLLM's own, whose class is `theirs`."""
    from kvblocks.integrations.vllm.manager import VLLMKVCacheManager

    try:
        manager = VLLMKVCacheManager(*args, **kwargs, vllm_config=_building.get())
    except KVBlocksError as error:
        _stay(str(error))
    except Exception as error:
        _stay(f"{type(error).__name__}: {error}")
    else:
        logger().info("%s", manager.summary())
        return manager
    return theirs(*args, **kwargs)


def _stay(reason: str) -> None:
    logger().warning("kvblocks leaves the KV cache to vLLM's own manager: %s", reason)
