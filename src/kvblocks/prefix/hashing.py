"""Hash algorithms for block contents, by name.

`sha256` is the default: a hit is decided by the digest alone, so two different prompts must never share one by design
of an attacker. `blake3` is cryptographic too and faster on long inputs; `xxh3_128` is not cryptographic and is for
trusted inputs only. The last two come with the extra `kvblocks[hash]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kvblocks.errors import MissingExtraError, UsageError


class Digest(Protocol):
    """The result of a hash constructor."""

    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HashAlgorithm:
    """One hash function: `new(data).digest()` gives `digest_bytes` bytes."""

    name: str
    new: Callable[[bytes], Digest]
    digest_bytes: int
    cryptographic: bool


def _load_sha256() -> HashAlgorithm:
    return HashAlgorithm("sha256", hashlib.sha256, 32, cryptographic=True)


def _load_blake3() -> HashAlgorithm:
    try:
        import blake3
    except ImportError as error:
        raise MissingExtraError("blake3", "hash", "the hash algorithm 'blake3'") from error
    new: Any = blake3.blake3
    return HashAlgorithm("blake3", new, 32, cryptographic=True)


def _load_xxh3_128() -> HashAlgorithm:
    try:
        import xxhash
    except ImportError as error:
        raise MissingExtraError("xxhash", "hash", "the hash algorithm 'xxh3_128'") from error
    new: Any = xxhash.xxh3_128
    return HashAlgorithm("xxh3_128", new, 16, cryptographic=False)


_LOADERS: dict[str, Callable[[], HashAlgorithm]] = {
    "sha256": _load_sha256,
    "blake3": _load_blake3,
    "xxh3_128": _load_xxh3_128,
}

ALGORITHMS = tuple(_LOADERS)


def hash_algorithm(name: str) -> HashAlgorithm:
    """The algorithm of that name.

    Raises UsageError for an unknown name and MissingExtraError when its optional package is absent.
    """
    loader = _LOADERS.get(name)
    if loader is None:
        raise UsageError(f"hash algorithm {name!r} is unknown: choose one of {', '.join(ALGORITHMS)}")
    return loader()
