"""Every example of the docs and the README runs and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.M | re.S)
"""A fenced block: its language, its text, and the output that stands directly below it."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a page's examples run in order, in one folder. A command about the reader's own trace.jsonl has one."""
    monkeypatch.chdir(tmp_path)
    shim = tmp_path / "bin" / "kvblocks"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvblocks "$@"\n')
    shim.chmod(0o755)
    if re.search(r"\btrace\.jsonl\b", page.read_text()):
        run_command("kvblocks trace generate chat --requests 30 --output trace.jsonl")
    namespace: dict[str, Any] = {}
    for language, text, output in BLOCK.findall(page.read_text()):
        if language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, str(page), "exec"), namespace)
            if output:
                assert printed.getvalue() == output
        elif language == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                if not command.startswith(("make ", "pip ", "git ")):
                    code, printed_text = run_command(command)
                    if shown:
                        assert matches(shown, printed_text), f"$ {command}\n{shown}\nbut prints\n{printed_text}"
                    else:
                        assert code == 0, printed_text


def run_command(command: str) -> tuple[int, str]:
    """The exit code and what the command prints; it may fail only in saying so (1, 2), as pages show that too."""
    run = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "COLUMNS": "80", "PATH": f"{Path.cwd() / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1, 2), run.stdout
    assert "Traceback" not in run.stdout
    return run.returncode, run.stdout


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the one shown, where a line of three dots stands for any lines."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + " *\n" for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


def test_every_link_of_a_page_leads_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    assert len(links) > 10
    assert not [link for link in links if "://" not in link[1] and not (link[0].parent / link[1]).exists()]
