"""Multi-head latent attention: one compressed state per token instead of keys and values per head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvblocks.kinds.base import AttentionSpec, CacheGroup
from kvblocks.kinds.full import FullAttentionGroup


@dataclass(frozen=True, kw_only=True)
class MLASpec(AttentionSpec):
    """One latent of `head_size` numbers per token (DeepSeek: 512 + 64), the same on every tensor-parallel rank.

    Its rules are those of full attention.
    """

    head_size: int = 576
    head_size_v: int | None = 0
    group_class: ClassVar[type[CacheGroup]] = FullAttentionGroup
