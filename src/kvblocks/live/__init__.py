"""One HTTP endpoint on loopback: metrics, state, and a page that shows the cache at work."""

from kvblocks.live.address import Address, check_open, host_is_local, is_loopback, parse_address
from kvblocks.live.exposition import CONTENT_TYPE, Metric, exposition, labelled, single
from kvblocks.live.routes import HEADERS, ROUTES, Reply, answer
from kvblocks.live.server import LiveServer
from kvblocks.live.view import LiveView, NoSnapshotError

__all__ = [
    "CONTENT_TYPE",
    "HEADERS",
    "ROUTES",
    "Address",
    "LiveServer",
    "LiveView",
    "Metric",
    "NoSnapshotError",
    "Reply",
    "answer",
    "check_open",
    "exposition",
    "host_is_local",
    "is_loopback",
    "labelled",
    "parse_address",
    "single",
]
