"""A step as arrays: which tokens, at which positions, and where each layer group reads and writes.

Built once per step; the layers of a group share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_BUCKET_NUMBERS = 8 * 2**20
"""Numbers of keys and values that are gathered at once, at most, unless one request has more."""
QUERY_TILE = 128
"""Queries of a prompt that are multiplied with their keys at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one request in a step: rows [start, end) of the batch."""

    start: int
    end: int
    computed: int
    """Tokens of the request before them, which are in the cache."""
    tables: tuple[Sequence[int], ...]
    """Its block tables, one per group."""

    @property
    def total(self) -> int:
        """Tokens of the request up to the end of the span."""
        return self.computed + self.end - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """What one forward pass computes."""

    tokens: Ints
    positions: Ints
    spans: Sequence[Span]
    logit_rows: Ints
    """Rows whose logits are wanted."""

    @classmethod
    def of(cls, tokens: Sequence[int], spans: Sequence[Span], logit_rows: Sequence[int]) -> Batch:
        positions = np.concatenate([np.arange(span.computed, span.total) for span in spans])
        return cls(np.array(tokens, np.int64), positions, spans, np.array(logit_rows, np.int64))


@dataclass(frozen=True, slots=True)
class Reach:
    """What one request reads: its tokens [first, end), in these blocks."""

    first: int
    """A multiple of the block size."""
    end: int
    blocks: Ints | slice
    """A slice where the numbers are consecutive: then nothing needs to be copied."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests of one token each, whose keys are gathered together. Shorter ones are padded with the null block."""

    rows: Ints
    tables: Ints
    """[requests, blocks]"""
    valid: Bools
    """[requests, slots]: what each may read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one request, or one token of a request that is read alone."""

    span: Span
    reach: Reach
    window: int | None

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """(first row, end row, first token, end token): queries and the tokens that they read, left to right."""
        for start in range(self.span.start, self.span.end, QUERY_TILE):
            end = min(start + QUERY_TILE, self.span.end)
            position = self.span.computed + start - self.span.start
            first = 0 if self.window is None else max(0, position - self.window + 1)
            yield start, end, max(first, self.reach.first), position + end - start


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the attention layers of a group read and write in a step."""

    blocks: Ints
    """Per row of the batch, the block that its key and value go to, and the slot in it."""
    offsets: Ints
    buckets: list[Bucket]
    chunks: list[Chunk]


def plan_attention(
    batch: Batch, group: int, block_size: int, window: int | None, numbers_per_slot: int
) -> AttentionPlan:
    """The plan of a group. `numbers_per_slot` are those of keys and values of one token and layer."""
    blocks = np.empty(len(batch.tokens), np.int64)
    singles: list[Chunk] = []
    chunks: list[Chunk] = []
    for span in batch.spans:
        table = np.array(span.tables[group], np.int64)
        blocks[span.start : span.end] = table[batch.positions[span.start : span.end] // block_size]
        low = 0 if window is None else max(0, span.computed - window + 1) // block_size
        reach = Reach(low * block_size, span.total, _as_slice(table[low : -(-span.total // block_size)]))
        chunk = Chunk(span, reach, window)
        (singles if span.end - span.start == 1 else chunks).append(chunk)
    buckets: list[Bucket] = []
    for run in _alike(singles, numbers_per_slot):
        if len(run) == 1:
            chunks.append(run[0])
        else:
            buckets.append(_bucket(run, block_size))
    return AttentionPlan(blocks, batch.positions % block_size, buckets, chunks)


def _as_slice(blocks: Ints) -> Ints | slice:
    first, count = int(blocks[0]), len(blocks)
    if int(blocks[-1]) - first == count - 1 and (count < 3 or bool((np.diff(blocks) == 1).all())):
        return slice(first, first + count)
    return blocks


def _alike(singles: list[Chunk], numbers_per_slot: int) -> Iterator[list[Chunk]]:
    """Runs of requests whose reach is about as long, so that little is padded and not too much gathered."""
    singles = sorted(singles, key=lambda chunk: chunk.reach.first - chunk.reach.end)  # the longest first
    run: list[Chunk] = []
    longest = 0
    for chunk in singles:
        length = chunk.reach.end - chunk.reach.first
        if run and (length * 2 < longest or (len(run) + 1) * longest * numbers_per_slot > MAX_BUCKET_NUMBERS):
            yield run
            run = []
        if not run:
            longest = length
        run.append(chunk)
    if run:
        yield run


def _bucket(run: list[Chunk], block_size: int) -> Bucket:
    tables = []
    for chunk in run:
        blocks = chunk.reach.blocks
        tables.append(np.arange(blocks.start, blocks.stop) if isinstance(blocks, slice) else blocks)
    padded = np.zeros((len(run), max(map(len, tables))), np.int64)
    valid = np.zeros((len(run), padded.shape[1] * block_size), np.bool_)
    for i, (chunk, table) in enumerate(zip(run, tables, strict=True)):
        padded[i, : len(table)] = table
        reach = chunk.reach
        low = 0 if chunk.window is None else max(0, chunk.span.computed - chunk.window + 1) - reach.first
        valid[i, low : reach.end - reach.first] = True
    return Bucket(np.array([chunk.span.start for chunk in run]), padded, valid)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Where the state layers of a group read and write: per span, the block it goes on from (None: from nothing)."""

    sources: list[int | None]
    targets: list[int]


def plan_states(batch: Batch, group: int, block_size: int) -> StatePlan:
    """The state before token n is at position (n - 1) // block_size of the table."""
    sources, targets = [], []
    for span in batch.spans:
        table = span.tables[group]
        sources.append(int(table[(span.computed - 1) // block_size]) if span.computed else None)
        targets.append(int(table[(span.total - 1) // block_size]))
    return StatePlan(sources, targets)
