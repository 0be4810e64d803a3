"""Which earlier prompt last touched each block of a prompt: all that a cache's hits depend on, kept small.

A prompt's blocks form a chain, and a later prompt that shares some of it always shares a beginning. So of what a
prompt touched last, later prompts take pieces from the front, and a few numbers for each prompt say what thousands of
block hashes say. From these, `lru_hits` and `clairvoyant_hits` tell what caches of any size hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from kvblocks.errors import UsageError


class Piece(NamedTuple):
    """Blocks [start, end) of a prompt, all touched last by the same earlier prompt."""

    prompt: int
    """The number of that earlier prompt."""
    start: int
    end: int


class Chain(NamedTuple):
    """One prompt."""

    prompt_tokens: int
    output_tokens: int
    num_blocks: int
    """Its full blocks."""
    pieces: tuple[Piece, ...]
    """From its first block on, as far as its blocks were touched before."""


class Chains:
    """The prompts of a trace in order, for a cache of one group with blocks of `block_size` tokens.

    Remembers about 100 bytes for each distinct block.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.prompts: list[Chain] = []
        self._last: dict[int, int] = {}  # the hash of a block hash -> the prompt that touched it last

    def touch(self, hashes: Sequence[bytes], prompt_tokens: int, output_tokens: int = 0) -> None:
        """A prompt with these full blocks, in order."""
        number = len(self.prompts)
        # 64 bits tell them apart well enough, and take less room.
        keys = list(map(hash, hashes))
        last = self._last
        found = list(map(last.get, keys, repeat(-1)))
        last.update(zip(keys, repeat(number)))
        pieces: list[Piece] = []
        start = 0
        while start < len(found) and found[start] >= 0:
            owner = found[start]
            end = _end(found, start, owner)
            pieces.append(Piece(owner, start, end))
            start = end
        self.prompts.append(Chain(prompt_tokens, output_tokens, len(keys), tuple(pieces)))

    @property
    def num_distinct(self) -> int:
        """Distinct blocks that were touched."""
        return len(self._last)

    @property
    def prompt_tokens(self) -> int:
        return sum(chain.prompt_tokens for chain in self.prompts)

    def blocks(self, chain: Chain, *, outputs: bool = True) -> int:
        """Blocks that a request holds when it ends."""
        tokens = chain.prompt_tokens + (chain.output_tokens if outputs else 0)
        return -(-tokens // self.block_size)

    def may_hit(self, chain: Chain) -> int:
        """Blocks that it may hit: of its last token something must be computed."""
        return (chain.prompt_tokens - 1) // self.block_size

    @property
    def smallest(self) -> int:
        """The smallest pool (the null block included) that every prompt fits."""
        return 1 + max((self.blocks(chain, outputs=False) for chain in self.prompts), default=1)

    @property
    def largest(self) -> int:
        """A pool (the null block included) in which nothing is ever evicted."""
        return 1 + self.num_distinct + max(map(self.blocks, self.prompts), default=1)

    def check_size(self, num_blocks: int) -> None:
        """Raise UsageError for a pool that some prompt does not fit: who is refused touches nothing, and these chains
        are those of all."""
        if num_blocks < self.smallest:
            raise UsageError(f"num_blocks={num_blocks}: some prompts need a pool of {self.smallest} blocks")


def _end(found: list[int], start: int, owner: int) -> int:
    """Where the run of `owner` ends. Owners never rise along a chain, so it is found by doubling and halving."""
    low, step = start, 1
    while low + step < len(found) and found[low + step] == owner:
        low += step
        step *= 2
    high = min(low + step, len(found))
    while high - low > 1:
        middle = (low + high) // 2
        if found[middle] == owner:
            low = middle
        else:
            high = middle
    return high
