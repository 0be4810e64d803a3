"""The observer protocol: what the manager tells about what it did.

Statistics, miss reasons, KV events and live pages are all observers. An observer reads; it must not call the manager
back or raise. Without one, none of this costs anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvblocks.kinds import CachedRun
from kvblocks.manager.blocks import PrefixHit
from kvblocks.manager.request import Request

if TYPE_CHECKING:
    from kvblocks.manager.manager import KVCacheManager


class Admission(NamedTuple):
    """How a request entered: which tokens needed no computing. Counted once, when the allocation succeeds."""

    num_hit_tokens: int
    num_external_tokens: int


class Observer:
    """Base of all observers: every hook does nothing. Override the ones of interest."""

    def on_step(self) -> None:
        """A new step is being scheduled. No call is under way: all that the manager holds agrees with itself."""

    def on_attach(self, manager: KVCacheManager) -> None:
        """Told once, at the end of the manager's construction; the manager may be read from then on."""

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        """`get_computed_blocks` answered. A waiting request is looked up every step: count admissions instead."""

    def on_admit(self, request: Request, admission: Admission) -> None:
        """The request enters: its room is certain and nothing has changed yet. `on_allocate` follows."""

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        """`allocate_slots` succeeded with these new blocks per group; `admission` when the request entered with it."""

    def on_refuse(self, request: Request, blocks_needed: int, blocks_free: int) -> None:
        """`allocate_slots` returned None: so many blocks were needed, so many could be had (less what is reserved)."""

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        """Consecutive blocks of the request became findable; `parent_hash` is the chain's hash just before them."""

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        """A block lost a hash; `last_copy` when no other block of the group bears it now."""

    def on_evict_blocks(self, blocks: Collection[int]) -> None:
        """`evict_blocks` was asked to forget these blocks. `on_evict` follows for each of their hashes."""

    def on_free(self, request_id: str) -> None:
        """The request holds no blocks any more."""

    def on_reset(self) -> None:
        """All content is about to be forgotten; no block is live."""


class Observers(Observer):
    """Several observers as one, told in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def on_step(self) -> None:
        for observer in self.observers:
            observer.on_step()

    def on_attach(self, manager: KVCacheManager) -> None:
        for observer in self.observers:
            observer.on_attach(manager)

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        for observer in self.observers:
            observer.on_lookup(request, hit)

    def on_admit(self, request: Request, admission: Admission) -> None:
        for observer in self.observers:
            observer.on_admit(request, admission)

    def on_allocate(self, request: Request, new_blocks: tuple[Sequence[int], ...], admission: Admission | None) -> None:
        for observer in self.observers:
            observer.on_allocate(request, new_blocks, admission)

    def on_refuse(self, request: Request, blocks_needed: int, blocks_free: int) -> None:
        for observer in self.observers:
            observer.on_refuse(request, blocks_needed, blocks_free)

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        for observer in self.observers:
            observer.on_cache(request, group_id, run, parent_hash)

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        for observer in self.observers:
            observer.on_evict(group_id, block_hash, block, last_copy)

    def on_evict_blocks(self, blocks: Collection[int]) -> None:
        for observer in self.observers:
            observer.on_evict_blocks(blocks)

    def on_free(self, request_id: str) -> None:
        for observer in self.observers:
            observer.on_free(request_id)

    def on_reset(self) -> None:
        for observer in self.observers:
            observer.on_reset()
