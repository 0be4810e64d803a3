"""From specs to groups over one pool: the granularities that they share, and what contradicts what."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from kvblocks.errors import UsageError
from kvblocks.kinds.base import CacheGroup, GroupContext, KVCacheSpec
from kvblocks.kinds.retention import Retention
from kvblocks.pool import BlockPool


def make_groups(
    specs: Sequence[KVCacheSpec],
    pool: BlockPool,
    *,
    max_model_len: int,
    hash_block_size: int | None,
    max_in_flight_tokens: int | None,
    eagle_groups: Collection[int],
    retention_interval: int | None,
    fine_hits: bool,
    observed: bool,
    num_prefill_lookahead: int,
    zeroed_groups: Collection[int],
    hand_off_states: bool,
) -> list[CacheGroup]:
    """The groups of a manager; see `KVCacheManager` for the arguments. Raises UsageError naming the argument."""
    caching = pool.enable_caching
    sizes = [spec.block_size for spec in specs if spec.prefix_cacheable]
    if caching:
        for i, spec in enumerate(specs):
            if not spec.prefix_cacheable:
                raise UsageError(
                    f"groups[{i}] ({type(spec).__name__}) cannot be found by a prefix, and a hit needs all groups: "
                    "pass enable_caching=False"
                )
    unit = math.gcd(*sizes) if hash_block_size is None else hash_block_size
    if not caching or not sizes:
        unit = 1
    for i, spec in enumerate(specs):
        if spec.prefix_cacheable and (unit < 1 or spec.block_size % unit):
            raise UsageError(f"hash_block_size={unit} must divide the block size {spec.block_size} of groups[{i}]")
    whole = math.lcm(*sizes) if sizes else 1
    fine = fine_hits and caching
    if fine and not all(spec.group_class.supports_fine_hits or spec.block_size == unit for spec in specs):
        raise UsageError(
            "fine_hits=True: some group's hits must end on its block size; only full attention and states can end on "
            f"a hash unit ({unit} tokens) inside a block"
        )
    alignment = unit if fine else whole
    _check_retention(specs, retention_interval, whole)
    for i in eagle_groups:
        if not 0 <= i < len(specs):
            raise UsageError(f"eagle_groups names group {i}; groups go from 0 to {len(specs) - 1}")
    # Groups of one spec are looked up together, so they drop together.
    eagle_specs = [specs[i] for i in eagle_groups]
    if caching and eagle_groups and whole < num_prefill_lookahead:
        raise UsageError(
            f"num_prefill_lookahead={num_prefill_lookahead} exceeds {whole}, the least common multiple of the groups' "
            "block sizes: what a draft head drops must cover it; draft fewer tokens"
        )
    retention = Retention(retention_interval, alignment, whole if eagle_groups else 0)
    again = max(0, num_prefill_lookahead - 1)
    defer = fine and any(spec.group_class.defers_hits for spec in specs)
    return [
        spec.make_group(
            GroupContext(
                pool=pool,
                group_id=i,
                hash_block_size=unit,
                alignment=alignment,
                cache_step=1 if fine or len(specs) == 1 else whole,
                fine_hits=fine,
                max_model_len=max_model_len,
                max_in_flight_tokens=max_model_len if max_in_flight_tokens is None else max_in_flight_tokens,
                retention=retention,
                is_eagle=spec in eagle_specs,
                observed=observed,
                reprefill_tokens=again if len(specs) == 1 or spec in eagle_specs else 0,
                states_defer_hits=defer,
                zeroed=i in zeroed_groups,
                hands_off_states=hand_off_states,
            )
        )
        for i, spec in enumerate(specs)
    ]


def _check_retention(specs: Sequence[KVCacheSpec], interval: int | None, whole: int) -> None:
    if not interval:
        return
    if interval < 0 or interval % whole:
        raise UsageError(
            f"retention_interval={interval} must be None, 0 or a positive multiple of {whole}, "
            "the least common multiple of the groups' block sizes"
        )
    if not any(spec.sparsely_retained for spec in specs):
        raise UsageError(
            f"retention_interval={interval}: no group is a sliding window or a state, so nothing is dropped; leave it 0"
        )
