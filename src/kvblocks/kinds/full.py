"""Full attention: every token reads every earlier one, so every block is needed and every full block can be hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvblocks.kinds.base import AttentionSpec, CacheableRequest, CachedRun, CacheGroup, GroupContext, KVCacheSpec


class FullAttentionGroup(CacheGroup):
    """Tables of full attention (multi-head, grouped-query, multi-query, and latent)."""

    supports_fine_hits = True
    downward_closed = True

    def __init__(self, spec: KVCacheSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        self._ends_this_step: set[int] = set()  # blocks that hold a prompt's end which this step computes

    @property
    def drop_tokens(self) -> int:
        return min(self.context.alignment, self.block_size)

    @classmethod
    def find_hit(
        cls, peers: Sequence[Self], block_hashes: Sequence[bytes], max_tokens: int, *, drop: bool
    ) -> tuple[int, list[list[int]]]:
        """Left to right until the first block that is not cached; with fine hits, on into that block."""
        first = peers[0]
        size, context, units = first.block_size, first.context, first.hashes_per_block
        limit = min(max_tokens // size, len(block_hashes) // units)
        hashes = block_hashes if units == 1 else first.hashes_of_blocks(block_hashes, 0, limit)
        runs = [peer.index.run(hashes, limit) for peer in peers]
        tokens = min(map(len, runs)) * size
        if context.fine_hits and units > 1:
            tokens = cls._extend_into_block(peers, runs, block_hashes, tokens, max_tokens)
        if drop and tokens:
            tokens -= first.drop_tokens
        tokens -= tokens % context.alignment
        for run in runs:
            del run[-(-tokens // size) :]
        return tokens, runs

    @classmethod
    def _extend_into_block(
        cls, peers: Sequence[Self], runs: list[list[int]], block_hashes: Sequence[bytes], tokens: int, max_tokens: int
    ) -> int:
        """Look for the longest prefix that ends inside the block after `tokens`, and enter its block in `runs`.

        Such a block is copied before the step runs, so what this very step computes cannot be used yet.
        """
        first = peers[0]
        unit = first.context.hash_block_size
        start = tokens // unit
        end = min(max_tokens // unit, start + first.hashes_per_block - 1, len(block_hashes))
        for units in range(end, start, -1):
            found = [peer.index.get(block_hashes[units - 1]) for peer in peers]
            if None not in found and not any(b in p._ends_this_step for p, b in zip(peers, found, strict=True)):
                for run, block in zip(runs, found, strict=True):
                    run[tokens // first.block_size :] = [block]  # type: ignore[list-item]
                return units * unit
        return tokens

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """Every full block; and, where hashes are finer than blocks, the prompt's end inside its last block."""
        runs = super().cache(request, num_tokens)
        if self.hashes_per_block == 1:
            return runs
        end, unit = self._prompt_end(request), self.context.hash_block_size
        if end % self.block_size == 0 or end > num_tokens:
            return runs
        block = self.tables[request.request_id][end // self.block_size]
        block_hash = request.block_hashes[end // unit - 1]
        if not self.pool.cache_partial(self.group_id, block, block_hash, end):
            return runs
        if self.context.fine_hits and not self.context.states_defer_hits:
            self._ends_this_step.add(block)
        return (*runs, CachedRun(end - unit, unit, (block,), (block_hash,))) if self.context.observed else ()

    def new_step_starts(self) -> None:
        self._ends_this_step.clear()

    def _prompt_end(self, request: CacheableRequest) -> int:
        """Where the same prompt sent again could resume: the end of its last hash unit, in tokens.

        One token must be left to compute; with a draft head that is the drop's affair.
        """
        reusable = request.num_prompt_tokens - (0 if self.context.is_eagle else 1)
        return reusable - reusable % self.context.hash_block_size

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        quiet = super().quiet_until(request, caching)
        if self.hashes_per_block > 1 and caching:
            end = self._prompt_end(request)
            cached = self.num_cached.get(request.request_id, 0) * self.block_size
            if cached < end < cached + self.block_size:
                table = self.tables[request.request_id]
                if end >= len(table) * self.block_size or self.pool.hash_of[table[end // self.block_size]] is None:
                    quiet = min(quiet, self.tokens_to_cache(end))
        return quiet


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """Keys and values of every token (MHA, GQA and MQA differ in the number of heads)."""

    group_class = FullAttentionGroup
    attended_tokens: int | None = None
    """The window or chunk that the layer attends to although all its tokens are kept, as vLLM keeps them without the
    hybrid manager; None for all. It changes nothing here, but layers that attend to different ranges are not merged."""
