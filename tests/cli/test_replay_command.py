"""The command line as its user meets it: output, errors, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

GENERATE = ("trace", "generate", "chat", "--requests", "60", "--seed", "3")


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


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "chat.jsonl"
    run = kvblocks(*GENERATE, "--output", str(path))
    assert (run.returncode, run.stderr) == (0, f"60 chat requests written to {path}\n")
    return str(path)


def failed(run: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, one line on standard error, no traceback, nothing on standard output."""
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    for word in words:
        assert word in run.stderr


def test_a_replay_prints_a_table_that_fits_80_columns_and_a_curve(trace: str) -> None:
    run = kvblocks("replay", trace, "--num-blocks", "200,400", "--num-blocks", "100000")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0].startswith("60 requests of ")
    assert max(len(line) for line in lines[1:]) <= 80
    assert "…" not in run.stdout
    for size in ("200 ", "400 ", "100,000 "):
        assert sum(line.lstrip().startswith(size) for line in lines) >= 2  # a row and a bar


def test_json_has_one_object_per_size_with_every_promised_field(trace: str) -> None:
    run = kvblocks("replay", trace, "--num-blocks", "400,200", "--json", "-")
    data = json.loads(run.stdout)
    assert [r["num_blocks"] for r in data["runs"]] == [200, 400]
    promised = (
        "num_blocks block_size mode policy requests rejected prompt_tokens hit_tokens hit_rate hit_rate_last_half "
        "output_tokens evicted_blocks preemptions recomputed_tokens peak_live_blocks"
    )
    for r in data["runs"]:
        assert set(promised.split()) <= r.keys()
        assert (r["block_size"], r["mode"], r["policy"]) == (16, "timed", "lru")
    assert data["trace"]["requests"] == 60


def test_json_and_report_files_are_written_beside_the_table(trace: str, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    run = kvblocks("replay", trace, "--serial", "--num-blocks", "400", "--json", str(out), "--report", str(page))
    assert run.returncode == 0
    assert f"Report: {page}" in run.stdout.replace("\n", "")
    assert json.loads(out.read_text())["runs"][0]["mode"] == "serial"
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "page.html"]


def test_memory_stands_for_blocks(trace: str) -> None:
    arguments = ("--kv-memory", "100MiB,0.2GiB", "--bytes-per-token", "131072", "--json", "-")
    data = json.loads(kvblocks("replay", trace, *arguments).stdout)
    assert [r["num_blocks"] for r in data["runs"]] == [50, 102]
    table = kvblocks("replay", trace, *arguments[:4]).stdout
    assert "0.1 GiB" in table
    assert max(len(line) for line in table.splitlines()[1:]) <= 80


@pytest.mark.parametrize("mode", [("--serial",), ()])
def test_standard_input_is_replayed_at_every_size(trace: str, mode: tuple[str, ...]) -> None:
    arguments = (*mode, "--num-blocks", "200,400", "--json", "-")
    piped = json.loads(kvblocks("replay", "-", *arguments, stdin=Path(trace).read_text()).stdout)
    assert piped["runs"] == json.loads(kvblocks("replay", trace, *arguments).stdout)["runs"]


def test_limit_reads_no_more(trace: str) -> None:
    data = json.loads(kvblocks("replay", trace, "--num-blocks", "4000", "--limit", "7", "--json", "-").stdout)
    assert (data["trace"]["requests"], data["runs"][0]["requests"]) == (7, 7)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), ["give the cache's size", "--num-blocks N", "--kv-memory"]),
        (("--num-blocks", "1"), ["num_blocks=1", "at least 2"]),
        (("--num-blocks", "999999999"), ["num_blocks=999999999", "at most 67108864"]),
        (("--num-blocks", "many"), ["--num-blocks 'many'", "8193"]),
        (("--num-blocks", "-5"), ["--num-blocks '-5'"]),
        (("--kv-memory", "4GiB"), ["--kv-memory needs --bytes-per-token"]),
        (("--kv-memory", "4 apples", "--bytes-per-token", "1"), ["'4 apples' is not a size", "40GiB"]),
        (("--kv-memory", "1KiB", "--bytes-per-token", "1000"), ["holds 0 blocks", "at least 32000 bytes"]),
        (("--num-blocks", "9", "--block-size", "0"), ["block_size=0"]),
        (("--num-blocks", "9", "--limit", "0"), ["limit=0"]),
        (("--num-blocks", "9", "--max-num-seqs", "0"), ["max_num_seqs=0"]),
        (("--num-blocks", "9", "--block-size", "x"), ["--block-size", "'x'"]),
        (("--kv-memory", "1GiB", "--bytes-per-token", "0"), ["--bytes-per-token 0"]),
        (("--num-blocks", "9", "--watermark", "2"), ["watermark=2.0"]),
        (("--num-blocks", "9", "--decode-step-ms", "0"), ["decode_step_s=0.0"]),
        (("--num-blocks", "9", "--json", "/nowhere/x.json"), ["--json /nowhere/x.json", "does not exist"]),
        (("--num-blocks", "9", "--report", "/nowhere/x.html"), ["--report /nowhere/x.html", "does not exist"]),
        (("--num-blocks", "9", "--format", "poem"), ["'poem' is unknown", "mooncake"]),
        (("--num-blocks", "9", "--policy-of-mine"), ["No such option"]),
    ],
)
def test_bad_usage_names_the_value_and_the_fix(trace: str, arguments: tuple[str, ...], words: list[str]) -> None:
    failed(kvblocks("replay", trace, *arguments), *words)


def test_bad_traces_name_the_file_the_line_and_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"input_length": 5}\n{"input_length": -5}\n\x1b[31mred\n')
    run = kvblocks("replay", str(path), "--num-blocks", "9")
    failed(run, f"{path}:2: field 'input_length'", "-5", "at least 1")
    assert len(run.stderr.splitlines()) == 1
    run = kvblocks("replay", str(path), "--num-blocks", "9", "--skip-bad-lines")
    assert run.returncode == 0
    assert "2 bad lines were left out" in run.stdout
    assert "\x1b" not in run.stdout + run.stderr
    failed(kvblocks("replay", str(tmp_path / "none"), "--num-blocks", "9"), "No such file")
    failed(kvblocks("trace", "describe", str(path)), f"{path}:2")


def test_an_interrupt_prints_what_is_known_and_exits_with_130(tmp_path: Path) -> None:
    # The trace comes from a pipe that never ends, so the replay is in the middle of it for sure.
    process = subprocess.Popen(
        [sys.executable, "-m", "kvblocks", "replay", "-", "--serial", "--num-blocks", "500", "--json", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    for number in range(20_000):
        process.stdin.write(json.dumps({"input_length": 64, "tokens_per_id": 16, "block_ids": [number] * 4}) + "\n")
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    data = json.loads(out)
    assert data["interrupted"]
    assert 0 < data["runs"][0]["requests"] <= 20_000
    assert "Traceback" not in errors


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m kvblocks trace generate chat --requests 5000 | head -n 1"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout.startswith('{"')


def test_help_teaches_and_the_version_is_printed() -> None:
    for command in (("replay",), ("trace", "describe"), ("trace", "generate")):
        run = kvblocks(*command, "--help")
        assert run.returncode == 0
        assert "kvblocks " + " ".join(command) in run.stdout  # at least one example
    assert kvblocks("--version").stdout.startswith("kvblocks 0.")
    assert "replay" in kvblocks().stdout + kvblocks().stderr


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('No module named typer', name='typer')\n")
    run = kvblocks("replay", "x", env={"PYTHONPATH": str(tmp_path)})
    failed(run, "'typer', which is not installed: pip install 'kvblocks[cli]'")


def test_a_report_without_plotly_names_the_extra_before_the_replay(trace: str, tmp_path: Path) -> None:
    (tmp_path / "plotly.py").write_text("raise ImportError('No module named plotly', name='plotly')\n")
    page = str(tmp_path / "page.html")
    run = kvblocks("replay", trace, "--num-blocks", "99", "--report", page, env={"PYTHONPATH": str(tmp_path)})
    failed(run, "kvblocks[report]")


def test_a_generated_workload_can_be_described(trace: str) -> None:
    run = kvblocks("trace", "describe", trace)
    assert run.returncode == 0
    assert "requests" in run.stdout
    data = json.loads(kvblocks("trace", "describe", trace, "--json", "-").stdout)
    assert data["requests"] == 60
    failed(kvblocks("trace", "generate", "poem"), "'poem' is unknown: choose one of")
    failed(kvblocks("trace", "generate", "chat", "--turns", "0"), "turns=0")
