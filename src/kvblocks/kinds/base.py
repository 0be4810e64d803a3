"""What every kind of cache shares: a spec (the size of a page) and a group (the block tables and their rules).

A *spec* says what one layer stores in one block. A *group* is the set of layers that share block tables, and the rules
of its kind: what is a hit, which tokens are no longer needed, how many blocks a request needs, what is worth caching.
The rules in `CacheGroup` are those of full attention; a kind overrides what differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, NamedTuple, Protocol, Self

from kvblocks.errors import IntegrityError, UsageError
from kvblocks.kinds.retention import Retention
from kvblocks.pool import NULL_BLOCK, BlockPool

NEVER = 2**63
"""A number of tokens that no request reaches."""


class CacheableRequest(Protocol):
    """What a group reads of a request; the manager's request protocol satisfies it."""

    @property
    def request_id(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> Sequence[bytes]: ...
    @property
    def shared_prefix_boundary(self) -> int: ...


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold `num_tokens` tokens: the quotient, rounded up."""
    return -(-num_tokens // block_size)


class Demand(NamedTuple):
    """The room that a request asks for, in tokens."""

    num_slots: int
    """Slots in all, those for drafts included."""
    num_main_tokens: int
    """Slots without the lookahead for drafts; only states tell them apart."""
    num_local_tokens: int
    """Tokens that the request has computed or hits."""
    num_adopted_tokens: int
    """Those and the external ones after them."""
    at_admission: bool = False
    """The question is whether the whole request would fit, so what it holds at most counts."""
    count_hits: bool = True
    """Count which hit blocks are free; if not, all of them are taken to be, which is quicker and never too few."""


class CachedRun(NamedTuple):
    """Consecutive units of a request that became findable: `blocks[i]` by `hashes[i]`.

    Unit i holds `unit_tokens` tokens from token `start + i * unit_tokens`.
    """

    start: int
    unit_tokens: int
    blocks: Sequence[int]
    hashes: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """What a group is told about the cache that it is part of. All counts are tokens."""

    pool: BlockPool
    group_id: int
    hash_block_size: int
    """Granularity of the requests' block hashes; divides the block size of every group that caches."""
    alignment: int
    """Hits end on multiples of this."""
    cache_step: int
    """What is findable ends on multiples of this (and one block later in a group with a draft head)."""
    fine_hits: bool
    """Whether hits may end inside a block."""
    max_model_len: int
    max_in_flight_tokens: int
    """Tokens that may be scheduled and not yet processed; a window keeps so many more."""
    retention: Retention
    is_eagle: bool
    """A draft head reads this group: hits give up their last unit."""
    observed: bool
    """Somebody wants to know what becomes findable."""
    reprefill_tokens: int = 0
    """The last so many tokens of a step may be computed again (drafting modules in a chain), so they are not cached."""
    states_defer_hits: bool = False
    """Another group refuses hits on what this very step computes, so this one need not."""
    zeroed: bool = False
    """The engine zeroes new blocks of this group and asks for their numbers."""
    hands_off_states: bool = False
    """Somebody stores states elsewhere and asks which blocks hold them."""


class RequestLimits(NamedTuple):
    """How large one request can become. All counts are tokens."""

    max_model_len: int
    max_in_flight_tokens: int
    """Tokens that may be scheduled and not yet processed: a batch for each step that can be under way at once."""
    dcp_world_size: int = 1
    """Ranks over which decode context parallelism spreads the tokens of a request."""
    max_encoder_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """What one layer stores per block. Layers of equal specs can share a group.

    `block_size` is the number of *tokens* that one block spans, also where several tokens share one stored state.
    `format` names what the bytes are; layers of another format are another spec though they be of one size.
    `page_size_padded` is the size of the page where it is made larger than its content, to equal that of other layers.
    `stride_alignment`: the distance of two blocks of this layer is a multiple of so many bytes; with
    `kernel_block_size`, of the bytes of a piece of so many tokens, where kernels take a block in several pieces.
    `dcp_sharded`: with decode context parallelism a rank keeps only its share of the tokens.
    """

    block_size: int
    format: str = ""
    page_size_padded: int | None = None
    stride_alignment: int = 1
    kernel_block_size: int | None = None
    dcp_sharded: bool = False
    group_class: ClassVar[type[CacheGroup]]

    def __post_init__(self) -> None:
        self._require_positive("block_size", "stride_alignment")
        if self.page_size_padded is not None and self.page_size_padded < self.content_size_bytes:
            raise UsageError(
                f"{type(self).__name__}: page_size_padded={self.page_size_padded} is less than the content of "
                f"{self.content_size_bytes} bytes"
            )

    def _require_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{type(self).__name__}: {name}={value!r} must be at least 1")

    @property
    def prefix_cacheable(self) -> bool:
        """Whether a prefix of tokens says what the cache holds."""
        return True

    @property
    def sparsely_retained(self) -> bool:
        """Whether only some of the blocks are kept findable; see `Retention`."""
        return False

    @property
    def content_size_bytes(self) -> int:
        """Bytes that one block of one layer holds, without padding."""
        raise NotImplementedError

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer."""
        return self.content_size_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def stride_multiple(self) -> int:
        """Bytes of which the distance of two blocks is a multiple."""
        if self.kernel_block_size is None:
            return self.stride_alignment
        piece = math.gcd(self.kernel_block_size, self.block_size)
        return 1 if piece == self.block_size else replace(self, block_size=piece).page_size_bytes

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """The most blocks that one request ever holds; what start-up makes sure of and admission counts."""
        ranks = limits.dcp_world_size if self.dcp_sharded else 1
        return blocks_for(blocks_for(limits.max_model_len, ranks), self.block_size)

    def is_like(self, other: KVCacheSpec) -> bool:
        """Whether both need the same blocks for the same tokens, so that their layers can share a block table.

        They may differ in the size of a page.
        """
        return (
            self.group_class is other.group_class
            and self.block_size == other.block_size
            and self.dcp_sharded == other.dcp_sharded
        )

    def make_group(self, context: GroupContext) -> CacheGroup:
        """The tables and rules of this kind over a pool."""
        return self.group_class(self, context)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values per token: `num_kv_heads` heads (per rank) of `head_size` and `head_size_v` numbers.

    Multi-head, grouped-query and multi-query attention differ in `num_kv_heads` only. `tokens_per_state` > 1 is a
    compressed cache that keeps one state for so many tokens, a fraction below 1 one that keeps several per token.
    `state_bytes`: what a head keeps per state, where it is packed in another way than one number after another.
    """

    num_kv_heads: int = 1
    head_size: int = 128
    head_size_v: int | None = None
    dtype_bytes: int = 2
    tokens_per_state: int | Fraction = 1
    state_bytes: int | None = None

    def __post_init__(self) -> None:
        self._require_positive("block_size", "num_kv_heads", "head_size", "dtype_bytes")
        if self.tokens_per_state <= 0:
            raise UsageError(f"{type(self).__name__}: tokens_per_state={self.tokens_per_state} must be above 0")
        if self.block_size % self.tokens_per_state:
            raise UsageError(
                f"{type(self).__name__}: block_size={self.block_size} tokens must be a multiple of "
                f"tokens_per_state={self.tokens_per_state}"
            )
        super().__post_init__()

    @property
    def content_size_bytes(self) -> int:
        state = self.state_bytes
        if state is None:
            state = (
                self.head_size + (self.head_size if self.head_size_v is None else self.head_size_v)
            ) * self.dtype_bytes
        return self.num_kv_heads * int(self.block_size // self.tokens_per_state) * state


class CacheGroup:
    """The block tables of one KV-cache group and the rules of its kind.

    A table lists a request's blocks in token order; 0 stands for a block that was skipped or has left the window.
    Tables only grow. `num_cached[id]` counts the leading blocks that were considered for caching (or adopted as hits),
    each once; a request that is in it is *running* and takes no more hits.
    """

    supports_fine_hits: ClassVar[bool] = False
    """Whether a hit may end inside a block of this kind."""
    downward_closed: ClassVar[bool] = False
    """Whether every shorter aligned length of a hit is a hit too."""
    skips_tokens: ClassVar[bool] = False
    """Whether tokens can stop being needed before the request ends."""
    grows_plainly: ClassVar[bool] = True
    """Whether a running request needs as many blocks as its table lacks, whatever it has done before."""
    defers_hits: ClassVar[bool] = False
    """Whether what a step computes can be hit in the next step only."""
    aligns_steps: ClassVar[bool] = False
    """Whether the steps of a prompt should end where `step_end` says."""
    counts_encoder_tokens: ClassVar[bool] = False
    """Whether the slots of this kind are the encoder's tokens."""

    def __init__(self, spec: KVCacheSpec, context: GroupContext) -> None:
        self.spec = spec
        self.context = context
        self.pool = context.pool
        self.group_id = context.group_id
        self.index = context.pool.indexes[context.group_id]
        self.block_size = spec.block_size
        self.caches_all = context.cache_step == 1 and not context.reprefill_tokens
        """Whether all tokens that are computed may be made findable at once."""
        self.hashes_per_block = spec.block_size // context.hash_block_size if spec.prefix_cacheable else 1
        self.tables: dict[str, list[int]] = {}
        self.num_cached: dict[str, int] = {}
        self.copies: list[tuple[int, int]] = []
        """(source, target) of copies that have not been handed over yet; both blocks are held once more until then."""
        self._to_copy: dict[str, int] = {}  # per request, the table position that must be copied before it is written
        self.new_block_ids: list[int] = []
        """Blocks that the engine must zero (or, copied on write, know of) before its next step; see `zeroed`."""

    @property
    def is_simple(self) -> bool:
        """Whether every full block is findable at once under its own hash, and nothing else is to do for a step."""
        plain = self.grows_plainly and self.downward_closed and not self.skips_tokens
        return plain and self.caches_all and self.hashes_per_block == 1 and not self.context.zeroed

    # -- Hit ------------------------------------------------------------------------------------------------------

    def hashes_of_blocks(self, block_hashes: Sequence[bytes], start: int, end: int) -> Sequence[bytes]:
        """The hashes of block positions [start, end): that of each block's last unit."""
        units = self.hashes_per_block
        if units == 1:
            return block_hashes[start:end]
        return block_hashes[(start + 1) * units - 1 : end * units : units]

    @classmethod
    def find_hit(
        cls, peers: Sequence[Self], block_hashes: Sequence[bytes], max_tokens: int, *, drop: bool
    ) -> tuple[int, list[list[int]]]:
        """The longest hit of at most `max_tokens` tokens that all `peers` (groups of one spec) agree on.

        Returns its tokens and each peer's blocks. `drop` gives up the last unit, for a draft head whose state there
        must be recomputed. Changes nothing.
        """
        raise NotImplementedError

    @property
    def drop_tokens(self) -> int:
        """How far before the end of what is cached a hit ends when a draft head reads this group."""
        return self.block_size

    # -- Skip -----------------------------------------------------------------------------------------------------

    def skipped_tokens(self, num_processed_tokens: int) -> int:
        """How many leading tokens no later token will read, once so many have been processed."""
        return 0

    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Free the blocks that only hold skipped tokens and put the null block in their places.

        Goes from the window's edge towards the start and stops at the first null block, which marks what was freed
        before.
        """
        skipped = self.skipped_tokens(num_processed_tokens) // self.block_size
        table = self.tables.get(request_id)
        if skipped <= 0 or not table:
            return
        removed: list[int] = []
        for at in range(min(skipped, len(table)) - 1, -1, -1):
            if table[at] == NULL_BLOCK:
                break
            removed.append(table[at])
            table[at] = NULL_BLOCK
        if removed:
            self.pool.free(removed)

    # -- Need -----------------------------------------------------------------------------------------------------

    @property
    def max_admission_blocks(self) -> int | None:
        """The most blocks that a request holds at once, whatever its length; None when that grows with the length."""
        return None

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """The most blocks that a request of so many tokens holds at once."""
        required = blocks_for(num_tokens, self.block_size)
        most = self.max_admission_blocks
        return required if most is None else min(required, most)

    def blocks_needed(self, request: CacheableRequest, demand: Demand, hits: Sequence[int]) -> int:
        """How many free blocks it takes to meet the demand.

        `hits` are the blocks of the local tokens when the request is new. Those of them that are free count: they
        leave the free blocks.
        """
        required = -(-demand.num_slots // self.block_size)
        if demand.at_admission and self.max_admission_blocks is not None:
            required = min(required, self.max_admission_blocks)
        held = len(self.tables.get(request.request_id, ()))
        if request.request_id in self.num_cached:
            return required - held if required > held else 0
        skipped = self.skipped_tokens(demand.num_adopted_tokens) // self.block_size
        need = max(required - max(skipped, len(hits) + held), 0)
        if hits:
            kept = hits[max(skipped - held, 0) :]
            need += self.count_free(kept) if demand.count_hits else len(kept)
            if demand.num_local_tokens < len(hits) * self.block_size:
                need += 1  # the hit ends inside its last block, which is copied before it is written
        return need

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are free, the null block left out."""
        return list(map(self.pool.ref_count.__getitem__, blocks)).count(0) - blocks.count(NULL_BLOCK)

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """The least number of tokens at which this group has something to do for the request again.

        Below it a step needs no block, fills none and leaves none behind.
        """
        request_id = request.request_id
        quiet = len(self.tables.get(request_id, ())) * self.block_size + 1
        if caching:
            until = (self.num_cached.get(request_id, 0) + 1) * self.block_size
            if not self.caches_all:
                until = self.tokens_to_cache(until)
            if until < quiet:
                return until
        return quiet

    # -- Change ---------------------------------------------------------------------------------------------------

    def adopt(
        self, request: CacheableRequest, hits: Sequence[int], num_local_tokens: int, num_adopted_tokens: int
    ) -> None:
        """Enter a new request's hit blocks in its table and hold them. Only for requests that are not running."""
        table = self.tables.setdefault(request.request_id, [])
        skipped = self.skipped_tokens(num_adopted_tokens) // self.block_size - len(table)
        if skipped > 0:
            table += [NULL_BLOCK] * skipped
            hits = hits[skipped:]
        self.pool.hold(hits)
        table += hits
        self.num_cached[request.request_id] = len(table)
        if num_local_tokens < len(table) * self.block_size and hits:
            self.num_cached[request.request_id] = self._to_copy[request.request_id] = len(table) - 1

    def allocate(self, request: CacheableRequest, num_slots: int, num_main_tokens: int) -> list[int]:
        """Lengthen the table until it has `num_slots` slots; the new blocks. The caller has checked that they fit."""
        table = self.tables.get(request.request_id)
        if table is None:
            table = self.tables[request.request_id] = []
        missing = -(-num_slots // self.block_size) - len(table)
        if missing <= 0 and not self._to_copy:
            return []
        copied = self._copy_on_write(request.request_id, table) if self._to_copy else []
        blocks = self.pool.allocate(max(missing, 0))
        table += blocks
        if self.context.zeroed:
            self.new_block_ids += blocks
        return copied + blocks

    def allocate_external(self, request: CacheableRequest, num_tokens: int, to_zero: bool = True) -> None:
        """Lengthen the table for tokens that a connector brings; not `to_zero` when it may be writing already."""
        known = len(self.new_block_ids)
        self.allocate(request, num_tokens, num_tokens)
        if not to_zero:
            del self.new_block_ids[known:]

    def _copy_on_write(self, request_id: str, table: list[int]) -> list[int]:
        """Give the request its own copy of the block in which its hit ends.

        Both ends of the copy are held until it has been made: the source could be evicted, the target freed.
        """
        at = self._to_copy.pop(request_id, None)
        if at is None:
            return []
        source, (target,) = table[at], self.pool.allocate(1)
        table[at] = target
        self.pool.hold((target,))
        self.copies.append((source, target))
        if self.context.zeroed:
            self.new_block_ids.append(target)
        return [target]

    def cacheable_tokens(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` tokens may be made findable now.

        Groups of unequal block sizes stop at a common boundary, since no hit could end beyond it; a group with a
        draft head goes one block further, which its hits then give up.
        """
        step, final = self.context.cache_step, max(0, num_tokens - self.context.reprefill_tokens)
        if step == 1:
            return final
        whole = num_tokens - num_tokens % step
        if whole and self.context.is_eagle:
            return min(final, final - final % step + self.block_size)
        return whole

    def tokens_to_cache(self, num_tokens: int) -> int:
        """The least number of computed tokens at which `cacheable_tokens` reaches `num_tokens`."""
        step = self.context.cache_step
        ahead = self.block_size if self.context.is_eagle else 0
        final = num_tokens if step == 1 else max(num_tokens, blocks_for(num_tokens - ahead, step) * step)
        return max(step, final + self.context.reprefill_tokens)

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """Make the full blocks among the first `num_tokens` (cacheable) tokens findable, each once.

        Returns what became findable now, if the context says that somebody wants to know.
        """
        size = self.block_size
        start = self.num_cached.get(request.request_id, 0)
        end = num_tokens // size
        if end <= start:
            return ()
        self.num_cached[request.request_id] = end
        if end == start + 1:
            return self._cache_one(request, start)
        blocks: Sequence[int] = self.tables[request.request_id][start:end]
        hashes = self.hashes_of_blocks(request.block_hashes, start, end)
        wanted = self.worth_caching(request, start, end)
        if wanted is None and NULL_BLOCK not in blocks:
            self.pool.cache(self.group_id, blocks, hashes, range((start + 1) * size, (end + 1) * size, size))
            return (CachedRun(start * size, size, blocks, hashes),) if self.context.observed else ()
        keep = [i for i in range(end - start) if blocks[i] != NULL_BLOCK and (wanted is None or start + i in wanted)]
        ends = [(start + i + 1) * size for i in keep]
        self.pool.cache(self.group_id, [blocks[i] for i in keep], [hashes[i] for i in keep], ends)
        if not self.context.observed:
            return ()
        runs: list[CachedRun] = []
        first = 0
        for n in range(1, len(keep) + 1):
            if n == len(keep) or keep[n] != keep[n - 1] + 1:
                a, b = keep[first], keep[n - 1] + 1
                runs.append(CachedRun((start + a) * size, size, blocks[a:b], hashes[a:b]))
                first = n
        return runs

    def _cache_one(self, request: CacheableRequest, at: int) -> Sequence[CachedRun]:
        """`cache` for a single position: what decoding comes to once per block."""
        block = self.tables[request.request_id][at]
        wanted = self.worth_caching(request, at, at + 1)
        if block == NULL_BLOCK or (wanted is not None and at not in wanted):
            return ()
        size = self.block_size
        block_hash = request.block_hashes[(at + 1) * self.hashes_per_block - 1]
        self.pool.cache_one(self.group_id, block, block_hash, (at + 1) * size)
        return (CachedRun(at * size, size, (block,), (block_hash,)),) if self.context.observed else ()

    def worth_caching(self, request: CacheableRequest, start: int, end: int) -> set[int] | None:
        """Which of the block positions [start, end) can serve a hit later; None means all of them."""
        return None

    def take_handed_states(self) -> list[tuple[str, int, int]]:
        """(request, block, tokens) of states to store elsewhere. Only states have any."""
        return []

    def take_own_end(self, request_id: str, num_tokens: int) -> tuple[int, int] | None:
        """(block, tokens) of the state at the request's own end. Only states have one."""
        return None

    def step_end(self, request: CacheableRequest, start: int, end: int, most: int) -> int:
        """Where a step over the tokens [start, end) should end, so that what it leaves behind can be hit."""
        return end

    def new_step_starts(self) -> None:
        """A new step begins: the one before has been computed, or will be before this one reads."""

    def pop(self, request_id: str) -> list[int]:
        """Forget the request; its blocks, in table order and still held."""
        self.num_cached.pop(request_id, None)
        self._to_copy.pop(request_id, None)
        return self.tables.pop(request_id, [])

    def free(self, request_id: str) -> None:
        """Forget the request and free its blocks, last block first."""
        blocks = self.pop(request_id)
        blocks.reverse()
        self.pool.free(blocks)

    def check(self) -> None:
        """Raise IntegrityError unless the group's own records agree."""
        for request_id, cached in self.num_cached.items():
            if cached > len(self.tables.get(request_id, ())):
                raise IntegrityError(f"group {self.group_id}: {request_id!r} has {cached} cached blocks, not so many")


class UnsharedGroup(CacheGroup):
    """Tables whose content belongs to one request: nothing is hit, nothing becomes findable."""

    grows_plainly = False

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """Decoding never changes them."""
        return NEVER

    def adopt(
        self, request: CacheableRequest, hits: Sequence[int], num_local_tokens: int, num_adopted_tokens: int
    ) -> None:
        """Nothing: there are no hits."""

    def allocate_external(self, request: CacheableRequest, num_tokens: int, to_zero: bool = True) -> None:
        """Nothing: what a connector brings are the decoder's tokens."""

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """Nothing is findable."""
        return ()
