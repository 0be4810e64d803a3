"""Observers of the manager: statistics, KV events, counters and the state of the pool as plain data."""

from kvblocks.observe.counters import AGE_BOUNDS_S, UNEXPLAINED, CountersObserver, CounterValues, MissSource, MissTotals
from kvblocks.observe.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, KVEventRecorder
from kvblocks.observe.history import History, Sample, TokenCounts
from kvblocks.observe.prefixes import PrefixNode, PrefixTreeObserver, Stretch, stretches
from kvblocks.observe.snapshot import GroupCopy, RequestCopy, Snapshot, Victim, take_snapshot
from kvblocks.observe.stats import CacheStats, StatsObserver

__all__ = [
    "AGE_BOUNDS_S",
    "UNEXPLAINED",
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheStats",
    "CounterValues",
    "CountersObserver",
    "GroupCopy",
    "History",
    "KVEvent",
    "KVEventRecorder",
    "MissSource",
    "MissTotals",
    "PrefixNode",
    "PrefixTreeObserver",
    "RequestCopy",
    "Sample",
    "Snapshot",
    "StatsObserver",
    "Stretch",
    "TokenCounts",
    "Victim",
    "stretches",
    "take_snapshot",
]
