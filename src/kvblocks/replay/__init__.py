"""Replay of a recorded trace through scheduler and manager, without a model."""

from kvblocks.replay.result import RunResult
from kvblocks.replay.run import MAX_BLOCKS, Replay, replay
from kvblocks.replay.settings import CacheLayout, ReplaySettings, StepCost

__all__ = ["MAX_BLOCKS", "CacheLayout", "Replay", "ReplaySettings", "RunResult", "StepCost", "replay"]
