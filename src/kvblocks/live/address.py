"""Where to listen: an address and a port, open to this machine only unless it is said otherwise."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from kvblocks.errors import UsageError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
"""Host names by which a browser may ask a server that is open to this machine only."""


class Address(NamedTuple):
    """An address and a port; port 0 takes a free one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str, name: str) -> Address:
    """`127.0.0.1:9400`, `localhost:9400`, `[::1]:9400`. Raises UsageError that names `name` and the fix."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or (":" in host and "[" not in text) or not (port.isascii() and port.isdigit()):
        raise UsageError(f"{name}={text!r}: give an address and a port, such as 127.0.0.1:9400")
    if int(port) > 65535:
        raise UsageError(f"{name}={text!r}: the port must be from 0 to 65535")
    return Address(host, int(port))


def check_open(address: Address, allowed: bool, name: str, permission: str) -> None:
    """Raise UsageError for an address that others can reach without `permission`."""
    if not allowed and not is_loopback(address.host):
        raise UsageError(
            f"{name}={address.host}:{address.port} can be reached from other machines, and whoever reaches it can read "
            f"which requests run; use 127.0.0.1, or set {permission}"
        )


def host_is_local(header: str) -> bool:
    """Whether a Host header names this machine: a page elsewhere may have had its own name pointed at us."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    else:
        host = host.partition(":")[0]
    return host in LOOPBACK_NAMES
