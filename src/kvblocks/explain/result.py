"""What an explanation says, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvblocks.observe import REASONS, Reason
from kvblocks.replay import RunResult, StepCost

MATERIAL = 0.005
"""Half a point of hit rate: what gains less is not worth advice."""

Kind = Literal["cache_size", "block_size", "move", "order", "salt", "caching", "flags"]
"""Of advice: what is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change, and what a replay with it found. `simulated` means that the prompts of the trace were rewritten."""

    kind: Kind
    words: str
    hit_rate: float
    gain: float
    """Hit rate with the change less that without it."""
    hit_tokens: int
    prompt_tokens: int
    num_blocks: int
    block_size: int
    simulated: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """`cache 1.5x larger: +9.1 points`."""
        return f"{self.words}: {100 * self.gain:+.1f} points" + (" (simulated)" if self.simulated else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "words": self.words,
            "line": self.line,
            "gain_points": 100 * self.gain,
            "hit_rate": self.hit_rate,
            "hit_tokens": self.hit_tokens,
            "prompt_tokens": self.prompt_tokens,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "simulated": self.simulated,
            "details": self.details,
        }


@dataclass(frozen=True, slots=True)
class Side:
    """A request's text where it parts from another's."""

    request: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Misses at one place of one prefix."""

    reason: Reason
    start: int
    """The token at which they begin; where that varies, the smallest, and `last_start` the largest."""
    last_start: int
    requests: int
    tokens: int
    gpu_s: float
    same_again_tokens: int = 0
    """Tokens of each that are the same in all again after what differs."""
    shared_text: str = ""
    """The end of what is shared, when the trace has text."""
    sides: tuple[Side, ...] = ()
    """What follows, in two of the requests."""
    more_blocks: int | None = None
    """Of evicted content: so many more blocks would have kept it for half of the requests."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "start": self.start,
            "last_start": self.last_start,
            "requests": self.requests,
            "tokens": self.tokens,
            "gpu_s": self.gpu_s,
            "same_again_tokens": self.same_again_tokens,
            "shared_text": self.shared_text,
            "sides": [{"request": side.request, "text": side.text} for side in self.sides],
            "more_blocks": self.more_blocks,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    num_blocks: int
    hit_rate: float
    clairvoyant: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCurve:
    """Hit rate against cache size, in a serial replay."""

    method: Literal["one pass", "replays"]
    points: tuple[CurvePoint, ...]
    unbounded: float | None
    """The hit rate of a cache that never evicts; None where it is not known."""
    flat_from: int | None
    """From so many blocks on the hit rate is within a point of the unbounded cache's, or the largest size's."""
    checks: tuple[tuple[int, float, float], ...] = ()
    """Blocks, the curve's hit rate there, and a replay's."""

    @property
    def largest_error(self) -> float:
        """The largest difference between the curve and the replays."""
        return max((abs(curve - replayed) for _, curve, replayed in self.checks), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "unbounded": self.unbounded,
            "flat_from": self.flat_from,
            "points": [
                {"num_blocks": p.num_blocks, "hit_rate": p.hit_rate, "clairvoyant": p.clairvoyant} for p in self.points
            ],
            "checks": [
                {"num_blocks": blocks, "curve": curve, "replay": replayed} for blocks, curve, replayed in self.checks
            ],
            "largest_error": self.largest_error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonShare:
    """One reason's part of all prompt tokens."""

    reason: Reason
    tokens: int
    share: float
    gpu_s: float
    ttft_adds_s: dict[str, float]
    """By how much each figure of the time to first token would fall if these tokens had been hits."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "meaning": REASONS[self.reason],
            "tokens": self.tokens,
            "share": self.share,
            "gpu_s": self.gpu_s,
            "ttft_adds_s": self.ttft_adds_s,
        }


@dataclass(slots=True, kw_only=True)
class Explanation:
    """All that `explain` found."""

    run: RunResult
    capacity_tokens: int
    never_evicts: bool
    """Whether the size was chosen so that nothing is evicted."""
    reasons: list[ReasonShare]
    """Those that occur, most tokens first."""
    gpu_s: float
    saved_gpu_s: float
    ttft_s: dict[str, float]
    again_tokens: int
    """Computed again by requests that had been preempted; not in the reasons."""
    prefixes: list[Prefix] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    """What gains at least half a point, the largest gain first."""
    tried: list[Advice] = field(default_factory=list)
    """All that was replayed."""
    advice_wanted: bool = True
    curve: SizeCurve | None = None

    @property
    def hit_rate(self) -> float:
        return self.run.hit_rate

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON and reports."""
        run = self.run
        return {
            "cache": {
                "num_blocks": run.num_blocks,
                "block_size": run.block_size,
                "capacity_tokens": self.capacity_tokens,
                "never_evicts": self.never_evicts,
            },
            "mode": run.mode,
            "policy": run.policy,
            "requests": run.requests,
            "rejected": run.rejected,
            "reject_reasons": run.reject_reasons,
            "reject_examples": run.reject_examples,
            "prompt_tokens": run.prompt_tokens,
            "hit_tokens": run.hit_tokens,
            "hit_rate": run.hit_rate,
            "gpu_s": self.gpu_s,
            "saved_gpu_s": self.saved_gpu_s,
            "ttft_s": self.ttft_s,
            "simulated_ttft_s": run.ttft_s if run.mode == "timed" else None,
            "again_tokens": self.again_tokens,
            "preemptions": run.preemptions,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "prefixes": [prefix.to_dict() for prefix in self.prefixes],
            "advice": [advice.to_dict() for advice in self.advice] if self.advice_wanted else None,
            "tried": [advice.to_dict() for advice in self.tried],
            "curve": None if self.curve is None else self.curve.to_dict(),
        }


def times(missed: NDArray[np.int64], cost: StepCost) -> dict[str, float]:
    """The estimated time to first token: one step with the tokens that missed, waiting left out."""
    if not len(missed):
        return dict.fromkeys(("mean", "p50", "p90", "p99"), 0.0)
    ordered = np.sort(missed)
    chosen = {f"p{p}": int(ordered[min(len(ordered) - 1, len(ordered) * p // 100)]) for p in (50, 90, 99)}
    seconds = {name: cost.step_s(tokens) for name, tokens in chosen.items()}
    return {"mean": cost.decode_step_s + float(missed.mean()) / cost.prefill_tokens_per_s, **seconds}


def reason_shares(
    missed: Mapping[Reason, NDArray[np.int64]], computed: NDArray[np.int64], prompt_tokens: int, cost: StepCost
) -> list[ReasonShare]:
    """The reasons that occur, most tokens first.

    missed: by reason, the tokens of each request; `computed` are their sums, and `prompt_tokens` those of all prompts.
    """
    now = times(computed, cost)
    shares = []
    for reason, tokens in missed.items():
        total = int(tokens.sum())
        if total:
            without = times(computed - tokens, cost)
            shares.append(
                ReasonShare(
                    reason=reason,
                    tokens=total,
                    share=total / prompt_tokens,
                    gpu_s=total / cost.prefill_tokens_per_s,
                    ttft_adds_s={name: now[name] - without[name] for name in now},
                )
            )
    return sorted(shares, key=lambda share: -share.tokens)
