"""What the scheduler needs of a request beyond what the manager reads: it moves it through its life."""

from __future__ import annotations

from typing import Protocol

from kvblocks.manager import Request, RequestStatus


class SchedulableRequest(Request, Protocol):
    """A request that the scheduler may advance. It writes these attributes and no others."""

    num_computed_tokens: int
    num_preemptions: int
    status: RequestStatus
    shared_prefix_boundary: int

    @property
    def priority(self) -> int:
        """Lower goes first under the policy "priority"."""
        ...

    @property
    def arrival_time_s(self) -> float: ...
