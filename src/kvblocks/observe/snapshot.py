"""The state of a manager at one moment, as data that no longer changes.

Taking it copies lists and dictionaries and looks at no block by itself, so that the engine's thread is held up as
little as can be: some milliseconds for 400,000 blocks. What the copies mean is worked out by whoever reads them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kvblocks.manager import KVCacheManager
from kvblocks.observe.counters import CountersObserver, CounterValues
from kvblocks.observe.prefixes import token_sample

MAX_VICTIMS = 64
"""So many of the next blocks to be handed out are listed."""


class RequestCopy(NamedTuple):
    """A request that holds blocks. Counts are tokens."""

    request_id: str
    status: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_hit_tokens: int
    num_preemptions: int
    admitted_at_s: float
    sample: Sequence[int]
    """The prompt's first tokens, when text may be shown."""


class GroupCopy(NamedTuple):
    """A KV-cache group; `tables` are the block tables by request id, 0 where a block was skipped."""

    kind: str
    block_size: int
    caches: bool
    tables: dict[str, list[int]]


class Victim(NamedTuple):
    """A free block, in the order in which blocks are handed out."""

    block: int
    block_hash: bytes | None
    """What is lost when it is handed out; None for a block without content."""
    group_id: int
    end_tokens: int
    """Tokens from the start of the prompt to the end of the block."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a live view shows, at one moment. Lists of blocks are indexed by block id."""

    time_s: float
    num_blocks: int
    policy: str
    enable_caching: bool
    max_model_len: int
    ref_count: list[int]
    hash_of: list[bytes | None]
    tokens_of: list[int]
    group_of: list[int]
    groups: tuple[GroupCopy, ...]
    requests: tuple[RequestCopy, ...]
    victims: tuple[Victim, ...]
    counters: CounterValues


def take_snapshot(manager: KVCacheManager, counters: CountersObserver, sample_tokens: int = 0) -> Snapshot:
    """Copy the state. Call it between two calls of the manager, in the thread that makes them or when it rests.

    `sample_tokens`: how many tokens of each prompt are copied, to be shown as text. Salts and other keys never are.
    """
    pool = manager.block_pool
    requests = []
    for name, request in manager.owners.copy().items():
        admitted = counters.admitted.get(name)
        requests.append(
            RequestCopy(
                name,
                request.status.name,
                request.num_tokens,
                request.num_prompt_tokens,
                request.num_computed_tokens,
                admitted.num_hit_tokens if admitted else 0,
                request.num_preemptions,
                admitted.at_s if admitted else 0.0,
                token_sample(request, 0, sample_tokens),
            )
        )
    return Snapshot(
        time_s=counters.clock(),
        num_blocks=pool.num_blocks,
        policy=pool.policy_name,
        enable_caching=manager.enable_caching,
        max_model_len=manager.max_model_len,
        ref_count=pool.ref_count.copy(),
        hash_of=pool.hash_of.copy(),
        tokens_of=pool.tokens_of.copy(),
        group_of=pool.group_of.copy(),
        groups=tuple(
            GroupCopy(
                _kind(type(group.spec).__name__),
                group.block_size,
                group.spec.prefix_cacheable,
                {name: table.copy() for name, table in group.tables.copy().items()},
            )
            for group in manager.groups
        ),
        requests=tuple(requests),
        victims=tuple(
            Victim(block, pool.hash_of[block], pool.group_of[block], pool.tokens_of[block])
            for block in islice(pool.free_order(), MAX_VICTIMS)
        ),
        counters=counters.values(),
    )


def _kind(spec_name: str) -> str:
    """`FullAttentionSpec` as `full_attention`, `MLASpec` as `mla`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", spec_name.removesuffix("Spec")).lower()
