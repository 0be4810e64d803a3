"""Sliding-window attention: a token reads only the last `sliding_window` tokens, itself included."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from kvblocks.errors import UsageError
from kvblocks.kinds.base import (
    AttentionSpec,
    CacheableRequest,
    CacheGroup,
    GroupContext,
    KVCacheSpec,
    RequestLimits,
    blocks_for,
)
from kvblocks.kinds.mla import MLASpec
from kvblocks.pool import NULL_BLOCK


class SlidingWindowGroup(CacheGroup):
    """Tables whose blocks are given back when they leave the window.

    A hit needs only the blocks that the next token's window reads; those to their left are null.
    """

    skips_tokens = True

    def __init__(self, spec: _Windowed, context: GroupContext) -> None:
        super().__init__(spec, context)
        self.window = spec.sliding_window
        self.extra_retained_tokens = spec.extra_retained_tokens
        self.window_blocks = blocks_for(spec.sliding_window - 1, spec.block_size)
        """Blocks before a token that its window can reach."""

    @classmethod
    def find_hit(
        cls, peers: Sequence[Self], block_hashes: Sequence[bytes], max_tokens: int, *, drop: bool
    ) -> tuple[int, list[list[int]]]:
        """Right to left until a whole window of cached blocks ends on the alignment.

        A shorter run that reaches token 0 is a hit too: there is nothing before it. With `drop` one more block is
        needed, and given up.
        """
        first = peers[0]
        size, alignment = first.block_size, first.context.alignment
        needed = first.window_blocks + drop
        limit = min(max_tokens // size, len(block_hashes) // first.hashes_per_block)
        hashes = first.hashes_of_blocks(block_hashes, 0, limit)
        columns = [list(map(peer.index.get, hashes)) for peer in peers]
        at = start = limit
        end = 0
        while at and (not end or end - start < needed):
            at -= 1
            if any(column[at] is None for column in columns):
                end = 0
            elif end or (at + 1 - drop) * size % alignment == 0:
                end = end or at + 1
                start = at
        if drop and end - start < needed:
            end = end * size // alignment * alignment // size  # vLLM aligns a short run before and after the drop
        end = max(end - drop, 0) * size // alignment * alignment // size
        start = min(start, end)
        return end * size, [[NULL_BLOCK] * start + column[start:end] for column in columns]  # type: ignore[operator]

    def skipped_tokens(self, num_processed_tokens: int) -> int:
        return max(0, num_processed_tokens - self.window + 1 - self.extra_retained_tokens)

    @property
    def max_admission_blocks(self) -> int:
        return self.spec.blocks_per_request(
            RequestLimits(self.context.max_model_len, self.context.max_in_flight_tokens)
        )

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """As for full attention, and until the next block leaves the window."""
        table = self.tables.get(request.request_id, ())
        gone = bisect(table, NULL_BLOCK)  # null blocks come first
        leaves = (gone + 1) * self.block_size + self.window - 1 + self.extra_retained_tokens
        return min(super().quiet_until(request, caching), leaves)

    def worth_caching(self, request: CacheableRequest, start: int, end: int) -> set[int] | None:
        """The windows before the points that retention keeps."""
        size, ahead = self.block_size, int(self.context.is_eagle)
        window, retention = self.window_blocks, self.context.retention
        if retention.keeps_all_within((window + ahead) * size):
            return None
        wanted: set[int] = set()
        for point in retention.points(request, (start - ahead) * size, (end + window) * size):
            wanted.update(range(point // size - window, point // size + ahead))
        return wanted


@dataclass(frozen=True, kw_only=True)
class _Windowed(KVCacheSpec):
    """What the windowed kinds share."""

    sliding_window: int
    extra_retained_tokens: int = 0
    group_class: ClassVar[type[CacheGroup]] = SlidingWindowGroup

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("sliding_window")
        if self.extra_retained_tokens < 0:
            raise UsageError(
                f"{type(self).__name__}: extra_retained_tokens={self.extra_retained_tokens} must not be negative"
            )

    @property
    def sparsely_retained(self) -> bool:
        return True

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """Those of the window and of the tokens in flight, and one more: a window need not begin with a block."""
        held = self.sliding_window - 1 + self.extra_retained_tokens + limits.max_in_flight_tokens
        return blocks_for(min(held, limits.max_model_len), self.block_size) + 1

    def is_like(self, other: KVCacheSpec) -> bool:
        return super().is_like(other) and isinstance(other, _Windowed) and self.sliding_window == other.sliding_window


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(_Windowed, AttentionSpec):
    """Keys and values of the last `sliding_window` tokens, and of `extra_retained_tokens` before them."""


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(_Windowed, MLASpec):
    """Latents of the last `sliding_window` tokens, and of `extra_retained_tokens` before them."""
