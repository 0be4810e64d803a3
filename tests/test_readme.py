"""The README shows what its commands print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.M)
    assert found, f"the Makefile has no target {target}"
    return [line.strip().replace("$(BIN)/", "") for line in found[1].splitlines()]


SMALLER = ["--chats", "3", "--turns", "1", "--max-tokens", "2"]
"""Of the demo the test runs a part: its figures are times, which no two runs share."""


def test_make_run_prints_what_the_readme_shows(tmp_path: Path) -> None:
    printed = demo = ""
    for command in recipe("run"):
        name, *arguments = shlex.split(command.removeprefix("@"))
        if name == "mkdir":
            (tmp_path / arguments[-1]).mkdir()
            continue
        assert name == "kvblocks"
        run = subprocess.run(
            [sys.executable, "-m", "kvblocks", *arguments, *(SMALLER if arguments[0] == "demo" else [])],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        if arguments[0] == "demo":
            demo = run.stdout
        else:
            printed += run.stdout
    shown = re.search(r"```console\n\$ make run\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert shown
    start = shown[1].index("400 chat requests")
    assert shown[1][start:] == printed
    assert words(demo) <= words(shown[1][:start])
    assert (tmp_path / "out" / "demo.html").stat().st_size > 1_000_000
    assert (tmp_path / "out" / "replay.html").stat().st_size > 1_000_000


def words(text: str) -> set[str]:
    """What is not a figure."""
    return set(re.findall(r"[A-Za-z][A-Za-z-]*", text))


def test_every_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\$ make (\w+)", (ROOT / "README.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.M), target
