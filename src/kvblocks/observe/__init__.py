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
    "Evicted",
    "FirstSeen",
    "GroupVeto",
    "InFlight",
    "KeyDiffers",
    "Miss",
    "MissReasons",
    "Reason",
    "RequestMisses",
    "Totals",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheStats",
    "KVEvent",
    "KVEventRecorder",
    "StatsObserver",
]
