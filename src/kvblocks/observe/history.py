"""A history of bounded length over a life of any length: when it is full, every second sample goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_SAMPLES = 480
FIRST_INTERVAL_S = 0.5


class TokenCounts(NamedTuple):
    """What admitted requests brought, since the start; `hits`, `external` and `missed` sum to `tokens`."""

    requests: int
    tokens: int
    hits: int
    external: int
    missed: Mapping[str, int]
    """By reason."""

    @property
    def hit_rate(self) -> float:
        return self.hits / self.tokens if self.tokens else 0.0


class Sample(NamedTuple):
    """The counts at one moment."""

    time_s: float
    tokens: TokenCounts


class History:
    """Samples at least `interval_s` apart; the interval doubles each time that the history is full."""

    def __init__(self) -> None:
        self.interval_s = FIRST_INTERVAL_S
        self._samples: list[Sample] = []
        self._next_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Whether the last sample is long enough ago."""
        return now_s >= self._next_s

    def add(self, sample: Sample) -> None:
        if len(self._samples) >= MAX_SAMPLES:
            self._samples = self._samples[::2]
            self.interval_s *= 2
        self._samples.append(sample)
        self._next_s = sample.time_s + self.interval_s

    def samples(self) -> list[Sample]:
        """The samples, oldest first."""
        return self._samples.copy()
