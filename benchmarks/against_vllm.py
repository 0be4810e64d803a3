"""Both managers in one process: what each operation costs in kvblocks and in vLLM, and the ratio.

`make bench-vllm` runs it in an environment with vLLM 0.32 (its CPU build). kvblocks is here what the plugin puts
in: its manager behind vLLM's interface. Requests are vLLM's own objects with vLLM's own block hashes for both sides,
and calls have the arguments that vLLM's scheduler gives them. The sides alternate within each round, the first one in
turn; figures are medians over rounds. `--json FILE` writes them with the machine and the spread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
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

from kvblocks import __version__
from kvblocks.integrations.vllm.manager import VLLMKVCacheManager
from kvblocks.pool import BlockPool
from kvblocks.prefix import BlockHasher

BLOCK, PROMPT, RUNNING, LONGEST = 16, 32_768, 1_024, 2**20
STEP_RUNNING = 512
AIMS = {
    "build a pool of 400,000 blocks": 20,
    "hash chain, per block": 3,
    "cold allocation, per block": 4,
    "look-up, per block": 4,
    "free, per block": 1,
    "decode step, one group, per request": 8,
}
"""How many times less than vLLM's an operation should take."""


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
    options: dict[str, Any] = {"max_in_flight_tokens": 8192, "log_stats": True}
    return {
        "vllm": VllmManager(config, LONGEST, BLOCK, BLOCK, **options),
        "kvblocks": VLLMKVCacheManager(config, LONGEST, BLOCK, BLOCK, **options),
    }


def in_turn(sides: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """The sides, the other one first each round."""
    pairs = list(sides.items())
    return pairs[::-1] if number % 2 else pairs


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
    for side, manager in in_turn(sides, number):
        time_prompt(timings, side, manager, cold, warm)


def time_prompt(timings: Timings, side: str, manager: Any, cold: Request, warm: Request) -> None:
    blocks = PROMPT // BLOCK
    timings.time("cold allocation, per block", side, blocks, lambda: manager.allocate_slots(cold, PROMPT))
    timings.time("free, per block", side, blocks, lambda: manager.free(cold))
    found, tokens, _ = timings.time("look-up, per block", side, blocks, lambda: manager.get_computed_blocks(warm))
    allocate = manager.allocate_slots
    timings.time("cached allocation, per block", side, blocks, lambda: allocate(warm, PROMPT - tokens, tokens, found))
    manager.free(warm)


def time_decodes(timings: Timings, name: str, sides: dict[str, Any], requests: list[Request]) -> None:
    """Sixteen steps of all running requests, called as the scheduler calls."""
    for step in range(BLOCK):
        for request in requests:
            request.append_output_token_ids(7)
        for side, manager in in_turn(sides, step):

            def one_by_one(allocate: Any = manager.allocate_slots) -> None:
                for request in requests:
                    allocate(request, 1, num_lookahead_tokens=0)

            timings.time(f"decode step, {name}, per request", side, RUNNING, one_by_one)
        for request in requests:
            request.num_computed_tokens += 1


def time_batches(timings: Timings, sides: dict[str, Any], requests: list[Request]) -> None:
    """The same for one group with kvblocks' batch form; vLLM has none, so it is called one by one."""
    for step in range(BLOCK):
        for request in requests:
            request.append_output_token_ids(7)
        for side, manager in in_turn(sides, step):

            def all_at_once(side: str = side, manager: Any = manager) -> None:
                if side == "kvblocks":
                    manager.core.allocate_decode_slots(requests)
                else:
                    for request in requests:
                        manager.allocate_slots(request, 1, num_lookahead_tokens=0)

            timings.time("decode step, one group, batch form, per request", side, RUNNING, all_at_once)
        for request in requests:
            request.num_computed_tokens += 1


def schedulers(folder: Path) -> dict[str, Any]:
    """vLLM's own scheduler with either manager, and so many requests that run."""
    from transformers import LlamaConfig
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched import scheduler as module
    from vllm.v1.structured_output import StructuredOutputManager

    LlamaConfig(
        architectures=["LlamaForCausalLM"], hidden_size=256, num_attention_heads=4, max_position_embeddings=8192
    ).save_pretrained(folder)
    arguments = EngineArgs(
        str(folder),
        skip_tokenizer_init=True,
        max_model_len=4096,
        max_num_seqs=STEP_RUNNING,
        max_num_batched_tokens=8192,
    )
    config = arguments.create_engine_config()
    config.cache_config.block_size = BLOCK
    config.cache_config.num_gpu_blocks = 200_000
    spec = VllmFull(BLOCK, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
    cache = KVCacheConfig(200_000, [], [KVCacheGroupSpec(["layer"], spec)], prefix_cache_retention_interval=0)
    made = {}
    for side, manager in (("vllm", VllmManager), ("kvblocks", VLLMKVCacheManager)):
        module.KVCacheManager = manager
        with set_current_vllm_config(config):
            made[side] = module.Scheduler(
                config, cache, StructuredOutputManager(config), block_size=BLOCK, hash_block_size=BLOCK, log_stats=False
            )
    module.KVCacheManager = VllmManager
    return made


def time_schedulers(timings: Timings, sides: dict[str, Any], hasher: Any, steps: int) -> None:
    """`schedule()` and `update_from_output()` of decode steps, the model's output made up."""
    from vllm.v1.outputs import ModelRunnerOutput

    def output_of(scheduled: Any, names: list[str]) -> Any:
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, [[7]] * len(names))

    for side, scheduler in sides.items():
        for number in range(STEP_RUNNING):
            scheduler.add_request(make_request(f"{side}{number}", range(number, number + 500 + number % BLOCK), hasher))
        while scheduler.waiting or any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.running):
            scheduled = scheduler.schedule()
            names = list(scheduled.num_scheduled_tokens)
            done = [scheduler.requests[n].num_computed_tokens >= scheduler.requests[n].num_prompt_tokens for n in names]
            output = output_of(scheduled, names)
            output.sampled_token_ids = [[7] if ready else [] for ready in done]
            scheduler.update_from_output(scheduled, output)
    gc.collect()
    gc.freeze()
    for step in range(steps):
        for side, scheduler in in_turn(sides, step):
            name = f"vLLM's schedule() at {STEP_RUNNING} running, per request"
            scheduled = timings.time(name, side, STEP_RUNNING, scheduler.schedule)
            scheduler.update_from_output(scheduled, output_of(scheduled, list(scheduled.num_scheduled_tokens)))


def machine() -> dict[str, Any]:
    import vllm

    return {
        "kvblocks": __version__,
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "block_size": BLOCK,
        "prompt_tokens": PROMPT,
        "running": RUNNING,
    }


def spread(samples: list[float]) -> dict[str, float]:
    return {"median_ns": statistics.median(samples), "fastest_ns": min(samples), "slowest_ns": max(samples)}


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
            if name == "one group":
                time_batches(timings, sides, requests)
    with tempfile.TemporaryDirectory() as folder:
        time_schedulers(timings, schedulers(Path(folder)), hasher, 16 * options.rounds)
    rows = []
    print(f"{'':52}{'vLLM':>12}{'kvblocks':>12}{'ratio':>8}{'aim':>6}")
    for operation, sides_of in timings.samples.items():
        theirs, ours = (spread(sides_of[side]) for side in ("vllm", "kvblocks"))
        ratio, aim = theirs["median_ns"] / ours["median_ns"], AIMS.get(operation)
        rows.append({"operation": operation, "vllm": theirs, "kvblocks": ours, "ratio": ratio, "aim": aim})
        missed = "" if aim is None or ratio >= aim else "  missed"
        figures = f"{theirs['median_ns']:12,.0f}{ours['median_ns']:12,.0f}{ratio:8.1f}{aim or '':>6}"
        print(f"{operation + ', ns':52}{figures}{missed}")
    if options.json:
        options.json.write_text(json.dumps({"environment": machine(), "operations": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
