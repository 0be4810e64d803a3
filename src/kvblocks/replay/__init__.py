"""Replay of a recorded trace through scheduler and manager, without a model."""

from kvblocks.replay.result import RunResult
from kvblocks.replay.run import Replay, replay
from kvblocks.replay.settings import ReplaySettings, StepCost

__all__ = ["Replay", "ReplaySettings", "RunResult", "StepCost", "replay"]
