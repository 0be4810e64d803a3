"""Observers of the manager: statistics, miss reasons and KV events as plain data."""

from kvblocks.observe.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, KVEventRecorder
from kvblocks.observe.misses import MissReasons
from kvblocks.observe.reasons import (
    REASONS,
    Evicted,
    FirstSeen,
    GroupVeto,
    InFlight,
    KeyDiffers,
    Miss,
    Reason,
    RequestMisses,
    Totals,
)
from kvblocks.observe.stats import CacheStats, StatsObserver

__all__ = [
    "REASONS",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheStats",
    "Evicted",
    "FirstSeen",
    "GroupVeto",
    "InFlight",
    "KVEvent",
    "KVEventRecorder",
    "KeyDiffers",
    "Miss",
    "MissReasons",
    "Reason",
    "RequestMisses",
    "StatsObserver",
    "Totals",
]
