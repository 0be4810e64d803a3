"""kvblocks: KV-cache management for language-model serving."""

__version__ = "0.1.0"
