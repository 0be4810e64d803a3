"""The longest shared prefixes of a trace, as a tree: which beginnings many requests have in common, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvblocks.observe import PrefixNode, stretches

UNIT_TOKENS = 512
"""Prefixes are told apart at multiples of about so many tokens."""
MAX_NODES = 1_000_000
"""Distinct units that are remembered; what comes new after that is not entered."""


class SharedPrefixes:
    """Counts how many requests share each prefix."""

    def __init__(self, block_size: int) -> None:
        self._blocks_per_unit = max(1, -(-UNIT_TOKENS // block_size))
        self._unit_tokens = self._blocks_per_unit * block_size
        self._nodes: dict[bytes, PrefixNode] = {}

    def touch(self, hashes: Sequence[bytes]) -> None:
        """A prompt with these block hashes."""
        parent: bytes | None = None
        nodes = self._nodes
        tokens = 0
        for block_hash in hashes[self._blocks_per_unit - 1 :: self._blocks_per_unit]:
            tokens += self._unit_tokens
            node = nodes.get(block_hash)
            if node is not None:
                node.hits += 1
            elif len(nodes) >= MAX_NODES:
                return
            else:
                nodes[block_hash] = PrefixNode(parent, tokens)
            parent = block_hash

    def to_list(self, most: int = 30) -> list[dict[str, Any]]:
        """The `most` stretches that save most tokens, parents before children.

        A stretch is a run of units that the same requests share; `tokens` is its own length, `label` its place in the
        prompt, and `hit_tokens` what an unbounded cache would save on it: all but the first request's.
        """
        return [
            {
                "id": row.id,
                "parent": row.parent,
                "label": f"tokens {row.start_tokens:,}-{row.end_tokens:,}",
                "tokens": row.end_tokens - row.start_tokens,
                "requests": row.hits + 1,
                "hit_tokens": row.hit_tokens,
            }
            for row in stretches(self._nodes, self._unit_tokens, most)
        ]
