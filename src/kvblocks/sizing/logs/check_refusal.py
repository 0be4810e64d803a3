"""Checks of a refusal: do the needed and available sizes and the estimated length fit one another?"""

from __future__ import annotations

from collections.abc import Iterator

from kvblocks.sizing.flags import GIB
from kvblocks.sizing.logs.facts import Fact, Gib, Refusal, StartupLog, lines_of
from kvblocks.sizing.logs.findings import STAGES_UNCHECKED, Finding, gib_text, tokens_text


def check_refusals(log: StartupLog) -> Iterator[Finding]:
    """Each refusal that states sizes."""
    for fact in log.refusals:
        refusal = fact.value
        if refusal.kind == "length" and refusal.needed and refusal.available and refusal.max_model_len:
            yield from _length(log, fact)
        elif refusal.kind == "length-in-tokens" and refusal.capacity is not None and refusal.max_model_len is not None:
            yield Finding(
                "refusal",
                "agrees" if refusal.capacity < refusal.max_model_len else "disagrees",
                f"max_model_len {refusal.max_model_len:,} against {tokens_text(refusal.capacity)}.",
                {"max_model_len_tokens": refusal.max_model_len, "capacity_tokens": refusal.capacity},
                lines_of(fact),
            )
        elif refusal.kind == "free-memory" and refusal.needed and refusal.available:
            fits = refusal.available.low_bytes < refusal.needed.high_bytes
            yield Finding(
                "refusal",
                "agrees" if fits else "disagrees",
                f"{gib_text(refusal.available)} free against {gib_text(refusal.needed)} asked for.",
                {"free_gib": refusal.available.gib, "needed_gib": refusal.needed.gib},
                lines_of(fact),
            )


def _length(log: StartupLog, fact: Fact[Refusal]) -> Iterator[Finding]:
    """The refusal of a length."""
    refusal = fact.value
    needed, available = refusal.needed, refusal.available
    if not (needed and available):
        return
    if needed.high_bytes < available.low_bytes:
        yield Finding(
            "refusal",
            "disagrees",
            f"{gib_text(needed)} needed are less than the {gib_text(available)} available, yet it refused.",
            {"needed_gib": needed.gib, "available_gib": available.gib},
            lines_of(fact),
        )
    elif needed.gib - available.gib <= needed.half + available.half:
        yield Finding(
            "refusal",
            "agrees",
            f"{gib_text(needed)} needed and {gib_text(available)} available differ by less than their rounding; the "
            "null block counts as needed since vLLM reserves it, so one block can decide.",
            {"needed_gib": needed.gib, "available_gib": available.gib},
            lines_of(fact),
        )
    if refusal.estimated and needed.low_bytes > 0 and available.high_bytes > 0:
        yield _estimate(refusal, needed, available, fact)
    yield from _against_ranks(log, fact)
    stages = log.flags.pipeline_parallel_size
    release = log.release
    if stages > 1 and (release is None or (0, 14) <= release < (0, 16)):
        yield Finding(
            "pipeline stages",
            "suspect",
            f"With {stages} pipeline stages each needs only its own layers' share of {gib_text(needed)}: about "
            f"{needed.gib / stages:.2f} GiB if the layers are split evenly, against {gib_text(available)}. The longest "
            f"request may be {stages} times the estimate.",
            {"needed_gib": needed.gib, "stages": stages, "needed_per_stage_gib": needed.gib / stages},
            lines_of(fact),
            STAGES_UNCHECKED,
        )


def _estimate(refusal: Refusal, needed: Gib, available: Gib, fact: Fact[Refusal]) -> Finding:
    """Needed bytes at the full length and available bytes at the estimated one: a line through zero, or above it."""
    length, estimated = refusal.max_model_len or 1, refusal.estimated or 0
    slack = 256  # the estimate ends with a block, the needed size is of whole blocks
    low = max(available.low_bytes, 0) / needed.high_bytes * length - slack
    high = available.high_bytes / max(needed.low_bytes, 1) * length + slack
    numbers: dict[str, float] = {"length_tokens": length, "estimated_tokens": estimated, "low": low, "high": high}
    if low <= estimated <= high:
        per_token = needed.gib * GIB / length
        text = (
            f"{gib_text(needed)} / {length:,} = {per_token:,.0f} bytes per token and worker; {gib_text(available)} "
            f"then hold {available.gib * GIB / per_token:,.0f} tokens, printed {estimated:,}: memory grows in step "
            "with length."
        )
        return Finding("estimated length", "agrees", text, {**numbers, "bytes_per_token": per_token}, lines_of(fact))
    if estimated < low and needed.gib - available.gib < 10 * (needed.half + available.half):
        text = (
            f"{estimated:,} tokens is fewer than the {low:,.0f} that a fixed price per token would give: part of a "
            "request does not grow with it. The two sizes are too close to tell how much."
        )
        return Finding("estimated length", "agrees", text, numbers, lines_of(fact))
    if estimated < low and estimated < length:
        slope = max(needed.gib - available.gib, 0) * GIB / (length - estimated)
        fixed = needed.gib * GIB - slope * length
        text = (
            f"{estimated:,} tokens is fewer than the {low:,.0f} that a fixed price per token would give: about "
            f"{fixed / GIB:.2f} GiB of a request do not grow with it (states, windows, steps in flight), and each "
            f"further token takes about {slope:,.0f} bytes."
        )
        return Finding(
            "estimated length",
            "agrees",
            text,
            {**numbers, "fixed_bytes": fixed, "bytes_per_token": slope},
            lines_of(fact),
        )
    text = (
        f"{estimated:,} tokens is more than the {high:,.0f} that {gib_text(available)} can hold at {gib_text(needed)} "
        f"for {length:,}: the figures are not of the same refusal."
    )
    return Finding("estimated length", "disagrees", text, numbers, lines_of(fact))


def _against_ranks(log: StartupLog, fact: Fact[Refusal]) -> Iterator[Finding]:
    """The refusal's available memory and the one that workers print."""
    printed, refused = log.available, fact.value.available
    if printed is None or refused is None:
        return
    gap = printed.value.gib - refused.gib
    slack = printed.value.half + refused.half
    numbers = {"printed_gib": printed.value.gib, "refused_gib": refused.gib}
    lines = lines_of(printed, fact)
    if abs(gap) <= slack + 1e-9:
        text, verdict = f"The refusal's {gib_text(refused)} are what a worker printed.", "agrees"
    elif log.override:
        text, verdict = f"The refusal's {gib_text(refused)} are those of the override's blocks.", "agrees"
    elif gap > 0:
        text = (
            f"The refusal's {gib_text(refused)} are {gap:.2f} GiB less than the {gib_text(printed.value)} that a "
            "worker printed: the null block (one block, since vLLM reserves it), or another worker that has less."
        )
        verdict = "agrees"
    else:
        text = (
            f"The refusal's {gib_text(refused)} are {-gap:.2f} GiB more than the {gib_text(printed.value)} that a "
            "worker printed: they are not of the same start."
        )
        verdict = "disagrees"
    yield Finding("available in the refusal", verdict, text, numbers, lines)  # type: ignore[arg-type]
