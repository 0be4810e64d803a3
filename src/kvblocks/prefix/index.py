"""The index from block hash to blocks, for one KV-cache group.

Two requests that compute the same content at the same time own two blocks with one hash. Nothing is merged: the index
keeps all copies, answers with the oldest, and forgets a hash when its last copy is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence


class PrefixIndex:
    """Hash -> blocks that bear it, oldest first. All operations are O(1) per hash.

    `get(hash)` is the oldest block with that hash, or None; it is the dictionary's own method, so that a whole chain
    is looked up by `map(index.get, hashes)` at C speed.
    """

    __slots__ = ("_copies", "_oldest", "get")

    get: Callable[[bytes], int | None]

    def __init__(self) -> None:
        self._oldest: dict[bytes, int] = {}
        self._copies: dict[bytes, dict[int, None]] = {}
        self.get = self._oldest.get

    def __len__(self) -> int:
        """The number of distinct hashes."""
        return len(self._oldest)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._oldest

    def run(self, hashes: Sequence[bytes], limit: int) -> list[int]:
        """The oldest blocks of the longest leading run of known hashes, at most `limit` of them.

        Looks up in growing chunks, so a miss at the front of a long chain costs a few look-ups, not all of them.
        """
        found: list[int] = []
        start, chunk = 0, 32
        while start < limit:
            end = min(start + chunk, limit)
            blocks = list(map(self.get, hashes[start:end]))
            if None in blocks:
                found += blocks[: blocks.index(None)]  # type: ignore[arg-type]
                return found
            found += blocks  # type: ignore[arg-type]
            start, chunk = end, chunk * 4
        return found

    def add(self, block_hash: bytes, block: int) -> None:
        """Enter one more copy. Adding the same pair twice changes nothing."""
        oldest = self._oldest.setdefault(block_hash, block)
        if oldest != block:
            self._copies.setdefault(block_hash, {oldest: None})[block] = None

    def add_many(self, hashes: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Enter `blocks[i]` under `hashes[i]` for all i."""
        if self._oldest.keys().isdisjoint(hashes):
            self._oldest.update(zip(hashes, blocks, strict=True))
        else:
            for block_hash, block in zip(hashes, blocks, strict=True):
                self.add(block_hash, block)

    def remove(self, block_hash: bytes, block: int) -> bool:
        """Take out one copy; True when it was the last one and the hash is unknown from now on.

        The pair must be in the index.
        """
        copies = self._copies.get(block_hash)
        if copies is None:
            del self._oldest[block_hash]
            return True
        del copies[block]
        self._oldest[block_hash] = next(iter(copies))
        if len(copies) == 1:
            del self._copies[block_hash]
        return False

    def clear(self) -> None:
        self._oldest.clear()
        self._copies.clear()

    def pairs(self) -> Iterator[tuple[bytes, int]]:
        """Every (hash, block) pair, copies included."""
        for block_hash, oldest in self._oldest.items():
            blocks: Iterable[int] = self._copies.get(block_hash, (oldest,))
            for block in blocks:
                yield block_hash, block
