"""The built-in catalogue: the configs of well-known models, cut down to what a plan looks at.

`models.json` holds one config per line, under the name that its publisher gave it. They are published facts (the
`config.json` files on the model pages); of their quantisation only the method.
"""

from __future__ import annotations

import difflib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.model_config import ModelConfig


@cache
def _models() -> dict[str, dict[str, Any]]:
    text = files("kvblocks.sizing.catalogue").joinpath("models.json").read_text(encoding="utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


def names() -> list[str]:
    """Every model of the catalogue, as `publisher/model`."""
    return sorted(_models())


def find_model(name: str) -> ModelConfig:
    """The config of a model: a path to a `config.json` or its folder, or a name of the catalogue in any case.

    The publisher may be left out, and so may the rest of a name that no other model has (`qwen3-next`).

    Raises UsageError naming the nearest names.
    """
    if not name.strip():
        raise UsageError("no model is named; give a config.json, the folder that holds it, or a name such as qwen3-8b")
    if Path(name).exists():
        return ModelConfig.load(name)
    wanted = _plain(name)
    found = [full for full in _models() if wanted in (_plain(full), _plain(full.split("/")[-1]))]
    found = found or [full for full in _models() if f"-{wanted}-" in f"-{_plain(full.split('/')[-1])}-"]
    if len(found) == 1:
        return ModelConfig.from_data(_models()[found[0]], None, found[0])
    if name.startswith((".", "/", "~")) or name.endswith((".json", ".gguf", ".safetensors")):
        raise UsageError(f"{name}: no such file or folder; name a config.json or the folder that holds it")
    short = {_plain(full.split("/")[-1]): full for full in _models()}
    near = found[:5] or [short[key] for key in difflib.get_close_matches(wanted.split("/")[-1], short, 3, 0.5)]
    several = "and several of the catalogue have it" if found else "and not in the catalogue"
    raise UsageError(
        f"{name!r} is no file or folder here, {several}; "
        + (f"the nearest there: {', '.join(near)}. " if near else "")
        + "Nothing is fetched from the network: download the model's config.json and name its path"
    )


def _plain(name: str) -> str:
    return name.lower().replace("--", "/").replace("_", "-").strip("/")
