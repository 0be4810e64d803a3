"""KV events: a record of which prefixes the cache holds, for routers that send requests to where their prefix is.

They tell what vLLM's events tell of content: hashes, the parent's hash, token ids, block size and group. They do not
have an adapter, extra keys, a medium or the kind of the group; and they add the request. One difference is on purpose:
a hash is reported as removed (one event for each) only when the last block that bears it is gone, so that a listener
may keep a set.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvblocks.manager import CachedRun, Observer, Request


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one request became findable.

    `parent_block_hash` is the hash of the block before them (None at the start of a prompt); it may belong to a block
    that this group does not keep, but the chain of hashes is the same in all groups. `token_ids` are the tokens of
    these blocks, empty when the request does not carry tokens. A prompt that ends inside a block is stored as the hash
    unit that ends there, with the unit as `block_size`.
    """

    block_hashes: tuple[bytes, ...]
    parent_block_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    group_id: int
    request_id: str


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """No block of the group bears this hash any more."""

    block_hash: bytes
    group_id: int


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventRecorder(Observer):
    """Collects events until they are taken. Take them every step, or the list grows."""

    def __init__(self) -> None:
        self._events: list[KVEvent] = []

    def take_events(self) -> list[KVEvent]:
        """The events since the last call, in order."""
        taken, self._events = self._events, []
        return taken

    def on_cache(self, request: Request, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        end = run.start + len(run.hashes) * run.unit_tokens
        tokens = getattr(request, "all_token_ids", ())[run.start : end]
        self._events.append(
            BlockStored(tuple(run.hashes), parent_hash, tuple(tokens), run.unit_tokens, group_id, request.request_id)
        )

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        if last_copy:
            self._events.append(BlockRemoved(block_hash, group_id))

    def on_reset(self) -> None:
        self._events.append(AllBlocksCleared())
