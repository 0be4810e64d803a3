"""What would happen in the installed vLLM, without starting a server: kvblocks active, or vLLM's own manager and why.

With a model, its layers are built without memory (on torch's meta device) and without weights, and asked what they
cache; vLLM groups them as a server would, and the answer goes through the plugin's own decision.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvblocks import __version__
from kvblocks.errors import KVBlocksError, UsageError


@dataclass(slots=True)
class Outlook:
    """The answer; `reasons` are why kvblocks would not be active."""

    active: bool
    vllm_version: str
    kvblocks_version: str = __version__
    reasons: list[str] = field(default_factory=list)
    model: str | None = None
    groups: list[str] = field(default_factory=list)
    """Kind and block size of each KV-cache group; empty without a model."""
    prefix_caching: bool | None = None
    scheduler_block_size: int | None = None
    hash_block_size: int | None = None


def outlook(model: str | None, arguments: Sequence[str], environment: Mapping[str, str]) -> Outlook:
    """What would happen with this environment, and with `vllm serve MODEL ARGUMENTS` when a model is given.

    Raises UsageError when vLLM is not installed, a setting is wrong, or vLLM itself refuses the model or an argument.
    """
    from kvblocks.integrations.vllm.settings import read_settings

    settings = read_settings(environment)
    try:
        from kvblocks.integrations.vllm.contract import doubts

        found = doubts()
        import vllm
    except ImportError as error:
        raise UsageError(f"vLLM cannot be imported ({error}): install it in this environment") from error
    answer = Outlook(active=not found, vllm_version=str(vllm.__version__), reasons=found, model=model)
    if not settings.enabled:
        answer.active = False
        answer.reasons.insert(0, "KVBLOCKS=off")
    if model is not None:
        _ask_model(answer, model, arguments)
    elif arguments:
        raise UsageError(f"{' '.join(arguments)}: arguments of vLLM need --model")
    return answer


def _ask_model(answer: Outlook, model: str, arguments: Sequence[str]) -> None:
    from kvblocks.integrations.vllm.specs import check_connector, translate

    config = _engine_config(model, arguments)
    try:
        kv_cache_config, scheduler_size, hash_size = _cache_config(config)
    except Exception as error:
        raise UsageError(f"vLLM cannot say what {model} caches: {type(error).__name__}: {error}") from error
    caching = bool(config.cache_config.enable_prefix_caching)
    answer.prefix_caching, answer.scheduler_block_size, answer.hash_block_size = caching, scheduler_size, hash_size
    speculative = config.speculative_config
    try:
        setup = translate(
            kv_cache_config,
            scheduler_block_size=scheduler_size,
            hash_block_size=hash_size,
            enable_caching=caching,
            use_eagle=bool(speculative is not None and speculative.use_eagle_block_drop()),
            dcp_world_size=config.parallel_config.decode_context_parallel_size,
            metrics_collector=config.observability_config.kv_cache_metrics or None,
            enable_mamba_shared_prefix_checkpoint=config.cache_config.enable_mamba_shared_prefix_checkpoint,
        )
        answer.groups = list(setup.kinds)
        check_connector(config, kv_cache_config.has_mamba_layers)
    except KVBlocksError as error:
        answer.active = False
        answer.reasons.append(str(error))


def _engine_config(model: str, arguments: Sequence[str]) -> Any:
    """vLLM's configuration for these arguments of `vllm serve`."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm serve")
    EngineArgs.add_cli_args(parser)
    try:
        options = parser.parse_args(["--model", model, *arguments])
        return EngineArgs.from_cli_args(options).create_engine_config()
    except SystemExit as error:
        raise UsageError(f"vLLM does not take these arguments: {' '.join(arguments)}") from error
    except Exception as error:
        raise UsageError(f"vLLM does not take {model}: {error}") from error


def _cache_config(config: Any) -> tuple[Any, int, int]:
    """The scheduler's cache configuration, the size it aligns to, and that of a hash."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        record_kv_cache_layout,
        resolve_kv_cache_layout,
    )
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import KVCacheConfig

    register_all_kvcache_specs(config)
    with set_current_vllm_config(config), _one_process():
        with torch.device("meta"):
            initialize_model(config)
        current_platform.update_block_size_for_backend(config)
        layers = {
            name: layer
            for name, layer in config.compilation_config.static_forward_context.items()
            if isinstance(layer, AttentionLayerBase) and not getattr(layer, "kv_sharing_target_layer_name", None)
        }
        specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config))}
        layouts = [layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
        layout = resolve_kv_cache_layout(config, [layouts], list(specs.values()))
        record_kv_cache_layout(config.cache_config, layout.name)
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    retention = config.cache_config.prefix_cache_retention_interval
    cache = KVCacheConfig(2, [], groups, prefix_cache_retention_interval=retention)
    cache = kv_cache_utils.generate_scheduler_kv_cache_config([cache])
    sizes = [group.kv_cache_spec.block_size for group in groups if group.kv_cache_spec.prefix_cacheable]
    if sizes:
        config.cache_config.block_size = min(sizes)
    return (cache, *kv_cache_utils.resolve_kv_cache_block_sizes(cache, config))


@contextmanager
def _one_process() -> Iterator[None]:
    """A group of this process alone: layers ask for their rank."""
    from vllm.distributed import (
        cleanup_dist_env_and_memory,
        init_distributed_environment,
        initialize_model_parallel,
    )

    with tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            distributed_init_method=f"file://{os.path.join(folder, 'rendezvous')}",
            backend="gloo",
        )
        initialize_model_parallel(1, 1)
        try:
            yield
        finally:
            cleanup_dist_env_and_memory()
