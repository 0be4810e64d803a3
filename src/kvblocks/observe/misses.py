"""Why tokens missed: an observer that gives every token of every admitted request a hit or exactly one reason.

The reasons are found by asking what would have been hit if one thing were otherwise, with the very rules that decide
real hits: first if nothing had been evicted, then if there had been no reset, no draft head, no token to compute, no
other group. Each question includes the ones before, so the answers grow, and what each adds has that reason. The rest
is compared token by token with what was ever computed. `docs/miss-reasons.md` has the ladder with examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

from kvblocks.kinds import CachedRun, CacheGroup, ChunkedLocalSpec, MambaSpec, PrefixLookup
from kvblocks.manager import Admission, KVCacheManager, Observer, Request
from kvblocks.observe.ghosts import ON_REQUEST, Displacement, Displacements, Duplicates, GhostIndex, ShadowIndex
from kvblocks.observe.memory import BYTES_PER_TOKEN, Origin, PrefixMemory, common_tokens
from kvblocks.observe.reasons import (
    Detail,
    Evicted,
    FirstSeen,
    GroupVeto,
    InFlight,
    KeyDiffers,
    Miss,
    Reason,
    RequestMisses,
    Totals,
    VetoCause,
)
from kvblocks.prefix import ExtraKeys, token_bytes

MAX_UNITS = 1_000_000
"""Block hashes that are remembered, computed and evicted ones each: about 170 bytes apiece."""
MAX_TOKEN_BYTES = 64 * 2**20
"""Bytes of token ids that are remembered: four bytes for each token that no earlier request had."""
MAX_REQUESTS = 10_000
"""Preempted requests that are remembered."""


class TokensOf(Protocol):
    def __call__(self, request: Any, /) -> Sequence[int] | None:
        """The request's token ids, prompt and generated; None when they are not known. The end may be missing."""
        ...


class KeysOf(Protocol):
    def __call__(self, request: Any, /) -> ExtraKeys | None:
        """What besides the tokens makes the request's hashes."""
        ...


class MissReasons(Observer):
    """Says of each request that enters why its tokens were not hit. `totals` are the sums.

    Costs one look-up per unit of an admitted prompt, and nothing while a request decodes.
    """

    def __init__(
        self,
        *,
        tokens_of: TokensOf | None = None,
        keys_of: KeysOf | None = None,
        clock: Callable[[], float] | None = None,
        on_request: Callable[[RequestMisses], None] | None = None,
        max_units: int = MAX_UNITS,
        max_token_bytes: int = MAX_TOKEN_BYTES,
    ) -> None:
        """
        tokens_of, keys_of: for requests that have no `all_token_ids` and `extra_keys` of their own.
        clock: seconds, for how long ago something was evicted.
        on_request: told of each admission.
        max_units, max_token_bytes: bounds of what is remembered. What is forgotten makes the reason `unknown`.
        """
        self.totals = Totals()
        self._tokens_of: TokensOf = tokens_of or (lambda request: getattr(request, "all_token_ids", None))
        self._keys_of: KeysOf = keys_of or (lambda request: getattr(request, "extra_keys", None))
        self._clock = clock
        self._on_request = on_request
        self._max_units, self._max_token_bytes = max_units, max_token_bytes
        self._live: dict[str, tuple[Request, Origin | None]] = {}
        self._lost: dict[str, int] = {}  # computed tokens of requests that gave their blocks back
        self._requested: frozenset[int] = frozenset()  # blocks that are being evicted on request
        self._displacements = Displacements(max_units)
        self._used_up: dict[int, int] = {}  # per eviction, the count of `Duplicates` when its content was last touched

    def on_attach(self, manager: KVCacheManager) -> None:
        groups = manager.groups
        self._caches = manager.enable_caching and any(group.spec.prefix_cacheable for group in groups)
        self._unit = manager.hash_block_size
        sizes = [(group.block_size, group.group_id) for group in groups if group.spec.prefix_cacheable]
        self._block_tokens, self._coarsest = max(sizes, default=(1, 0))
        self._alignment = groups[0].context.alignment if groups else 1
        self._duplicates: Duplicates | None = None  # where more blocks would have kept what was evicted, for sure
        if manager.block_pool.policy_name == "lru" and len(groups) == 1 and groups[0].downward_closed:
            self._duplicates = Duplicates(2 * manager.block_pool.num_blocks * groups[0].hashes_per_block)
        self.memory = PrefixMemory(self._unit, self._max_units, self._max_token_bytes)
        self._ghosts = [GhostIndex(max(self._max_units // max(len(groups), 1), 2)) for _ in groups]
        self._indexes = [group.index for group in groups]
        self._lookup = manager.lookup
        kept = [_shadow(group, self._ghosts[group.group_id], resets=False) for group in groups]
        never_lost = [_shadow(group, self._ghosts[group.group_id], resets=True) for group in groups]
        self._if_kept, self._if_not_reset = PrefixLookup(kept), PrefixLookup(never_lost)
        self._has_draft_head = any(group.context.is_eagle for group in groups)
        undrafted = [_without_draft_head(group) for group in never_lost]
        self._if_undrafted = PrefixLookup(undrafted)
        self._alone = [(group, PrefixLookup([_as_only(group)])) for group in undrafted if group.spec.prefix_cacheable]

    # -- What is told ---------------------------------------------------------------------------------------------

    def on_admit(self, request: Request, admission: Admission) -> None:
        hit, external, size = admission.num_hit_tokens, admission.num_external_tokens, request.num_tokens
        name = request.request_id
        lost = self._lost.pop(name, 0) if request.num_preemptions else 0
        ladder = _Ladder(min(hit + external, size), size)
        if not self._caches or request.skip_reading_prefix_cache:
            ladder.reach("opted_out", size)
        ladder.reach("preempted", min(lost, size))
        hashes = request.block_hashes
        tokens = self._tokens_of(request)
        data = b"" if tokens is None else token_bytes(tokens, 0, size)
        origin = None
        if self._caches:
            owners = self.memory.run(hashes)
            if ladder.at < size:
                self._climb(ladder, request, owners, data)
            if self._duplicates is not None:
                kept = next((miss.end for miss in ladder.misses if miss.reason == "evicted"), hit)
                self._duplicates.touch(hashes, hit // self._unit, kept // self._unit, len(owners))
            origin = self._enter(request, owners, list(hashes), data)
        self._live[name] = (request, origin)
        found = RequestMisses(name, size, hit, external, bool(request.num_preemptions), tuple(ladder.misses))
        self.totals.add(found)
        if self._on_request is not None:
            self._on_request(found)

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        clock = self._clock
        self._displacements.close(
            Displacement(request.request_id, self.totals.requests, None if clock is None else clock())
        )

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        self._ghosts[group_id].discard(run.hashes)
        self._requested = frozenset()

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        number = ON_REQUEST
        if block not in self._requested:
            self._displacements.count += 1
            number = self._displacements.count
        if last_copy:
            ghosts = self._ghosts[group_id]
            ghosts.add(block_hash, number, self._displacements.count)
            if self._duplicates is not None and self._duplicates.count:
                self._used_up[number] = self._duplicates.count - self._duplicates.since_touch(block_hash)
                if len(self._used_up) > 2 * self._max_units:
                    self._used_up = {n: count for n, count in self._used_up.items() if n > ghosts.horizon}

    def on_evict_blocks(self, blocks: Collection[int]) -> None:
        self._requested = frozenset(blocks)

    def on_reset(self) -> None:
        for ghosts, index in zip(self._ghosts, self._indexes, strict=True):
            ghosts.reset([block_hash for block_hash, _ in index.pairs()], self._displacements.count)

    def on_free(self, request_id: str) -> None:
        request, origin = self._live.pop(request_id)
        computed = min(max(request.num_computed_tokens - request.num_in_flight_tokens, 0), request.num_tokens)
        self._lost[request_id] = computed
        if len(self._lost) > MAX_REQUESTS:
            del self._lost[next(iter(self._lost))]
        if not self._caches:
            return
        if origin is not None:
            origin.request = None
            known = origin.start + len(origin.hashes)
            begin = origin.start * self._unit
            entered = max(known * self._unit, begin + len(origin.tokens) // BYTES_PER_TOKEN)
            if computed < entered:
                lost = self.memory.cut(origin, max(computed - begin, 0))
                if lost:
                    self._enter_again()
                return
            if computed == entered:
                return
        tokens = self._tokens_of(request)
        data = b"" if tokens is None else token_bytes(tokens, 0, computed)
        hashes = list(request.block_hashes[: computed // self._unit])
        owners = self.memory.run(hashes)
        if origin is not None and len(owners) == origin.start + len(origin.hashes):
            self.memory.extend(origin, hashes[len(owners) :], data[origin.start * self.memory.unit_bytes :])
            return
        ended = self._enter(request, owners, hashes, data)
        if ended is not None:
            ended.request = None

    # -- What is remembered ---------------------------------------------------------------------------------------

    def _enter(self, request: Request, owners: list[Origin], hashes: list[bytes], data: bytes) -> Origin | None:
        """Remember what the request brings beyond what is known; None when that is nothing."""
        memory, unit = self.memory, len(owners)
        own = data[unit * memory.unit_bytes :]
        owner = owners[-1] if owners else memory.root
        if unit == len(hashes):
            if not own:
                return None
            near = memory.siblings(owner, unit, own)
            if near and near[0].common_tokens * BYTES_PER_TOKEN == len(own):
                return None
        origin = Origin(request, unit, hashes[unit:], own)
        origin.keys = self._keys_of(request)
        origin.evictions = self._displacements.count
        memory.enter(origin, owner)
        return origin

    def _enter_again(self) -> None:
        """Some live request may be computing what another one has given up."""
        for name, (request, origin) in self._live.items():
            hashes = list(request.block_hashes)
            owners = self.memory.run(hashes)
            if len(owners) < len(hashes):
                tokens = self._tokens_of(request)
                data = b"" if tokens is None else token_bytes(tokens, 0, request.num_tokens)
                self._live[name] = (request, self._enter(request, owners, hashes, data) or origin)

    # -- The ladder -----------------------------------------------------------------------------------------------

    def _climb(self, ladder: _Ladder, request: Request, owners: list[Origin], data: bytes) -> None:
        unit, size = self._unit, ladder.size
        known = len(owners) * unit
        if known > ladder.at:
            computed = len(owners)
            for at in range(ladder.at // unit, len(owners)):
                if owners[at].num_computed_tokens < (at + 1) * unit:
                    computed = at
                    break
            if computed * unit > ladder.at:
                self._ask(ladder, request.block_hashes, owners, computed * unit)
            if computed < len(owners):
                ladder.reach("in_flight", known, InFlight(owners[computed].request_id or ""))
        self._compare(ladder, request, owners, data)
        if ladder.at < size:
            hashes = request.block_hashes
            forgotten = 0
            at = len(owners)
            while at < len(hashes) and self.memory.may_have_forgotten(hashes[at]):
                at += 1
                forgotten = at * unit
            ladder.reach("unknown", forgotten)
        ladder.reach("first_seen", size, ladder.parting)

    def _ask(self, ladder: _Ladder, hashes: Sequence[bytes], owners: list[Origin], computed: int) -> None:
        """Why of the tokens up to `computed`, all computed once, not more is hit."""
        size = ladder.size
        kept = self._if_kept.longest_hit(hashes, size - 1)
        if kept.num_tokens > ladder.at:
            if self._has_draft_head:  # the unit that it gives up was needed too
                kept_too = self._if_undrafted.longest_hit(hashes, kept.num_tokens + self._block_tokens)
                ladder.reach("evicted", kept.num_tokens, self._evicted(kept_too.blocks))
            ladder.reach("evicted", kept.num_tokens, self._evicted(kept.blocks))
        if ladder.at >= computed:
            return
        ladder.reach("reset", self._if_not_reset.longest_hit(hashes, size - 1).num_tokens)
        if self._has_draft_head:
            ladder.reach("draft_head", self._if_undrafted.longest_hit(hashes, size - 1).num_tokens)
        everything = self._if_undrafted.longest_hit(hashes, size)
        ladder.reach("last_token", everything.num_tokens)
        if ladder.at >= computed:
            return
        if len(self._alone) == 1:
            group, _ = self._alone[0]
            if isinstance(group.spec, MambaSpec | ChunkedLocalSpec) or group.skips_tokens:
                self._veto(ladder, hashes, owners, computed)
            if computed - ladder.at < self._block_tokens:
                ladder.reach("partial_block", computed)
        else:
            self._veto(ladder, hashes, owners, computed)
            if computed - ladder.at < self._alignment:  # a part that no group makes findable, since no hit ends there
                ladder.reach("group_veto", computed, GroupVeto(self._coarsest, "alignment"))
        ladder.reach("unknown", computed)

    def _veto(self, ladder: _Ladder, hashes: Sequence[bytes], owners: list[Origin], computed: int) -> None:
        """Some group had it (or, of a kind that keeps not all, could have kept it), another did not."""
        alone = [
            (min(lookup.longest_hit(hashes, ladder.size).num_tokens, computed), group) for group, lookup in self._alone
        ]
        most = computed if len(alone) == 1 else max(tokens for tokens, _ in alone)
        if most <= ladder.at:
            return
        least, group = min(alone, key=lambda pair: pair[0])
        cause: VetoCause
        if least > ladder.at and len(alone) > 1:
            cause = "alignment"
        else:
            # What was brought after the oldest eviction that is remembered cannot have been evicted unseen.
            brought = owners[ladder.at // self._unit].evictions
            if brought < self._ghosts[group.group_id].horizon:
                return
            cause = _cause(group)
        ladder.reach("group_veto", most, GroupVeto(group.group_id, cause))

    def _evicted(self, blocks: list[list[int]]) -> Evicted:
        """About the blocks (negative: the numbers of their evictions) that a hit would have needed."""
        numbers = [-block for table in blocks for block in table if block < 0]
        first = next((-block for column in zip(*_equal(blocks), strict=True) for block in column if block < 0), 0)
        by = self._displacements.get(first) if first < ON_REQUEST else None
        more = None
        if self._duplicates is not None and numbers and max(numbers) < ON_REQUEST:
            doubled = self._duplicates.count - min(self._used_up.get(number, 0) for number in numbers)
            more = self._displacements.count - min(numbers) + 1 + doubled
        if by is None:
            return Evicted(None, None, None, more)
        seconds = None if self._clock is None or by.time_s is None else self._clock() - by.time_s
        return Evicted(by.request_id, self.totals.requests + 1 - by.admissions, seconds, more)

    def _compare(self, ladder: _Ladder, request: Request, owners: list[Origin], data: bytes) -> None:
        """Compare the tokens after the last known unit with those that others had there."""
        memory, unit = self.memory, len(owners)
        known = unit * self._unit
        owner = owners[-1] if owners else memory.root
        ladder.parting = FirstSeen(owner.request_id, known)
        mine = data[unit * memory.unit_bytes :]
        if not mine or known < ladder.at:
            return
        near = memory.siblings(owner, unit, mine[: memory.unit_bytes])
        if not near:
            if owner.hides(unit):
                ladder.reach("unknown", min(known + self._unit, ladder.size))
            return
        nearest = near[0].origin
        common = near[0].common_tokens
        if common == self._unit:
            best = max((self._under_its_key(request, sibling.origin, unit, mine) for sibling in near), key=_tokens)
            common, hit, nearest = best
            ladder.parting = FirstSeen(nearest.request_id, known + common)
            if hit > ladder.at:
                ladder.reach("key_differs", hit, _key_difference(self._keys_of(request), nearest))
            return
        ladder.parting = FirstSeen(nearest.request_id, known + common)
        end = known + common
        if nearest.num_computed_tokens < end:
            ladder.reach("in_flight", end, InFlight(nearest.request_id or ""))
            return
        if end == ladder.size:
            ladder.reach("partial_block", end - 1)
            ladder.reach("last_token", end)
        else:
            ladder.reach("partial_block", end)
        if owner.hides(unit):
            ladder.reach("unknown", min(known + self._unit, ladder.size))

    def _under_its_key(self, request: Request, other: Origin, unit: int, mine: bytes) -> tuple[int, int, Origin]:
        """(tokens shared after `unit` units, tokens that would be hit with the other's key, the other).

        The other's hashes stand for ours as far as the tokens are the same.
        """
        memory = self.memory
        theirs = other.tokens[(unit - other.start) * memory.unit_bytes :]
        common = common_tokens(theirs, mine)
        begin = unit - other.start
        hashes = [*request.block_hashes[:unit], *other.hashes[begin : begin + common // self._unit]]
        return common, self._lookup.longest_hit(hashes, request.num_tokens - 1).num_tokens, other


class _Ladder:
    """The misses of one request, from its hit on."""

    __slots__ = ("at", "misses", "parting", "size")

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size
        self.misses: list[Miss] = []
        self.parting: FirstSeen | None = None
        """Where the prompt parts from what it shares most with."""

    def reach(self, reason: Reason, end: int, detail: Detail | None = None) -> None:
        """Everything from here to `end` has this reason."""
        end = min(end, self.size)
        if end > self.at:
            self.misses.append(Miss(reason, self.at, end, detail))
            self.at = end


def _tokens(found: tuple[int, int, Origin]) -> tuple[int, int]:
    return found[1], found[0]


def _equal(tables: list[list[int]]) -> list[list[int]]:
    """The tables, made as long as the longest."""
    longest = max(map(len, tables), default=0)
    return [table + [0] * (longest - len(table)) for table in tables]


def _shadow(group: CacheGroup, ghosts: GhostIndex, *, resets: bool) -> CacheGroup:
    """The group with all that it has lost."""
    shadow = copy(group)
    shadow.index = ShadowIndex(group.index, ghosts, resets=resets)
    return shadow


def _without_draft_head(group: CacheGroup) -> CacheGroup:
    shadow = copy(group)
    shadow.context = replace(group.context, is_eagle=False)
    return shadow


def _as_only(group: CacheGroup) -> CacheGroup:
    """The group in a cache of its own, whose hits need no alignment with others'."""
    shadow = copy(group)
    shadow.context = replace(group.context, alignment=min(group.context.alignment, group.block_size), group_id=0)
    shadow.group_id = 0
    return shadow


def _cause(group: CacheGroup) -> VetoCause:
    if isinstance(group.spec, MambaSpec):
        return "checkpoint_spacing"
    if group.spec.sparsely_retained and group.context.retention.interval is not None:
        return "retention"
    return "window" if group.skips_tokens else "alignment"


def _key_difference(ours: ExtraKeys | None, other: Origin) -> KeyDiffers:
    """Which key it is; the first that differs."""
    theirs = other.keys if isinstance(other.keys, ExtraKeys) else None
    ours, theirs = ours or ExtraKeys(), theirs or ExtraKeys()
    name = other.request_id or ""
    if ours.cache_salt != theirs.cache_salt:
        return KeyDiffers("cache_salt", name, None, None)
    if ours.lora != theirs.lora:
        adapters = [None if keys.lora is None else keys.lora.name for keys in (ours, theirs)]
        return KeyDiffers("lora", name, *adapters)
    if ours.multimodal != theirs.multimodal:
        mine = next((item for item in ours.multimodal if item not in theirs.multimodal), None)
        its = next((item for item in theirs.multimodal if item not in ours.multimodal), None)
        images = [None if item is None else item.identifier for item in (mine, its)]
        return KeyDiffers("image", name, *images)
    return KeyDiffers("prompt_embeds" if ours.prompt_embeds != theirs.prompt_embeds else "other", name, None, None)
