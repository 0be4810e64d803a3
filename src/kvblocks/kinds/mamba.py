"""Mamba-style state: a layer that keeps one state per request, not something per token.

A state sums up all tokens before it, so it can be resumed only exactly where it was taken. Two modes, as in vLLM:
`none` keeps the running state (and nothing can be hit); `align` also keeps *checkpoints*: the states at the ends of
blocks at which a step happened to end, where retention finds them worth keeping. With hits that may end inside a
block there is one more: the state where the same prompt would resume. The request itself goes on writing into that
block, so the next step copies the checkpoint into a block of its own first.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from kvblocks.errors import UsageError
from kvblocks.kinds.base import (
    CacheableRequest,
    CachedRun,
    CacheGroup,
    Demand,
    GroupContext,
    KVCacheSpec,
    RequestLimits,
    blocks_for,
)
from kvblocks.pool import NULL_BLOCK


class StateGroup(CacheGroup):
    """Tables of a state without checkpoints: the block of the last token's state, and slots for drafts after it."""

    skips_tokens = True
    grows_plainly = False

    def __init__(self, spec: MambaSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        self.num_speculative_blocks = spec.num_speculative_blocks

    def skipped_tokens(self, num_processed_tokens: int) -> int:
        return num_processed_tokens - 1

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """A block each `block_size` tokens, as admission counts it; give states a block of max_model_len tokens."""
        return blocks_for(num_tokens, self.block_size) + self.num_speculative_blocks

    def blocks_needed(self, request: CacheableRequest, demand: Demand, hits: Sequence[int]) -> int:
        drafts = self.num_speculative_blocks * self.block_size
        return super().blocks_needed(request, demand._replace(num_slots=demand.num_slots + drafts), hits)

    def allocate(self, request: CacheableRequest, num_slots: int, num_main_tokens: int) -> list[int]:
        return super().allocate(request, num_slots + self.num_speculative_blocks * self.block_size, num_main_tokens)

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """As for full attention, without the drafts' blocks, and until the next state is retired."""
        table = self.tables.get(request.request_id, ())
        quiet = super().quiet_until(request, caching) - self.num_speculative_blocks * self.block_size
        return min(quiet, (self._num_retired(request.request_id, table) + 1) * self.block_size + 1)

    def _num_retired(self, request_id: str, table: Sequence[int]) -> int:
        """Leading positions whose states have been freed."""
        return bisect(table, NULL_BLOCK)


class CheckpointGroup(StateGroup):
    """Tables of a state with checkpoints at block ends.

    Position i stands for the state after block i is full (or, at the last position, the running state); positions at
    which no step ended are null. The last `num_speculative_blocks` positions are for drafts: when a step jumps over
    several blocks they move along, so that it takes one new block however far it jumps.
    """

    supports_fine_hits = True
    defers_hits = True
    aligns_steps = True

    def __init__(self, spec: MambaSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        self._fine = context.fine_hits and self.hashes_per_block > 1
        self._handed: list[tuple[str, int, int]] = []  # (request, block, tokens) of states to store elsewhere
        self._resume_block: dict[str, tuple[int, int]] = {}  # per request, (block, tokens) of its own end, until copied
        self._considered: dict[str, int] = {}  # tokens of the last call that made states findable
        self._retired: dict[str, int] = {}  # leading positions whose states have been freed
        self._before: dict[str, int] = {}  # the position of the state from which the last longer table went on
        self._has_drafts: set[str] = set()  # requests whose table ends with the drafts' blocks
        self._new_this_step: set[bytes] = set()  # hashes of the checkpoints that this step computes

    # -- Hit ------------------------------------------------------------------------------------------------------

    @property
    def drop_tokens(self) -> int:
        return 0  # with a draft head the checkpoints themselves are taken one unit earlier

    @classmethod
    def find_hit(
        cls, peers: Sequence[Self], block_hashes: Sequence[bytes], max_tokens: int, *, drop: bool
    ) -> tuple[int, list[list[int]]]:
        """Right to left until a checkpoint; only that one is needed, the positions before it are null."""
        first = peers[0]
        size, alignment = first.block_size, first.context.alignment
        if first._fine:
            unit, units = first.context.hash_block_size, first.hashes_per_block
            for at in range(min(max_tokens // unit, len(block_hashes)) - 1, -1, -1):
                found = [peer.index.get(block_hashes[at]) for peer in peers]
                if None not in found:
                    before = [NULL_BLOCK] * (at // units)
                    return (at + 1) * unit, [[*before, block] for block in found]  # type: ignore[list-item]
            return 0, [[] for _ in peers]
        limit = min(max_tokens // size, len(block_hashes) // first.hashes_per_block)
        hashes = first.hashes_of_blocks(block_hashes, 0, limit)
        for at in range(limit - 1, -1, -1):
            if (at + 1) * size % alignment == 0:
                found = [peer.index.get(hashes[at]) for peer in peers]
                if None not in found:
                    return (at + 1) * size, [[NULL_BLOCK] * at + [block] for block in found]  # type: ignore[list-item]
        return 0, [[] for _ in peers]

    # -- Skip -----------------------------------------------------------------------------------------------------

    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Free the states before the one that the next token continues from. They lie between null positions."""
        table = self.tables.get(request_id)
        if not table:
            return
        start = self._num_retired(request_id, table)
        end = min(self.skipped_tokens(num_processed_tokens) // self.block_size, len(table))
        if end > start:
            removed = [block for block in table[start:end] if block != NULL_BLOCK]
            table[start:end] = [NULL_BLOCK] * (end - start)
            self._retired[request_id] = end
            self.pool.free(removed[::-1])
        before = self._before.get(request_id, len(table))
        if before < blocks_for(num_processed_tokens, self.block_size) - 1 and table[before] != NULL_BLOCK:
            self.pool.free((table[before],))
            table[before] = NULL_BLOCK

    def _num_retired(self, request_id: str, table: Sequence[int]) -> int:
        return self._retired.get(request_id, 0)

    # -- Need -----------------------------------------------------------------------------------------------------

    def peak_blocks(self, num_tokens: int, num_encoder_tokens: int) -> int:
        """The running state, the one it continues from, and the drafts'."""
        return min(blocks_for(num_tokens, self.block_size), 2) + self.num_speculative_blocks

    def blocks_needed(self, request: CacheableRequest, demand: Demand, hits: Sequence[int]) -> int:
        """One block when the step ends beyond the last state's block, and the drafts' blocks once.

        A hit on a checkpoint that was made findable in this very step cannot be used yet: attention writes what it
        reads in one step, a state does not. Then the need exceeds any pool, so that the scheduler waits a step.
        """
        if hits and self.pool.hash_of[hits[-1]] in self._new_this_step:
            return self.pool.num_blocks + 1
        table = self.tables.get(request.request_id, ())
        positions = blocks_for(demand.num_main_tokens, self.block_size) + self.num_speculative_blocks
        need = positions - len(hits) - len(table)  # below zero after a jump, which the hits may use up again
        copies = int(
            request.request_id in self._to_copy or (bool(hits) and demand.num_local_tokens % self.block_size != 0)
        )
        if copies:
            need = max(need, 0) + 1
        if need > 0:
            most = 1 + copies + (0 if request.request_id in self._has_drafts else self.num_speculative_blocks)
            need = min(need, most)
        need += self.count_free(hits)
        if demand.num_adopted_tokens > demand.num_local_tokens and not demand.at_admission:
            # External states take blocks of their own; vLLM forgets that, and can fail half-way where we refuse.
            skipped = self.skipped_tokens(demand.num_adopted_tokens) // self.block_size
            held = max(skipped, len(hits) + len(table))
            before = max(blocks_for(demand.num_adopted_tokens, self.block_size), held)
            running = positions - self.num_speculative_blocks - 1
            taken = before - held + max(positions - max(before, running), 0)
            need = max(need, taken + self.count_free(hits[max(skipped - len(table), 0) :]))
        return need

    # -- Change ---------------------------------------------------------------------------------------------------

    def allocate(self, request: CacheableRequest, num_slots: int, num_main_tokens: int) -> list[int]:
        """Put the state after the step's last token at its position. The result has a 0 for each null position."""
        request_id = request.request_id
        table = self.tables.setdefault(request_id, [])
        drafts, started = self.num_speculative_blocks, request_id in self._has_drafts
        before = len(table)
        length = blocks_for(num_main_tokens, self.block_size) + drafts
        if length <= before and request_id not in self._to_copy:
            self._has_drafts.add(request_id)
            return []
        if started:
            self._before[request_id] = before - 1 - drafts
        elif before:
            self._before[request_id] = before - 1
        running = length - drafts - 1  # the position of the state after the step's last token
        table += [NULL_BLOCK] * (running - before)
        if started:
            for at in range(before - drafts, min(before, running)):
                table.append(table[at])
                table[at] = NULL_BLOCK
        self._has_drafts.add(request_id)
        copied: list[int] = []
        if request_id in self._to_copy:
            copied = (
                [] if self._keep_resume_state(request_id, table, started) else self._copy_on_write(request_id, table)
            )
        table += self.pool.allocate(max(length - len(table), 0))
        return copied + table[before:]

    def _keep_resume_state(self, request_id: str, table: list[int], started: bool) -> bool:
        """Copy the state at the request's own end into a block that stays findable; the request keeps its table.

        False when the copy to make is that of a hit.
        """
        if not started:
            return False
        source, (target,) = table[self._to_copy.pop(request_id)], self.pool.allocate(1)
        self.pool.move_content(source, target)
        self.pool.hold((source,))
        self.copies.append((source, target))
        own = self._resume_block.pop(request_id, None)
        if own is not None and self.context.hands_off_states:
            self._handed.append((request_id, target, own[1]))
        block_hash = self.pool.hash_of[target]
        if block_hash is not None:
            self._mark_new(block_hash)  # it is filled by this step's copy
        return True

    def allocate_external(self, request: CacheableRequest, num_tokens: int, to_zero: bool = True) -> None:
        """A block for every position: a connector may bring any of the states. The drafts' blocks come later."""
        table = self.tables[request.request_id]
        table += self.pool.allocate(max(0, blocks_for(num_tokens, self.block_size) - len(table)))

    def cache(self, request: CacheableRequest, num_tokens: int) -> Sequence[CachedRun]:
        """The checkpoints among the newly full positions; and the one where the same prompt would resume.

        That one is entered each time that the count stands there, in case its content was evicted on purpose.
        """
        request_id = request.request_id
        first = self.num_cached.get(request_id, 0)
        runs = super().cache(request, num_tokens)
        passed = range(first, self.num_cached.get(request_id, 0))
        if self._fine:
            self._considered[request_id] = num_tokens
        if num_tokens and num_tokens == self._resume_point(request):
            runs = (*runs, *self._cache_resume_state(request, num_tokens))
        table, hash_of = self.tables.get(request_id, ()), self.pool.hash_of
        for block in table[passed.start : passed.stop]:
            block_hash = hash_of[block]
            if block_hash is not None:
                self._mark_new(block_hash)
                if self.context.hands_off_states:
                    self._handed.append((request_id, block, self.pool.tokens_of[block]))
        return runs

    def _cache_resume_state(self, request: CacheableRequest, resume: int) -> Sequence[CachedRun]:
        """Make the state where the same prompt would resume findable; the request's table holds it now."""
        request_id, size, unit = request.request_id, self.block_size, self.context.hash_block_size
        table = self.tables[request_id]
        at = blocks_for(resume, size) - 1
        if at >= len(table) or table[at] == NULL_BLOCK:
            return ()
        block_hash = request.block_hashes[resume // unit - 1]
        new = self.pool.cache_partial(self.group_id, table[at], block_hash, resume)
        self._mark_new(block_hash)
        if resume % size:
            self.num_cached[request_id] = self._to_copy[request_id] = at
            self._resume_block[request_id] = (table[at], resume)
        return (CachedRun(resume - unit, unit, (table[at],), (block_hash,)),) if new and self.context.observed else ()

    def _mark_new(self, block_hash: bytes) -> None:
        """Note a checkpoint of this step. Where nobody tells of steps, those that are gone are dropped now and then."""
        self._new_this_step.add(block_hash)
        if len(self._new_this_step) > 4 * self.pool.num_blocks:
            index = self.pool.indexes[self.group_id]
            self._new_this_step = {known for known in self._new_this_step if index.get(known) is not None}

    def _resume_point(self, request: CacheableRequest) -> int:
        """Where the same prompt sent again would resume, in tokens; a unit earlier with a draft head."""
        unit = self.context.hash_block_size
        if self.context.retention.drop_step:
            return max(request.num_prompt_tokens // unit - 1, 0) * unit
        return (request.num_prompt_tokens - 1) // unit * unit

    def worth_caching(self, request: CacheableRequest, start: int, end: int) -> set[int] | None:
        """The states at the points that retention keeps."""
        if self.context.retention.interval is None:
            return None
        size = self.block_size
        points = self.context.retention.points(request, (start + 1) * size, (end + 1) * size - 1)
        return {point // size - 1 for point in points}

    def step_end(self, request: CacheableRequest, start: int, end: int, most: int) -> int:
        """At a block's end while the prompt is computed, and where the same or a sibling prompt would resume.

        A state stands where a step ended, and only those at block ends (and the resume point) can be hit. A block that
        no step can fill (`most` tokens) is filled in several. The rule is vLLM's.
        """
        size, drop = self.block_size, self.context.retention.drop_step
        last_prefill = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= last_prefill:
            return end
        if end < last_prefill:
            aligned = end // size * size
            if aligned > start or size <= most:
                end = aligned
        whole = request.num_tokens // size * size - size if drop else (request.num_tokens - 1) // size * size
        stops = [whole]
        if start % size:
            stops.append((start // size + 1) * size)
        if self._fine and whole < (resume := self._resume_point(request)) < request.num_prompt_tokens:
            stops.append(resume)
        junction = request.shared_prefix_boundary
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        return min((stop for stop in stops if start < stop < end), default=max(start, end))

    def new_step_starts(self) -> None:
        """What was made findable before can be hit from now on."""
        self._new_this_step.clear()

    def quiet_until(self, request: CacheableRequest, caching: bool) -> int:
        """As for a state without checkpoints; and until the resume point, and right after it until its copy is made."""
        request_id = request.request_id
        if request_id in self._to_copy:
            return 0
        quiet = super().quiet_until(request, caching)
        if caching and self._fine:
            resume = self._resume_point(request)
            if self._considered.get(request_id, 0) < resume:
                return min(quiet, self.tokens_to_cache(resume))
        return quiet

    def take_handed_states(self) -> list[tuple[str, int, int]]:
        """(request, block, tokens) of the checkpoints that became findable since the last call."""
        handed, self._handed = self._handed, []
        return handed

    def take_own_end(self, request_id: str, num_tokens: int) -> tuple[int, int] | None:
        """(block, tokens) of the state at the request's own end, if nothing after these tokens was computed."""
        own = self._resume_block.pop(request_id, None)
        return own if own is not None and own[1] == num_tokens else None

    def pop(self, request_id: str) -> list[int]:
        self._resume_block.pop(request_id, None)
        self._considered.pop(request_id, None)
        if self._handed:
            self._handed = [handed for handed in self._handed if handed[0] != request_id]
        self._retired.pop(request_id, None)
        self._has_drafts.discard(request_id)
        self._before.pop(request_id, None)
        return super().pop(request_id)


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """One state of `state_bytes` per request (convolution and recurrent parts together), whatever the block size.

    `cache_mode` "none" keeps the running state only, "align" checkpoints at block ends too. `page_size_padded` is the
    page that it shares with attention layers, when larger. `num_speculative_blocks` are states for draft tokens,
    `num_prefill_checkpoint_blocks` those that a prefill may save on its way.
    In the mode "none" give `block_size` max_model_len, as vLLM does: a step asks for a block every so many tokens.
    """

    state_bytes: int = 1
    cache_mode: Literal["none", "align"] = "align"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0

    def __post_init__(self) -> None:
        self._require_positive("state_bytes")
        for name in ("num_speculative_blocks", "num_prefill_checkpoint_blocks"):
            if getattr(self, name) < 0:
                raise UsageError(f"MambaSpec: {name}={getattr(self, name)} must not be negative")
        if self.cache_mode not in ("none", "align"):
            raise UsageError(f"MambaSpec: cache_mode={self.cache_mode!r} is unknown: choose 'none' or 'align'")
        super().__post_init__()

    @property
    def prefix_cacheable(self) -> bool:
        return self.cache_mode == "align"

    @property
    def sparsely_retained(self) -> bool:
        return self.cache_mode == "align"

    @property
    def content_size_bytes(self) -> int:
        return self.state_bytes

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """The running state and the drafts'; with checkpoints also the one before it and what a prefill saves."""
        if self.cache_mode == "none":
            return 1 + self.num_speculative_blocks
        return 2 + self.num_speculative_blocks + self.num_prefill_checkpoint_blocks

    def is_like(self, other: KVCacheSpec) -> bool:
        return (
            super().is_like(other)
            and isinstance(other, MambaSpec)
            and self.page_size_bytes == other.page_size_bytes
            and self.num_speculative_blocks == other.num_speculative_blocks
            and self.num_prefill_checkpoint_blocks == other.num_prefill_checkpoint_blocks
        )

    group_class = CheckpointGroup

    def make_group(self, context: GroupContext) -> CacheGroup:
        return (CheckpointGroup if self.cache_mode == "align" else StateGroup)(self, context)
