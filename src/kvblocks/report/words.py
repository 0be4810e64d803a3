"""What the figures say, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Data = Mapping[str, Any]

FLAT = 0.01
"""A curve is flat from the size on whose hit rate is within this of the largest size's."""


def summary(data: Data) -> str:
    """The answer in two or three sentences."""
    runs: Sequence[Data] = data["runs"]
    if not runs:
        return "Nothing was replayed."
    best = max(runs, key=lambda run: run["hit_rate"])
    if not best["prompt_tokens"]:
        return "No prompt fitted the cache, so nothing could be hit. Give it more blocks."
    words = (
        f"With {best['num_blocks']:,} blocks of {best['block_size']} tokens the cache held {best['hit_rate']:.1%} "
        f"of the prompt tokens: {best['hit_tokens']:,} of {best['prompt_tokens']:,} did not have to be computed."
    )
    rejected = sum(run["rejected"] for run in runs)
    if rejected:
        words += f" {rejected:,} requests were rejected over all runs; they are in no other figure."
    if data.get("interrupted"):
        words += " The replay was interrupted: these are the figures up to then."
    return f"{words} {flattens_at(runs)}".strip()


def flattens_at(runs: Sequence[Data]) -> str:
    """From which size on more memory does not raise the hit rate; empty with fewer than three sizes."""
    if len(runs) < 3:
        return ""
    last = runs[-1]["hit_rate"]
    flat = next(run for run in runs if run["hit_rate"] >= last - FLAT)
    if flat is runs[-1]:
        return "The hit rate still rises at the largest size: try larger ones."
    return f"From {flat['num_blocks']:,} blocks on the hit rate is within a point of that at the largest size."
