"""kvblocks as vLLM's KV-cache manager: a plugin that vLLM finds by itself.

`register` is the entry point (group `vllm.general_plugins`). Importing this package imports nothing of vLLM.
"""

from kvblocks.integrations.vllm.plugin import register

__all__ = ["register"]
