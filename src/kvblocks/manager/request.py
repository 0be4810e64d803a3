"""The request protocol: what the manager reads of a request, and a plain request that satisfies it.

The attribute names are vLLM's, so a vLLM request goes in as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol

from kvblocks.errors import RequestError
from kvblocks.prefix import BlockHasher, ExtraKeys, token_bytes


class RequestStatus(Enum):
    """Where a request is in its life. The manager reads the name: the watermark applies to the first two."""

    WAITING = "waiting"
    PREEMPTED = "preempted"
    RUNNING = "running"
    FINISHED = "finished"


class HasName(Protocol):
    @property
    def name(self) -> str: ...


class Request(Protocol):
    """A request as the manager sees it: read, never written.

    One request is one object from its first allocation to its `free`, hashed and compared by identity (what a class
    does that defines no `__eq__`): a second object under a `request_id` that still holds blocks is refused. Counts are
    tokens.
    """

    @property
    def request_id(self) -> str:
        """Unique among the requests that hold blocks."""
        ...

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens; draft tokens do not count."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose keys and values are in the cache, or will be when the steps in flight are done."""
        ...

    @property
    def num_in_flight_tokens(self) -> int:
        """The last so many computed tokens are in steps that have not been processed yet (asynchronous scheduling)."""
        ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def status(self) -> HasName: ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The digests of the full hash units of all tokens, first unit first; kept up to date by the owner."""
        ...

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """The request must compute every token itself (prompt log-probabilities); it still writes the cache."""
        ...

    @property
    def shared_prefix_boundary(self) -> int:
        """What `get_computed_blocks` reported at admission, stored by the scheduler; 0 when nothing was."""
        ...


class TokenRequest:
    """A request with token ids that keeps its own block hashes.

    Without a hasher (prefix caching off) `block_hashes` stays empty.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        hasher: BlockHasher | None = None,
        *,
        extra_keys: ExtraKeys | None = None,
        priority: int = 0,
        arrival_time_s: float = 0.0,
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        """Copies the prompt and hashes it. Raises RequestError for an empty prompt, UsageError for a bad token id."""
        if not len(prompt_token_ids):
            raise RequestError(request_id, "the prompt is empty; a request needs at least one token")
        self.request_id = request_id
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.num_tokens = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.priority = priority
        self.arrival_time_s = arrival_time_s
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.shared_prefix_boundary = 0
        self.extra_keys = extra_keys
        self.block_hashes: list[bytes] = []
        self._hasher = hasher
        if hasher is not None:
            hasher.extend(self.block_hashes, prompt_token_ids, extra_keys)
            token_bytes(self.all_token_ids, len(self.block_hashes) * hasher.block_size, self.num_tokens)  # the rest

    def append_output_token_ids(self, token_ids: int | Iterable[int]) -> None:
        """Add generated tokens, and the hashes of the units that they complete.

        Raises UsageError for what is no token id; then nothing has been added.
        """
        new = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if self._hasher is not None:
            token_bytes(new, 0, len(new))
        self.all_token_ids += new
        self.num_tokens = len(self.all_token_ids)
        if self._hasher is not None:
            self._hasher.extend(self.block_hashes, self.all_token_ids, self.extra_keys)
