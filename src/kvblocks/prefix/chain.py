"""Block-hash chains: one digest per full block, each covering every token before it.

The digest of a block is the hash of its parent's digest, its token ids and its extra keys; the first block's parent is
a root that depends on the algorithm and the seed. So two requests share a digest exactly when they share the whole
prefix up to there, and finding a cached prefix is one dictionary look-up per block. The bytes are specified in
`docs/prefix-caching.md` and pinned by a golden test; they are the same in every process and Python version.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

from kvblocks.errors import UsageError
from kvblocks.prefix.hashing import hash_algorithm
from kvblocks.prefix.keys import ExtraKeys

ROOT_TAG = b"kvblocks block-hash chain 1\0"
"""Begins the hashed bytes of every root. A block's bytes begin with a digest instead, so none can equal a root's."""


class BlockHasher:
    """Computes block-hash chains of one block size, algorithm and seed.

    `block_size` is the hash granularity in tokens. It may be finer than a cache's blocks: a block of k units is known
    by the digest of its last unit. `seed` separates deployments: another seed gives another root, so no digest of the
    one is ever found in the other.
    """

    __slots__ = ("_count", "_new", "algorithm", "block_size", "root")

    def __init__(self, block_size: int, algorithm: str = "sha256", seed: bytes | str = b"") -> None:
        if not isinstance(block_size, int) or not 1 <= block_size < 2**32:
            raise UsageError(f"block_size={block_size!r}: a hash unit holds at least 1 token and fewer than 2**32")
        found = hash_algorithm(algorithm)
        raw_seed = seed if isinstance(seed, bytes) else seed.encode("utf-8", "surrogatepass")
        name = found.name.encode()
        self.block_size = block_size
        self.algorithm = found
        self.root = found.new(
            ROOT_TAG + struct.pack("<I", len(name)) + name + struct.pack("<I", len(raw_seed)) + raw_seed
        ).digest()
        self._new = found.new
        self._count = struct.pack("<I", block_size)

    def chain(self, token_ids: Sequence[int], extra_keys: ExtraKeys | None = None) -> list[bytes]:
        """The digests of all full blocks of `token_ids`, first block first."""
        hashes: list[bytes] = []
        self.extend(hashes, token_ids, extra_keys)
        return hashes

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], extra_keys: ExtraKeys | None = None) -> None:
        """Append to `hashes` the digests of the full blocks of `token_ids` that it does not have yet.

        Work starts at block `len(hashes)`: after tokens were appended only new blocks are hashed, and a list that was
        cut back is completed again. A call that completes no block costs one division. Token ids are integers in
        [0, 2**32); a buffer of unsigned 32-bit items (`array('I')`, a numpy uint32 array) is read without conversion.
        Raises UsageError for a token id outside that range, before `hashes` is changed.
        """
        size = self.block_size
        first = len(hashes)
        full = len(token_ids) // size
        if full <= first:
            return
        data = token_bytes(token_ids, first * size, full * size)
        new, count = self._new, self._count
        step = 4 * size
        parent = hashes[-1] if first else self.root
        if extra_keys is None:
            for at in range(0, len(data), step):
                parent = new(parent + count + data[at : at + step]).digest()
                hashes.append(parent)
            return
        token = first * size
        for at in range(0, len(data), step):
            records = extra_keys.for_block(token, token + size)
            parent = new(parent + count + data[at : at + step] + records).digest()
            hashes.append(parent)
            token += size


def token_bytes(token_ids: Sequence[int], start: int, end: int) -> bytes:
    """Tokens [start, end) as unsigned 32-bit little-endian integers, one after the other.

    Raises UsageError for what is no token id.
    """
    part = token_ids[start:end]
    try:
        raw = part if isinstance(part, array) and part.typecode == "I" else _as_array(part)
    except (OverflowError, TypeError) as error:
        bad = next(i for i, token in enumerate(part) if not _is_token(token))
        raise UsageError(
            f"token_ids[{start + bad}] is {part[bad]!r}: a token id must be an integer from 0 to {2**32 - 1}"
        ) from error
    if sys.byteorder == "big":
        raw = array("I", raw)
        raw.byteswap()
    return raw.tobytes()


def _as_array(part: Sequence[int]) -> array[int]:
    if type(part) is list:
        return array("I", part)
    try:
        view = memoryview(part)  # type: ignore[arg-type]
    except TypeError:
        return array("I", part)
    if view.ndim == 1 and view.itemsize == 4 and view.format in ("I", "L"):
        return array("I", view.tobytes())
    return array("I", list(part))


def _is_token(token: object) -> bool:
    return isinstance(token, int) and 0 <= token < 2**32
