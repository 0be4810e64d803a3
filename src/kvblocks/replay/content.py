"""From a recorded request to the block hashes of its prompt.

A trace says what a prompt is in one of three ways: token ids, content ids that each stand for a run of tokens, or only
a length. Content ids are expanded to token ids of our own (every id gets its own range), so that the same chain of
hashes serves every block size and algorithm. Where the content is not known (a length-only prompt, the tail after the
last whole id, generated tokens) nothing can be shared, and blocks get hashes that occur once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from kvblocks.errors import TraceError
from kvblocks.prefix import BlockHasher, ExtraKeys, LoRAKey
from kvblocks.traces import TraceRequest


class Prompt(NamedTuple):
    """What a recorded request stands for."""

    hashes: list[bytes]
    """Of its full blocks."""
    token_ids: Sequence[int] | None
    """As far as they are known; None when they are not kept."""
    extra_keys: ExtraKeys | None


class TraceHasher:
    """Block hashes for the requests of one replay; the same trace request always gives the same ones.

    `block_size` is the cache's, in tokens; it need not divide the trace's.
    """

    def __init__(self, block_size: int, algorithm: str = "sha256", *, keep_tokens: bool = False) -> None:
        self.block_size = block_size
        self.keep_tokens = keep_tokens
        self._hasher = BlockHasher(block_size, algorithm)
        self._first_token: dict[str, dict[int, int]] = {}  # per namespace: content id -> the first of its token ids
        self._next_token = 0
        self._serial = count(1)
        self._digest_bytes = self._hasher.algorithm.digest_bytes
        self._within: dict[int, np.ndarray[tuple[int], np.dtype[np.uint32]]] = {}

    def prompt(self, request: TraceRequest) -> Prompt:
        """The prompt of a request. Raises TraceError when the trace has too many distinct ids."""
        keys = _extra_keys(request)
        tokens = self.tokens(request)
        hashes = self._hasher.chain(tokens, keys)
        while len(hashes) < request.num_prompt_tokens // self.block_size:
            hashes.append(self.unique_hash())
        return Prompt(hashes, tokens if self.keep_tokens else None, keys)

    def tokens(self, request: TraceRequest) -> Sequence[int]:
        """The prompt's token ids as far as the trace tells them; made up, but always the same, for content ids."""
        if request.token_ids is not None:
            return request.token_ids
        if request.block_ids:
            return self._expand(request)[: request.num_prompt_tokens]  # type: ignore[return-value]
        return ()

    def unique_hash(self) -> bytes:
        """A hash that no other block has: the number of the call, written as a digest."""
        return next(self._serial).to_bytes(self._digest_bytes, "big")

    def _expand(self, request: TraceRequest) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """The token ids of the prompt's content ids."""
        size = request.tokens_per_id
        first_token = self._first_token.setdefault(request.namespace, {})
        starts = []
        for block_id in request.block_ids or ():
            start = first_token.get(block_id)
            if start is None:
                start = first_token[block_id] = self._next_token
                self._next_token += size
            starts.append(start)
        if self._next_token > 2**32:
            raise TraceError(
                request.request_id,
                f"the distinct content ids stand for more than 2**32 tokens ({size} each); replay a part with --limit",
            )
        within = self._within.get(size)
        if within is None:
            within = self._within[size] = np.arange(size, dtype=np.uint32)
        return (np.array(starts, dtype=np.uint32)[:, None] + within).ravel()


def _extra_keys(request: TraceRequest) -> ExtraKeys | None:
    if request.lora is None and request.cache_salt is None:
        return None
    return ExtraKeys(lora=None if request.lora is None else LoRAKey(request.lora), cache_salt=request.cache_salt)
