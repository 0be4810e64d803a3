"""The longest prefix hit that all groups agree on.

A model can go on from position n only if every group can: full attention needs all blocks before n, a sliding window
the last window, a state the checkpoint at n. Groups of one spec form a *bucket* and are looked up together. Each
bucket in turn lowers the candidate, until a pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvblocks.kinds.base import CacheGroup, blocks_for


class GroupHit(NamedTuple):
    """The agreed hit."""

    num_tokens: int
    blocks: list[list[int]]
    """Per group, in group order; empty for groups that cannot be cached."""
    longest_single: int
    """The longest hit that one bucket would have had alone, in tokens."""


class _Bucket:
    """Groups of equal spec, which hit together or not at all."""

    def __init__(self, first: CacheGroup) -> None:
        self.kind = type(first)
        self.groups = [first]
        self.block_size = first.block_size
        self.drop = first.context.is_eagle
        self.peek = first.drop_tokens if self.drop else 0
        """How far beyond the candidate to look, so that the hit can equal it after the drop."""

    def takes(self, group: CacheGroup) -> bool:
        return group.spec == self.groups[0].spec


class PrefixLookup:
    """Finds hits over all groups of one manager. Reads only."""

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._num_groups = len(groups)
        self._buckets: list[_Bucket] = []
        for group in groups:
            if not group.spec.prefix_cacheable:
                continue
            for bucket in self._buckets:
                if bucket.takes(group):
                    bucket.groups.append(group)
                    break
            else:
                self._buckets.append(_Bucket(group))
        self._buckets.sort(key=lambda bucket: not bucket.kind.downward_closed)

    def longest_hit(self, block_hashes: Sequence[bytes], max_tokens: int) -> GroupHit:
        """The longest hit of at most `max_tokens` tokens."""
        if self._num_groups == 1 and self._buckets:
            bucket = self._buckets[0]
            tokens, hit = bucket.kind.find_hit(bucket.groups, block_hashes, max_tokens, drop=bucket.drop)
            return GroupHit(tokens, hit, tokens)
        found: list[list[list[int]]] = [[] for _ in self._buckets]
        candidate, longest, settled = max_tokens, 0, False
        while self._buckets and not settled:
            settled = True
            for i, bucket in enumerate(self._buckets):
                if found[i] and bucket.kind.downward_closed:
                    continue  # a shorter hit is a hit too; it is trimmed below
                tokens, found[i] = bucket.kind.find_hit(
                    bucket.groups, block_hashes, candidate + bucket.peek, drop=bucket.drop
                )
                longest = max(longest, tokens)
                if tokens < candidate:
                    candidate = tokens
                    settled = i == 0
        blocks: list[list[int]] = [[] for _ in range(self._num_groups)]
        if not self._buckets or not candidate:
            return GroupHit(0, blocks, longest)
        for bucket, lists in zip(self._buckets, found, strict=True):
            for group, hits in zip(bucket.groups, lists, strict=True):
                blocks[group.group_id] = hits[: blocks_for(candidate, bucket.block_size)]
        return GroupHit(candidate, blocks, longest)
