"""The commands that run a model, as their user meets them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kvblocks.engine import demo_model
from kvblocks.errors import UsageError
from tests.cli.command import failed, kvblocks

SMALL = ("--kv-memory", "48MiB")


def need_demo_model() -> None:
    try:
        demo_model()
    except UsageError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("generate",), "no prompt"),
        (("generate", "a", "--model", "/nowhere"), "/nowhere: no such file"),
        (("generate", "a", "--file", "/nowhere"), "--file /nowhere"),
        (("generate", "a", "--temperature", "9"), "--temperature 9"),
        (("generate", "a", "--block-size", "0"), "--block-size 0"),
        (("generate", "a", "--kv-memory", "much"), "--kv-memory 'much'"),
        (("generate", "a", "--json", "/nowhere/x.json"), "--json /nowhere/x.json"),
        (("demo", "--chats", "0"), "--chats 0"),
        (("serve", "--host", "0.0.0.0"), "--api-key"),
        (("serve", "--port", "99999"), "--port 99999"),
    ],
)
def test_bad_input_is_one_line_that_names_it(arguments: tuple[str, ...], words: str) -> None:
    failed(kvblocks(*arguments), words)


def test_generate_reads_prompts_from_everywhere_and_writes_json() -> None:
    need_demo_model()
    run = kvblocks(
        "generate", "One.", "--file", "-", "--max-tokens", "3", "--json", "-", *SMALL, stdin="Two.\n\nThree.\n"
    )
    data = json.loads(run.stdout)
    assert [entry["prompt"] for entry in data["prompts"]] == ["One.", "Two.", "Three."]
    assert all(len(entry["answers"][0]["token_ids"]) <= 3 for entry in data["prompts"])


def test_chat_finds_the_turn_before_in_the_cache(tmp_path: Path) -> None:
    need_demo_model()
    run = kvblocks(
        "chat", "--max-tokens", "4", "--json", str(tmp_path / "chat.json"), *SMALL, stdin="Hello!\nWho are you?\n"
    )
    assert run.returncode == 0, run.stderr
    first, second = json.loads((tmp_path / "chat.json").read_text())["turns"]
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] >= first["prompt_tokens"] - 4


def test_serve_answers_until_a_signal_and_ends_well(tmp_path: Path) -> None:
    need_demo_model()
    command = [sys.executable, "-m", "kvblocks", "serve", "--port", "0", *SMALL]
    failed(kvblocks(*command[3:]), "--port 0")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command[command.index("0")] = str(port)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        assert f"http://127.0.0.1:{port}" in server.stderr.readline()
        while server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
                    assert json.load(reply) == {"status": "ok"}
                break
            except OSError:
                continue
        server.send_signal(signal.SIGTERM)
        assert "Traceback" not in server.stderr.read()
    assert server.returncode in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
