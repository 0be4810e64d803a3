"""The page on traces: what its commands print is what it says they print, and its examples can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvblocks.traces import open_trace

PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    # The command of the interpreter that runs the tests, whatever is installed besides.
    command = tmp_path / "kvblocks"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvblocks "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    for example in examples("console"):
        for line, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", example, re.MULTILINE):
            run = subprocess.run(
                line, shell=True, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert [part.rstrip() for part in run.stdout.splitlines()] == output.splitlines(), line


def test_the_example_lines_can_be_read(tmp_path: Path) -> None:
    (example,) = examples("json")
    path = tmp_path / "trace.jsonl"
    path.write_text(example)
    with open_trace(str(path), skip_bad_lines=True) as trace:
        assert len(list(trace)) == 2
        assert trace.skipped.count == 1
        assert "--tokenizer" in trace.skipped.examples[0]


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = examples("python")
    (tmp_path / "chat.jsonl.gz").write_text('{"input_length": 3}\n')
    monkeypatch.chdir(tmp_path)
    exec(example, {})
