"""A request of a replay: counts and hashes, and tokens only where somebody reads them."""

from __future__ import annotations

from kvblocks.manager import RequestStatus
from kvblocks.replay.content import TraceHasher
from kvblocks.traces import TraceRequest


class ReplayRequest:
    """Satisfies the scheduler's request protocol. All counts are tokens."""

    __slots__ = (
        "_hasher",
        "all_token_ids",
        "arrival_time_s",
        "block_hashes",
        "extra_keys",
        "first_token_s",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "priority",
        "request_id",
        "shared_prefix_boundary",
        "skip_reading_prefix_cache",
        "status",
    )

    def __init__(self, number: int, recorded: TraceRequest, hasher: TraceHasher, arrival_time_s: float) -> None:
        """`number` makes the id unique; recorded ids may repeat."""
        prompt = hasher.prompt(recorded)
        self.request_id = f"{number}:{recorded.request_id}"
        self.num_prompt_tokens = recorded.num_prompt_tokens
        self.num_output_tokens = recorded.num_output_tokens
        self.num_tokens = recorded.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.priority = recorded.priority
        self.arrival_time_s = arrival_time_s
        self.first_token_s: float | None = None
        self.skip_reading_prefix_cache = False
        self.shared_prefix_boundary = 0
        self.block_hashes = prompt.hashes
        self.all_token_ids = prompt.token_ids
        """The prompt's tokens as far as the trace tells them; None when the replay keeps none."""
        self.extra_keys = prompt.extra_keys
        self._hasher = hasher

    def append_output_token(self) -> None:
        """Add one generated token. What it says is not recorded, so the block that it fills is like no other."""
        self.num_tokens += 1
        if self.num_tokens // self._hasher.block_size > len(self.block_hashes):
            self.block_hashes.append(self._hasher.unique_hash())

    @property
    def is_done(self) -> bool:
        """Whether all recorded output tokens have been generated."""
        return self.num_tokens - self.num_prompt_tokens >= self.num_output_tokens
