"""Encoder-only attention: every token is computed in one pass, so nothing is kept and no block is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.kinds.base import NEVER, AttentionSpec, CacheableRequest, CachedRun, CacheGroup


class EncoderOnlyGroup(CacheGroup):
    """Tables that stay empty."""

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        return 0

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        return NEVER

    def blocks_needed(
        self,
        request: CacheableRequest,
        num_slots: int,
        num_main_tokens: int,
        hits: Sequence[int],
        num_local_tokens: int,
        num_adopted_tokens: int,
        *,
        at_admission: bool = False,
    ) -> int:
        return 0

    def adopt(
        self, request: CacheableRequest, hits: Sequence[int], num_local_tokens: int, num_adopted_tokens: int
    ) -> None:
        """Nothing: there are no hits."""

    def allocate(self, request: CacheableRequest, num_slots: int, num_main_tokens: int) -> list[int]:
        return []

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """Nothing is findable."""
        return ()


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySpec(AttentionSpec):
    """Attention of an encoder layer; no page."""

    group_class = EncoderOnlyGroup

    @property
    def prefix_cacheable(self) -> bool:
        return False

    @property
    def page_size_bytes(self) -> int:
        return 0
