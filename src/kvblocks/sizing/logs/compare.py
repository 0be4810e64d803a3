"""The figures of a log beside those of a plan, within the rounding of the log's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvblocks.sizing.flags import GIB
from kvblocks.sizing.logs.facts import Fact, Refusal, StartupLog, lines_of
from kvblocks.sizing.logs.findings import OLD_TOKENS, STAGES_UNCHECKED, Finding, bytes_text, gib_text
from kvblocks.sizing.logs.formula import HALF_CENT, MAX_GROUPS


class PlanFacts(Protocol):
    """What of a plan is compared. None means that the plan has no such figure (it refuses, say).

    `bytes_per_block` and `needed_bytes_max_len` are one number, or one per pipeline stage. `available_bytes` is of one
    worker, with the null block or without (a plan's `memory_bytes` goes before it); `num_blocks` counts the null block.
    """

    @property
    def num_blocks(self) -> int | None: ...
    @property
    def tokens(self) -> int | None: ...
    @property
    def max_concurrency(self) -> float | None: ...
    @property
    def block_size(self) -> int | None: ...
    @property
    def bytes_per_block(self) -> int | Sequence[int] | None: ...
    @property
    def available_bytes(self) -> int | None: ...
    @property
    def needed_bytes_max_len(self) -> int | Sequence[int] | None: ...
    @property
    def estimated_max_model_len(self) -> int | None: ...
    @property
    def max_model_len(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNumbers:
    """`PlanFacts` as plain data."""

    num_blocks: int | None = None
    tokens: int | None = None
    max_concurrency: float | None = None
    block_size: int | None = None
    bytes_per_block: int | Sequence[int] | None = None
    available_bytes: int | None = None
    needed_bytes_max_len: int | Sequence[int] | None = None
    estimated_max_model_len: int | None = None
    max_model_len: int | None = None


def compare_with_plan(log: StartupLog, facts: PlanFacts) -> list[Finding]:
    """Where the log and a plan agree and where they do not.

    Where the log states memory, the plan's blocks are taken for all sizes that are printed like it; so a plan that was
    made from an estimate, or from the printed figure itself, is compared by its geometry and not by its memory.
    """
    found = [*_length(log, facts), *_block_size(log, facts), *_available(log, facts)]
    same_length = not any(f.topic == "length" and f.verdict == "disagrees" for f in found)
    return [*found, *_cache(log, facts, same_length), *_refusals(log, facts)]


def _length(log: StartupLog, facts: PlanFacts) -> Iterator[Finding]:
    if log.max_model_len is None or facts.max_model_len is None or facts.max_model_len < 0:
        return
    printed = log.max_model_len.value
    same = printed == facts.max_model_len
    yield Finding(
        "length",
        "agrees" if same else "disagrees",
        f"max_model_len is {printed:,} in the log and {facts.max_model_len:,} in the plan"
        + ("." if same else ": what depends on it is not compared. Give the plan the log's length."),
        {"log_tokens": printed, "plan_tokens": facts.max_model_len},
        lines_of(log.max_model_len),
    )


def _block_size(log: StartupLog, facts: PlanFacts) -> Iterator[Finding]:
    # Other lines, and the argument, are of one kind of layer; a plan's block size is the least of all kinds.
    aligned = [fact for fact in log.block_sizes if "mamba" in fact.text]
    if not aligned or facts.block_size is None:
        return
    printed = aligned[-1].value
    same = printed == facts.block_size
    yield Finding(
        "block size",
        "agrees" if same else "disagrees",
        f"A block has {printed} tokens in the log and {facts.block_size} in the plan"
        + ("." if same else ": the state's dtype, the cache's dtype or the attention backend differ."),
        {"log_tokens": printed, "plan_tokens": facts.block_size},
        lines_of(aligned[-1]),
    )


def _available(log: StartupLog, facts: PlanFacts) -> Iterator[Finding]:
    printed = log.available
    planned = getattr(facts, "memory_bytes", None) or facts.available_bytes
    if printed is None or planned is None:
        return
    gap = planned / GIB - printed.value.gib
    same = printed.value.contains(planned)
    share = f" ({abs(gap) / printed.value.gib:.1%})" if printed.value.gib > 0 else ""
    yield Finding(
        "available",
        "agrees" if same else "disagrees",
        f"{gib_text(printed.value)} for the cache in the log, {bytes_text(planned)} in the plan"
        + ("." if same else f": {abs(gap):.2f} GiB{share} {'more' if gap > 0 else 'less'}."),
        {"log_gib": printed.value.gib, "plan_bytes": planned},
        lines_of(printed),
    )


def _cache(log: StartupLog, facts: PlanFacts, same_length: bool) -> Iterator[Finding]:
    """Blocks, tokens and concurrency."""
    cache, span = log.cache, _bytes_per_block(facts)
    blocks = _blocks(log, facts)
    if cache is None or blocks is None:
        return
    low, high = blocks
    lines = tuple(sorted({*cache.lines, *lines_of(log.available)}))
    if cache.num_blocks:
        yield _within("blocks", cache.num_blocks, low, high, lines)
    elif log.override and span:
        profiled = Fact(log.override.value.profiled, log.override.line, log.override.text)
        if log.available:
            measured = log.available.value
            yield _within(
                "measured blocks", profiled, _count(measured.low_bytes, span), _count(measured.high_bytes, span), lines
            )
    if not facts.num_blocks or not facts.max_concurrency:
        return
    needed = facts.num_blocks / facts.max_concurrency
    if cache.tokens and same_length:
        yield _tokens(log, facts, cache.tokens, needed, blocks)
    if cache.concurrency and same_length:
        printed = cache.concurrency.value
        least, most = low / needed - HALF_CENT, high / needed + HALF_CENT
        fits = least <= printed <= most
        yield Finding(
            "concurrency",
            "agrees" if fits else "disagrees",
            f"{printed:.2f} in the log; {low:,} to {high:,} blocks at {needed:,.1f} per request give "
            f"{low / needed:.2f} to {high / needed:.2f}.",
            {"log": printed, "low": low / needed, "high": high / needed},
            lines,
        )


def _bytes_per_block(facts: PlanFacts) -> int | None:
    """Bytes of a block of the stage that has the most: it has the fewest blocks."""
    return max(_stages(facts.bytes_per_block), default=0) or None


def _stages(given: int | Sequence[int] | None) -> tuple[int, ...]:
    """A figure of each pipeline stage."""
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def _blocks(log: StartupLog, facts: PlanFacts) -> tuple[int, int] | None:
    """The fewest and the most blocks that the log's memory gives with the plan's bytes per block."""
    size = _bytes_per_block(facts)
    if log.override is not None:
        return log.override.value.blocks, log.override.value.blocks
    if log.available is not None and size:
        return _count(log.available.value.low_bytes, size), _count(log.available.value.high_bytes, size)
    return (facts.num_blocks, facts.num_blocks) if facts.num_blocks else None


def _count(num_bytes: float, size: int) -> int:
    return max(int(num_bytes // size), 0)


def _within(topic: str, fact: Fact[int], low: int, high: int, lines: tuple[int, ...]) -> Finding:
    """A number of blocks against a range."""
    fits = low <= fact.value <= high
    gap = low - fact.value if fact.value < low else fact.value - high
    return Finding(
        topic,
        "agrees" if fits else "disagrees",
        f"{fact.value:,} in the log; the plan gives {low:,}"
        + (f" to {high:,}" if high > low else "")
        + ("." if fits else f": {gap:,} {'fewer' if fact.value < low else 'more'}."),
        {"log": fact.value, "low": low, "high": high},
        lines,
    )


def _tokens(log: StartupLog, facts: PlanFacts, tokens: Fact[int], needed: float, blocks: tuple[int, int]) -> Finding:
    """Tokens by the formula of today, and by the old one for several groups."""
    length = facts.max_model_len or 1
    ranks = log.context_parallel.value if log.context_parallel else 1
    span = (facts.block_size or 16) * ranks
    low, high = blocks
    ranges = {"concurrency": (int(low / needed * length), int(high / needed * length))}
    if needed * span >= length and (needed - 1) * span < length:  # one group: blocks x block size, in every version
        ranges["one-group"] = (low * span, high * span)
    given = getattr(facts, "groups", None)
    counts = [len(given)] if isinstance(given, Sequence) and given else range(2, MAX_GROUPS + 1)
    value = tokens.value
    lines = lines_of(tokens, log.available)
    numbers: dict[str, object] = {"log": value, "low": ranges["concurrency"][0], "high": ranges["concurrency"][1]}
    for formula, (least, most) in ranges.items():
        if least <= value <= most:
            return Finding(
                "tokens",
                "agrees",
                f"{value:,} in the log; the plan gives {least:,}" + (f" to {most:,}." if most > least else "."),
                {**numbers, "low": least, "high": most, "formula": formula},
                lines,
            )
    if (log.release is None or log.release < (0, 22)) and "one-group" not in ranges:
        for count in counts:
            if value % span == 0 and low // count * span <= value <= high // count * span:
                text = f"{value:,} in the log fit the plan with the old formula for {count} groups."
                return Finding("tokens", "agrees", text, {**numbers, "groups": count}, lines, OLD_TOKENS)
    least, most = ranges.get("one-group", ranges["concurrency"])
    fewer = value < least
    gap = least - value if fewer else value - most
    text = f"{value:,} in the log; the plan gives {least:,} to {most:,}: {gap:,} ({gap / max(value, 1):.1%}) "
    text += "fewer in the log." if fewer else "more in the log."
    size = _bytes_per_block(facts)
    workers = log.flags.tensor_parallel_size * log.flags.pipeline_parallel_size
    if fewer and size and log.available and not log.override:
        implied = value / length * needed * size / GIB
        text += f" They are what {implied:.2f} GiB give"
        text += ": a worker that does not print its memory may have had less." if workers > 1 else "."
        numbers["implied_gib"] = implied
    return Finding("tokens", "disagrees", text, {**numbers, "low": least, "high": most}, lines)


def _refusals(log: StartupLog, facts: PlanFacts) -> Iterator[Finding]:
    for fact in log.refusals:
        if fact.value.kind == "length" and fact.value.needed and fact.value.max_model_len == facts.max_model_len:
            yield from _refusal(log, facts, fact)


def _refusal(log: StartupLog, facts: PlanFacts, fact: Fact[Refusal]) -> Iterator[Finding]:
    """Needed bytes and the estimated length of a refusal."""
    refusal = fact.value
    needed, available, lines = refusal.needed, refusal.available, lines_of(fact)
    size = _bytes_per_block(facts)
    stages = _stages(facts.needed_bytes_max_len)
    if needed and stages:
        fits = any(needed.contains(stage) for stage in stages)
        together = len(stages) > 1 and abs(sum(stages) / GIB - needed.gib) <= needed.half * (len(stages) + 1)
        shown = " and ".join(bytes_text(stage) for stage in stages)
        text = f"{gib_text(needed)} for one request in the log, {shown} in the plan"
        if not fits and together:
            text += f": the log's figure is of all {len(stages)} pipeline stages together."
        elif not fits:
            text += f": {abs(needed.gib - max(stages) / GIB):.2f} GiB apart."
        yield Finding(
            "needed",
            "agrees" if fits else "disagrees",
            text if not fits else f"{text}.",
            {"log_gib": needed.gib, "plan_bytes": stages},
            lines,
            STAGES_UNCHECKED if together and not fits else None,
        )
    if (
        available
        and refusal.estimated
        and facts.estimated_max_model_len is not None
        and facts.available_bytes is not None
    ):
        block, span = size or 0, facts.block_size or 16
        near = available.low_bytes - block - 1 <= facts.available_bytes <= available.high_bytes + block + 1
        if not near or not size:
            return
        slack = (2 * available.half * GIB / size + 2) * span  # one block may be the null block
        gap = refusal.estimated - facts.estimated_max_model_len
        yield Finding(
            "estimated length",
            "agrees" if abs(gap) <= slack else "disagrees",
            f"{refusal.estimated:,} tokens fit by the log, {facts.estimated_max_model_len:,} by the plan (rounding of "
            f"the memory explains up to {slack:,.0f}).",
            {"log_tokens": refusal.estimated, "plan_tokens": facts.estimated_max_model_len, "slack_tokens": slack},
            lines,
        )
