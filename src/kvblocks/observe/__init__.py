"""Observers of the manager: statistics and KV events as plain data."""

from kvblocks.observe.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, KVEventRecorder
from kvblocks.observe.stats import CacheStats, StatsObserver

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheStats",
    "KVEvent",
    "KVEventRecorder",
    "StatsObserver",
]
