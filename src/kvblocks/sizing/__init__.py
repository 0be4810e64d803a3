"""From a model's config, a device and flags to bytes, blocks, tokens and concurrency."""

from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.plan import plan
from kvblocks.sizing.result import GroupPlan, Plan
from kvblocks.sizing.setting import Setting

__all__ = ["EngineFlags", "GroupPlan", "ModelConfig", "Plan", "Setting", "plan"]
