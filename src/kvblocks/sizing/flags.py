"""The engine's flags that change the size of the cache, by vLLM's argument names and with its defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvblocks.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """vLLM's arguments. None means that it was not given; what vLLM makes of that depends on the model.

    All counts are tokens unless they say otherwise.
    """

    dtype: str = "auto"
    max_model_len: int | None = None
    """Tokens of the longest request; -1 lets the cache decide; None takes the model's own."""
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    """Layers (numbers, or "sliding_window") whose cache keeps the model's dtype."""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    disable_hybrid_kv_cache_manager: bool = False
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    """Bytes for the cache of each worker; nothing is subtracted from them."""
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_block_size: int | None = None
    mamba_cache_mode: str | None = None
    """`none` or `align`; None lets prefix caching and the model decide."""
    attention_backend: str | None = None
    enforce_eager: bool = False
    quantization: str | None = None
    enable_expert_parallel: bool = False
    language_model_only: bool = False
    speculative_config: Mapping[str, Any] | None = None
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Fields that replace those of the model's config."""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> EngineFlags:
        """Flags from their names (with `-` or `_`). Raises UsageError naming the flag, the value and the nearest."""
        found = cls.names_and_values(given)
        return cls(**{name: _checked(name, value) for name, value in found.items() if value is not None})

    @classmethod
    def names_and_values(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The flags under their full names; those without effect on the cache are left out.

        Raises UsageError naming a flag that is unknown, and the nearest.
        """
        names = {f.name for f in fields(cls)}
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = key.lstrip("-").replace("-", "_")
            name = ALIASES.get(name, name)
            if name.startswith("no_") and name[3:] in names:
                name, value = name[3:], not value
            if name in WITHOUT_EFFECT:
                continue
            if name not in names:
                near = difflib.get_close_matches(name, [*names, *WITHOUT_EFFECT], 3, 0.5)
                hint = f"; did you mean {' or '.join(near)}?" if near else "; leave it out"
                raise UsageError(f"flag {key!r} is not one that changes the cache's size{hint}")
            found[name] = value
        return found

    def with_(self, **changes: Any) -> EngineFlags:
        """A copy with some flags changed, checked as `from_mapping` does."""
        return replace(self, **{name: _checked(name, value) for name, value in changes.items()})

    def given(self) -> dict[str, Any]:
        """Those that differ from vLLM's defaults, by name."""
        plain = EngineFlags()
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != getattr(plain, f.name)}

    @property
    def draft(self) -> Mapping[str, Any]:
        """The speculative configuration; empty without one."""
        return self.speculative_config or {}

    @property
    def num_speculative_tokens(self) -> int:
        return int(self.draft.get("num_speculative_tokens") or 0)


ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dcp": "decode_context_parallel_size",
    "max_len": "max_model_len",
    "speculative_decoding_config": "speculative_config",
    "enable_ep": "enable_expert_parallel",
}
"""Short names."""

WITHOUT_EFFECT = frozenset(
    "model tokenizer tokenizer_mode trust_remote_code served_model_name revision tokenizer_revision load_format "
    "download_dir seed host port api_key config_format disable_log_stats disable_log_requests enable_log_requests "
    "chat_template tool_call_parser enable_auto_tool_choice reasoning_parser distributed_executor_backend "
    "prefix_caching_hash_algo enable_chunked_prefill scheduling_policy swap_space generation_config "
    "data_parallel_size limit_mm_per_prompt skip_tokenizer_init kv_events_config uvicorn_log_level "
    "disable_uvicorn_access_log max_log_len root_path ssl_keyfile ssl_certfile allowed_origins".split()
)
"""vLLM's arguments that do not change how many blocks fit; they are accepted and ignored."""

_BOOLEANS = frozenset(
    "enable_prefix_caching async_scheduling disable_hybrid_kv_cache_manager enforce_eager enable_expert_parallel "
    "language_model_only".split()
)
_AT_LEAST_ONE = frozenset(
    "tensor_parallel_size pipeline_parallel_size decode_context_parallel_size max_num_batched_tokens max_num_seqs "
    "num_gpu_blocks_override block_size mamba_block_size kv_cache_memory_bytes".split()
)
_MOST = {
    "tensor_parallel_size": 4096,
    "pipeline_parallel_size": 4096,
    "decode_context_parallel_size": 4096,
    "max_num_batched_tokens": 2**30,
    "max_num_seqs": 2**24,
    "block_size": 2**24,
}
"""More than these is a slip of the pen."""
_CHOICES = {
    "dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "kv_cache_dtype": (
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_inc",
        "fp8_ds_mla",
        "fp8_per_token_head",
        "int8_per_token_head",
        "int4_per_token_head",
        "nvfp4",
        "nvfp4_4over6",
        "nvfp4_ds_mla",
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "ultraquant_4bit",
    ),
    "mamba_cache_dtype": ("auto", "float32", "float16", "bfloat16"),
    "mamba_ssm_cache_dtype": ("auto", "float32", "float16", "bfloat16"),
    "mamba_cache_mode": ("none", "align"),
}


def _checked(name: str, value: Any) -> Any:
    """The value, in the flag's type. Raises UsageError naming the flag, the value and what is allowed."""
    if value is None:
        return None
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            near = difflib.get_close_matches(str(value), _CHOICES[name], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(_CHOICES[name])}"
            raise UsageError(f"{name}={value!r} is unknown; {hint}")
        return value
    if name in _BOOLEANS:
        if not isinstance(value, bool):
            raise UsageError(f"{name}={value!r} must be true or false")
        return value
    if name in _AT_LEAST_ONE or name == "max_model_len":
        if name == "max_model_len" and value in ("auto", -1):
            return -1
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name}={value!r} must be a whole number")
        if value < 1 or value >= 2**62:
            extra = ', or "auto" for the longest that fits' if name == "max_model_len" else ""
            raise UsageError(f"{name}={value} must be at least 1 and below 2**62{extra}")
        if value > _MOST.get(name, value):
            raise UsageError(f"{name}={value} is more than any engine runs with; give at most {_MOST[name]}")
        return value
    if name == "gpu_memory_utilization":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise UsageError(f"{name}={value!r} must be above 0 and at most 1: it is a share of the device's memory")
        return float(value)
    if name in ("attention_backend", "quantization") and not isinstance(value, str):
        raise UsageError(f"{name}={value!r} must be a name")
    if name == "kv_cache_dtype_skip_layers":
        given = value.split(",") if isinstance(value, str) else value
        if not isinstance(given, (list, tuple)):
            raise UsageError(f"{name}={value!r} must be a list of layer numbers, or sliding_window")
        return tuple(str(part).strip() for part in given)
    if name in ("speculative_config", "hf_overrides") and not isinstance(value, Mapping):
        raise UsageError(f"{name}={value!r} must be an object with fields")
    if name == "speculative_config":
        tokens = value.get("num_speculative_tokens")
        if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 < tokens <= 1024):
            raise UsageError(f"{name}: num_speculative_tokens={tokens!r} must be a whole number from 1 to 1024")
        for key in ("method", "model"):
            if value.get(key) is not None and not isinstance(value[key], str):
                raise UsageError(f"{name}: {key}={value[key]!r} must be a name")
    return value
