"""The longest shared prefixes of a trace, as a tree: which beginnings many requests have in common, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UNIT_TOKENS = 512
"""Prefixes are told apart at multiples of about so many tokens."""
MAX_NODES = 1_000_000
"""Distinct units that are remembered; what comes new after that is not entered."""


@dataclass(slots=True)
class _Node:
    """A unit of content after one particular prefix. Its hash covers the prefix too, so it names the whole path."""

    parent: bytes | None
    tokens: int
    requests: int = 0


class SharedPrefixes:
    """Counts how many requests share each prefix."""

    def __init__(self, block_size: int) -> None:
        self._blocks_per_unit = max(1, -(-UNIT_TOKENS // block_size))
        self._unit_tokens = self._blocks_per_unit * block_size
        self._nodes: dict[bytes, _Node] = {}

    def touch(self, hashes: Sequence[bytes]) -> None:
        """A prompt with these block hashes."""
        parent: bytes | None = None
        nodes = self._nodes
        tokens = 0
        for block_hash in hashes[self._blocks_per_unit - 1 :: self._blocks_per_unit]:
            tokens += self._unit_tokens
            node = nodes.get(block_hash)
            if node is None:
                if len(nodes) >= MAX_NODES:
                    return
                node = nodes[block_hash] = _Node(parent, tokens)
            node.requests += 1
            parent = block_hash

    def to_list(self, most: int = 30) -> list[dict[str, Any]]:
        """The `most` stretches that save most tokens, parents before children.

        A stretch is a run of units that the same requests share; `tokens` is its own length, `label` its place in the
        prompt, and `hit_tokens` what an unbounded cache would save on it: all but the first request's.
        """
        shared = {block_hash: node for block_hash, node in self._nodes.items() if node.requests > 1}
        children: dict[bytes | None, list[bytes]] = {}
        for block_hash, node in shared.items():
            children.setdefault(node.parent, []).append(block_hash)
        rows: list[dict[str, Any]] = []
        pending: list[tuple[bytes, str | None]] = [(child, None) for child in children.get(None, [])]
        while pending:
            block_hash, parent_id = pending.pop()
            start = shared[block_hash].tokens - self._unit_tokens
            requests = shared[block_hash].requests
            while True:
                below = children.get(block_hash, [])
                if len(below) != 1 or shared[below[0]].requests != requests:
                    break
                block_hash = below[0]
            end = shared[block_hash].tokens
            row_id = f"n{len(rows)}"
            rows.append(
                {
                    "id": row_id,
                    "parent": parent_id,
                    "label": f"tokens {start:,}-{end:,}",
                    "tokens": end - start,
                    "requests": requests,
                    "hit_tokens": (end - start) * (requests - 1),
                }
            )
            pending += [(child, row_id) for child in below]
        return _largest(rows, most)


def _largest(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The rows with the most saved tokens, and their ancestors."""
    by_id = {row["id"]: row for row in rows}
    kept: set[str] = set()
    for row in sorted(rows, key=lambda row: (-row["hit_tokens"], row["id"])):
        chain = []
        at: str | None = row["id"]
        while at is not None and at not in kept:
            chain.append(at)
            at = by_id[at]["parent"]
        if len(kept) + len(chain) <= most:
            kept.update(chain)
    return [row for row in rows if row["id"] in kept]
