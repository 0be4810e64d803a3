"""The engine's counts in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvblocks.engine import Engine

_COUNTERS = {
    "requests": "Requests that came.",
    "prompt_tokens": "Prompt tokens of admitted requests.",
    "cached_tokens": "Of them, those that the cache held.",
    "computed_tokens": "Tokens that went through the model.",
    "generated_tokens": "Tokens of answers.",
    "preemptions": "Requests that lost their blocks to others.",
    "recomputed_tokens": "Tokens computed again after a preemption.",
    "drafted_tokens": "Tokens guessed ahead.",
    "accepted_drafts": "Of them, those that were right.",
    "copied_blocks": "Blocks copied before they were written.",
    "steps": "Forward passes.",
}


class _EngineCollector(Collector):
    def __init__(self, engine: Engine, open_requests: int) -> None:
        self._engine, self._open = engine, open_requests

    def collect(self) -> Iterator[Metric]:
        """Plain reads of counts; a scrape in the middle of a step may see some of it."""
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"kvblocks_engine_{name}", text, getattr(self._engine.stats, name))
        scheduler = self._engine.scheduler
        yield GaugeMetricFamily("kvblocks_requests_open", "Requests that wait or run, as HTTP sees them.", self._open)
        yield GaugeMetricFamily("kvblocks_requests_running", "Requests in the batch.", len(scheduler.running))
        yield GaugeMetricFamily("kvblocks_requests_waiting", "Requests without blocks.", scheduler.num_waiting)


def exposition(engine: Engine, open_requests: int) -> tuple[bytes, str]:
    """The text and its content type."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine, open_requests))
    return generate_latest(registry), CONTENT_TYPE_LATEST
