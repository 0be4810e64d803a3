"""What would help: changes that the reasons suggest, each replayed before anything is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvblocks.explain.divergence import Rewritten, Template, Tokens
from kvblocks.explain.result import MATERIAL, Advice, Kind, ReasonShare
from kvblocks.explain.rewrite import OpenTrace, rewritten, without_salts
from kvblocks.observe import Reason
from kvblocks.replay import MAX_BLOCKS, ReplaySettings, RunResult

GROWTH = (1.5, 2.0, 4.0)
"""Larger caches that are tried."""
BLOCK_SIZES = (16, 64)
"""Smaller blocks that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Other flags for the same model in the same memory, as whoever knows the plan works them out."""

    words: str
    num_blocks: int
    settings: ReplaySettings
    reasons: tuple[Reason, ...]
    """Worth a try when one of these is material."""
    kind: Kind = "flags"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something to replay."""

    kind: Kind
    words: str
    num_blocks: int
    settings: ReplaySettings
    open_trace: OpenTrace
    simulated: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    def judge(self, run: RunResult, before: RunResult) -> Advice:
        """What the replay of this change found, beside that without it."""
        words = self.words
        if run.rejected < before.rejected:
            words += f", and {before.rejected - run.rejected:,} fewer requests rejected"
        return Advice(
            kind=self.kind,
            words=words,
            hit_rate=run.hit_rate,
            gain=run.hit_rate - before.hit_rate,
            hit_tokens=run.hit_tokens,
            prompt_tokens=run.prompt_tokens,
            num_blocks=run.num_blocks,
            block_size=run.block_size,
            simulated=self.simulated,
            details=self.details,
        )


def changes(
    open_trace: OpenTrace,
    num_blocks: int,
    settings: ReplaySettings,
    shares: Sequence[ReasonShare],
    templates: Sequence[Template],
    variants: Sequence[Variant],
) -> Iterator[Change]:
    """What to try, given where the misses come from."""
    material = {share.reason for share in shares if share.share >= MATERIAL}
    base: dict[str, Any] = {"num_blocks": num_blocks, "settings": settings, "open_trace": open_trace}
    for template in templates:
        yield from _prompt_changes(template, base)
    layout = settings.layout
    if layout is not None and not layout.enable_caching:
        caching = replace(settings, layout=replace(layout, enable_caching=True))
        yield Change(kind="caching", words="prefix caching on", **base | {"settings": caching})
    if "key_differs" in material:
        yield Change(
            kind="salt",
            words="the same cache_salt for all",
            simulated=True,
            **base | {"open_trace": without_salts(open_trace)},
        )
    if "partial_block" in material and layout is None:
        for size in BLOCK_SIZES:
            if size < settings.block_size:
                blocks = min((num_blocks - 1) * settings.block_size // size + 1, MAX_BLOCKS)
                smaller = replace(settings, block_size=size)
                words = f"block size {size} instead of {settings.block_size}"
                yield Change(kind="block_size", words=words, **base | {"num_blocks": blocks, "settings": smaller})
    for variant in variants:
        if material & set(variant.reasons):
            changed = {"num_blocks": variant.num_blocks, "settings": variant.settings}
            yield Change(kind=variant.kind, words=variant.words, **base | changed)
    if material & {"evicted", "preempted"}:
        for factor in GROWTH:
            blocks = round((num_blocks - 1) * factor) + 1
            if blocks <= MAX_BLOCKS:
                words = f"cache {factor:g}x larger ({blocks:,} blocks)"
                yield Change(kind="cache_size", words=words, **base | {"num_blocks": blocks})


def _prompt_changes(template: Template, base: dict[str, Any]) -> Iterator[Change]:
    open_trace: OpenTrace = base["open_trace"]
    details = {
        "position": template.position,
        "same_again_tokens": template.same_again_tokens,
        "differs_tokens": [len(gap) for gap in template.gaps],
    }
    cures: tuple[tuple[Kind, str, Callable[[Tokens], Rewritten | None]], ...] = (
        ("order", f"keep what follows token {template.position:,} in one order", template.ordered),
        (
            "move",
            f"move the part that differs at token {template.position:,} behind the {template.same_again_tokens:,} "
            "tokens after it that are the same",
            template.moved,
        ),
    )
    for kind, words, cure in cures:
        if kind == "order" and not template.has_list:
            continue
        yield Change(
            kind=kind,
            words=words,
            simulated=True,
            details=details,
            **base | {"open_trace": rewritten(open_trace, cure)},
        )


def ranked(tried: Sequence[Advice]) -> list[Advice]:
    """What gains at least half a point, the largest gain first.

    A larger cache that gains hardly more than a smaller one is left out, and of two cures for the same prompts the
    lesser.
    """
    kept: list[Advice] = []
    for advice in sorted(tried, key=lambda advice: (advice.num_blocks, -advice.gain)):
        same = [other for other in kept if _same(advice, other)]
        if advice.gain >= MATERIAL and all(advice.gain >= other.gain + MATERIAL for other in same):
            kept.append(advice)
    return sorted(kept, key=lambda advice: -advice.gain)


def _same(a: Advice, b: Advice) -> bool:
    """Whether they change the same thing."""
    prompts = {"move", "order"}
    if a.kind in prompts and b.kind in prompts:
        return bool(a.details["position"] == b.details["position"])
    return a.kind == b.kind and a.kind in ("cache_size", "block_size")
