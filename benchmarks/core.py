"""What the core costs on this machine: ns per block for hash, look-up, allocation and free, µs for a decode step.

Run by `make bench`. Every figure is the median of several rounds, with the fastest and slowest beside it; rounds of
all operations are interleaved, so that a slow moment of the machine hits all alike. Times vary from machine to
machine and run to run: compare ratios from one run. `--json FILE` writes them.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvblocks import __version__
from kvblocks.kinds import FullAttentionSpec, SlidingWindowSpec
from kvblocks.manager import KVCacheManager, RequestStatus, TokenRequest
from kvblocks.pool import BlockPool
from kvblocks.prefix import BlockHasher

BLOCK = 16
PROMPT = 32_768
RUNNING = 1_024


@dataclass
class Timings:
    """Samples by name, in seconds per unit."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, units: int, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        self.samples.setdefault(name, []).append((time.perf_counter() - start) / units)


def prompt_round(timings: Timings, manager: KVCacheManager, hasher: BlockHasher, number: int) -> None:
    """A cold prompt and the same prompt again."""
    blocks = PROMPT // BLOCK
    tokens = array("I", range(number * PROMPT, (number + 1) * PROMPT))
    hashes: list[bytes] = []
    timings.time("hash chain, sha256", blocks, lambda: hasher.extend(hashes, tokens))
    cold, warm = (TokenRequest(f"{kind}{number}", tokens, hasher) for kind in ("cold", "warm"))
    timings.time("look-up, nothing cached", 1, lambda: manager.get_computed_blocks(cold))
    timings.time("cold allocation, caching", blocks, lambda: manager.allocate_slots(cold, PROMPT))
    timings.time("free", blocks, lambda: manager.free(cold))
    timings.time("look-up, all cached", blocks, lambda: manager.get_computed_blocks(warm))
    hit = manager.get_computed_blocks(warm)
    rest = PROMPT - hit.num_tokens
    timings.time("cached allocation", blocks, lambda: manager.allocate_slots(warm, rest, hit.num_tokens, hit.blocks))
    manager.free(warm)


def decode_requests(manager: KVCacheManager, hasher: BlockHasher) -> list[TokenRequest]:
    """Running requests at staggered positions in their last block."""
    requests = []
    for number in range(RUNNING):
        length = 2_000 + number % BLOCK
        request = TokenRequest(f"run{number}", range(number, number + length), hasher)
        assert manager.allocate_slots(request, length) is not None
        request.num_computed_tokens = length
        request.status = RequestStatus.RUNNING
        requests.append(request)
    return requests


def decode_round(timings: Timings, name: str, manager: KVCacheManager, requests: list[TokenRequest]) -> None:
    """Sixteen steps call by call, then sixteen in one call each; appending tokens is timed apart."""

    def append() -> None:
        for request in requests:
            request.append_output_token_ids(7)

    def one_by_one() -> None:
        allocate = manager.allocate_slots
        for request in requests:
            allocate(request, 1)

    for form, work in (("call by call", one_by_one), ("in one call", lambda: manager.allocate_decode_slots(requests))):
        for _ in range(BLOCK):
            timings.time(f"append a token{name}", RUNNING, append)
            timings.time(f"decode step{name}, {form}", RUNNING, work)
            for request in requests:
                request.num_computed_tokens += 1


def measure(rounds: int) -> dict[str, list[float]]:
    """Samples of every operation."""
    timings = Timings()
    hasher = BlockHasher(BLOCK)
    full = FullAttentionSpec(block_size=BLOCK)
    manager = KVCacheManager(40_000, [full], max_model_len=2**20)
    plain = KVCacheManager(200_000, [full], max_model_len=2**20)
    hybrid = KVCacheManager(
        400_000,
        [full, *[SlidingWindowSpec(block_size=BLOCK, sliding_window=1024)] * 2],
        max_model_len=2**20,
        max_in_flight_tokens=8192,
    )
    running = [(", one group", plain, decode_requests(plain, hasher))]
    running.append((", full and two windows", hybrid, decode_requests(hybrid, hasher)))
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        timings.time("build a pool of 400,000 blocks", 1, lambda: BlockPool(400_000))
        prompt_round(timings, manager, hasher, number)
        for name, owner, requests in running:
            decode_round(timings, name, owner, requests)
        imported = [
            sys.executable,
            "-c",
            "import time; t = time.perf_counter(); import kvblocks.manager; print(time.perf_counter() - t)",
        ]
        seconds = float(subprocess.run(imported, capture_output=True, text=True, check=True).stdout)
        timings.samples.setdefault("import kvblocks.manager", []).append(seconds)
    for used in (manager, plain, hybrid):
        used.check()
    return timings.samples


UNITS = {"build": ("ms", 1e3), "import": ("ms", 1e3), "look-up, nothing": ("µs", 1e6)}


def unit_of(name: str) -> tuple[str, float]:
    for start, unit in UNITS.items():
        if name.startswith(start):
            return unit
    per_request = name.startswith(("decode", "append"))
    return ("µs/request", 1e6) if per_request else ("ns/block", 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all operations (default 7)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    samples = measure(options.rounds)
    machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    print(f"kvblocks {__version__}, {machine}; blocks of {BLOCK} tokens, prompts of {PROMPT:,}, {RUNNING:,} running")
    print(f"{'':44}{'median':>10}{'fastest':>10}{'slowest':>10}")
    rows = []
    for name, values in samples.items():
        unit, factor = unit_of(name)
        figures = [factor * value for value in (statistics.median(values), min(values), max(values))]
        rows.append({"name": name, "unit": unit, "median": figures[0], "fastest": figures[1], "slowest": figures[2]})
        print(f"{name:44}" + "".join(f"{figure:10.2f}" for figure in figures) + f"  {unit}")
    if options.json:
        options.json.write_text(json.dumps({"version": __version__, "machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
