"""Hit rate against cache size: from one pass where a cache has one group, from replays where it has several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from kvblocks.explain.result import CurvePoint, SizeCurve
from kvblocks.explain.rewrite import OpenTrace
from kvblocks.kinds import FullAttentionSpec
from kvblocks.replay import MAX_BLOCKS, ReplaySettings
from kvblocks.replay.chains import Chains
from kvblocks.replay.clairvoyant import clairvoyant_hits
from kvblocks.replay.content import TraceHasher
from kvblocks.replay.curve import lru_hits

FLAT = 0.01
"""A hit rate within a point of the most is as good as it."""
STEPS = 4
"""Sizes on the curve for each doubling."""


def has_chains(settings: ReplaySettings) -> bool:
    """Whether hits depend on chains of blocks alone: one group that keeps every token, and no draft head."""
    layout = settings.layout
    if layout is None:
        return True
    return (
        len(layout.groups) == 1
        and type(layout.groups[0]) is FullAttentionSpec
        and layout.enable_caching
        and not layout.use_eagle
    )


def read_chains(open_trace: OpenTrace, settings: ReplaySettings) -> Chains:
    """The chains of the prompts that the settings admit, whatever the cache's size."""
    size = settings.hash_block_size
    hasher = TraceHasher(size, settings.hash_algorithm)
    chains = Chains(size)
    most = settings.max_model_len
    for request in islice(open_trace(), settings.limit):
        if most is None or request.num_prompt_tokens <= most:
            chains.touch(hasher.prompt(request).hashes, request.num_prompt_tokens, request.num_output_tokens)
    return chains


def curve_of(chains: Chains, num_blocks: int, replayed: Mapping[int, float], *, outputs: bool) -> SizeCurve:
    """The curve from the smallest cache that every prompt fits to the one that never evicts.

    num_blocks: a size that the curve shall have.
    replayed: hit rates of serial replays by size, which the curve is checked against.
    """
    smallest, largest = chains.smallest, max(chains.largest, chains.smallest)
    most = chains.prompt_tokens or 1
    steps = _steps(smallest, largest)
    wanted = {size for size in (num_blocks, *replayed) if smallest <= size <= largest}
    found = lru_hits(chains, [*steps, *wanted], outputs=outputs)
    rates = {size: hits / most for size, hits in zip(found.sizes, found.hit_tokens, strict=True)}
    unbounded = found.unbounded_hit_tokens / most
    flat = next((size for size, rate in rates.items() if rate >= unbounded - FLAT), None)
    points: list[CurvePoint] = []
    for i, (size, rate) in enumerate(rates.items()):
        # A smaller cache that already hits most says what larger ones do.
        known = points[-1].clairvoyant if points and points[-1].clairvoyant == unbounded else None
        best = known if known is not None else clairvoyant_hits(chains, size, outputs=outputs) / most
        points.append(CurvePoint(num_blocks=size, hit_rate=rate, clairvoyant=max(best, rate)))
        if flat is not None and size > 2 * flat and size >= num_blocks and i < len(rates) - 1 and size not in wanted:
            break
    checks = tuple((size, rates[size], rate) for size, rate in sorted(replayed.items()) if size in rates)
    return SizeCurve(method="one pass", points=tuple(points), unbounded=unbounded, flat_from=flat, checks=checks)


def replayed_curve(replayed: Mapping[int, float]) -> SizeCurve:
    """A curve of replays alone, for caches whose hits depend on more than chains."""
    points = tuple(CurvePoint(num_blocks=size, hit_rate=rate) for size, rate in sorted(replayed.items()))
    top = points[-1].hit_rate
    flat = next(point.num_blocks for point in points if point.hit_rate >= top - FLAT)
    return SizeCurve(
        method="replays",
        points=points,
        unbounded=None,
        flat_from=flat if flat < points[-1].num_blocks else None,
    )


def _steps(smallest: int, largest: int) -> Iterable[int]:
    """Sizes in equal ratios, both ends included."""
    size: float = smallest
    while size < largest and size < MAX_BLOCKS:
        yield round(size)
        size *= 2 ** (1 / STEPS)
    yield largest
