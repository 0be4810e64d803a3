"""The embedded engine: a real model on the CPU that reads and writes its cache through block tables."""

from kvblocks.errors import MissingExtraError

try:
    import numpy  # noqa: F401
except ImportError as error:
    raise MissingExtraError("numpy", "engine", "the embedded engine") from error

from kvblocks.engine.answer import Answer, FinishReason, Generation, Output
from kvblocks.engine.capacity import EngineSettings
from kvblocks.engine.engine import Engine, EngineStats
from kvblocks.engine.load import LoadedModel, demo_model, load_model
from kvblocks.engine.sampling import SamplingParams
from kvblocks.engine.tokenizer import Tokenizer

__all__ = [
    "Answer",
    "Engine",
    "EngineSettings",
    "EngineStats",
    "FinishReason",
    "Generation",
    "LoadedModel",
    "Output",
    "SamplingParams",
    "Tokenizer",
    "demo_model",
    "load_model",
]
