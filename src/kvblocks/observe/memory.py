"""What a cache has computed, remembered within a bound: every prefix, who brought it, and where prompts part.

The prefixes form a tree. An `Origin` is one of its edges: the tokens that one request was the first to bring, from the
unit after what it shared on. A dictionary from block hash to origin finds the longest prefix that was ever brought;
the branches of an origin, sorted by their tokens, give the longest common part inside the next unit by bisection.

Two bounds: units (hashes), of which the older half is forgotten when there are too many, and bytes of token ids, whose
oldest are forgotten. A small filter of all hashes ever seen tells forgotten from never seen; it can only err towards
"forgotten".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from kvblocks.manager import Request

BYTES_PER_TOKEN = 4
MAX_SIBLINGS = 16
"""Of those that share a whole unit under another key, so many are looked at."""
_ORIGIN_BYTES = 512
"""What an origin takes besides its tokens, roughly; it counts with them."""
_FILTER_BYTES = 2**24
_MASK = _FILTER_BYTES * 8 - 1


class Origin:
    """The tokens that one request was the first to bring: units from number `start` on, and the rest after them."""

    __slots__ = (
        "branches",
        "evictions",
        "forgot_branches",
        "forgot_tokens",
        "hashes",
        "key",
        "keys",
        "parent",
        "request",
        "request_id",
        "start",
        "tokens",
    )

    def __init__(self, request: Request | None, start: int, hashes: list[bytes], tokens: bytes) -> None:
        self.request = request
        """The request while it lives; then it may still have to compute some of it."""
        self.request_id = None if request is None else request.request_id
        self.start = start
        self.hashes = hashes
        self.tokens = tokens
        self.key = b""
        """The tokens of the first unit (fewer at a prompt's end): by these the branches of one place are sorted."""
        self.keys: object = None
        """What besides the tokens makes the hashes, as `keys_of` gave it."""
        self.evictions = 0
        """Evictions before it was brought."""
        self.parent: Origin | None = None
        self.branches: dict[int, list[Origin]] = {}
        """By unit, the origins that begin there."""
        self.forgot_tokens = False
        self.forgot_branches: set[int] = set()
        """Units at which the tokens of a branch have been forgotten."""

    def hides(self, unit: int) -> bool:
        """Whether tokens that followed here, in this unit, have been forgotten."""
        return self.forgot_tokens or unit in self.forgot_branches

    @property
    def num_computed_tokens(self) -> int:
        """How many leading tokens of the prompt are computed now; all that it has when the request is gone."""
        if self.request is None:
            return 2**63
        return self.request.num_computed_tokens - self.request.num_in_flight_tokens


class Sibling:
    """The origin that shares most with a prompt inside one unit."""

    __slots__ = ("common_tokens", "origin")

    def __init__(self, origin: Origin, common_tokens: int) -> None:
        self.origin = origin
        self.common_tokens = common_tokens


class PrefixMemory:
    """The tree. `unit_tokens` is the granularity of the hashes."""

    def __init__(self, unit_tokens: int, max_units: int, max_token_bytes: int) -> None:
        self.unit_tokens = unit_tokens
        self.unit_bytes = unit_tokens * BYTES_PER_TOKEN
        self.root = Origin(None, 0, [], b"")
        self._max_units, self._max_token_bytes = max_units, max_token_bytes
        self._young: dict[bytes, Origin] = {}
        self._old: dict[bytes, Origin] = {}
        self._forgotten: dict[bytes, Origin] = {}  # not in the filter yet
        self._filter = bytearray(_FILTER_BYTES)
        self._with_tokens: deque[Origin] = deque()
        self._token_bytes = 0

    def __len__(self) -> int:
        """Units that are remembered; never more than `max_units`, and as many again that are being forgotten."""
        return len(self._young) + len(self._old)

    @property
    def num_token_bytes(self) -> int:
        """Bytes of token ids that are remembered, and of what belongs to them."""
        return self._token_bytes

    # -- Reading --------------------------------------------------------------------------------------------------

    def run(self, hashes: Sequence[bytes]) -> list[Origin]:
        """The origins of the longest leading run of units that were brought before."""
        found: list[Origin | None] = list(map(self._young.get, hashes))
        if None not in found:
            return found  # type: ignore[return-value]
        at = found.index(None)
        run: list[Origin] = found[:at]  # type: ignore[assignment]
        again = at
        for at in range(again, len(found)):
            origin = found[at] or self._old.get(hashes[at])
            if origin is None:
                break
            self._young[hashes[at]] = origin  # a prefix stays at least as long as what extends it
            run.append(origin)
        return run

    def may_have_forgotten(self, block_hash: bytes) -> bool:
        """Whether this hash could have been brought and forgotten. False is certain."""
        if block_hash in self._forgotten:
            return True
        value = int.from_bytes(block_hash[-8:], "big")
        a, b = value & _MASK, value >> 32 & _MASK
        bits = self._filter
        return bool(bits[a >> 3] >> (a & 7) & bits[b >> 3] >> (b & 7) & 1)

    def siblings(self, owner: Origin, unit: int, mine: bytes) -> list[Sibling]:
        """Who shares most of `mine`, the tokens of the prompt's unit number `unit`, of those with the units before.

        `owner` is the origin of the unit before, or the root. Several when they share all of it, newest first.
        """
        size = self.unit_bytes
        found: list[Sibling] = []
        if owner is not self.root:
            begin = (unit - owner.start) * size
            own = owner.tokens[begin : begin + size]
            if own:
                found.append(Sibling(owner, common_tokens(own, mine)))
        branches = owner.branches.get(unit, ())
        low = bisect_left(branches, mine, key=_key)
        high = bisect_right(branches, mine, lo=low, key=_key)
        if high > low:
            near = branches[max(low, high - MAX_SIBLINGS) : high][::-1]
        else:
            near = list(branches[max(low - 1, 0) : low + 1])
        found += [Sibling(branch, common_tokens(branch.key, mine)) for branch in near]
        most = max((sibling.common_tokens for sibling in found), default=0)
        return [sibling for sibling in found if sibling.common_tokens == most and most]

    # -- Changing -------------------------------------------------------------------------------------------------

    def enter(self, origin: Origin, owner: Origin) -> None:
        """Add an origin that begins where `owner`'s units before it end."""
        origin.parent = owner
        origin.key = origin.tokens[: self.unit_bytes]
        self._know(origin.hashes, origin)
        if origin.tokens:
            branches = owner.branches.setdefault(origin.start, [])
            branches.insert(bisect_right(branches, origin.key, key=_key), origin)
            self._with_tokens.append(origin)
            self._weigh(len(origin.tokens) + _ORIGIN_BYTES)

    def extend(self, origin: Origin, hashes: list[bytes], tokens: bytes) -> None:
        """The request has brought more: `hashes` are the further units, `tokens` all of the origin's."""
        origin.hashes += hashes
        self._know(hashes, origin)
        if origin.tokens:
            grown = len(tokens) - len(origin.tokens)
            origin.tokens = tokens
            self._weigh(grown)

    def cut(self, origin: Origin, num_tokens: int) -> list[bytes]:
        """The request ended early: only so many of the origin's tokens were computed. Returns the units lost."""
        units = num_tokens // self.unit_tokens
        lost = origin.hashes[units:]
        del origin.hashes[units:]
        for block_hash in lost:
            for known in (self._young, self._old):
                if known.get(block_hash) is origin:
                    del known[block_hash]
        kept = origin.tokens[: num_tokens * BYTES_PER_TOKEN]
        if origin.tokens:
            self._token_bytes -= len(origin.tokens) - len(kept)
            if len(kept) < len(origin.key):
                self._detach(origin)
                origin.key = kept
                if kept and origin.parent is not None:
                    branches = origin.parent.branches.setdefault(origin.start, [])
                    branches.insert(bisect_right(branches, kept, key=_key), origin)
            origin.tokens = kept
        return lost

    def _know(self, hashes: Sequence[bytes], origin: Origin) -> None:
        self._young.update(dict.fromkeys(hashes, origin))
        if self._forgotten:
            self._filter_some(2 * len(hashes))
        if len(self._young) * 2 >= self._max_units:
            self._filter_some(len(self._forgotten))
            self._forgotten, self._old, self._young = self._old, self._young, {}

    def _filter_some(self, count: int) -> None:
        """Enter so many forgotten hashes in the filter: a few at a time, so that no request waits for all."""
        bits, forgotten = self._filter, self._forgotten
        for _ in range(min(count, len(forgotten))):
            block_hash, _ = forgotten.popitem()
            value = int.from_bytes(block_hash[-8:], "big")
            a, b = value & _MASK, value >> 32 & _MASK
            bits[a >> 3] |= 1 << (a & 7)
            bits[b >> 3] |= 1 << (b & 7)

    def _weigh(self, num_bytes: int) -> None:
        self._token_bytes += num_bytes
        while self._token_bytes > self._max_token_bytes and self._with_tokens:
            oldest = self._with_tokens.popleft()
            self._token_bytes -= len(oldest.tokens) + _ORIGIN_BYTES
            self._detach(oldest)
            if oldest.parent is not None and oldest.tokens:
                oldest.parent.forgot_branches.add(oldest.start)
            oldest.tokens, oldest.forgot_tokens = b"", True

    def _detach(self, origin: Origin) -> None:
        """Take an origin out of the branches of its parent."""
        if origin.parent is None:
            return
        branches = origin.parent.branches.get(origin.start, [])
        for at in range(bisect_left(branches, origin.key, key=_key), len(branches)):
            if branches[at] is origin:
                del branches[at]
                break
            if branches[at].key != origin.key:
                break
        if not branches:
            origin.parent.branches.pop(origin.start, None)


def _key(origin: Origin) -> bytes:
    return origin.key


def common_tokens(first: bytes, second: bytes) -> int:
    """How many leading tokens two runs of token bytes share."""
    n = min(len(first), len(second))
    differing = int.from_bytes(first[:n], "big") ^ int.from_bytes(second[:n], "big")
    return (n - (differing.bit_length() + 7) // 8) // BYTES_PER_TOKEN
