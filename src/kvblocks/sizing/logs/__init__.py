"""vLLM's start-up log: read, explained in words, and checked against itself and a plan."""

from kvblocks.sizing.logs.explain import Finding, compare_with_plan, explain
from kvblocks.sizing.logs.read import Fact, StartupLog, read_log

__all__ = ["Fact", "Finding", "StartupLog", "compare_with_plan", "explain", "read_log"]
