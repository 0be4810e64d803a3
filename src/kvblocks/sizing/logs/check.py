"""What can be checked from a log alone: do its numbers fit one another, and does a known fault explain it if not?"""

from __future__ import annotations

from collections.abc import Iterator

from kvblocks.sizing.flags import GIB
from kvblocks.sizing.logs.check_memory import check_memory
from kvblocks.sizing.logs.check_refusal import check_refusals
from kvblocks.sizing.logs.facts import CacheSize, Override, StartupLog, lines_of
from kvblocks.sizing.logs.findings import (
    NULL_BLOCK_UNCHECKED,
    OLD_TOKENS,
    OVERRIDE_IGNORED,
    OVERRIDE_UNCHECKED,
    Finding,
    bytes_text,
    gib_text,
    tokens_text,
)
from kvblocks.sizing.logs.formula import HALF_CENT, Reading, blocks_of, has_several_groups, reading_of, spans_of


def check(log: StartupLog) -> list[Finding]:
    """What fits and what does not, by how much, and which known fault of vLLM explains it.

    Sizes are compared within the rounding of their lines, concurrencies within 0.005. What the log does not state is
    not checked: an empty list means that there was nothing to compare.
    """
    return [
        *check_memory(log),
        *(finding for cache in _distinct(log.caches) for finding in _blocks_against_concurrency(log, cache)),
        *_concurrency(log),
        *_override(log),
        *_schedulable(log),
        *_bytes_per_token(log),
        *check_refusals(log),
    ]


def _distinct(caches: tuple[CacheSize, ...]) -> Iterator[CacheSize]:
    """Caches that state blocks, without repeats of the numbers."""
    seen = set()
    for cache in caches:
        if cache.num_blocks and cache.concurrency and cache.length:
            key = (cache.num_blocks.value, cache.concurrency.value, cache.length.value)
            if key not in seen:
                seen.add(key)
                yield cache


def _blocks_against_concurrency(log: StartupLog, cache: CacheSize) -> Iterator[Finding]:
    """Blocks x block size / length = concurrency, in engines that print blocks."""
    if not (cache.num_blocks and cache.concurrency and cache.length) or cache.length.value < 1:
        return
    blocks, length, printed = cache.num_blocks.value, cache.length.value, cache.concurrency.value
    size = log.block_size or 16
    times = blocks * size / length
    fits = abs(times - printed) <= HALF_CENT
    sizes = [other for other in (8, 16, 32, 64, 128, 256) if abs(blocks * other / length - printed) <= HALF_CENT]
    text = f"{blocks:,} blocks x {size} / {length:,} = {times:.4f}, printed {printed:.2f}."
    if not fits and sizes:
        text += f" A block size of {sizes[0]} fits."
    yield Finding(
        "blocks and concurrency",
        "agrees" if fits or (sizes and not log.block_size) else "disagrees",
        text,
        {"num_blocks": blocks, "block_size_tokens": size, "computed": times, "printed": printed},
        cache.lines,
    )


def _concurrency(log: StartupLog) -> Iterator[Finding]:
    """Tokens, length and concurrency by the formulas that there were."""
    cache, reading = log.cache, reading_of(log)
    if reading is None or cache is None or not (cache.tokens and cache.concurrency and cache.length):
        return
    tokens, length, printed = cache.tokens.value, cache.length.value, cache.concurrency.value
    ratio = tokens / length
    numbers = {"tokens": tokens, "length_tokens": length, "printed": printed, "tokens_by_length": ratio}
    lines = cache.lines
    if reading.formula == "groups":
        of = "several groups"
        if reading.num_blocks:
            of = f"{reading.groups} groups ({reading.num_blocks:,} blocks, {reading.blocks_per_request} per request)"
        yield Finding(
            "tokens and concurrency",
            "agrees",
            f"{tokens_text(tokens)} / {length:,} = {ratio:.2f}, printed {printed:.2f}: they fit by the old formula for "
            f"{of}. Trust the concurrency: {printed:.2f} x {length:,} is about {tokens_text(printed * length)}.",
            {**numbers, "groups": reading.groups, "num_blocks": reading.num_blocks},
            lines,
            OLD_TOKENS,
        )
    elif reading.formula == "none":
        yield Finding("tokens and concurrency", "disagrees", _no_fit(log, tokens, length, printed), numbers, lines)
    else:
        yield Finding(
            "tokens and concurrency",
            "agrees",
            f"{tokens_text(tokens)} / {length:,} = {ratio:.4f}, printed {printed:.2f}.",
            numbers,
            lines,
        )
    if reading.formula == "concurrency" and (span := spans_of(log)[0]) and tokens % span:
        yield Finding(
            "whole blocks",
            "agrees",
            f"{tokens_text(tokens)} are no multiple of {span}: the figure is concurrency x length, as versions from "
            "0.21 print it, and not a number of blocks.",
            {"tokens": tokens, "block_size_tokens": span, "rest": tokens % span},
            lines,
        )


def _no_fit(log: StartupLog, tokens: int, length: int, printed: float) -> str:
    """By how much tokens and concurrency miss each other, in the units of the log."""
    span = next((span for span in spans_of(log) if tokens % span == 0), 1)
    ratio = tokens / length
    near = (printed + (HALF_CENT if ratio > printed else -HALF_CENT)) * length
    least = -(-abs(near - tokens) // span)
    text = f"{tokens_text(tokens)} / {length:,} = {ratio:.4f} would print {ratio:.2f}, not {printed:.2f}"
    if span > 1 and abs(ratio - printed) < 0.05:
        text += f"; {least:,.0f} block{'s' if least > 1 else ''} of {span} "
        text += "fewer would fit" if ratio > printed else "more would fit"
    text += ". No formula of any version gives both"
    if len({cache.tokens.value for cache in log.caches if cache.tokens}) > 1:
        return text + ": the lines may be of different ranks."
    return text + ": the lines may be of different starts, or of a changed engine."


def _override(log: StartupLog) -> Iterator[Finding]:
    """Whether the override took effect."""
    if log.override is None:
        return
    value: Override = log.override.value
    cache = log.cache
    tokens = cache.tokens.value if cache and cache.tokens else None
    lines = lines_of(log.override, cache.tokens if cache else None)
    numbers = {"profiled_blocks": value.profiled, "blocks": value.blocks, "tokens": tokens}
    if tokens is None or _formula(log) == "concurrency":
        return
    if any(value.blocks * span == tokens for span in spans_of(log)):
        yield Finding(
            "override and tokens",
            "agrees",
            f"{tokens_text(tokens)} are the override's {value.blocks:,} blocks.",
            numbers,
            lines,
        )
    elif any(value.profiled * span == tokens for span in spans_of(log)):
        yield Finding(
            "override and tokens",
            "disagrees",
            f"{tokens_text(tokens)} are the measured {value.profiled:,} blocks; the override's {value.blocks:,} would "
            f"be {tokens_text(value.blocks * spans_of(log)[0])}: it had no effect.",
            numbers,
            lines,
            OVERRIDE_IGNORED,
        )


def _formula(log: StartupLog) -> str | None:
    """The formula of the log's tokens, where they state one."""
    reading = reading_of(log)
    return reading.formula if reading else None


def _schedulable(log: StartupLog) -> Iterator[Finding]:
    """Whether a request of full length can ever run, now that the engine has started."""
    cache, reading = log.cache, reading_of(log)
    if cache is None or not (cache.concurrency and cache.length) or log.status != "ready":
        return
    length, printed = cache.length.value, cache.concurrency.value
    numbers = {"length_tokens": length, "concurrency": printed}
    bug = OVERRIDE_UNCHECKED if log.override else None
    if printed + HALF_CENT < 1:
        yield Finding(
            "longest request",
            "suspect",
            f"The cache holds {printed:.2f} of a request of {tokens_text(length)}, yet the engine started: a request "
            "of that length waits for ever. Lower max_model_len" + (" or raise the override." if bug else "."),
            numbers,
            cache.lines,
            bug,
        )
    elif _needs_all(reading, cache):
        yield Finding(
            "longest request",
            "suspect",
            f"One request of {tokens_text(length)} takes every block, and one of them is the null block, which no "
            "request can have: a request of full length waits for ever. Lower max_model_len by a block.",
            numbers,
            cache.lines,
            NULL_BLOCK_UNCHECKED,
        )


def _needs_all(reading: Reading | None, cache: CacheSize) -> bool:
    """Whether one request of full length needs exactly as many blocks as there are."""
    if reading is None or cache.tokens is None or cache.length is None:
        return False
    if reading.num_blocks is not None and reading.blocks_per_request is not None:
        return reading.num_blocks == reading.blocks_per_request
    return reading.formula == "concurrency" and cache.tokens.value == cache.length.value


def _bytes_per_token(log: StartupLog) -> Iterator[Finding]:
    """Memory over tokens, within the rounding of the memory's line."""
    cache, available, blocks = log.cache, log.available, blocks_of(log)
    if cache is None or available is None or available.value.gib <= 0 or log.override or log.status != "ready":
        return
    tokens, lines = cache.tokens.value if cache.tokens else 0, lines_of(available, cache.tokens, cache.num_blocks)
    size = available.value
    reading = reading_of(log)
    if has_several_groups(log) or (reading and reading.formula in ("concurrency", "groups")):
        if tokens:
            mean = size.gib * GIB / tokens
            text = (
                f"{gib_text(size)} / {tokens_text(tokens)} = {mean:,.0f} bytes, a mean over a request of full length "
                "and no price of a token: part of a request's memory does not grow with it."
            )
            numbers: dict[str, float] = {"mean_bytes": mean}
            if reading and reading.num_blocks:
                low = max(size.low_bytes, 0) / (reading.num_blocks + 1)
                high = size.high_bytes / reading.num_blocks
                text += f" A block of all groups takes {low:,.0f} to {high:,.0f} bytes."
                numbers |= {"low_bytes_per_block": low, "high_bytes_per_block": high}
            yield Finding("bytes per token", "says", text, numbers, lines)
        return
    if not blocks:
        return
    span = reading.span if reading and reading.span else spans_of(log)[0]
    low, high = max(size.low_bytes, 0) / (blocks + 1) / span, size.high_bytes / blocks / span
    ranks = log.context_parallel.value if log.context_parallel else 1
    low, high = low * ranks, high * ranks
    kib = list(range(-(-int(low) // 1024), int(high) // 1024 + 1)) if high - low < 4096 else []
    shown = f" ({kib[0]} KiB is {kib[0] * 1024:,})" if len(kib) == 1 else ""
    yield Finding(
        "bytes per token",
        "says",
        f"{gib_text(size)} / {blocks:,} blocks of {span} tokens: a token takes {low:,.0f} to {high:,.0f} bytes per "
        f"worker{shown}, a block about {bytes_text((low + high) / 2 * span / ranks)}. For plain attention that "
        "is 2 x layers x KV heads x head size x bytes of a value.",
        {"low_bytes": low, "high_bytes": high, "num_blocks": blocks, "block_size_tokens": span},
        lines,
    )
