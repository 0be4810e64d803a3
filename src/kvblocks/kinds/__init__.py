"""Kinds of cache, one file each: a spec (how large a page is) and the rules of its block tables."""

from kvblocks.kinds.base import (
    AttentionSpec,
    CacheableRequest,
    CachedRun,
    CacheGroup,
    Demand,
    GroupContext,
    KVCacheSpec,
    RequestLimits,
    blocks_for,
)
from kvblocks.kinds.chunked_local import ChunkedLocalSpec
from kvblocks.kinds.cross_attention import CrossAttentionSpec
from kvblocks.kinds.encoder_only import EncoderOnlySpec
from kvblocks.kinds.full import FullAttentionSpec
from kvblocks.kinds.lookup import GroupHit, PrefixLookup
from kvblocks.kinds.mamba import MambaSpec
from kvblocks.kinds.mla import MLASpec
from kvblocks.kinds.setup import make_groups
from kvblocks.kinds.sliding_window import SlidingWindowMLASpec, SlidingWindowSpec

__all__ = [
    "AttentionSpec",
    "CacheGroup",
    "CacheableRequest",
    "CachedRun",
    "ChunkedLocalSpec",
    "CrossAttentionSpec",
    "Demand",
    "EncoderOnlySpec",
    "FullAttentionSpec",
    "GroupContext",
    "GroupHit",
    "KVCacheSpec",
    "MLASpec",
    "MambaSpec",
    "PrefixLookup",
    "RequestLimits",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "blocks_for",
    "make_groups",
]
