"""KV events in vLLM's own classes, from what kvblocks' manager tells its observer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvblocks.manager import CachedRun, Observer

MEDIUM = "GPU"
"""What vLLM calls the memory of the device, whatever the device is."""


class EventRecorder(Observer):
    """Collects events until the scheduler takes them.

    Two differences to vLLM's own, both on purpose: a hash is reported as removed when its last block is gone, not with
    every copy, so that a listener may keep a set; and where only some blocks of a range become findable, each
    consecutive run of them is an event of its own, so that hashes, tokens and parent belong together.
    """

    def __init__(self, kinds: Sequence[tuple[str, int | None]]) -> None:
        """`kinds` are, per group, the kind of its spec and its sliding window, as vLLM names them in events."""
        from vllm.distributed import kv_events
        from vllm.v1.core import kv_cache_utils

        self._events: list[Any] = []
        self._kinds = kinds
        self._classes = kv_events
        self._hash = kv_cache_utils.maybe_convert_block_hash
        self._extra_keys = kv_cache_utils.generate_block_hash_extra_keys
        self._published_keys = kv_cache_utils.to_event_extra_keys

    def take(self) -> list[Any]:
        """The events since the last call."""
        taken, self._events = self._events, []
        return taken

    def on_cache(self, request: Any, group_id: int, run: CachedRun, parent_hash: bytes | None) -> None:
        self.stored(request, group_id, run.start, run.unit_tokens, run.hashes, parent_hash)

    def stored(
        self, request: Any, group_id: int, start: int, unit_tokens: int, hashes: Sequence[bytes], parent: bytes | None
    ) -> None:
        """Record that consecutive units of the request, from token `start` on, can be found."""
        keys: list[Any] = []
        end, at_item = start, 0
        for _ in hashes:
            key, at_item = self._extra_keys(request, end, end + unit_tokens, at_item)
            keys.append(key)
            end += unit_tokens
        lora = request.lora_request
        kind, window = self._kinds[group_id]
        self._events.append(
            self._classes.BlockStored(
                block_hashes=[self._hash(block_hash) for block_hash in hashes],
                parent_block_hash=None if parent is None else self._hash(parent),
                token_ids=request.all_token_ids[start:end],
                block_size=unit_tokens,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM,
                lora_name=lora.name if lora else None,
                extra_keys=self._published_keys(keys),
                group_idx=group_id,
                kv_cache_spec_kind=kind,
                kv_cache_spec_sliding_window=window,
                session_id=request.session_id,
            )
        )

    def on_evict(self, group_id: int, block_hash: bytes, block: int, last_copy: bool) -> None:
        if last_copy:
            removed = self._classes.BlockRemoved
            self._events.append(removed(block_hashes=[self._hash(block_hash)], medium=MEDIUM, group_idx=group_id))

    def on_reset(self) -> None:
        self._events.append(self._classes.AllBlocksCleared())
