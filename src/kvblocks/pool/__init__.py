"""All KV-cache memory, cut into blocks: ids, reference counts, free blocks, and the eviction policy's order."""

from kvblocks.pool.block_pool import NULL_BLOCK, BlockPool, EvictionListener, PoolUsage
from kvblocks.pool.eviction import LRU, EvictionPolicy

__all__ = ["LRU", "NULL_BLOCK", "BlockPool", "EvictionListener", "EvictionPolicy", "PoolUsage"]
