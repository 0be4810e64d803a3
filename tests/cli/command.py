"""Runs the command line as its user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

KVBLOCKS = f"{sys.executable} -m kvblocks"
"""For shell commands."""


def kvblocks(
    *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvblocks", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, "COLUMNS": "80", **(env or {})},
        check=False,
    )


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """A bash command line; the exit code is that of the last command of a pipe that failed."""
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)


def failed(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, a message on standard error, no traceback, nothing on standard output."""
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    for word in words:
        assert word in run.stderr
