"""The manager: every allocation, prefix hit and free of every request passes through it."""

from kvblocks.kinds import CachedRun
from kvblocks.manager.blocks import BlockCopy, DecodeSlots, KVCacheBlocks, PrefixHit
from kvblocks.manager.manager import KVCacheManager
from kvblocks.manager.misuse import check_hashes
from kvblocks.manager.observer import Admission, Observer, Observers
from kvblocks.manager.request import Request, RequestStatus, TokenRequest

__all__ = [
    "Admission",
    "BlockCopy",
    "CachedRun",
    "DecodeSlots",
    "KVCacheBlocks",
    "KVCacheManager",
    "Observer",
    "Observers",
    "PrefixHit",
    "Request",
    "RequestStatus",
    "TokenRequest",
    "check_hashes",
]
