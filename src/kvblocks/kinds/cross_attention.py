"""Cross attention: an encoder-decoder model's view of its encoder, allocated once per request and never shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.kinds.base import NEVER, AttentionSpec, CacheableRequest, CachedRun, CacheGroup, blocks_for


class CrossAttentionGroup(CacheGroup):
    """Tables of encoder states: as many blocks as the encoder's tokens need, from the first allocation to the end.

    The states depend on the request's own audio or image, not on its tokens, so there is no prefix to find. Slots are
    counted in *encoder* tokens here; the manager passes those.
    """

    counts_encoder_tokens = True

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        return blocks_for(num_encoder_tokens, self.block_size)

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """Decoding never changes it."""
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
        return max(blocks_for(num_slots, self.block_size) - len(self.tables.get(request.request_id, ())), 0)

    def adopt(
        self, request: CacheableRequest, hits: Sequence[int], num_local_tokens: int, num_adopted_tokens: int
    ) -> None:
        """Nothing: there are no hits."""

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """Nothing is findable."""
        return ()


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Keys and values of the encoder's tokens."""

    group_class = CrossAttentionGroup

    @property
    def prefix_cacheable(self) -> bool:
        return False
