"""How the next token is chosen from the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvblocks.errors import UsageError

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request wants. `temperature` 0 is greedy; `top_p` keeps the likeliest tokens of so much probability."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """Equal seeds give equal tokens; None draws one."""
    n: int = 1
    """Answers to the same prompt. They share the blocks of the prompt."""
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    """Go on after a token that ends an answer."""

    def __post_init__(self) -> None:
        def require(name: str, good: bool, rule: str) -> None:
            if not good:
                raise UsageError(f"{name}={getattr(self, name)!r} must be {rule}")

        require("max_tokens", self.max_tokens >= 1, "at least 1")
        require("temperature", 0 <= self.temperature <= 2, "from 0 to 2")
        require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        require("n", 1 <= self.n <= 64, "from 1 to 64")
        require("seed", self.seed is None or 0 <= self.seed < 2**63, "from 0 to 2**63 - 1")
        require("stop", len(self.stop) <= 16 and all(0 < len(s) <= 1000 for s in self.stop), "at most 16 short strings")


class Sampler:
    """The random choices of one answer. The same seed and logits give the same tokens, whatever the batches were."""

    def __init__(self, params: SamplingParams, number: int = 0) -> None:
        self._temperature, self._top_p = params.temperature, params.top_p
        self._rng = None
        if params.temperature > 0:
            entropy = None if params.seed is None else [params.seed, number]
            self._rng = np.random.Generator(np.random.PCG64(entropy))

    def choose(self, logits: Array) -> int:
        """The next token."""
        if self._rng is None:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self._temperature
        weights = np.exp(scaled - scaled.max())
        weights /= weights.sum()
        if self._top_p < 1:
            order = np.argsort(-weights, kind="stable")
            kept = order[: int(np.searchsorted(np.cumsum(weights[order]), self._top_p)) + 1]
        else:
            kept = np.arange(len(weights))
        sums = np.cumsum(weights[kept])
        at = int(np.searchsorted(sums, self._rng.random() * sums[-1], side="right"))
        return int(kept[min(at, len(kept) - 1)])
