"""The cache's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvblocks.live.exposition import Metric, Value, histogram, labelled, single
from kvblocks.observe import AGE_BOUNDS_S, CounterValues


def cache_metrics(pool: dict[str, Any], counters: CounterValues, num_requests: int) -> Iterator[Metric]:
    """All metrics of a cache; `pool` is that of `pool_figures`."""
    tokens, groups = counters.tokens, pool["groups"]
    names = [{"group": str(group_id), "kind": group["kind"]} for group_id, group in enumerate(groups)]
    yield single("kvblocks_blocks_usable", "gauge", "Blocks of the pool.", pool["usable"])
    states = {state: pool[state] for state in ("live", "cached", "blank")}
    yield labelled("kvblocks_blocks", "gauge", "Blocks by what they are now.", "state", states)
    yield Metric(
        "kvblocks_group_blocks",
        "gauge",
        "Blocks of each KV-cache group; a blank block belongs to none.",
        [
            Value(group[state], {**name, "state": state})
            for name, group in zip(names, groups, strict=True)
            for state in ("live", "cached")
        ],
    )
    yield single("kvblocks_requests_holding", "gauge", "Requests that hold blocks.", num_requests)
    yield single("kvblocks_requests_admitted_total", "counter", "Requests that entered.", tokens.requests)
    yield single("kvblocks_prompt_tokens_total", "counter", "Tokens of requests that entered.", tokens.tokens)
    yield single("kvblocks_hit_tokens_total", "counter", "Of them, those that the cache held.", tokens.hits)
    yield single(
        "kvblocks_external_tokens_total", "counter", "Of them, those that a connector brought.", tokens.external
    )
    yield labelled(
        "kvblocks_missed_tokens_total", "counter", "Of them, those to compute, by reason.", "reason", tokens.missed
    )
    for name, text, counts in (
        ("kvblocks_stored_blocks_total", "Blocks that became findable.", counters.stored_blocks),
        ("kvblocks_evicted_blocks_total", "Blocks that lost their content.", counters.evicted_blocks),
    ):
        yield Metric(name, "counter", text, [Value(count, group) for count, group in zip(counts, names, strict=True)])
    yield histogram(
        "kvblocks_eviction_age_seconds",
        "Time from storing a block's content to its eviction.",
        AGE_BOUNDS_S,
        counters.age_buckets,
        counters.age_sum_s,
    )
    yield single(
        "kvblocks_preemptions_total", "counter", "Requests that came back after losing their blocks.",
        counters.preemptions,
    )  # fmt: skip
    yield single(
        "kvblocks_recomputed_tokens_total", "counter", "Tokens computed again after a preemption.",
        counters.recomputed_tokens,
    )  # fmt: skip
    yield labelled(
        "kvblocks_refused_allocations_total", "counter", "Allocations without room; every try counts.", "request",
        {"waiting": counters.waiting_refusals, "running": counters.running_refusals},
    )  # fmt: skip
    yield labelled(
        "kvblocks_refused_requests_total", "counter",
        "Requests that had to wait (no_room) or were turned away; once per reason.", "reason",
        {"no_room": 0, **counters.refused_requests},
    )  # fmt: skip
    yield single("kvblocks_resets_total", "counter", "Times that all content was forgotten.", counters.resets)
