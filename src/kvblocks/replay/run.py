"""Run a trace through the cache at one or several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kvblocks.errors import TraceError, UsageError
from kvblocks.replay.content import TraceHasher
from kvblocks.replay.prefixes import SharedPrefixes
from kvblocks.replay.request import ReplayRequest
from kvblocks.replay.result import RunResult
from kvblocks.replay.reuse import ReuseDistances
from kvblocks.replay.serial import SerialRun
from kvblocks.replay.settings import ReplaySettings
from kvblocks.replay.timed import TimedRun
from kvblocks.traces import TraceRequest

MAX_BLOCKS = 2**26
"""The largest cache: its bookkeeping takes about 5 GiB. More than that is a slip of the pen."""


@dataclass(slots=True)
class Replay:
    """The runs, one per cache size in ascending order, and what the trace itself looks like."""

    settings: ReplaySettings
    runs: list[RunResult] = field(default_factory=list)
    num_read: int = 0
    """Requests read from the trace."""
    interrupted: bool = False
    not_run: list[int] = field(default_factory=list)
    """Sizes that an interrupted replay did not come to."""
    reuse: ReuseDistances | None = None
    prefixes: SharedPrefixes | None = None

    def to_dict(self, *, series: bool = False) -> dict[str, Any]:
        """Plain data for JSON; with `series` also what a report draws."""
        settings = self.settings
        data: dict[str, Any] = {
            "settings": {
                "mode": settings.mode,
                "block_size": settings.block_size,
                "model": None if settings.layout is None else settings.layout.name,
                "outputs": settings.outputs,
                "hash_algorithm": settings.hash_algorithm,
                "limit": settings.limit,
            },
            "interrupted": self.interrupted,
            "not_run": self.not_run,
            "runs": [
                run.to_dict(series=series) | {"capacity_tokens": int((run.num_blocks - 1) * settings.tokens_per_block)}
                for run in self.runs
            ],
        }
        if not settings.serial:
            scheduler, cost = settings.scheduler, settings.cost
            data["settings"] |= {
                "max_num_batched_tokens": scheduler.max_num_batched_tokens,
                "max_num_seqs": scheduler.max_num_seqs,
                "chunked_prefill": scheduler.chunked_prefill,
                "scheduling_policy": scheduler.policy,
                "watermark": settings.watermark,
                "prefill_tokens_per_s": cost.prefill_tokens_per_s,
                "decode_step_s": cost.decode_step_s,
            }
        if series and self.reuse is not None:
            data["reuse"] = self.reuse.to_dict()
        if series and self.prefixes is not None:
            data["prefixes"] = self.prefixes.to_list()
        return data


def replay(
    open_trace: Callable[[], Iterable[TraceRequest]],
    sizes: Sequence[int],
    settings: ReplaySettings,
    *,
    analyse: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Replay a trace at each of `sizes` (blocks of the pool, the null block included).

    `open_trace` gives the requests from the start, each time it is called: once for a serial replay, once per size for
    a timed one. `analyse` also measures reuse distances and shared prefixes, for the report. `on_progress(run, done)`
    is called now and then with the number of the run and the requests done in it. A KeyboardInterrupt ends the replay
    with what is known so far.

    Raises UsageError for a size without a usable block, TraceError for a trace without requests.
    """
    if not sizes:
        raise UsageError("no cache size is given; name at least one number of blocks")
    for size in sizes:
        if size < 2:
            raise UsageError(f"num_blocks={size}: the null block is one of them, so a cache needs at least 2")
        if size > MAX_BLOCKS:
            raise UsageError(
                f"num_blocks={size}: the bookkeeping of so many blocks fits no memory; give at most {MAX_BLOCKS}, or "
                "larger blocks"
            )
    ordered = sorted(set(sizes))
    found = Replay(settings)
    if analyse:
        found.prefixes = SharedPrefixes(settings.hash_block_size)
        if settings.layout is None or len(settings.layout.groups) == 1:
            found.reuse = ReuseDistances()  # in blocks, which is what a cache holds where there is one group
    try:
        if settings.serial:
            _replay_serial(found, open_trace, ordered, on_progress)
        else:
            _replay_timed(found, open_trace, ordered, on_progress)
    except KeyboardInterrupt:
        found.interrupted = True
    found.interrupted = found.interrupted or any(run.interrupted for run in found.runs)
    if found.interrupted:
        found.runs = [run for run in found.runs if run.requests or run.rejected]
        found.not_run = [size for size in ordered if all(run.num_blocks != size for run in found.runs)]
    if not found.num_read and not found.interrupted:
        raise TraceError("trace", "there is no request to replay")
    return found


def _requests(
    found: Replay, open_trace: Callable[[], Iterable[TraceRequest]], *, first: bool
) -> Iterator[ReplayRequest]:
    """The requests of the trace, hashed; the first pass also counts and analyses."""
    settings = found.settings
    hasher = TraceHasher(settings.hash_block_size, settings.hash_algorithm)
    arrival_s = 0.0
    for number, recorded in enumerate(islice(open_trace(), settings.limit)):
        if recorded.timestamp_s is not None:  # a request without a time comes with the one before it
            arrival_s = recorded.timestamp_s
        request = ReplayRequest(number, recorded, hasher, arrival_s)
        if first:
            found.num_read += 1
            if found.reuse is not None:
                found.reuse.touch(request.block_hashes)
            if found.prefixes is not None:
                found.prefixes.touch(request.block_hashes)
        yield request


def _replay_serial(
    found: Replay,
    open_trace: Callable[[], Iterable[TraceRequest]],
    sizes: Sequence[int],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """All sizes side by side: a request is hashed once and fed to each."""
    runs = [SerialRun(size, found.settings) for size in sizes]
    found.runs = [run.result for run in runs]
    try:
        for request in _requests(found, open_trace, first=True):
            for run in runs:
                run.feed(request)
            if on_progress is not None and not found.num_read % 32:
                on_progress(0, found.num_read)
    finally:
        for run in runs:
            run.finish()


def _replay_timed(
    found: Replay,
    open_trace: Callable[[], Iterable[TraceRequest]],
    sizes: Sequence[int],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    for number, size in enumerate(sizes):
        run = TimedRun(size, found.settings)
        found.runs.append(run.result)

        def tell(done: int, number: int = number) -> None:
            if on_progress is not None:
                on_progress(number, done)

        run.run(_requests(found, open_trace, first=number == 0), tell)
        if run.result.interrupted:
            return
