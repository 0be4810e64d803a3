"""Both managers in one process: what each operation costs in kvblocks and in vLLM, and the ratio.

Needs an environment with vLLM 0.32 (its CPU build will do) and kvblocks on the path:

    PYTHONPATH=src python benchmarks/against_vllm.py

Requests are vLLM's own objects with vLLM's own block hashes for both sides. The sides alternate within each round;
figures are medians over rounds. `--json FILE` writes them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool as VllmPool
from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec as VllmFull
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_cache_interface import SlidingWindowSpec as VllmWindow
from vllm.v1.request import Request, RequestStatus

from kvblocks.kinds import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager
from kvblocks.pool import BlockPool
from kvblocks.prefix import BlockHasher

BLOCK, PROMPT, RUNNING, LONGEST = 16, 32_768, 1_024, 2**20


class Timings:
    """Samples in nanoseconds per unit, by operation and side."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[str, list[float]]] = {}

    def time(self, operation: str, side: str, units: int, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        taken = (time.perf_counter() - start) / units * 1e9
        self.samples.setdefault(operation, {}).setdefault(side, []).append(taken)
        return result


def managers(windows: int, num_blocks: int) -> dict[str, Any]:
    """Both managers for a group of full attention and so many sliding windows of 1,024 tokens."""
    shape = {"num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
    specs: list[Any] = [VllmFull(BLOCK, **shape)]
    specs += [VllmWindow(BLOCK, sliding_window=1024, **shape) for _ in range(windows)]
    groups = [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]
    config = KVCacheConfig(num_blocks, [], groups, prefix_cache_retention_interval=0, hash_block_size=BLOCK)
    ours: list[KVCacheSpec] = [FullAttentionSpec(block_size=BLOCK)]
    ours += [SlidingWindowSpec(block_size=BLOCK, sliding_window=1024)] * windows
    return {
        "vllm": VllmManager(config, LONGEST, BLOCK, BLOCK, max_in_flight_tokens=8192),
        "kvblocks": KVCacheManager(num_blocks, ours, max_model_len=LONGEST, max_in_flight_tokens=8192),
    }


def make_request(name: str, tokens: range, hasher: Any) -> Request:
    return Request(name, list(tokens), SamplingParams(max_tokens=10_000), None, block_hasher=hasher)


def time_prompts(timings: Timings, sides: dict[str, Any], hasher: Any, number: int) -> None:
    """A cold prompt and the same prompt again."""
    blocks = PROMPT // BLOCK
    tokens = range(number * PROMPT, (number + 1) * PROMPT)
    cold = timings.time("hash chain, per block", "vllm", blocks, lambda: make_request(f"c{number}", tokens, hasher))
    chain = BlockHasher(BLOCK).chain
    ids = list(tokens)
    timings.time("hash chain, per block", "kvblocks", blocks, lambda: chain(ids))
    warm = make_request(f"w{number}", tokens, hasher)
    for side in sides:
        time_prompt(timings, side, sides[side], cold, warm)


def time_prompt(timings: Timings, side: str, manager: Any, cold: Request, warm: Request) -> None:
    blocks = PROMPT // BLOCK
    timings.time("cold allocation, per block", side, blocks, lambda: manager.allocate_slots(cold, PROMPT))
    timings.time("free, per block", side, blocks, lambda: manager.free(cold))
    found, tokens, _ = timings.time("look-up, per block", side, blocks, lambda: manager.get_computed_blocks(warm))
    allocate = manager.allocate_slots
    timings.time("cached allocation, per block", side, blocks, lambda: allocate(warm, PROMPT - tokens, tokens, found))
    manager.free(warm)


def time_decodes(timings: Timings, name: str, sides: dict[str, Any], requests: list[Request]) -> None:
    """Sixteen steps of all running requests."""
    for _ in range(BLOCK):
        for request in requests:
            request.append_output_token_ids(7)
        for side, manager in sides.items():

            def one_by_one(allocate: Any = manager.allocate_slots) -> None:
                for request in requests:
                    allocate(request, 1)

            timings.time(f"decode step, {name}, per request", side, RUNNING, one_by_one)
        for request in requests:
            request.num_computed_tokens += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all operations (default 5)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    timings = Timings()
    prompts = managers(0, 40_000)
    running = []
    for name, windows in (("one group", 0), ("full and two windows", 2)):
        sides = managers(windows, 400_000)
        requests = []
        for number in range(RUNNING):
            request = make_request(f"r{number}", range(number, number + 2_000 + number % BLOCK), hasher)
            for manager in sides.values():
                assert manager.allocate_slots(request, request.num_tokens) is not None
            request.num_computed_tokens, request.status = request.num_tokens, RequestStatus.RUNNING
            requests.append(request)
        running.append((name, sides, requests))
    gc.collect()
    gc.freeze()
    for number in range(options.rounds):
        timings.time("build a pool of 400,000 blocks", "vllm", 1, lambda: VllmPool(400_000, True, BLOCK))
        timings.time("build a pool of 400,000 blocks", "kvblocks", 1, lambda: BlockPool(400_000))
        time_prompts(timings, prompts, hasher, number)
        for name, sides, requests in running:
            time_decodes(timings, name, sides, requests)
    rows = []
    print(f"{'':48}{'vLLM':>14}{'kvblocks':>14}{'ratio':>8}")
    for operation, sides_of in timings.samples.items():
        theirs, ours = (statistics.median(sides_of[side]) for side in ("vllm", "kvblocks"))
        rows.append({"operation": operation, "vllm_ns": theirs, "kvblocks_ns": ours, "ratio": theirs / ours})
        print(f"{operation:48}{theirs:11,.0f} ns{ours:11,.0f} ns{theirs / ours:8.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
