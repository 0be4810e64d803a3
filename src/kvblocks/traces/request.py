"""One recorded request, whatever the format it came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    What its prompt is, is said in one of three ways: by `token_ids`; by `block_ids`, identities of consecutive runs of
    `tokens_per_id` tokens; or not at all, and then it shares nothing with any other. Content ids may cover less than
    the prompt (what follows is content of its own), or a little more (the last id then stands for a partial run).
    """

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    timestamp_s: float | None = None
    """Seconds on the trace's own clock; None when it has none."""
    token_ids: Sequence[int] | None = None
    block_ids: Sequence[int] | None = None
    tokens_per_id: int = 0
    namespace: str = ""
    """Content ids mean something within one namespace only."""
    session: str | None = None
    cache_salt: str | None = None
    lora: str | None = None
    priority: int = 0
