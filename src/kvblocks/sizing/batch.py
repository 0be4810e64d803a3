"""Many questions at once: a model, flags and memory on each line, an answer for each, in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.catalogue import find_model
from kvblocks.sizing.devices import find_device
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.setting import Setting

FIELDS = ("model", "flags", "env", "mem_gib", "gpu", "assume", "platform")
"""What a question may have; `mem_gib` is the memory for the cache of each worker, `gpu` estimates it."""


def answer_batch(
    lines: Iterable[bytes | str], models: Path, env: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """One answer per line that is not blank. A question that cannot be answered is answered with the reason.

    models: where relative paths of models start. env: variables for every question, before those of its own.
    """
    configs: dict[str, ModelConfig] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _answer(line, models, env or {}, configs)
        except UsageError as error:
            yield {"status": "refused", "error": f"line {number}: {error}"}


def _answer(line: bytes | str, models: Path, env: Mapping[str, str], configs: dict[str, ModelConfig]) -> dict[str, Any]:
    try:
        question = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}") from None
    if not isinstance(question, dict):
        raise UsageError('a question is an object: {"model": DIR, "flags": {...}, "mem_gib": 40}')
    name = question.get("model")
    if not isinstance(name, str):
        raise UsageError(f"field 'model' is {name!r}; it must be a path or a name of the catalogue")
    for part in ("flags", "env"):
        if not isinstance(question.get(part) or {}, dict):
            raise UsageError(f"field {part!r} is {question[part]!r}; it must be an object")
    if name not in configs:
        path = models / name
        configs[name] = ModelConfig.load(path) if path.exists() else find_model(name)
    config = configs[name]
    device = question.get("gpu")
    setting = Setting(
        config=config,
        flags=EngineFlags.from_mapping(question.get("flags") or {}),
        env={**env, **{key: str(value) for key, value in (question.get("env") or {}).items()}},
        device=None if device is None else find_device(str(device)),
        available_bytes=_memory(question.get("mem_gib")),
        assume_full_attention=question.get("assume") == "full-attention",
        folders=(models, models.parent, *((config.path, config.path.parent) if config.path else ())),
    )
    return setting.plan().to_dict()


def _memory(gib: Any) -> int | None:
    if gib is None:
        return None
    if isinstance(gib, bool) or not isinstance(gib, (int, float)) or not gib < 2**40:
        raise UsageError(f"field 'mem_gib' is {gib!r}; it must be a number of GiB")
    return int(gib * GIB)
