"""Cross attention: an encoder-decoder model's view of its encoder, allocated once per request and never shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.kinds.base import AttentionSpec, CacheableRequest, Demand, RequestLimits, UnsharedGroup, blocks_for


class CrossAttentionGroup(UnsharedGroup):
    """Tables of encoder states: as many blocks as the encoder's tokens need, from the first allocation to the end.

    The states depend on the request's own audio or image, not on its tokens, so there is no prefix to find. Slots are
    counted in *encoder* tokens here; the manager passes those.
    """

    counts_encoder_tokens = True

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        return blocks_for(num_encoder_tokens, self.block_size)

    def blocks_needed(self, request: CacheableRequest, demand: Demand, hits: Sequence[int]) -> int:
        return max(blocks_for(demand.num_slots, self.block_size) - len(self.tables.get(request.request_id, ())), 0)


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of the encoder's tokens."""

    group_class = CrossAttentionGroup

    @property
    def prefix_cacheable(self) -> bool:
        return False

    def blocks_per_request(self, limits: RequestLimits) -> int:
        return blocks_for(limits.max_encoder_tokens, self.block_size)
