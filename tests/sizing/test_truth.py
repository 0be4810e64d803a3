"""Every row of the collection's sizing answers: what vLLM's own planning code says for real configs and flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

from kvblocks.sizing import ModelConfig, Plan, plan
from tests.shared import SHARED, shared

REFUSAL = re.compile(r"\(([\d.]+) GiB KV cache is needed.*?memory \((-?[\d.]+) GiB\)(?:.*length is (\d+))?")
STATUS = {"ok": "ok", "does_not_fit": "does_not_fit", "build_error": "refused", "size_error": "refused"}


def rows() -> list[dict[str, Any]]:
    path = SHARED / "truth" / "sizing.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_model() -> Iterator[Any]:
    for model, group in groupby(sorted(rows(), key=lambda row: str(row["model"])), key=lambda row: str(row["model"])):
        yield pytest.param(list(group), id=model)


def answer(row: dict[str, Any]) -> Plan:
    configs = SHARED / "configs"
    return plan(
        ModelConfig.load(configs / row["model"]),
        row["flags"],
        available_bytes=int(row.get("mem_gib", 40) * 2**30),
        env=row.get("env") or {},
        folders=[configs.parent, configs],
    )


def facts(row: dict[str, Any], found: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """What vLLM says of the row, and what we say, in the same form."""
    status = STATUS[row["status"]]
    want: dict[str, Any] = {"status": status}
    have: dict[str, Any] = {"status": found.status}
    if status == "ok":
        want["groups"] = [
            (g["type"], g["n_layers"], g["block_size"], g["page_size_bytes"], g["blocks_per_request"])
            for g in row["groups"]
        ]
        have["groups"] = [
            (g.vllm_type, g.n_layers, g.block_size, g.page_size_bytes, g.blocks_per_request) for g in found.groups
        ]
        for name in ("num_blocks", "block_size", "tokens", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
            want[name], have[name] = row[name], getattr(found, name)
        for name in ("bytes_per_block", "needed_bytes_max_len"):
            want[name], have[name] = row[name], list(getattr(found, name))
        want["concurrency"], have["concurrency"] = (
            round(row["max_concurrency"], 4),
            round(found.max_concurrency or 0, 4),
        )
        want["in flight"], have["in flight"] = row["max_in_flight_tokens"], found.max_in_flight_tokens
    said = REFUSAL.search(row.get("error") or "")
    if status == "does_not_fit" and said:
        needed, available, longest = said.groups()
        sizes = [round(size / 2**30, 2) for size in found.needed_bytes_max_len]
        want["needed"], have["needed"] = float(needed), float(needed) if float(needed) in sizes else sizes
        want["available"], have["available"] = float(available), round((found.available_bytes or 0) / 2**30, 2)
        want["longest"], have["longest"] = int(longest or 0), found.estimated_max_model_len
    return want, have


@pytest.mark.parametrize("model_rows", list(by_model()))
def test_every_answer_of_vllm_is_met(model_rows: list[dict[str, Any]]) -> None:
    for row in model_rows:
        want, have = facts(row, answer(row))
        assert have == want, (row["flags"], row.get("env"), row.get("mem_gib"))


def test_the_collection_has_the_rows_that_we_think_it_has() -> None:
    shared("truth/sizing.jsonl")
    assert len(rows()) >= 2290
    assert {row["status"] for row in rows()} == set(STATUS)


def test_every_config_of_the_collection_is_of_a_known_family() -> None:
    configs = shared("configs")
    for folder in sorted(path.parent for path in configs.glob("*/config.json")):
        found = plan(folder, {"tensor_parallel_size": 1}, available_bytes=2**46)
        assert found.ok, (folder.name, found.error)
