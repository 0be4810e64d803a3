"""A snapshot in figures: the pool as a map, requests with their tables, what goes next. Plain data for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from kvblocks.observe import CounterValues, RequestCopy, Sample, Snapshot, Stretch

MAX_CELLS = 4096
"""The map has at most so many cells; a cell stands for one block where that is enough."""
MAX_REQUESTS = 200
MAX_RANGES = 64
MAX_ID_CHARS = 200
BLANK, CACHED, LIVE = 0, 1, 2


def block_states(snapshot: Snapshot) -> bytes:
    """One byte per block: LIVE (held), CACHED (free, its content can be found), BLANK (free, without content)."""
    return bytes(
        [
            LIVE if count else CACHED if block_hash is not None else BLANK
            for count, block_hash in zip(snapshot.ref_count, snapshot.hash_of, strict=True)
        ]
    )


def pool_figures(snapshot: Snapshot, states: bytes) -> dict[str, Any]:
    """Blocks by state, over the pool and per group. A blank block belongs to no group."""
    live = states.count(LIVE)
    cached = states.count(CACHED)
    if len(snapshot.groups) == 1:
        cached_of = Counter({0: cached})
    else:
        cached_of = Counter(group for group, state in zip(snapshot.group_of, states, strict=True) if state == CACHED)
    groups = []
    for group_id, group in enumerate(snapshot.groups):
        held = set(chain.from_iterable(group.tables.values()))
        held.discard(0)
        groups.append(
            {
                "kind": group.kind,
                "block_size": group.block_size,
                "live": len(held),
                "cached": cached_of[group_id],
            }
        )
    usable = snapshot.num_blocks - 1
    return {
        "num_blocks": snapshot.num_blocks,
        "usable": usable,
        "live": live,
        "cached": cached,
        "blank": usable - live - cached,
        "policy": snapshot.policy,
        "prefix_caching": snapshot.enable_caching,
        "groups": groups,
    }


def block_map(snapshot: Snapshot, states: bytes, order: dict[str, int], max_cells: int = MAX_CELLS) -> dict[str, Any]:
    """The pool cut into cells of `blocks_per_cell` blocks, from block 1 on: live and cached ones in each.

    `holder` is the request (its place in `order`) that holds most blocks of the cell, -1 where no listed one does;
    `sharers` is how many of them hold some.
    """
    usable = snapshot.num_blocks - 1
    size = max(1, -(-usable // max_cells))
    starts = range(1, snapshot.num_blocks, size)
    holders: list[int] = [-1] * len(starts)
    most = [0] * len(starts)
    sharers: list[set[int]] = [set() for _ in starts]
    for group in snapshot.groups:
        for name, table in group.tables.items():
            at = order.get(name)
            if at is None:
                continue
            for cell, count in Counter([(block - 1) // size for block in table if block]).items():
                sharers[cell].add(at)
                if count > most[cell]:
                    most[cell], holders[cell] = count, at
    return {
        "first_block": 1,
        "blocks_per_cell": size,
        "live": [states.count(LIVE, start, start + size) for start in starts],
        "cached": [states.count(CACHED, start, start + size) for start in starts],
        "holder": holders,
        "sharers": [len(requests) for requests in sharers],
    }


def ranges(blocks: Iterable[int]) -> list[list[int]]:
    """A table as runs: [first block, how many follow each other]; skipped places are left out."""
    found: list[list[int]] = []
    for block in blocks:
        if not block:
            continue
        if found and block == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([block, 1])
    return found


def largest_requests(snapshot: Snapshot) -> list[tuple[RequestCopy, int]]:
    """At most `MAX_REQUESTS` requests and their blocks, those with most blocks first."""
    num_blocks = Counter[str]()
    for group in snapshot.groups:
        for name, table in group.tables.items():
            num_blocks[name] += len(table) - table.count(0)
    ordered = sorted(snapshot.requests, key=lambda request: -num_blocks[request.request_id])[:MAX_REQUESTS]
    return [(request, num_blocks[request.request_id]) for request in ordered]


def request_rows(
    snapshot: Snapshot, requests: Sequence[tuple[RequestCopy, int]], text_of: Callable[[RequestCopy], str | None]
) -> list[dict[str, Any]]:
    """The requests with their tables, at most `MAX_RANGES` runs each; `text` where text may be shown."""
    rows = []
    for request, num_blocks in requests:
        tables = []
        for group in snapshot.groups:
            runs = ranges(group.tables.get(request.request_id, ()))
            tables.append({"ranges": runs[:MAX_RANGES], "left_out": max(0, len(runs) - MAX_RANGES)})
        rows.append(
            {
                "request_id": short(request.request_id),
                "status": request.status.lower(),
                "prompt_tokens": request.num_prompt_tokens,
                "tokens": request.num_tokens,
                "computed_tokens": request.num_computed_tokens,
                "hit_tokens": request.num_hit_tokens,
                "preemptions": request.num_preemptions,
                "age_s": round(max(0.0, snapshot.time_s - request.admitted_at_s), 3),
                "blocks": num_blocks,
                "tables": tables,
                "text": text_of(request),
            }
        )
    return rows


def short(name: str) -> str:
    """A request's id, cut where it is longer than anybody reads."""
    return name if len(name) <= MAX_ID_CHARS else name[:MAX_ID_CHARS] + "…"


def victim_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The next blocks to be handed out, and what is lost with each."""
    return [
        {
            "block": victim.block,
            "hash": victim.block_hash.hex()[:16] if victim.block_hash is not None else None,
            "group": victim.group_id if victim.block_hash is not None else None,
            "end_tokens": victim.end_tokens if victim.block_hash is not None else None,
        }
        for victim in snapshot.victims
    ]


def count_figures(counters: CounterValues) -> dict[str, Any]:
    """Counts since the start."""
    tokens = counters.tokens
    return {
        "requests": tokens.requests,
        "prompt_tokens": tokens.tokens,
        "hit_tokens": tokens.hits,
        "external_tokens": tokens.external,
        "missed_tokens": dict(tokens.missed),
        "hit_rate": round(tokens.hit_rate, 6),
        "stored_blocks": sum(counters.stored_blocks),
        "evicted_blocks": sum(counters.evicted_blocks),
        "mean_age_at_eviction_s": _mean(counters.age_sum_s, sum(counters.age_buckets)),
        "preemptions": counters.preemptions,
        "recomputed_tokens": counters.recomputed_tokens,
        "refused_allocations": counters.waiting_refusals + counters.running_refusals,
        "refused_requests": dict(counters.refused_requests),
        "resets": counters.resets,
    }


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 3) if count else None


def history_columns(samples: Sequence[Sample], now: Sample) -> dict[str, Any]:
    """Tokens since the start over time, as columns; the last row is now. Times are seconds before now."""
    rows = [sample for sample in samples if sample.time_s < now.time_s]
    if not rows or rows[-1].tokens.tokens != now.tokens.tokens:
        rows.append(now)
    reasons = sorted({reason for row in rows for reason in row.tokens.missed})
    return {
        "age_s": [round(now.time_s - row.time_s, 3) for row in rows],
        "prompt_tokens": [row.tokens.tokens for row in rows],
        "hit_tokens": [row.tokens.hits for row in rows],
        "external_tokens": [row.tokens.external for row in rows],
        "missed_tokens": {reason: [row.tokens.missed.get(reason, 0) for row in rows] for reason in reasons},
    }


def prefix_rows(found: Sequence[Stretch], text_of: Callable[[Stretch], str | None]) -> list[dict[str, Any]]:
    """The prefix tree, parents before children; `text` where text may be shown."""
    return [
        {
            "id": row.id,
            "parent": row.parent,
            "start_tokens": row.start_tokens,
            "end_tokens": row.end_tokens,
            "hits": row.hits,
            "hit_tokens": row.hit_tokens,
            "text": text_of(row),
        }
        for row in found
    ]
