"""Estimates beside what real engines logged: the table of docs/memory-estimate.md.

`python -m tests.sizing.error_table` prints it, with `--write` it replaces the table in the page.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvblocks.sizing.devices import GIB, find_device
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.memory import MemoryEstimate, estimate_available
from kvblocks.sizing.model_config import ModelConfig
from tests.shared import SHARED

LOGS = Path(__file__).with_name("startup_logs.json")
PAGE = Path(__file__).parent.parent.parent / "docs" / "memory-estimate.md"
START, END = "<!-- error table: start -->", "<!-- error table: end -->"


@dataclass(frozen=True)
class Row:
    """One log and the estimate for its set-up; GiB."""

    log: dict[str, Any]
    estimate: MemoryEstimate

    @property
    def logged(self) -> float:
        return float(self.log["logged_gib"]["available"])

    @property
    def best(self) -> float:
        return self.estimate.available_best / GIB

    @property
    def error(self) -> float:
        """Share of the logged value; of the requested memory where that is not positive."""
        base = self.logged if self.logged > 0 else self.estimate.requested_bytes / GIB
        return (self.best - self.logged) / base

    @property
    def inside(self) -> bool:
        return self.estimate.available_low / GIB - 0.01 <= self.logged <= self.estimate.available_high / GIB + 0.01

    @property
    def weights_error(self) -> float | None:
        logged = self.log["logged_gib"].get("weights")
        return None if logged is None else self.estimate.weights.best / GIB / logged - 1


def config_of(log: dict[str, Any]) -> ModelConfig:
    """The config of a log's model: one of the shared ones with some fields changed."""
    data = json.loads((SHARED / "configs" / log["config"] / "config.json").read_text())
    data = copy.deepcopy(data)
    for name, value in log["changes"].items():
        part = data
        *parents, last = name.split(".")
        for parent in parents:
            part = part[parent]
        part[last] = value
    if log["quantization_config"]:
        data["quantization_config"] = log["quantization_config"]
    return ModelConfig.from_data(data)


def rows() -> Iterator[Row]:
    """All logs with their estimates."""
    for log in json.loads(LOGS.read_text()):
        device = find_device(log["gpu"])
        if log["total_gib"]:
            device = replace(device, total_bytes=round(log["total_gib"] * GIB))
        estimate = estimate_available(
            config_of(log),
            EngineFlags.from_mapping(log["flags"]),
            device,
            max_num_batched_tokens=log["max_num_batched_tokens"],
            max_num_seqs=log["max_num_seqs"],
            engine=(log["engine"][0], log["engine"][1]),
        )
        yield Row(log, estimate)


def table() -> str:
    """The table, as Markdown."""
    lines = [
        "| log | model, GPUs | vLLM | weights | logged | estimate (low .. high) | error | in range |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows():
        log, estimate = row.log, row.estimate
        name = log["entry"] if log["entry"] != "-" else log["id"]
        if log["source"]:
            name = f"[{name}]({log['source']})"
        tp = log["flags"].get("tensor_parallel_size", 1)
        gpus = f"{tp} x {log['gpu']}" if tp > 1 else log["gpu"]
        weights = row.weights_error
        lines.append(
            f"| {name} | {log['model']}, {gpus} | {log['engine'][0]}.{log['engine'][1]} "
            f"| {'-' if weights is None else f'{weights:+.1%}'} | {row.logged:.2f} "
            f"| {row.best:.2f} ({estimate.available_low / GIB:.2f} .. {estimate.available_high / GIB:.2f}) "
            f"| {row.error:+.1%} | {'yes' if row.inside else 'no'} |"
        )
    return "\n".join(lines)


def main() -> None:
    text = table()
    if "--write" in sys.argv:
        page = PAGE.read_text()
        before, rest = page.split(START)
        PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
