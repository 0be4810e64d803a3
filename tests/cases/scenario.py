"""A small engine for scenarios: it admits, computes and frees requests, and checks the manager after each step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec
from kvblocks.manager import KVCacheBlocks, KVCacheManager, PrefixHit, Request, RequestStatus, TokenRequest
from kvblocks.prefix import BlockHasher, ExtraKeys


class CheckedManager(KVCacheManager):
    """A manager that checks itself after every call that may change something, refused calls included."""

    def allocate_slots(self, *args: Any, **options: Any) -> KVCacheBlocks | None:
        try:
            return super().allocate_slots(*args, **options)
        finally:
            self.check()

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        try:
            super().cache_blocks(request, num_computed_tokens)
        finally:
            self.check()

    def free(self, request: Request) -> None:
        super().free(request)
        self.check()

    def pop_blocks_for_free(self, request: Request) -> list[int]:
        blocks = super().pop_blocks_for_free(request)
        self.check()
        return blocks

    def release_blocks(self, blocks: Sequence[int]) -> None:
        try:
            super().release_blocks(blocks)
        finally:
            self.check()

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        super().evict_blocks(block_ids)
        self.check()

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        self.check()
        return done


class Engine:
    """One manager. Prompts are any iterables of token ids; blocks are 4 tokens unless said otherwise."""

    def __init__(
        self, usable_blocks: int = 20, block_size: int = 4, specs: Iterable[KVCacheSpec] = (), **options: Any
    ) -> None:
        groups = list(specs) or [FullAttentionSpec(block_size=block_size)]
        options.setdefault("max_model_len", 100_000)
        self.manager = CheckedManager(usable_blocks + 1, groups, **options)
        self.hasher = BlockHasher(self.manager.hash_block_size) if self.manager.enable_caching else None
        self.made = 0

    def request(self, prompt: Iterable[int], keys: ExtraKeys | None = None) -> TokenRequest:
        self.made += 1
        return TokenRequest(f"r{self.made}", list(prompt), self.hasher, extra_keys=keys)

    def hit(self, prompt: Iterable[int], keys: ExtraKeys | None = None) -> PrefixHit:
        """What the cache holds of a prompt."""
        return self.manager.get_computed_blocks(self.request(prompt, keys))

    def try_admit(self, request: TokenRequest, new: int | None = None, **options: Any) -> PrefixHit | None:
        """Look up and allocate (the rest, or so many tokens); None when it does not fit."""
        self.manager.new_step_starts()
        hit = self.manager.get_computed_blocks(request)
        tokens = request.num_tokens - hit.num_tokens if new is None else new
        blocks = self.manager.allocate_slots(request, tokens, hit.num_tokens, hit.blocks, **options)
        if blocks is None:
            return None
        request.num_computed_tokens = hit.num_tokens + options.get("num_external_computed_tokens", 0) + tokens
        request.status = RequestStatus.RUNNING
        return hit

    def admit(self, prompt: Iterable[int], keys: ExtraKeys | None = None) -> TokenRequest:
        """Admit a prompt that fits."""
        request = self.request(prompt, keys)
        assert self.try_admit(request) is not None
        return request

    def decode(self, request: TokenRequest, token: int = 0) -> bool:
        """Generate a token and compute the one before it; False when it does not fit."""
        request.append_output_token_ids(token)
        self.manager.new_step_starts()
        blocks = self.manager.allocate_slots(request, 1)
        if blocks is None:
            return False
        request.num_computed_tokens += 1
        return True

    def free(self, *requests: TokenRequest) -> None:
        for request in requests:
            self.manager.free(request)

    def preempt(self, request: TokenRequest) -> None:
        self.free(request)
        request.num_computed_tokens, request.status = 0, RequestStatus.PREEMPTED
        request.num_preemptions += 1

    def table(self, request: TokenRequest, group: int = 0) -> list[int]:
        return self.manager.get_block_ids(request.request_id)[group]

    @property
    def num_free(self) -> int:
        return self.manager.block_pool.num_free


def cached(prompt: Iterable[int], *args: Any, **options: Any) -> Engine:
    """An engine whose cache holds a freed prompt."""
    engine = Engine(*args, **options)
    engine.free(engine.admit(prompt))
    return engine
