"""The commands of the page "Inside vLLM" that need vLLM print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.vllm.test_end_to_end import models_folder

PAGE = (Path(__file__).parents[3] / "docs" / "inside-vllm.md").read_text()
COMMANDS = [
    example
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)
    for example in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
]


@pytest.mark.parametrize("command, shown", COMMANDS)
def test_the_command_prints_what_the_page_shows(command: str, shown: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KVBLOCKS")}
    run = subprocess.run(
        ["bash", "-c", command], cwd=models_folder(), env=environment | {"PATH": path}, capture_output=True, text=True
    )
    assert run.stdout == shown
    assert run.returncode == ("would stay" in shown)


def test_the_page_has_such_commands() -> None:
    assert len(COMMANDS) >= 4
