"""What is answered at which path, whatever server asks: `/`, `/state`, `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from kvblocks import __version__
from kvblocks.live.document import page
from kvblocks.live.exposition import CONTENT_TYPE, exposition
from kvblocks.live.view import LiveView, NoSnapshotError

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer: the page loads nothing from elsewhere, and no other page may show it."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


def show_page(view: LiveView) -> Reply:
    """The page, which asks for `/state` by itself."""
    return Reply(200, "text/html; charset=utf-8", page())


def show_state(view: LiveView) -> Reply:
    """The state as JSON, in ASCII."""
    return Reply(200, "application/json", json.dumps({"kvblocks": __version__, **view.state()}).encode())


def show_metrics(view: LiveView) -> Reply:
    """Prometheus' text format."""
    return Reply(200, CONTENT_TYPE, exposition(view.metrics()).encode())


ROUTES: dict[str, Callable[[LiveView], Reply]] = {"/": show_page, "/state": show_state, "/metrics": show_metrics}


def answer(view: LiveView, path: str) -> Reply:
    """The answer to GET `path` (without its query)."""
    route = ROUTES.get(path)
    if route is None:
        return failure(404, f"there is nothing here; there are {', '.join(ROUTES)}")
    try:
        return route(view)
    except NoSnapshotError as error:
        return failure(503, str(error))


def failure(status: int, message: str) -> Reply:
    """An answer that says what is wrong."""
    return Reply(status, "application/json", json.dumps({"error": message}).encode())
