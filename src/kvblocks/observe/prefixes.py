"""Which prefixes are in the cache now, as a tree, and how often each was hit.

Prefixes are told apart block by block, in a large pool at every so many blocks, so that the tree has at most about
`MAX_NODES` nodes: what is evicted leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvblocks.manager import Admission, CachedRun, KVCacheManager, Observer, Request

MAX_NODES = 16_384


@dataclass(slots=True)
class PrefixNode:
    """A unit of content after one particular prefix. Its hash covers the prefix too, so it names the whole path."""

    parent: bytes | None
    """The hash at the end of the unit before; None at the start of a prompt. It may have been evicted."""
    end_tokens: int
    """Tokens from the start of the prompt to the end of the unit."""
    hits: int = 0
    """Admissions that found the unit in the cache."""
    sample: Sequence[int] = ()
    """The unit's first tokens, when text may be shown."""


class PrefixTreeObserver(Observer):
    """Follows one group of the cache: the first whose blocks stay findable from the start of a prompt on."""

    def __init__(self, sample_tokens: int = 0) -> None:
        """`sample_tokens`: how many tokens of each unit are kept to be shown; 0 keeps none."""
        self.unit_tokens = 1
        """Tokens of a node."""
        self.nodes: dict[bytes, PrefixNode] = {}
        self._sample_tokens = sample_tokens
        self._group_id = 0
        self._hash_tokens = 1

    def on_attach(self, manager: KVCacheManager) -> None:
        """Learn the sizes of the manager that this is an observer of."""
        self._hash_tokens = manager.hash_block_size
        caching = [group for group in manager.groups if group.spec.prefix_cacheable]
        whole = [group for group in caching if group.downward_closed] or caching
        if whole:
            self._group_id = whole[0].group_id
            size = whole[0].block_size
            self.unit_tokens = -(-manager.block_pool.num_blocks // MAX_NODES) * size

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        if admission is None or not admission.num_hit_tokens:
            return
        step = self.unit_tokens // self._hash_tokens
        nodes = self.nodes
        for block_hash in request.block_hashes[step - 1 : admission.num_hit_tokens // self._hash_tokens : step]:
            node = nodes.get(block_hash)
            if node is not None:
                node.hits += 1

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        if group_id != self._group_id:
            return
        unit, size = self.unit_tokens, run.unit_tokens
        end = run.start + len(run.hashes) * size
        at = (run.start // unit + 1) * unit
        while at <= end:
            if not (at - run.start) % size:
                block_hash = run.hashes[(at - run.start) // size - 1]
                before = at - unit
                parent = request.block_hashes[before // self._hash_tokens - 1] if before else None
                if block_hash not in self.nodes:
                    sample = token_sample(request, before, min(unit, self._sample_tokens))
                    self.nodes[block_hash] = PrefixNode(parent, at, sample=sample)
            at += unit

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        if last_copy and group_id == self._group_id:
            self.nodes.pop(block_hash, None)

    def on_reset(self) -> None:
        self.nodes.clear()


def token_sample(request: Request, start: int, count: int) -> Sequence[int]:
    """Some tokens of a request, if it has them."""
    return tuple(getattr(request, "all_token_ids", ())[start : start + count]) if count else ()


class Stretch(NamedTuple):
    """A run of units that the same admissions found, so that they need no telling apart."""

    id: str
    parent: str | None
    start_tokens: int
    end_tokens: int
    hits: int
    first: bytes
    """The hash of its first unit."""

    @property
    def hit_tokens(self) -> int:
        """Tokens that did not have to be computed thanks to it."""
        return (self.end_tokens - self.start_tokens) * self.hits


def stretches(nodes: Mapping[bytes, PrefixNode], unit_tokens: int, most: int) -> list[Stretch]:
    """The `most` stretches that saved most tokens, parents before children. Units that nobody hit are left out."""
    shared = {block_hash: node for block_hash, node in nodes.items() if node.hits}
    children: dict[bytes | None, list[bytes]] = {}
    for block_hash, node in shared.items():
        children.setdefault(node.parent if node.parent in shared else None, []).append(block_hash)
    rows: list[Stretch] = []
    pending: list[tuple[bytes, str | None]] = [(child, None) for child in children.get(None, [])]
    while pending:
        block_hash, parent_id = pending.pop()
        first, start, hits = block_hash, shared[block_hash].end_tokens - unit_tokens, shared[block_hash].hits
        while True:
            below = children.get(block_hash, [])
            if len(below) != 1 or shared[below[0]].hits != hits:
                break
            block_hash = below[0]
        row = Stretch(f"n{len(rows)}", parent_id, start, shared[block_hash].end_tokens, hits, first)
        rows.append(row)
        pending += [(child, row.id) for child in below]
    return _largest(rows, most)


def _largest(rows: list[Stretch], most: int) -> list[Stretch]:
    """The rows with the most saved tokens, and their ancestors."""
    by_id = {row.id: row for row in rows}
    kept: set[str] = set()
    for row in sorted(rows, key=lambda row: (-row.hit_tokens, row.id)):
        chain = []
        at: str | None = row.id
        while at is not None and at not in kept:
            chain.append(at)
            at = by_id[at].parent
        if len(kept) + len(chain) <= most:
            kept.update(chain)
    return [row for row in rows if row.id in kept]
