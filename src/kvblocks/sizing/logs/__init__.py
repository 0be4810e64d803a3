"""vLLM's start-up log, read: its facts, what they mean, and what does not add up."""

from kvblocks.sizing.logs.check import check
from kvblocks.sizing.logs.compare import PlanFacts, PlanNumbers, compare_with_plan
from kvblocks.sizing.logs.explain import explain
from kvblocks.sizing.logs.facts import (
    AutoFit,
    CacheSize,
    Fact,
    Gib,
    LayerPadding,
    Override,
    Rank,
    Refusal,
    Start,
    StartupLog,
)
from kvblocks.sizing.logs.findings import Finding, KnownBug
from kvblocks.sizing.logs.read import read_log

__all__ = [
    "AutoFit",
    "CacheSize",
    "Fact",
    "Finding",
    "Gib",
    "KnownBug",
    "LayerPadding",
    "Override",
    "PlanFacts",
    "PlanNumbers",
    "Rank",
    "Refusal",
    "Start",
    "StartupLog",
    "check",
    "compare_with_plan",
    "explain",
    "read_log",
]
