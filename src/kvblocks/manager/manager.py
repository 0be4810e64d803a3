"""The KV-cache manager: the one call through which every allocation passes, and its neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from kvblocks.errors import IntegrityError, PoolError, RequestError, UsageError
from kvblocks.kinds import CacheableRequest, CachedRun, CacheGroup, Demand, KVCacheSpec, PrefixLookup, make_groups
from kvblocks.manager.blocks import BlockCopy, DecodeSlots, KVCacheBlocks, PrefixHit
from kvblocks.manager.growing import Grow, make_grow
from kvblocks.manager.misuse import check_allocation, check_cache, check_setup
from kvblocks.manager.observer import Admission, Observer
from kvblocks.manager.request import Request
from kvblocks.pool import BlockPool, EvictionPolicy, PoolUsage


class KVCacheManager:
    """Block tables of all requests over one pool, with prefix caching.

    `groups` are the specs of the KV-cache groups, in order; every group draws from the same pool. All counts are
    tokens unless they say blocks. Nothing is global: two managers do not know of each other, and the same calls give
    the same block ids.

    A request's life: `get_computed_blocks` says what is cached; `allocate_slots` with that hit admits it; one
    `allocate_slots` per step and request gives it room for more tokens (None: it does not fit, nothing has changed,
    preempt someone or wait); `free` gives its blocks back, where their content can be hit until it is evicted.
    Between a look-up and the allocation that uses it nothing else may allocate.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[KVCacheSpec],
        *,
        max_model_len: int,
        enable_caching: bool = True,
        hash_block_size: int | None = None,
        max_in_flight_tokens: int | None = None,
        use_eagle: bool = False,
        eagle_groups: Collection[int] = (),
        retention_interval: int | None = 0,
        fine_hits: bool = False,
        num_prefill_lookahead: int = 0,
        zeroed_groups: Collection[int] = (),
        hand_off_states: bool = False,
        watermark: float = 0.0,
        policy: EvictionPolicy | None = None,
        observer: Observer | None = None,
        checked: bool = True,
    ) -> None:
        """Build the pool and the groups.

        num_blocks: blocks of the pool, the null block included, as vLLM counts them.
        max_model_len: no request grows beyond this.
        hash_block_size: granularity of the requests' block hashes; the greatest common divisor of the cacheable
            groups' block sizes when None.
        max_in_flight_tokens: tokens that a request may have scheduled and not yet processed; max_model_len when None.
        use_eagle: a draft head (EAGLE, MTP) recomputes the last unit of each hit, in `eagle_groups` (in all if empty).
        retention_interval: which blocks of sliding windows and states stay findable: 0 those that serve a replay or a
            known junction, n also every n-th token, None all.
        fine_hits: whether a hit may end inside a block, on a hash unit; its last block is then copied before it is
            written (`take_kv_cache_block_copies`).
        num_prefill_lookahead: tokens that chained draft modules read ahead; the last but one of them are not cached.
        zeroed_groups: groups whose new blocks the engine zeroes; `take_new_block_ids` says which.
        hand_off_states: whether `take_handed_states` is called every step, to store states elsewhere.
        checked: whether calls are checked for misuse. An engine whose odd calls are to be taken as they come turns it
            off; then what is wrong is not refused.
        watermark: share of the blocks that the admission of a request leaves free while others run.

        Raises UsageError naming the argument and the fix.
        """
        check_setup(groups, max_model_len)
        if eagle_groups and not use_eagle:
            raise UsageError(
                f"eagle_groups={list(eagle_groups)} has no effect without use_eagle=True; give both or none"
            )
        if not 0 <= watermark < 1:
            raise UsageError(f"watermark={watermark} must be at least 0 and below 1: it is a share of the blocks")
        self.max_model_len = max_model_len
        self.checked = checked
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(num_blocks, num_groups=len(groups), policy=policy, enable_caching=enable_caching)
        self.groups: list[CacheGroup] = make_groups(
            groups,
            self.block_pool,
            max_model_len=max_model_len,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=max_in_flight_tokens,
            eagle_groups=(tuple(eagle_groups) or range(len(groups))) if use_eagle else (),
            retention_interval=retention_interval,
            fine_hits=fine_hits,
            observed=observer is not None,
            num_prefill_lookahead=num_prefill_lookahead,
            zeroed_groups=zeroed_groups,
            hand_off_states=hand_off_states,
        )
        self.hash_block_size = self.groups[0].context.hash_block_size if self.groups else 1
        """Granularity of the block hashes that requests must bring, in tokens."""
        self._skipping_groups = [group for group in self.groups if group.skips_tokens]
        self._aligning_groups = [group for group in self.groups if group.aligns_steps] if enable_caching else []
        self.lookup = PrefixLookup(self.groups)
        self.observer = observer
        """Told of everything; None when nobody is."""
        self.block_pool.listener = observer
        self._watermark_blocks = int(watermark * num_blocks)
        self._no_blocks: tuple[Sequence[int], ...] = tuple(() for _ in groups)
        self.empty_kv_cache_blocks = KVCacheBlocks(self._no_blocks)
        """The shared result that means "success, no block"."""
        self._no_hit = PrefixHit(self.empty_kv_cache_blocks, 0, 0)
        self.quiet_until: dict[Request, int] = {}
        """Per request, the number of tokens below which a step needs no block, fills none and leaves none behind.

        An engine that trusts its own counts may read it and skip the call; it is this object for the manager's life.
        """
        self.grow: Grow | None = make_grow(self, observer is not None)
        """`allocate_slots` for a request that is in `quiet_until` and asks for nothing but room, where there is a
        shorter way. An engine that trusts its own counts may call it."""
        self.owners: dict[str, Request] = {}
        """The requests that hold blocks, by id."""
        self._held: Counter[int] = Counter()  # blocks of no table that still have a holder, until they are released
        if observer is not None:
            observer.on_attach(self)

    # -- Reading --------------------------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of usable blocks that are live, from 0.0 (none) to 1.0; cached free blocks do not count."""
        usage = self.block_pool.usage
        return usage.live / usage.usable if usage.usable else 0.0

    @property
    def pool_usage(self) -> PoolUsage:
        """Live, cached and blank blocks."""
        return self.block_pool.usage

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The request's block tables, one per group, as fresh lists; 0 where a block was skipped."""
        return tuple(list(group.tables.get(request_id, ())) for group in self.groups)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The request's block tables as a result object."""
        return KVCacheBlocks(self.get_block_ids(request_id))

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix of the request, at most all tokens but the last (one must be computed).

        Changes nothing and holds nothing. After a preemption the generated tokens count too. A request that must
        compute everything itself (`skip_reading_prefix_cache`) gets no hit.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self._no_hit
        found = self.lookup.longest_hit(request.block_hashes, request.num_tokens - 1)
        boundary = found.longest_single if found.longest_single > found.num_tokens else 0
        blocks = self.empty_kv_cache_blocks
        if found.num_tokens:
            blocks = KVCacheBlocks(tuple(found.blocks), request, (self.block_pool, self.block_pool.num_forgotten))
        hit = PrefixHit(blocks, found.num_tokens, boundary)
        if self.observer is not None:
            self.observer.on_lookup(request, hit)
        return hit

    def findable_tokens(self, request_id: str) -> int:
        """How many leading tokens of the request's tables can be found now, at most, in every group that caches."""
        pool = self.block_pool
        found = [
            next((pool.tokens_of[block] for block in reversed(table) if pool.hash_of[block] is not None), 0)
            for table in (group.tables.get(request_id, []) for group in self.groups if group.spec.prefix_cacheable)
        ]
        return min(found, default=0)

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int = 0) -> tuple[int, ...]:
        """The most blocks, per group, that a request of so many tokens ever holds at once."""
        return tuple(group.peak_blocks(num_tokens, num_encoder_tokens) for group in self.groups)

    @property
    def max_request_tokens(self) -> int:
        """The longest request that fits an empty pool, at most max_model_len. A longer one never fits."""
        usable = self.block_pool.num_blocks - 1
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if sum(self.peak_blocks(middle)) <= usable:
                low = middle
            else:
                high = middle - 1
        return low

    # -- Allocating -----------------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Collection[int] = (),
    ) -> KVCacheBlocks | None:
        """Give the request slots for its next tokens; the new blocks, or None when they do not fit.

        num_new_tokens: tokens to compute now, draft tokens included.
        num_new_computed_tokens, new_computed_blocks: the hit that `get_computed_blocks` just reported.
        num_lookahead_tokens: slots for draft tokens beyond those.
        num_external_computed_tokens: tokens whose content a connector loads, after the local hit.
        delay_cache_blocks: the content comes later; `cache_blocks` makes it findable then.
        num_encoder_tokens: for cross attention.
        full_sequence_must_fit: refuse unless the whole request (prompt and what it has generated) would fit.
        reserved_blocks: free blocks that are spoken for.
        has_scheduled_reqs: something else runs, so the watermark applies to a waiting request.
        skip_zeroing_group_ids: groups whose external blocks a connector may write at any time.

        On None nothing has changed, but that blocks which left a window were freed, which is right in any case. The
        result holds newly allocated blocks only, not the hits. Blocks filled by this call are findable when it
        returns, before they are computed: whoever hits them runs in the same step or later.

        Raises RequestError on misuse; then nothing has changed.
        """
        computed = request.num_computed_tokens
        limit = self.quiet_until.get(request)
        if (
            limit is not None
            and num_new_tokens > 0
            and computed > 0
            and num_lookahead_tokens >= 0
            and new_computed_blocks is None
            and not (
                num_new_computed_tokens
                or num_external_computed_tokens
                or num_encoder_tokens
                or full_sequence_must_fit
                or reserved_blocks
                or delay_cache_blocks
            )
            and computed <= request.num_tokens
            and not (self._watermark_blocks and request.status.name != "RUNNING")
        ):
            if computed + num_new_tokens + num_lookahead_tokens < limit:
                return self.empty_kv_cache_blocks
            if self.grow is not None:
                grown = self.grow(request, computed, num_new_tokens, num_lookahead_tokens)
                if grown is self._no_blocks:
                    return self.empty_kv_cache_blocks
                return None if grown is None else KVCacheBlocks(grown)

        if new_computed_blocks is self.empty_kv_cache_blocks:
            new_computed_blocks = None
        if self.checked:
            check_allocation(
                self,
                request,
                new_computed_blocks,
                num_new_tokens,
                num_new_computed_tokens,
                num_lookahead_tokens,
                num_external_computed_tokens,
                num_encoder_tokens,
                reserved_blocks,
                delay_cache_blocks,
            )
        hits = None if new_computed_blocks is None else new_computed_blocks.blocks
        local = computed + num_new_computed_tokens
        adopted = local + num_external_computed_tokens
        watermark = 0
        if self._watermark_blocks and has_scheduled_reqs and request.status.name in ("WAITING", "PREEMPTED"):
            watermark = self._watermark_blocks
        pool = self.block_pool
        if full_sequence_must_fit:
            whole = min(request.num_tokens, self.max_model_len)
            demand = Demand(whole, whole, local, adopted, at_admission=True)
            if not self._fits(request, demand, hits, num_encoder_tokens, pool.num_free - watermark):
                return None

        main = adopted + num_new_tokens
        slots = main + num_lookahead_tokens
        if slots > self.max_model_len:
            slots = self.max_model_len
        for group in self._skipping_groups:
            group.remove_skipped_blocks(request.request_id, max(0, adopted - request.num_in_flight_tokens))
        demand = Demand(slots, main, local, adopted)
        if not self._fits(request, demand, hits, num_encoder_tokens, pool.num_free - watermark - reserved_blocks):
            return None

        # Everything is checked; from here on nothing fails.
        admitted = request.request_id not in self.owners
        if admitted:
            self.owners[request.request_id] = request
            if self.observer is not None:
                self.observer.on_admit(request, Admission(num_new_computed_tokens, num_external_computed_tokens))
        if hits is not None or num_external_computed_tokens:
            self._adopt(request, hits, local, adopted, num_external_computed_tokens > 0, skip_zeroing_group_ids)
        new_blocks = tuple(
            [
                group.allocate(request, num_encoder_tokens if group.counts_encoder_tokens else slots, main)
                for group in self.groups
            ]
        )
        if not delay_cache_blocks:
            num_tokens = request.num_tokens
            self.make_findable(request, main if main < num_tokens else num_tokens)
        result = KVCacheBlocks(new_blocks) if any(new_blocks) else self.empty_kv_cache_blocks
        if self.observer is not None:
            admission = Admission(num_new_computed_tokens, num_external_computed_tokens) if admitted else None
            self.observer.on_allocate(request, new_blocks, admission)
        return result

    def step_tokens(self, request: Request, start: int, num_tokens: int, most: int) -> int:
        """How many of the next `num_tokens` from token `start` a step should compute, `most` being its limit.

        All of them, but where a state's checkpoints stand at the ends of steps. 0: it should wait for a step with more
        room. `shared_prefix_boundary` of the request's look-up must be set.
        """
        end = start + num_tokens
        for group in self._aligning_groups:
            end = min(end, group.step_end(request, start, end, most))
        return end - start

    def allocate_decode_slots(self, requests: Sequence[Request]) -> DecodeSlots:
        """`allocate_slots(request, 1)` for each request in turn, until one does not fit.

        Most requests of a decode step need no block; this call costs them one look-up and one comparison each.
        """
        quiet_until, checked = self.quiet_until.get, self.checked
        grow = None if self._watermark_blocks else self.grow
        new_blocks: dict[int, KVCacheBlocks] = {}
        for i, request in enumerate(requests):
            limit = quiet_until(request)
            if limit is not None:
                computed = request.num_computed_tokens
                if not checked or 0 < computed < request.num_tokens:
                    if computed + 1 < limit:
                        continue
                    if grow is not None:
                        grown = grow(request, computed, 1, 0)
                        if grown is None:
                            return DecodeSlots(i, new_blocks)
                        if grown is not self._no_blocks:
                            new_blocks[i] = KVCacheBlocks(grown)
                        continue
            blocks = self.allocate_slots(request, 1)
            if blocks is None:
                return DecodeSlots(i, new_blocks)
            if blocks is not self.empty_kv_cache_blocks:
                new_blocks[i] = blocks
        return DecodeSlots(len(requests), new_blocks)

    def _fits(
        self,
        request: Request,
        demand: Demand,
        hits: tuple[Sequence[int], ...] | None,
        num_encoder_tokens: int,
        num_free: int,
    ) -> bool:
        """Whether `num_free` blocks meet the demand; tells the observer when they do not."""
        if hits is not None:
            at_most = self.blocks_needed(request, demand._replace(count_hits=False), hits, num_encoder_tokens)
            if at_most <= num_free:
                return True
        need = self.blocks_needed(request, demand, hits, num_encoder_tokens)
        if need <= num_free:
            return True
        if self.observer is not None:
            self.observer.on_refuse(request, need, num_free)
        return False

    def blocks_needed(
        self,
        request: CacheableRequest,
        demand: Demand,
        hits: Sequence[Sequence[int]] | None = None,
        num_encoder_tokens: int = 0,
    ) -> int:
        """How many free blocks it takes to meet the demand, in all groups; `hits` are those of a new request."""
        need = 0
        for i, group in enumerate(self.groups):
            asked = demand._replace(num_slots=num_encoder_tokens) if group.counts_encoder_tokens else demand
            need += group.blocks_needed(request, asked, () if hits is None else hits[i])
        return need

    def _adopt(
        self,
        request: Request,
        hits: tuple[Sequence[int], ...] | None,
        local: int,
        adopted: int,
        external: bool,
        skip_zeroing: Collection[int],
    ) -> None:
        """Hold the hits of all groups, then make room for the external tokens.

        In two rounds, since one group's external blocks must not evict another group's hits.
        """
        waiting = [group for group in self.groups if request.request_id not in group.num_cached]
        for group in waiting:
            group.adopt(request, () if hits is None else hits[group.group_id], local, adopted)
        if external:
            for group in waiting:
                group.allocate_external(request, adopted, group.group_id not in skip_zeroing)

    def make_findable(self, request: Request, num_tokens: int) -> None:
        """Make full blocks findable, and note until when there is nothing more to do for the request.

        `cache_blocks` without its checks.
        """
        caching = self.enable_caching
        quiet = self.max_model_len + 1
        for group in self.groups:
            if caching:
                runs = group.cache(request, num_tokens if group.caches_all else group.cacheable_tokens(num_tokens))
                if runs:
                    for run in runs:
                        self._tell_cached(request, group, run)
            until = group.quiet_until(request, caching)
            if until < quiet:
                quiet = until
        self.quiet_until[request] = quiet

    def _tell_cached(self, request: Request, group: CacheGroup, run: CachedRun) -> None:
        assert self.observer is not None
        parent = request.block_hashes[run.start // group.context.hash_block_size - 1] if run.start else None
        self.observer.on_cache(request, group.group_id, run, parent)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make the full blocks among the first `num_computed_tokens` tokens findable, each once.

        For content that arrived after its allocation (`delay_cache_blocks`), and for asynchronous scheduling.
        """
        if not self.enable_caching or num_computed_tokens < self.quiet_until.get(request, 0):
            return
        if self.checked:
            check_cache(self, request, num_computed_tokens)
        self.make_findable(request, num_computed_tokens)

    # -- Giving back ----------------------------------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """Give back all blocks of the request, last block first. Harmless when it holds none: aborts do it twice."""
        if self._forget(request):
            for group in self.groups:
                group.free(request.request_id)
            if self.observer is not None:
                self.observer.on_free(request.request_id)

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        """Forget the request but keep its blocks held, because a step in flight may still write into them.

        Returns them in table order, group after group; pass them to `release_blocks` when the step is done.
        """
        if not self._forget(request):
            return []
        blocks = [block for group in self.groups for block in group.pop(request.request_id)]
        self._held.update(blocks)
        if self.observer is not None:
            self.observer.on_free(request.request_id)
        return blocks

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Give back blocks of `pop_blocks_for_free` or `take_kv_cache_block_copies`, last one first."""
        held = self._held
        for block, count in Counter(blocks).items():
            if block and held[block] < count:
                raise PoolError(f"release_blocks: block {block} is not waiting to be released (so often)")
        self.block_pool.free(blocks[::-1])
        for block in blocks:
            if held[block] > 1:
                held[block] -= 1
            else:
                del held[block]

    def _forget(self, request: Request) -> bool:
        owner = self.owners.get(request.request_id)
        if owner is None or (owner is not request and self.checked):
            return False
        del self.owners[request.request_id]
        self.quiet_until.pop(owner, None)
        return True

    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Free the request's blocks that no token after the first `num_processed_tokens` reads."""
        for group in self._skipping_groups:
            group.remove_skipped_blocks(request_id, num_processed_tokens)

    def take_kv_cache_block_copies(self) -> tuple[list[BlockCopy], list[int]]:
        """The copies to make before the next step writes, and the blocks held for them.

        Pass the blocks to `release_blocks` when the copies have been made.
        """
        copies = [BlockCopy(*pair) for group in self.groups for pair in group.copies]
        for group in self.groups:
            group.copies.clear()
        held = [block for copy in reversed(copies) for block in (copy.target, copy.source)]
        self._held.update(held)
        return copies, held

    def take_new_block_ids(self) -> list[int]:
        """The blocks of `zeroed_groups` handed out since the last call, group by group. Take them every step."""
        taken = [block for group in self.groups for block in group.new_block_ids]
        for group in self.groups:
            group.new_block_ids.clear()
        return taken

    def report_new_blocks(self, request_id: str, first_token: int) -> None:
        """Let `take_new_block_ids` name the request's blocks from `first_token` on again: their load has failed.

        Raises RequestError when `first_token` is inside a block, whose valid start would be lost.
        """
        zeroed = [group for group in self.groups if group.context.zeroed]
        if any(first_token % group.block_size for group in zeroed):
            raise RequestError(request_id, f"first_token={first_token} is inside a block; give a multiple of its size")
        for group in zeroed:
            group.new_block_ids += group.tables.get(request_id, ())[first_token // group.block_size :]

    def take_handed_states(self) -> dict[str, list[tuple[int, int, int]]]:
        """Per request, (group, block, tokens) of the states that became findable since the last call.

        With `hand_off_states`; take them every step. The blocks are valid until the next step writes: hold them
        (`hold_blocks`) to read them later.
        """
        states: dict[str, list[tuple[int, int, int]]] = {}
        for group in self.groups:
            for request_id, block, tokens in group.take_handed_states():
                states.setdefault(request_id, []).append((group.group_id, block, tokens))
        return states

    def take_own_ends(self, request: Request) -> list[tuple[int, int, int]]:
        """(group, block, tokens) of the states where the finished request's prompt would resume, still in its table."""
        if request.num_in_flight_tokens:
            return []
        ends = [(group, group.take_own_end(request.request_id, request.num_computed_tokens)) for group in self.groups]
        return [(group.group_id, *end) for group, end in ends if end is not None]

    def hold_blocks(self, blocks: Iterable[int]) -> None:
        """Hold blocks for a reader of their content, until `release_blocks`: they stay live whoever frees them."""
        held = list(blocks)
        self.block_pool.touch(held)
        self._held.update(held)

    def new_step_starts(self) -> None:
        """Tell that a new step is being scheduled: what the one before made findable can be hit now in any way.

        Needed with checkpoints of states, with `fine_hits` and by observers that follow the steps, harmless without.
        """
        for group in self.groups:
            group.new_step_starts()
        if self.observer is not None:
            self.observer.on_step()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Forget the content of these blocks. Blocks in use stay in use, and are blank when they are freed."""
        ids = list(block_ids)
        if self.observer is not None:
            self.observer.on_evict_blocks(ids)
        self.block_pool.evict(ids)
        self.quiet_until.clear()  # a prompt's end inside a block is made findable again at the next step

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing has changed, while any block is in use."""
        if not self.block_pool.is_free:
            return False
        if self.observer is not None:
            self.observer.on_reset()
        return self.block_pool.reset()

    # -- Checking -------------------------------------------------------------------------------------------------

    def check(self, pinned: Iterable[int] = ()) -> None:
        """Raise IntegrityError unless every structure agrees with every other; O(num_blocks).

        `pinned` are blocks that the caller itself holds by `block_pool.touch`.
        """
        tables = [table for group in self.groups for table in group.tables.values()]
        copied = [block for group in self.groups for pair in group.copies for block in pair]
        self.block_pool.check([*tables, copied, list(self._held.elements()), list(pinned)])
        for group in self.groups:
            group.check()
            strangers = (group.tables.keys() | group.num_cached.keys()) - self.owners.keys()
            if strangers:
                raise IntegrityError(f"group {group.group_id} has tables of unknown requests: {sorted(strangers)}")
