"""The live view inside vLLM: an HTTP endpoint in the engine's process, when `KVBLOCKS_HTTP` asks for one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.integrations.vllm.settings import PluginSettings
from kvblocks.live import Address, LiveServer, LiveView
from kvblocks.observe import MissReasons
from kvblocks.prefix import ExtraKeys, LoRAKey, MultiModalItem

_running: dict[Address, LiveServer] = {}  # of this process; an engine that is made after another takes over its port


def start_live(settings: PluginSettings, vllm_config: Any, logger: logging.Logger) -> LiveView | None:
    """Begin to listen; the view whose observers the manager is to be given. None when nobody asked, or it failed.

    With data parallelism each engine takes the next port. A failure is logged once and never ends the engine.
    """
    if settings.http is None:
        return None
    try:
        rank = 0 if vllm_config is None else vllm_config.parallel_config.data_parallel_index
        address = settings.http._replace(port=settings.http.port + rank if settings.http.port else 0)
        title = "" if vllm_config is None else str(vllm_config.model_config.model)
        decode = _decoder(vllm_config) if settings.show_text else None
        view = LiveView(title=title, reasons=MissReasons(keys_of=keys_of), decode=decode, logger=logger)
        before = _running.pop(address, None)
        if before is not None:
            before.close()
        server = LiveServer(view, address, logger)
    except UsageError as error:
        logger.warning("kvblocks: no live view: %s", error)
        return None
    except Exception:
        logger.exception("kvblocks: no live view; the cache and the engine are not affected")
        return None
    _running[server.address] = server
    logger.info("kvblocks: live view at %s", server.address.url)
    return view


def keys_of(request: Any) -> ExtraKeys | None:
    """What besides the tokens makes a vLLM request's hashes."""
    adapter, items, salt = request.lora_request, request.mm_features, request.cache_salt
    if adapter is None and not items and salt is None:
        return None
    return ExtraKeys(
        lora=None if adapter is None else LoRAKey(adapter.lora_name),
        multimodal=tuple(
            MultiModalItem(item.identifier, item.mm_position.offset, item.mm_position.length) for item in items
        ),
        cache_salt=salt,
    )


def _decoder(vllm_config: Any) -> Callable[[Sequence[int]], str] | None:
    if vllm_config is None:
        return None
    from transformers import AutoTokenizer

    config = vllm_config.model_config
    tokenizer = AutoTokenizer.from_pretrained(
        config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
    )
    return lambda token_ids: str(tokenizer.decode(list(token_ids)))
