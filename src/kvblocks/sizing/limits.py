"""How long a request can be: what the model was made for, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import LARGEST, ModelConfig

LENGTH_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Fields that name the longest request; the smallest counts."""
ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to stretch positions whose factor is in max_position_embeddings already."""
LENGTH_UNLESS_SAID = {
    "falcon": 2048, "gpt2": 1024, "gpt_neox": 2048, "gptj": 2048, "llama": 2048, "mistral": 131072, "mixtral": 131072,
    "opt": 2048, "phi3": 4096, "qwen2": 32768, "qwen2_moe": 32768, "qwen3": 32768, "qwen3_moe": 32768, "gemma": 8192,
    "gemma2": 8192, "gemma3_text": 131072, "starcoder2": 4096, "stablelm": 4096, "whisper": 448,
}  # fmt: skip
"""What the families' config classes fill in for a file that names no length."""
UNLESS_SAID = 2048
"""vLLM's length for a model whose config names none."""


def derived_max_model_len(config: ModelConfig) -> int | None:
    """The longest request that the model was made for, in tokens; None when its config names no length.

    Raises UsageError for a length that no request can have.
    """
    found = [
        int(value)
        for name in LENGTH_FIELDS
        if isinstance(value := config.text.get(name), (int, float)) and not isinstance(value, bool)
    ]
    if not found and config.text_type in LENGTH_UNLESS_SAID:
        found = [LENGTH_UNLESS_SAID[config.text_type]]
    if not found:
        return None
    longest = float(min(found))
    if config.text.get("model_max_length"):
        longest = float(config.text["model_max_length"])
    if "gemma3" not in config.model_type:
        factor = 1.0
        for rope in _ropes(config):
            if _rope_type(rope) not in ALREADY_SCALED:
                factor = float(rope.get("factor") or factor)
        longest *= factor
    if not 1 <= longest <= LARGEST:
        fields = ", ".join(f"{name}={config.text[name]!r}" for name in LENGTH_FIELDS if name in config.text)
        raise UsageError(
            f"{config.name}: a longest request of {longest:g} tokens follows from {fields or 'the rope factor'}; "
            "correct the config"
        )
    return int(longest)


def longest_model_len(config: ModelConfig, flags: EngineFlags, env: Mapping[str, str], derived: int | None) -> int:
    """`max_model_len` before memory is looked at: what was asked for, else the model's own.

    Raises UsageError when more was asked for than the model was made for.
    """
    asked = flags.max_model_len
    if asked is None or asked == -1:
        if derived is None:
            if asked == -1:
                raise UsageError(
                    f"max_model_len=auto: {config.name} names no longest length (no "
                    f"{', '.join(LENGTH_FIELDS[:3])} ...), so there is nothing to start from; give a number"
                )
            return UNLESS_SAID
        if any(_rope_type(rope) == "longrope" for rope in _ropes(config)):
            return int(config.get("original_max_position_embeddings", default=derived))
        return derived
    if derived is not None and asked > derived and env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") in ("", "0"):
        longest = config.raw.get("model_max_length")
        if not isinstance(longest, int) or asked > longest:
            raise UsageError(
                f"max_model_len={asked} exceeds the {derived} tokens that the model was made for; use at most "
                f"{derived}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 as for vLLM"
            )
    return asked


def _ropes(config: ModelConfig) -> Iterator[Mapping[str, Any]]:
    """The descriptions of rotary positions; per kind of layer where there are several."""
    for name in ("rope_parameters", "rope_scaling"):
        given = config.get(name)
        if not isinstance(given, Mapping):
            continue
        nested = [value for value in given.values() if isinstance(value, Mapping)]
        yield from nested or [given]
        return


def _rope_type(rope: Mapping[str, Any]) -> str:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return {"mrope": "default"}.get(kind, kind)
