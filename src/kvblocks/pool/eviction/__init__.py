"""Eviction policies, one file each."""

from kvblocks.pool.eviction.base import EvictionPolicy
from kvblocks.pool.eviction.lru import LRU

__all__ = ["LRU", "EvictionPolicy"]
