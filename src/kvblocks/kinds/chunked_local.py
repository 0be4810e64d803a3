"""Chunked local attention: a token reads only the tokens of its own chunk of `attention_chunk_size` tokens."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvblocks.kinds.base import (
    AttentionSpec,
    CacheableRequest,
    CacheGroup,
    GroupContext,
    KVCacheSpec,
    RequestLimits,
    blocks_for,
)
from kvblocks.pool import NULL_BLOCK


class ChunkedLocalGroup(CacheGroup):
    """Tables whose blocks are given back when their chunk is over.

    Everything left of the next token's chunk counts as a hit without a look-up: no token will read it.
    """

    skips_tokens = True

    def __init__(self, spec: ChunkedLocalSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        self.chunk = spec.attention_chunk_size

    @property
    def drop_tokens(self) -> int:
        return 0

    @classmethod
    def find_hit(
        cls, peers: Sequence[Self], block_hashes: Sequence[bytes], max_tokens: int, *, drop: bool
    ) -> tuple[int, list[list[int]]]:
        """Left to right inside the chunk that holds token `max_tokens`; the blocks before it are null."""
        first = peers[0]
        size = first.block_size
        limit = min(max_tokens // size, len(block_hashes) // first.hashes_per_block)
        start = min(max_tokens // first.chunk * first.chunk // size, limit)
        hashes = first.hashes_of_blocks(block_hashes, start, limit)
        runs = [peer.index.run(hashes, limit - start) for peer in peers]
        tokens = (start + min(map(len, runs))) * size
        tokens -= tokens % first.context.alignment
        end = tokens // size
        return tokens, [([NULL_BLOCK] * start + run)[:end] for run in runs]

    def skipped_tokens(self, num_processed_tokens: int) -> int:
        return num_processed_tokens // self.chunk * self.chunk

    @property
    def max_admission_blocks(self) -> int:
        return self.spec.blocks_per_request(
            RequestLimits(self.context.max_model_len, self.context.max_in_flight_tokens)
        )

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """As for full attention, and until the chunk of the first block that is still held is over."""
        table = self.tables.get(request.request_id, ())
        gone = bisect(table, NULL_BLOCK)  # null blocks come first
        chunk_end = ((gone + 1) * self.block_size - 1) // self.chunk * self.chunk + self.chunk
        return min(super().quiet_until(request, caching), chunk_end)


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalSpec(AttentionSpec):
    """Keys and values of the current chunk."""

    attention_chunk_size: int
    group_class = ChunkedLocalGroup

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("attention_chunk_size")

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Those of a chunk and of the tokens in flight."""
        held = self.attention_chunk_size + limits.max_in_flight_tokens
        return blocks_for(min(held, limits.max_model_len), self.block_size)

    def is_like(self, other: KVCacheSpec) -> bool:
        return (
            super().is_like(other)
            and isinstance(other, ChunkedLocalSpec)
            and self.attention_chunk_size == other.attention_chunk_size
        )
