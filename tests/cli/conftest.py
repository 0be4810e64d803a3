"""A trace for the commands."""

from __future__ import annotations

import pytest

from tests.cli.command import kvblocks


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "chat.jsonl"
    run = kvblocks("trace", "generate", "chat", "--requests", "60", "--seed", "3", "--output", str(path))
    assert (run.returncode, run.stderr) == (0, f"60 chat requests written to {path}\n")
    return str(path)
