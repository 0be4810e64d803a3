"""Recognising a prompt seen before: block-hash chains, extra keys, and the index from hash to blocks."""

from kvblocks.prefix.chain import BlockHasher, token_bytes
from kvblocks.prefix.hashing import ALGORITHMS, HashAlgorithm, hash_algorithm
from kvblocks.prefix.index import PrefixIndex
from kvblocks.prefix.keys import ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds

__all__ = [
    "ALGORITHMS",
    "BlockHasher",
    "ExtraKeys",
    "HashAlgorithm",
    "LoRAKey",
    "MultiModalItem",
    "PrefixIndex",
    "PromptEmbeds",
    "hash_algorithm",
    "token_bytes",
]
