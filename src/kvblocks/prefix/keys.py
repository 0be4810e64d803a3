"""Extra keys: what besides the token ids decides the content of a block.

The same tokens give other keys and values under another LoRA adapter, another image behind the placeholder tokens, or
other prompt embeddings; and a cache salt keeps tenants apart on purpose. Each of these enters the hash as a *tagged*
record of length-prefixed fields, so no two different sets of keys serialise alike (a salt that equals an adapter's
name, say). `docs/prefix-caching.md` specifies the bytes.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from kvblocks.errors import UsageError

_TAG_LORA: Final = b"\x01"
_TAG_MULTIMODAL: Final = b"\x02"
_TAG_CACHE_SALT: Final = b"\x03"
_TAG_PROMPT_EMBEDS: Final = b"\x04"


def _field(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(raw)) + raw


@dataclass(frozen=True, slots=True)
class LoRAKey:
    """The adapter that a request runs with; it enters every block.

    `path` keeps a name that was re-pointed to other weights from reusing the old ones' blocks, and `adapter_id`
    keeps two adapters of one name and path apart (set it when the weights at a path are replaced).
    """

    name: str
    path: str = ""
    adapter_id: int = 0

    def record(self) -> bytes:
        return _TAG_LORA + _field(self.name) + _field(self.path) + struct.pack("<q", self.adapter_id)


@dataclass(frozen=True, slots=True)
class MultiModalItem:
    """An image, a sound, a video: `num_tokens` placeholder tokens from `offset`, content named by `identifier`.

    It enters each block that it overlaps, with its offset relative to the block (negative when it began earlier).
    """

    identifier: str
    offset: int
    num_tokens: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.num_tokens < 0:
            raise UsageError(
                f"multimodal item {self.identifier!r}: offset {self.offset} and num_tokens {self.num_tokens} "
                "must not be negative"
            )


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """Embeddings given in place of token ids: row i (`row_bytes` bytes of `data`) stands for prompt token i.

    A block that overlaps them carries the SHA-256 of its rows. Their token ids are whatever the caller put there
    (engines put zeros).
    """

    data: bytes
    row_bytes: int

    def __post_init__(self) -> None:
        if self.row_bytes <= 0 or len(self.data) % self.row_bytes:
            raise UsageError(
                f"prompt embeddings: {len(self.data)} bytes are not whole rows of row_bytes={self.row_bytes}"
            )


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """All extra keys of one request. Frozen: a request's identity never changes while it has blocks."""

    lora: LoRAKey | None = None
    multimodal: tuple[MultiModalItem, ...] = ()
    cache_salt: str | None = None
    prompt_embeds: PromptEmbeds | None = None

    def for_block(self, start: int, end: int) -> bytes:
        """The records of the block that holds tokens [start, end), concatenated; empty when no key applies.

        The salt enters the block at token 0 only: chaining carries it into all that follow.
        """
        records = b"" if self.lora is None else self.lora.record()
        for item in self.multimodal:
            if item.offset < end and item.offset + item.num_tokens > start:
                records += _TAG_MULTIMODAL + _field(item.identifier) + struct.pack("<q", item.offset - start)
        if start == 0 and self.cache_salt is not None:
            records += _TAG_CACHE_SALT + _field(self.cache_salt)
        if self.prompt_embeds is not None:
            row = self.prompt_embeds.row_bytes
            rows = self.prompt_embeds.data[start * row : end * row]
            if rows:
                records += _TAG_PROMPT_EMBEDS + _field(hashlib.sha256(rows).digest())
        return records
