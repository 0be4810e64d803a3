"""What a replay at one cache size found: counts, and series over its course."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from kvblocks.pool import PoolUsage

MAX_POINTS = 512
"""Points that a series keeps at most."""


class Series:
    """Occupancy and hits over the course of a replay, thinned so that at most `MAX_POINTS` points stay.

    When it is full, every other point is dropped and from then on every second sample is taken.
    """

    def __init__(self, x_unit: str) -> None:
        self.x_unit = x_unit
        self._points: list[tuple[float, PoolUsage, int, int]] = []
        self._stride = 1
        self._samples = 0

    def sample(self, x: float, usage: PoolUsage, prompt_tokens: int, hit_tokens: int) -> None:
        """Note the state at `x`; the token counts are totals since the start."""
        self._samples += 1
        if self._samples % self._stride:
            return
        self._points.append((x, usage, prompt_tokens, hit_tokens))
        if len(self._points) > MAX_POINTS:
            del self._points[::2]
            self._stride *= 2

    def to_dict(self) -> dict[str, Any]:
        """Lists of equal length; `hit_rate` is that between a point and the one before it, None without a prompt."""
        rates: list[float | None] = []
        before_prompt = before_hit = 0
        for _, _, prompt, hit in self._points:
            rates.append((hit - before_hit) / (prompt - before_prompt) if prompt > before_prompt else None)
            before_prompt, before_hit = prompt, hit
        return {
            "x_unit": self.x_unit,
            "x": [point[0] for point in self._points],
            "live": [point[1].live for point in self._points],
            "cached": [point[1].cached for point in self._points],
            "blank": [point[1].blank for point in self._points],
            "hit_rate": rates,
        }


@dataclass(slots=True)
class RunResult:
    """Counts of one run. Tokens and blocks as in the JSON; see `docs/replay.md` for their definitions."""

    num_blocks: int
    block_size: int
    mode: str
    policy: str
    series: Series
    rejected: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    evicted_blocks: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    peak_live_blocks: int = 0
    steps: int = 0
    duration_s: float = 0.0
    interrupted: bool = False
    reject_reasons: dict[str, int] = field(default_factory=dict)
    reject_examples: dict[str, str] = field(default_factory=dict)
    _prompts: array[int] = field(default_factory=lambda: array("Q"))
    _hits: array[int] = field(default_factory=lambda: array("Q"))
    _ttft_s: array[float] = field(default_factory=lambda: array("d"))

    @property
    def requests(self) -> int:
        """Requests whose prompt was admitted."""
        return len(self._prompts)

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def hit_rate_last_half(self) -> float:
        """The hit rate over the later half of the admitted requests, when the cache is warm."""
        half = len(self._prompts) // 2
        prompt = sum(self._prompts[half:])
        return sum(self._hits[half:]) / prompt if prompt else 0.0

    def admit(self, prompt_tokens: int, hit_tokens: int) -> None:
        """Count an admitted prompt; once per request, at its first admission."""
        self._prompts.append(prompt_tokens)
        self._hits.append(hit_tokens)
        self.prompt_tokens += prompt_tokens
        self.hit_tokens += hit_tokens

    def reject(self, reason: str, details: str) -> None:
        """Count a rejection; the details of the first of each reason are kept."""
        self.rejected += 1
        self.reject_examples.setdefault(reason, details)
        self.reject_reasons[reason] = self.reject_reasons.get(reason, 0) + 1

    def first_token(self, after_s: float) -> None:
        """Count a time to first token."""
        self._ttft_s.append(after_s)

    def to_dict(self, *, series: bool = False) -> dict[str, Any]:
        """Plain data for JSON and reports."""
        data: dict[str, Any] = {
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "mode": self.mode,
            "policy": self.policy,
            "requests": self.requests,
            "rejected": self.rejected,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_rate": self.hit_rate,
            "hit_rate_last_half": self.hit_rate_last_half,
            "output_tokens": self.output_tokens,
            "evicted_blocks": self.evicted_blocks,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "peak_live_blocks": self.peak_live_blocks,
            "reject_reasons": self.reject_reasons,
            "reject_examples": self.reject_examples,
            "interrupted": self.interrupted,
        }
        if self.mode == "timed":
            data |= {"steps": self.steps, "duration_s": self.duration_s, "ttft_s": self.ttft_s}
        if series:
            data["series"] = self.series.to_dict()
        return data

    @property
    def ttft_s(self) -> dict[str, float | None]:
        """Times to first token, in simulated seconds: mean, p50, p90, p99; None where there was none."""
        ordered = sorted(self._ttft_s)
        if not ordered:
            return {"mean": None, "p50": None, "p90": None, "p99": None}
        at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}
        return {"mean": sum(ordered) / len(ordered), **at}
