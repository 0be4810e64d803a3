"""kvblocks: KV-cache management for language-model serving.

The names below load when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kvblocks.kinds import FullAttentionSpec, MambaSpec, MLASpec, SlidingWindowSpec
    from kvblocks.manager import KVCacheBlocks, KVCacheManager, PrefixHit, Request, TokenRequest
    from kvblocks.pool import BlockPool
    from kvblocks.prefix import BlockHasher, ExtraKeys
    from kvblocks.scheduling import Scheduler, SchedulerConfig

_HOME = {
    "BlockHasher": "prefix",
    "BlockPool": "pool",
    "ExtraKeys": "prefix",
    "FullAttentionSpec": "kinds",
    "KVCacheBlocks": "manager",
    "KVCacheManager": "manager",
    "MLASpec": "kinds",
    "MambaSpec": "kinds",
    "PrefixHit": "manager",
    "Request": "manager",
    "Scheduler": "scheduling",
    "SchedulerConfig": "scheduling",
    "SlidingWindowSpec": "kinds",
    "TokenRequest": "manager",
}

__all__ = [
    "BlockHasher",
    "BlockPool",
    "ExtraKeys",
    "FullAttentionSpec",
    "KVCacheBlocks",
    "KVCacheManager",
    "MLASpec",
    "MambaSpec",
    "PrefixHit",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "SlidingWindowSpec",
    "TokenRequest",
]


def __getattr__(name: str) -> Any:
    folder = _HOME.get(name)
    if folder is None:
        raise AttributeError(f"module 'kvblocks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kvblocks.{folder}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
