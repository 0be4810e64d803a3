"""What an LRU cache of any size hits of a trace, all sizes from one pass over its chains.

Freed blocks queue for eviction last block first, so what a cache holds is always the top of one list by recency, the
same list for every size; only how many of it a size holds differs, and is followed for all sizes side by side. That is
the serial replay to the token, with one exception: a prompt that ends with a full block which is cached has to compute
it again, and then holds it twice; `Curve.doubled` counts these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvblocks.replay.chains import Chains


@dataclass(frozen=True, slots=True)
class Curve:
    """Hit tokens by size; `sizes` are blocks of the pool, the null block included, ascending."""

    sizes: list[int]
    hit_tokens: list[int]
    unbounded_hit_tokens: int
    """What a cache hits that never evicts."""
    doubled: int
    """Prompts whose last block was computed again though it was touched before: each may put a size wrong by as much
    as one more block would."""


def lru_hits(chains: Chains, sizes: Sequence[int], *, outputs: bool = True) -> Curve:
    """The hits at each of the sizes. Raises UsageError for a size that some prompt does not fit.

    outputs: whether generated tokens take blocks while a request runs.
    """
    ordered = sorted(set(sizes))
    for size in ordered[:1]:
        chains.check_size(size)
    capacity = np.array(ordered, dtype=np.int64) - 1
    held = np.zeros(len(ordered), dtype=np.int64)  # cached blocks
    hits = np.zeros(len(ordered), dtype=np.int64)
    unbounded = doubled = 0
    recent = _Recency(len(chains.prompts))
    for number, chain in enumerate(chains.prompts):
        found = np.zeros(len(ordered), dtype=np.int64)
        for piece in chain.pieces:
            length = piece.end - piece.start
            found += np.clip(held - recent.after(piece.prompt), 0, length)
        known = chain.pieces[-1].end if chain.pieces else 0
        most = chains.may_hit(chain)
        hits += np.minimum(found, most)
        unbounded += min(known, most)
        doubled += known > most
        without_hash = chains.blocks(chain, outputs=False) - chain.num_blocks
        if outputs and chain.output_tokens:
            with_outputs = chains.blocks(chain)
            room = np.where(with_outputs <= capacity, with_outputs - chain.num_blocks, without_hash)
        else:
            room = np.full(len(ordered), without_hash)
        held = np.minimum(held + chain.num_blocks - found, capacity - room)
        for piece in chain.pieces:
            recent.add(piece.prompt, piece.start - piece.end)
        recent.add(number, chain.num_blocks)
    tokens = chains.block_size
    return Curve(ordered, [int(blocks) * tokens for blocks in hits], unbounded * tokens, doubled)


class _Recency:
    """How many blocks were last touched by prompts after a given one: a Fenwick tree over the prompts."""

    def __init__(self, prompts: int) -> None:
        self._tree = [0] * (prompts + 1)
        self._total = 0

    def add(self, prompt: int, blocks: int) -> None:
        self._total += blocks
        at = prompt + 1
        while at < len(self._tree):
            self._tree[at] += blocks
            at += at & -at

    def after(self, prompt: int) -> int:
        up_to = 0
        at = prompt + 1
        while at:
            up_to += self._tree[at]
            at &= at - 1
        return self._total - up_to
