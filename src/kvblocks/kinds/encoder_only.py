"""Encoder-only attention: every token is computed in one pass, so nothing is kept and no block is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.kinds.base import AttentionSpec, CacheableRequest, Demand, RequestLimits, UnsharedGroup


class EncoderOnlyGroup(UnsharedGroup):
    """Tables that stay empty."""

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        return 0

    def blocks_needed(self, request: CacheableRequest, demand: Demand, hits: Sequence[int]) -> int:
        return 0

    def allocate(self, request: CacheableRequest, num_slots: int, num_main_tokens: int) -> list[int]:
        return []


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySpec(AttentionSpec):
    """Attention of an encoder layer; no page."""

    group_class = EncoderOnlyGroup

    @property
    def prefix_cacheable(self) -> bool:
        return False

    @property
    def content_size_bytes(self) -> int:
        return 0

    def blocks_per_request(self, limits: RequestLimits) -> int:
        return 0
