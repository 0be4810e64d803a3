"""All KV-cache blocks of one device, by number: who is free, who is live, and whose content may be hit again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kvblocks.errors import IntegrityError, PoolError, UsageError
from kvblocks.pool.eviction import LRU, EvictionPolicy
from kvblocks.prefix import PrefixIndex

NULL_BLOCK = 0
"""Stands for "no block here" in a block table. Never handed out, never hashed, its reference count means nothing."""


class PoolUsage(NamedTuple):
    """Where the usable blocks (all but the null block) are: the three parts sum to `usable`."""

    live: int
    """Held by at least one block table."""
    cached: int
    """Free and in the policy's order: content that may be hit again (or was evicted on request, in its old place)."""
    blank: int
    """Free, with nothing worth keeping."""

    @property
    def usable(self) -> int:
        return self.live + self.cached + self.blank


class EvictionListener(Protocol):
    """What the pool tells when it forgets content (the manager passes it on to its observer)."""

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None: ...


class BlockPool:
    """Blocks 1 to num_blocks - 1, handed out and taken back by number. Block 0 is the null block.

    A block is *live* (some table holds it), *cached* (free, its content may be hit again) or *blank*. Blank blocks are
    handed out first, last freed first; then cached ones in the order that the policy says. State lives in flat lists
    indexed by block id. A block belongs to one KV-cache group at a time; each group has its own index.

    Callers own the order: `free` takes blocks in the order in which they should be given up (a request's tail first).
    """

    __slots__ = (
        "_blank",
        "_cached",
        "_extra_hashes",
        "enable_caching",
        "group_of",
        "hash_of",
        "indexes",
        "listener",
        "num_blocks",
        "num_evicted",
        "num_forgotten",
        "ref_count",
        "tokens_of",
    )

    def __init__(
        self,
        num_blocks: int,
        *,
        num_groups: int = 1,
        policy: EvictionPolicy | None = None,
        enable_caching: bool = True,
    ) -> None:
        """Build the pool; about 10 ns per block.

        Raises UsageError when num_blocks < 1 (the null block alone is a legal, empty pool).
        """
        if not isinstance(num_blocks, int) or num_blocks < 1:
            raise UsageError(f"num_blocks={num_blocks!r}: a pool needs at least the null block; give 2 or more")
        if num_groups < 0:
            raise UsageError(f"num_groups={num_groups} must not be negative")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.listener: EvictionListener | None = None
        self.num_evicted = 0
        """Blocks whose content was given up to make room, since the start."""
        self.num_forgotten = 0
        """Times that content was forgotten, for whatever reason; what was found at one count is valid at the same."""
        self._blank = list(range(num_blocks - 1, 0, -1))  # a stack: the end is handed out first
        self._cached: EvictionPolicy = LRU() if policy is None else policy
        self.ref_count = [0] * num_blocks
        self.hash_of: list[bytes | None] = [None] * num_blocks
        """The primary hash of each block: that of its last full or partial content."""
        self.tokens_of = [0] * num_blocks
        """How many prefix tokens the primary hash covers; meaningful where `hash_of` is not None."""
        self.group_of = [0] * num_blocks
        """The KV-cache group whose index holds the block's hashes; meaningful where `hash_of` is not None."""
        self._extra_hashes: dict[int, list[bytes]] = {}  # secondary hashes: shorter prefixes that end in the block
        self.indexes = [PrefixIndex() for _ in range(num_groups)]

    # -- How much is free -----------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now: blank and cached."""
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> PoolUsage:
        """Live, cached and blank blocks. Each physical block counts once, however many tables hold it."""
        blank, cached = len(self._blank), len(self._cached)
        return PoolUsage(self.num_blocks - 1 - blank - cached, cached, blank)

    @property
    def policy_name(self) -> str:
        return self._cached.name

    def free_order(self) -> Iterator[int]:
        """The free blocks in the order in which they would be handed out now. Changes nothing."""
        yield from reversed(self._blank)
        yield from self._cached.peek()

    # -- Blocks in and out ----------------------------------------------------------------------------------------

    def allocate(self, n: int) -> list[int]:
        """Hand out n blocks with a reference count of 1, evicting cached content when blank blocks run out.

        Raises PoolError when n is negative or more than `num_free`; then nothing is handed out.
        """
        blank = self._blank
        ref_count = self.ref_count
        if n == 1 and blank:
            block = blank.pop()
            ref_count[block] = 1
            return [block]
        if n <= 0:
            if n == 0:
                return []
            raise PoolError(f"allocate({n}): the number of blocks must not be negative")
        if n <= len(blank):
            blocks = blank[: -n - 1 : -1]
            del blank[-n:]
        else:
            evict = n - len(blank)
            if evict > len(self._cached):
                raise PoolError(
                    f"allocate({n}): only {self.num_free} of {self.num_blocks - 1} usable blocks are free; "
                    "check num_free before, or free or preempt a request"
                )
            blocks = blank[::-1]
            blank.clear()
            evicted = self._cached.evict(evict)
            self.num_evicted += self._forget(evicted)
            blocks += evicted
        for block in blocks:
            ref_count[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block, whatever it holds: a pin. Free blocks become live, the null block stays out."""
        ids = list(blocks)
        if ids and not 0 <= min(ids) <= max(ids) < self.num_blocks:
            raise PoolError(f"touch: {ids} has ids outside the pool; ids go from 0 to {self.num_blocks - 1}")
        pinned = {block for block in ids if block and not self.ref_count[block] and self.hash_of[block] is None}
        blank = pinned.intersection(self._blank)  # a scan, but nobody pins blocks without content on a hot path
        if blank:
            self._blank = [block for block in self._blank if block not in blank]
            for block in blank:
                self.ref_count[block] = 1
                ids.remove(block)
        self.hold(ids)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block of a prefix hit. All are live or cached, or the null block."""
        ref_count = self.ref_count
        revived: list[int] = []
        for block in blocks:
            count = ref_count[block]
            if count:
                ref_count[block] = count + 1
            elif block:
                ref_count[block] = 1
                revived.append(block)
        self._cached.remove(revived)

    def free(self, blocks: Sequence[int]) -> None:
        """Take one holder from each block. Those without holders become free, in the order given.

        A block with a hash goes to the policy, one without becomes blank; of several blank ones the first given is
        handed out first. The null block is passed over. Raises PoolError when a block is given more often than it is
        held; then nothing has changed.
        """
        ref_count, hash_of = self.ref_count, self.hash_of
        cached: list[int] = []
        blank: list[int] = []
        not_held = NULL_BLOCK
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
            raise PoolError(f"free: {blocks} has ids outside the pool; ids go from 0 to {self.num_blocks - 1}")
        for block in blocks:
            count = ref_count[block]
            if count == 1:
                ref_count[block] = 0
                if hash_of[block] is None:
                    blank.append(block)
                else:
                    cached.append(block)
            elif block:
                ref_count[block] = count - 1
                if count < 1:
                    not_held = block
        if not_held:
            for block in blocks:
                if block:
                    ref_count[block] += 1
            raise PoolError(f"free: block {not_held} is given more often than it is held; free each holder once")
        if blank:
            blank.reverse()
            self._blank += blank
        if cached:
            self._cached.add(cached)

    # -- Content --------------------------------------------------------------------------------------------------

    def cache(self, group_id: int, blocks: Sequence[int], hashes: Sequence[bytes], tokens: Iterable[int]) -> None:
        """Make full blocks findable: `blocks[i]` holds the content `hashes[i]`, which ends after `tokens[i]` tokens.

        A block that was findable by a shorter, partial prefix loses those hashes first (partial to full). A block
        that bears a hash of as many tokens or more must not be given: a table's blocks are registered once.
        """
        hash_of, tokens_of, group_of = self.hash_of, self.tokens_of, self.group_of
        for block, block_hash, end in zip(blocks, hashes, tokens, strict=True):
            if hash_of[block] is not None:
                self._forget_partial(block, end)
            hash_of[block] = block_hash
            tokens_of[block] = end
            group_of[block] = group_id
        self.indexes[group_id].add_many(hashes, blocks)

    def cache_one(self, group_id: int, block: int, block_hash: bytes, tokens: int) -> None:
        """`cache` for a single block."""
        hash_of = self.hash_of
        if hash_of[block] is not None:
            self._forget_partial(block, tokens)
        hash_of[block] = block_hash
        self.tokens_of[block] = tokens
        self.group_of[block] = group_id
        self.indexes[group_id].add(block_hash, block)

    def _forget_partial(self, block: int, tokens: int) -> None:
        """Drop the hashes of a block that is full now, after `tokens` tokens."""
        if self.tokens_of[block] >= tokens:
            raise PoolError(
                f"cache: block {block} already bears a hash of {self.tokens_of[block]} tokens, not < {tokens}"
            )
        self._forget((block,))

    def cache_partial(self, group_id: int, block: int, block_hash: bytes, tokens: int) -> bool:
        """Make a block findable by a prefix that ends inside it, after `tokens` tokens; False when it was already.

        The first hash of a block is its primary one. A longer prefix replaces all that the block had; a shorter one is
        kept beside them as a secondary hash.
        """
        primary = self.hash_of[block]
        if primary is not None and tokens > self.tokens_of[block]:
            self._forget((block,))
            primary = None
        if primary is None:
            self.hash_of[block] = block_hash
            self.tokens_of[block] = tokens
            self.group_of[block] = group_id
        elif primary == block_hash or block_hash in self._extra_hashes.get(block, ()):
            return False
        else:
            self._extra_hashes.setdefault(block, []).append(block_hash)
        self.indexes[group_id].add(block_hash, block)
        return True

    def move_content(self, source: int, target: int) -> None:
        """Make `target`, which bears no hash, findable in place of `source`. The caller copies the content itself.

        Nothing is forgotten, so no listener is told.
        """
        hashes = self.hashes_of(source)
        if not hashes:
            return
        index = self.indexes[self.group_of[source]]
        for block_hash in hashes:
            index.remove(block_hash, source)
            index.add(block_hash, target)
        self.hash_of[target], self.hash_of[source] = self.hash_of[source], None
        self.tokens_of[target], self.group_of[target] = self.tokens_of[source], self.group_of[source]
        if source in self._extra_hashes:
            self._extra_hashes[target] = self._extra_hashes.pop(source)
        self.num_forgotten += 1  # a hit on the source is stale

    def is_writable(self, block: int) -> bool:
        """Whether a holder may write into the block: held once, and nobody can hit what it holds."""
        return block != NULL_BLOCK and self.ref_count[block] == 1 and self.hash_of[block] is None

    def hashes_of(self, block: int) -> list[bytes]:
        """All hashes that find the block, the primary one first."""
        primary = self.hash_of[block]
        return [] if primary is None else [primary, *self._extra_hashes.get(block, ())]

    def evict(self, blocks: Iterable[int]) -> None:
        """Forget the content of these blocks, live or free, without moving them.

        A live block stays with its holders and becomes blank when they free it; a free one keeps its place in the
        policy's order until it is handed out. Raises PoolError for an id that is not in the pool; then nothing has
        changed.
        """
        ids = list(blocks)
        for block in ids:
            if not 0 <= block < self.num_blocks:
                raise PoolError(f"evict: block {block} is not in the pool; ids go from 0 to {self.num_blocks - 1}")
        self._forget(ids)

    def _forget(self, blocks: Iterable[int]) -> int:
        """Drop the hashes of these blocks; how many of them bore one."""
        forgotten = 0
        hash_of, group_of, indexes, listener = self.hash_of, self.group_of, self.indexes, self.listener
        for block in blocks:
            block_hash = hash_of[block]
            if block_hash is None:
                continue
            hash_of[block] = None
            forgotten += 1
            group_id = group_of[block]
            last_copy = indexes[group_id].remove(block_hash, block)
            if listener is not None:
                listener.on_evict(group_id, block_hash, block, last_copy)
            if self._extra_hashes:
                for extra in self._extra_hashes.pop(block, ()):
                    last_copy = indexes[group_id].remove(extra, block)
                    if listener is not None:
                        listener.on_evict(group_id, extra, block, last_copy)
        self.num_forgotten += forgotten
        return forgotten

    def reset(self) -> bool:
        """Forget all content. False, and nothing has changed, while any block is live.

        The order of the free blocks stays what it is, as in vLLM.
        """
        if self.num_free != self.num_blocks - 1:
            return False
        self.hash_of = [None] * self.num_blocks
        self._extra_hashes.clear()
        self.num_forgotten += 1
        for index in self.indexes:
            index.clear()
        return True

    # -- Checks ---------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise IntegrityError unless all structures agree; O(num_blocks).

        `tables` are all block tables that exist (and pins, as tables of their own): with them every reference count
        must equal the number of tables that hold the block.
        """
        self._cached.check()
        free = list(self.free_order())
        if len(set(free)) != len(free) or NULL_BLOCK in free:
            raise IntegrityError(f"a block is free twice, or the null block is free: {free}")
        live = [block for block in range(1, self.num_blocks) if self.ref_count[block]]
        if sorted(free + live) != list(range(1, self.num_blocks)):
            raise IntegrityError(f"free {sorted(free)} and live {live} are not all of 1..{self.num_blocks - 1}")
        if bad := [block for block in self._blank if self.hash_of[block] is not None]:
            raise IntegrityError(f"blank blocks bear hashes: {bad}")
        if self.hash_of[NULL_BLOCK] is not None or self.ref_count[NULL_BLOCK]:
            raise IntegrityError("the null block bears a hash or a count")
        indexed = {
            (group_id, block_hash, block)
            for group_id, index in enumerate(self.indexes)
            for block_hash, block in index.pairs()
        }
        borne = {
            (self.group_of[block], block_hash, block)
            for block in range(1, self.num_blocks)
            for block_hash in self.hashes_of(block)
        }
        if indexed != borne or (unborne := [b for b in self._extra_hashes if self.hash_of[b] is None]):
            raise IntegrityError(f"index and blocks disagree: {indexed ^ borne}{unborne if indexed == borne else ''}")
        if tables is not None:
            held = [0] * self.num_blocks
            for table in tables:
                for block in table:
                    held[block] += 1
            if bad := [b for b in range(1, self.num_blocks) if held[b] != self.ref_count[b]]:
                counts = {b: (held[b], self.ref_count[b]) for b in bad}
                raise IntegrityError(f"blocks whose (holders, count) differ: {counts}")
