"""Multi-head latent attention: one compressed state per token instead of keys and values per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvblocks.kinds.base import CacheGroup, KVCacheSpec
from kvblocks.kinds.full import FullAttentionGroup


@dataclass(frozen=True, kw_only=True)
class MLASpec(KVCacheSpec):
    """One latent of `head_size` numbers per token (DeepSeek: 512 + 64), the same on every tensor-parallel rank.

    Its rules are those of full attention.
    """

    head_size: int = 576
    dtype_bytes: int = 2
    tokens_per_state: int = 1
    group_class: ClassVar[type[CacheGroup]] = FullAttentionGroup

    def __post_init__(self) -> None:
        self._require_positive("block_size", "head_size", "dtype_bytes")
        self._require_whole_states(self.tokens_per_state)

    @property
    def page_size_bytes(self) -> int:
        return self.block_size // self.tokens_per_state * self.head_size * self.dtype_bytes
