"""Prometheus' text format (version 0.0.4), written with the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Value(NamedTuple):
    """One line of a metric."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


class Metric(NamedTuple):
    """A metric with its lines. The name of a counter ends in `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    values: Sequence[Value]


def single(name: str, kind: Literal["counter", "gauge"], text: str, value: float) -> Metric:
    """A metric of one line."""
    return Metric(name, kind, text, (Value(value),))


def labelled(
    name: str, kind: Literal["counter", "gauge"], text: str, label: str, values: Mapping[str, float]
) -> Metric:
    """A metric with a line per value of one label."""
    return Metric(name, kind, text, [Value(value, {label: at}) for at, value in values.items()])


def histogram(name: str, text: str, bounds: Sequence[float], buckets: Sequence[int], total: float) -> Metric:
    """`buckets[i]` counts what is at most `bounds[i]` and above the bound before; the last one what is beyond."""
    values, count = [], 0
    for bound, bucket in zip((*map(_number, bounds), "+Inf"), buckets, strict=True):
        count += bucket
        values.append(Value(count, {"le": bound}, "_bucket"))
    return Metric(name, "histogram", text, [*values, Value(total, {}, "_sum"), Value(count, {}, "_count")])


def exposition(metrics: Iterable[Metric]) -> str:
    """The text of all metrics."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for value, labels, suffix in metric.values:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{metric.name}{suffix}{f'{{{inner}}}' if inner else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
