"""Real vLLM gives the same tokens from the same blocks with kvblocks as without, and loses no block.

Each scenario runs in a process of its own per side: vLLM's own manager, and kvblocks' with `check()` after every step.
What both wrote down is compared: answers, and for every step the block numbers that went to the worker.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.vllm.checkpoints import MODELS
from tests.integrations.vllm.engine_run import SCENARIOS

ROOT = Path(__file__).parents[3]
TWO_WORKERS = "llama, two workers"


def cores(count: int) -> list[int]:
    """So many of the machine's cores; workers that test side by side get different ones as far as there are."""
    known = sorted(os.sched_getaffinity(0))
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return [known[(first + i) % len(known)] for i in range(count)]


@cache
def models_folder() -> Path:
    """The checkpoints, made once per environment."""
    folder = Path(sys.prefix) / "checkpoints"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers share them
        for name, make in MODELS.items():
            if not (folder / name / "config.json").exists():
                make(folder / name)
    return folder


@cache
def outcome(side: str, scenario: str) -> tuple[dict[str, Any], str]:
    """What vLLM did in the scenario, and its log; `side` is the value of KVBLOCKS."""
    environment = {
        **os.environ,
        "KVBLOCKS": side,
        "KVBLOCKS_CHECK_STEPS": "1" if side == "on" else "0",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores(2 if scenario == TWO_WORKERS else 1))),
    }
    models = models_folder()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        command = [sys.executable, "-m", "tests.integrations.vllm.engine_run", str(models), str(output), scenario]
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
        record: dict[str, Any] = json.loads(output.read_text())
    return record, run.stdout + run.stderr


def both(scenario: str) -> tuple[Any, Any, str]:
    """vLLM's record of the scenario, kvblocks', and the log of the latter."""
    ours, log = outcome("on", scenario)
    return outcome("off", scenario)[0], ours, log


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tokens_and_blocks_are_the_same(scenario: str) -> None:
    theirs, ours, _ = both(scenario)
    assert (theirs["manager"], ours["manager"]) == ("KVCacheManager", "VLLMKVCacheManager")
    assert ours["answers"] == theirs["answers"]
    assert ours["steps"] == theirs["steps"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_block_is_lost(scenario: str) -> None:
    assert [record["usage"] for record in both(scenario)[:2]] == [0.0, 0.0]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "small cache" in name])
def test_a_small_cache_preempts(scenario: str) -> None:
    assert both(scenario)[1]["preempted"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_answer_depends_on_the_prompt(scenario: str) -> None:
    """Else the test would prove nothing."""
    answers = both(scenario)[1]["answers"]
    batch = answers.get("shared prefixes") or answers["first"]
    assert len({json.dumps(answer[:2]) for answer in batch}) > len(batch) // 2


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.startswith(("sliding", "states"))])
def test_a_hybrid_has_several_groups(scenario: str) -> None:
    assert both(scenario)[1]["groups"] > 1


def test_hits_inside_blocks_are_copied_before_they_are_written() -> None:
    theirs, ours, _ = both("states, hits inside blocks")
    assert ours["copies"] == theirs["copies"] > 0


def test_what_a_connector_stored_is_loaded_again() -> None:
    """ExampleConnector itself spoils one of the six answers, with vLLM's own manager too."""
    theirs, ours = (side["answers"] for side in both("llama, connector")[:2])
    same = [
        [loaded[0] == first[0] for loaded, first in zip(side["loaded"], side["shared prefixes"], strict=True)]
        for side in (theirs, ours)
    ]
    assert same[0] == same[1]
    assert sum(same[1]) >= 5
    assert ours["reset"] is True
    assert max(answer[2] for answer in ours["loaded"]) >= 128, "tokens that came from the connector"


def test_the_plugin_says_that_it_is_active() -> None:
    _, _, log = both("sliding")
    assert "manages the KV cache: policy lru, 4 KV-cache groups (sliding window 32" in log


def test_two_workers_hold_one_cache() -> None:
    _, ours, log = both(TWO_WORKERS)
    assert ours["answers"]["again"][0][2] > 0, "the second time some tokens were cached"
    assert log.count("manages the KV cache") == 1, "one scheduler, one manager"
