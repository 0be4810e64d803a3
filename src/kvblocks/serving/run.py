"""Run the server until a signal ends it."""

from __future__ import annotations

import ipaddress
import socket

import uvicorn
from fastapi import FastAPI

from kvblocks.errors import UsageError

GRACE_S = 10
"""How long requests may go on after a signal; then they are ended, and told so."""


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, port: int, api_key: str | None) -> None:
    """Raise UsageError now for an open address without a key, or a port that is taken."""
    if api_key is None and not is_loopback(host):
        raise UsageError(f"--host {host} is open to others; give --api-key, or listen on 127.0.0.1")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror}; choose another"
        ) from error


def serve(app: FastAPI, host: str, port: int) -> None:
    """Listen until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=30
    )
    uvicorn.Server(config).run()
