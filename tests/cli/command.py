"""Runs the command line as its user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KVBLOCKS = f"{sys.executable} -m kvblocks"
"""For shell commands."""


def kvblocks(
    *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None, before: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`before` is a folder whose modules go before all others."""
    path = os.pathsep.join(filter(None, ["" if before is None else str(before), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "kvblocks", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": path, **(env or {})},
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
