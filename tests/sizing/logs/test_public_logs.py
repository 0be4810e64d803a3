"""Every public log of the shared list, written in its version's form: what adds up, and what is known not to."""

from __future__ import annotations

import json
import re
from typing import Any

from kvblocks.sizing.logs import check, read_log
from tests.shared import shared
from tests.sizing.logs.eras import refusal

WRONG = {
    "SZ014": "tokens and concurrency",  # put together from two runs: prints 36.49, says 36.48
    "SZ029": "override and tokens",  # the override had no effect
}
SUSPECT = {
    "SZ003": "pipeline stages",  # 48 layers against the memory of one stage
    "SZ030": "longest request",  # one block
    "SZ061": "longest request",  # as many blocks as one request needs, one of them the null block
}


def lines_of(entry: dict[str, Any]) -> list[str]:
    """The entry's figures as the lines that they are from."""
    log, flags = entry["log"], entry["flags"]
    lines = []
    version = re.search(r"0\.\d+\.?\S*", entry["engine"])
    if version and "fork" not in entry["engine"]:
        lines.append(f"INFO vLLM API server version {version[0]}")
    names = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "max_model_len": "max_model_len"}
    given = {long: flags[short] for short, long in names.items() if short in flags}
    block = entry.get("block_size")
    if entry["kind"] == "hybrid" and block and block > 256:
        lines.append(
            f"INFO Setting attention block size to {block} tokens to ensure that attention page size is >= mamba"
        )
    elif entry["kind"] == "uniform" and block:
        given["block_size"] = block
    lines.append(f"INFO non-default args: {given}")
    if "available_gib" in log:
        lines.append(f"INFO Available KV cache memory: {log['available_gib']} GiB")
    if "num_gpu_blocks_override" in flags:
        blocks = flags["num_gpu_blocks_override"]
        profiled = log["num_gpu_blocks_profiled"]
        lines.append(f"INFO Overriding num_gpu_blocks={profiled} with num_gpu_blocks_override={blocks}")
    if flags.get("dcp", 1) > 1:
        lines.append(f"INFO Multiplying the GPU KV cache size by the dcp_world_size {flags['dcp']}.")
    tokens = log.get("kv_tokens") or log.get("kv_tokens_before_fix")
    if tokens:
        lines.append(f"INFO GPU KV cache size: {tokens:,} tokens")
    times, at, length = str(log.get("max_concurrency", "")).partition("x @")
    if at:
        lines.append(f"INFO Maximum concurrency for {int(length):,} tokens per request: {times}x")
    if "needed_gib" in log and "available_gib" in log:
        sizes = str(log["needed_gib"]), str(log["available_gib"])
        lines.append(refusal(flags["max_model_len"], *sizes, log.get("estimated_max_len")))
    return lines


def test_public_logs_add_up_but_for_those_that_are_known_to_be_wrong() -> None:
    entries = json.loads(shared("cases/sizing_logs.json").read_text())
    assert len(entries) > 60
    found: dict[str, dict[str, str]] = {"disagrees": {}, "suspect": {}}
    checked = 0
    for entry in entries:
        findings = check(read_log(lines_of(entry)))
        checked += any(finding.verdict == "agrees" for finding in findings)
        for finding in findings:
            if finding.verdict in found:
                found[finding.verdict][entry["id"]] = finding.topic
    assert found == {"disagrees": WRONG, "suspect": SUSPECT}
    assert checked > 50


def test_the_bytes_of_a_token_of_every_public_log_of_one_kind_are_found() -> None:
    entries = json.loads(shared("cases/sizing_logs.json").read_text())
    found = 0
    for entry in entries:
        if entry["kind"] != "uniform" or not {"available_gib", "kv_tokens"} <= entry["log"].keys():
            continue
        if "num_gpu_blocks_override" in entry["flags"]:
            continue
        prices = [finding for finding in check(read_log(lines_of(entry))) if finding.topic == "bytes per token"]
        if not prices:
            assert entry["id"] in WRONG
            continue
        (finding,) = prices
        low, high = finding.numbers["low_bytes"], finding.numbers["high_bytes"]
        assert low <= entry["bytes_per_token_per_rank"] <= high * 1.000001, entry["id"]
        found += 1
    assert found >= 16
