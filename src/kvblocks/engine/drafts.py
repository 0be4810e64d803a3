"""Drafts without a draft model: what followed the last tokens when they were seen before in the same request."""

from __future__ import annotations

from collections.abc import Sequence


class NGramDrafter:
    """Looks up the last `longest` to `shortest` tokens in the request itself, in an index that grows with it."""

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._seen: dict[tuple[int, ...], int] = {}  # n-gram to the position after its latest occurrence but the last
        self._indexed = 0

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may come next; none when nothing like the end was seen."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._seen[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
        for size in self._sizes:
            at = self._seen.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if at is not None:
                return list(tokens[at : at + count])
        return []
