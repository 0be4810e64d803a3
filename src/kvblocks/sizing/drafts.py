"""The layers of draft models: they keep caches in the same pool, and can widen every block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kvblocks.errors import UsageError
from kvblocks.kinds import KVCacheSpec
from kvblocks.sizing.architectures import Architecture, describe
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.resolve import stage_sizes

WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""Ways to speculate that keep nothing."""
MTP = "mtp"
DRAFT_MODEL = "draft_model"
ONE_AT_A_TIME = ("eagle", "eagle3", "draft_model", "dflash", "dspark")


def draft_method(flags: EngineFlags) -> str | None:
    """How the engine speculates; None when it does not."""
    if not flags.draft:
        return None
    method = flags.draft.get("method")
    if method is None:
        method = "draft_model" if flags.draft.get("model") else None
    if method is None:
        raise UsageError(
            "speculative_config needs a method (ngram, mtp, eagle, eagle3, draft_model) or a model: "
            '{"method": "mtp", "num_speculative_tokens": 1}'
        )
    method = str(method)
    if method.endswith("_mtp"):
        method = MTP  # older names: deepseek_mtp, qwen3_next_mtp, ...
    if method not in (*WITHOUT_CACHE, *ONE_AT_A_TIME, MTP):
        raise UsageError(
            f"speculative_config: method={method!r} is unknown; choose one of "
            f"{', '.join((*WITHOUT_CACHE, *ONE_AT_A_TIME, MTP))}"
        )
    return method


def draft_specs(
    model: Architecture, engine: Engine, env: Mapping[str, str], folders: Iterable[Path]
) -> list[KVCacheSpec]:
    """The caches of the draft layers, all on the last pipeline stage.

    `folders` are looked through for a draft model named by a relative path.

    Raises UsageError when the model has no layers for it, or the draft model cannot be read.
    """
    method = draft_method(engine.flags)
    if method is None or method in WITHOUT_CACHE:
        return []
    tokens = engine.num_speculative_tokens
    if tokens < 1:
        raise UsageError("speculative_config: num_speculative_tokens must be at least 1")
    if method == MTP:
        if not model.mtp:
            raise UsageError(
                "speculative_config: method='mtp' needs a model with layers for multi-token prediction; this one has "
                "none (num_nextn_predict_layers is 0 or missing); use ngram, eagle3 or draft_model"
            )
        if model.mtp_depth > 1 and tokens > model.mtp_depth and tokens % model.mtp_depth:
            raise UsageError(
                f"speculative_config: num_speculative_tokens={tokens} must be a multiple of the {model.mtp_depth} "
                "prediction layers"
            )
        return [cache.spec(engine, None) for _ in range(max(model.mtp_depth, 1)) for cache in model.mtp]
    config = _draft_config(engine.flags, folders)
    draft = describe(config)
    if draft.hybrid or draft.attention_free:
        raise UsageError("speculative_config: a draft model with states is not supported; choose one of attention")
    layers = draft.layers
    if method == DRAFT_MODEL:
        _check_vocabulary(model, draft, config)
        # vLLM builds a draft model like any other, so of its layers the last stage has its own share only.
        layers = layers[len(layers) - stage_sizes(len(layers), engine.pp, env)[-1] :]
    return [cache.spec(engine, None) for caches in layers for cache in caches]


def _check_vocabulary(model: Architecture, draft: Architecture, config: ModelConfig) -> None:
    if model.vocab_size and draft.vocab_size and model.vocab_size != draft.vocab_size:
        raise UsageError(
            f"speculative_config: {config.name} has a vocabulary of {draft.vocab_size} tokens, the model one of "
            f"{model.vocab_size}; a draft model must have the same"
        )


def _draft_config(flags: EngineFlags, folders: Iterable[Path]) -> ModelConfig:
    name = flags.draft.get("model")
    if not name:
        raise UsageError(
            f'speculative_config: method={flags.draft.get("method")!r} needs the draft model\'s folder as "model"'
        )
    given = Path(str(name))
    for folder in (Path(), *folders):
        if (folder / given).exists():
            return ModelConfig.load(folder / given)
    raise UsageError(f"speculative_config: model={str(name)!r} is no file or folder here; name the draft's config.json")
