"""Which formula gave the tokens of `KV cache size`: it depends on the version and on the number of cache groups.

With one group (all layers alike) the tokens are blocks x block size in every version. With several groups they were
`(blocks // groups) x the smallest block size` before 0.21, and are `int(concurrency x max_model_len)` since. The
concurrency is, in all versions since hybrid models exist, `blocks / blocks that one request of max_model_len needs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvblocks.sizing.logs.facts import StartupLog

Formula = Literal["one-group", "concurrency", "groups", "none"]
USUAL_BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that engines choose on their own, in the order in which they are tried."""

MAX_GROUPS = 32
_FAR = 0.05
"""Share by which tokens and concurrency must miss each other before several groups are taken to be the reason."""

HALF_CENT = 0.005 + 1e-9
"""Half a unit of a concurrency's last digit; both ends count, as halves are printed either way."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A formula that gives both the tokens and the concurrency, with what follows from it.

    `span` is the tokens of a block over all ranks that share a context. `num_blocks` includes the null block; for
    `concurrency`, and for `groups` where the block size is not stated, they are not known and None.
    `blocks_per_request` is for a request of full length.
    """

    formula: Formula
    span: int | None = None
    groups: int | None = None
    num_blocks: int | None = None
    blocks_per_request: int | None = None


def readings(
    tokens: int,
    length: int,
    concurrency: float,
    spans: tuple[int, ...],
    *,
    several: bool = False,
    stated: bool = True,
    old: bool = True,
    new: bool = True,
) -> Iterator[Reading]:
    """Every formula that fits, the simplest first.

    `several`: there is more than one group for sure. `stated`: the spans are those of the log and not the usual ones.
    `old` and `new` say which formulas the version may have used.
    """
    for span in spans:
        if tokens % span == 0 and not several:
            blocks, needed = tokens // span, -(-length // span)
            if abs(blocks / needed - concurrency) <= HALF_CENT:
                yield Reading("one-group", span, 1, blocks, needed)
    low, high = concurrency - HALF_CENT, concurrency + HALF_CENT
    if new and tokens / length <= high and (tokens + 1) / length > low:
        yield Reading("concurrency")
    if old and (several or abs(tokens / length / concurrency - 1) > _FAR):
        if stated:
            yield from _of_groups(tokens, length, concurrency, spans)
        elif tokens % spans[0] == 0:
            yield Reading("groups")


def _of_groups(tokens: int, length: int, concurrency: float, spans: tuple[int, ...]) -> Iterator[Reading]:
    """The numbers of groups with which the old formula fits, fewest first.

    One group must hold all tokens of a request, and each further group needs a block at least.
    """
    for span in spans:
        if tokens % span:
            continue
        for groups in range(2, MAX_GROUPS + 1):
            least = -(-length // span) + groups - 1
            for blocks in range(tokens // span * groups, (tokens // span + 1) * groups):
                needed = round(blocks / concurrency)
                if needed >= least and abs(blocks / needed - concurrency) <= HALF_CENT:
                    yield Reading("groups", span, groups, blocks, needed)
                    break


def spans_of(log: StartupLog) -> tuple[int, ...]:
    """Tokens of a block that the log allows, one at least: what it states, else the usual; over a context's ranks."""
    ranks = log.context_parallel.value if log.context_parallel else 1
    sizes = (log.block_size,) if log.block_size else USUAL_BLOCK_SIZES
    found = tuple(size * max(ranks, 1) for size in sizes if 0 < size * max(ranks, 1) < 1 << 40)
    return found or USUAL_BLOCK_SIZES


def has_several_groups(log: StartupLog) -> bool:
    """Whether lines of the log are only printed for models with more than one cache group."""
    return bool(log.layer_padding or log.mamba_padding) or any("mamba" in fact.text for fact in log.block_sizes)


def reading_of(log: StartupLog) -> Reading | None:
    """The simplest formula that fits the log's cache size; None when it does not state tokens and a concurrency."""
    cache = log.cache
    if cache is None or cache.tokens is None or cache.concurrency is None or cache.length is None:
        return None
    if cache.length.value < 1 or cache.concurrency.value <= 0:
        return None
    release = log.release
    found = readings(
        cache.tokens.value,
        cache.length.value,
        cache.concurrency.value,
        spans_of(log),
        several=has_several_groups(log),
        stated=log.block_size is not None,
        old=release is None or release < (0, 22),
        new=release is None or release >= (0, 20),
    )
    return next(found, Reading("none"))


def blocks_of(log: StartupLog) -> int | None:
    """The number of blocks, where the log states it or one group's tokens give it; the null block included."""
    cache = log.cache
    if cache is not None and cache.num_blocks is not None:
        return cache.num_blocks.value
    reading = reading_of(log)
    if reading is not None:
        return reading.num_blocks
    if cache is None or cache.tokens is None or log.block_size is None or has_several_groups(log):
        return None
    span = spans_of(log)[0]
    return cache.tokens.value // span if cache.tokens.value % span == 0 else None
