"""`kvblocks trace` as its user meets it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvblocks.cli.trace import app
from kvblocks.errors import UsageError
from kvblocks.traces import describe, open_trace
from tests.shared import shared


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin, env={"COLUMNS": "80"}, catch_exceptions=False)


def test_what_is_generated_can_be_described() -> None:
    made = run("generate", "chat", "--requests", "50", "--seed", "3")
    shown = run("describe", "-", stdin=made.stdout)
    for words in ("format         kvblocks", "requests       50", "content ids: 50", "reusable", "512 tokens by 50"):
        assert words in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_json_says_what_the_table_says(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    run("generate", "rag", "--requests", "50", "--output", str(trace))
    assert "requests       30" in run("describe", str(trace), "--limit", "30", "--json", str(out)).stdout
    data = json.loads(out.read_text())
    assert (data["format"], data["requests"], data["skipped_lines"]) == ("kvblocks", 30, 0)
    assert data["fields"] == ["timestamp", "output_length", "session"]
    assert json.loads(run("describe", str(trace), "--json", "-").stdout)["requests"] == 50


def test_the_same_seed_gives_the_same_bytes_also_compressed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    contents = []
    for _ in range(2):
        made = run("generate", "agent", "--requests", "20", "--seed", "9", "--output", str(path))
        assert made.stderr == f"20 agent requests written to {path}\n"
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert gzip.decompress(contents[0]).decode() == run("generate", "agent", "--requests", "20", "--seed", "9").stdout


def test_what_a_trace_says_steers_neither_terminal_nor_markup(tmp_path: Path) -> None:
    path = tmp_path / "[red]trace.jsonl"
    path.write_text('{"input_length": 3}\n{"input_length": "\\u001b[31m[bold]:smile:"}\n')
    shown = run("describe", str(path), "--skip-bad-lines").stdout
    assert "1 bad line left out" in shown
    assert "[red]trace.jsonl:2: " in shown.replace("\n", "")
    assert r"\x1b[31m[bold]:smile:" in shown
    assert "\x1b" not in shown


def test_impossible_flags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--limit 0"):
        run("describe", "-", "--limit", "0")
    with pytest.raises(UsageError, match="--format 'csv' is unknown"):
        run("describe", "-", "--format", "csv", stdin="x")
    with pytest.raises(UsageError, match="does not exist; make it first"):
        run("generate", "chat", "--output", str(tmp_path / "no" / "folder"))


def test_help_teaches_by_example() -> None:
    for command in ("describe", "generate"):
        assert f"kvblocks trace {command} " in run(command, "--help").stdout


def test_the_ceiling_of_a_recorded_trace_is_what_an_unbounded_cache_hits() -> None:
    truth = shared("truth/replay_serial_conversation.jsonl")
    rows = [json.loads(line) for line in truth.read_text().splitlines()]
    largest = max((row for row in rows if row["block_size"] == 512), key=lambda row: int(row["num_blocks"]))
    with open_trace(str(shared("traces/mooncake/conversation_trace.jsonl"))) as trace:
        summary = describe(trace)
    assert summary.reusable_tokens == largest["hit_tokens"]
    assert summary.prompt_tokens["total"] == largest["prompt_tokens"]
