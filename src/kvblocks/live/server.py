"""An HTTP server for one live view, of the standard library alone, in a daemon thread."""

from __future__ import annotations

import logging
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.live.address import Address, host_is_local, is_loopback
from kvblocks.live.routes import HEADERS, Reply, answer, failure
from kvblocks.live.view import LiveView

TIMEOUT_S = 10.0
"""A client that sends or reads nothing for so long is left."""
MAX_CONNECTIONS = 16


class LiveServer:
    """Listens until `close` or until the process ends. Raises UsageError when it cannot listen there."""

    def __init__(self, view: LiveView, address: Address, logger: logging.Logger | None = None) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        local = is_loopback(address.host)
        try:
            self._server = _Server(view, address, family, local, logger or logging.getLogger("kvblocks.live"))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address.host}:{address.port}: {error.strerror or error}; choose another port"
            ) from error
        self.address = Address(address.host, self._server.server_address[1])
        """Where it listens, with the port that it got."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="kvblocks-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; returns when the port is free."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A thread per connection, of which there are never more than `MAX_CONNECTIONS`."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, view: LiveView, address: Address, family: socket.AddressFamily, local: bool, logger: logging.Logger
    ) -> None:
        self.address_family = family
        self.view, self.local, self.logger = view, local, logger
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's name, which can take long and is not needed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.logger.debug("a client of the live page went away", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT_S
    server_version = "kvblocks"
    sys_version = ""

    def do_GET(self) -> None:
        self._send(self._answer(), body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), body=False)

    def _answer(self) -> Reply:
        if self.server.local and not host_is_local(self.headers.get("Host", "localhost")):
            return failure(403, "this server answers loopback host names only")
        try:
            return answer(self.server.view, self.path.partition("?")[0])
        except Exception:
            self.server.logger.exception("kvblocks: the live page failed; the engine is not affected")
            return failure(500, "this is a fault of kvblocks; the server's log has it")

    def _send(self, reply: Reply, *, body: bool) -> None:
        self.send_response(reply.status)
        for name, value in {**HEADERS, "Content-Type": reply.content_type}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if body:
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In the form of all other answers, and without what the client said."""
        phrase = HTTPStatus(code).phrase
        if self.request_version != "HTTP/0.9":
            self.close_connection = True
        self._send(failure(code, phrase.lower()), body=getattr(self, "command", "") != "HEAD")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Requests of a page that asks every second are nobody's log."""
