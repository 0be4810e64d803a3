"""What a client may ask of the server, and how it is told that it asked for too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvblocks.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of a request and of the server."""

    max_body_bytes: int = 4 * 2**20
    max_requests: int = 256
    """Requests that wait or run at once; further ones are sent away with 429."""
    max_output_tokens: int = 1024
    """Of each answer; also what a request gets that does not say."""
    request_timeout_s: float = 300.0
    body_timeout_s: float = 15.0
    """A body that takes longer to arrive is given up."""

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_requests", "max_output_tokens", "request_timeout_s", "body_timeout_s"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name}={getattr(self, name)} must be above 0")


class ApiError(Exception):
    """An answer that is an error, in OpenAI's form."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", param: str = "", code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param or None, "code": code or None}
        }
