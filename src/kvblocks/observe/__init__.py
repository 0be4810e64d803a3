"""Observers of the manager: statistics, miss reasons, KV events, counters, and the state of the pool as plain data."""

from kvblocks.observe.counters import AGE_BOUNDS_S, CountersObserver, CounterValues
from kvblocks.observe.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, KVEventRecorder
from kvblocks.observe.history import History, Sample, TokenCounts
from kvblocks.observe.misses import MissReasons
from kvblocks.observe.prefixes import PrefixNode, PrefixTreeObserver, Stretch, stretches
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
from kvblocks.observe.snapshot import GroupCopy, RequestCopy, Snapshot, Victim, take_snapshot
from kvblocks.observe.stats import CacheStats, StatsObserver

__all__ = [
    "AGE_BOUNDS_S",
    "REASONS",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheStats",
    "CounterValues",
    "CountersObserver",
    "Evicted",
    "FirstSeen",
    "GroupCopy",
    "GroupVeto",
    "History",
    "InFlight",
    "KVEvent",
    "KVEventRecorder",
    "KeyDiffers",
    "Miss",
    "MissReasons",
    "PrefixNode",
    "PrefixTreeObserver",
    "Reason",
    "RequestCopy",
    "RequestMisses",
    "Sample",
    "Snapshot",
    "StatsObserver",
    "Stretch",
    "TokenCounts",
    "Totals",
    "Victim",
    "stretches",
    "take_snapshot",
]
