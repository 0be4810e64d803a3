"""The command line as its user meets it: output, errors, exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kvblocks.cli.output import print_table
from kvblocks.cli.replay_view import seconds
from tests.cli.command import failed, kvblocks


def test_a_replay_prints_a_table_that_fits_80_columns_and_a_curve(trace: str) -> None:
    run = kvblocks("replay", trace, "--num-blocks", "200,400", "--num-blocks", "100000")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines[0].startswith("60 requests of ")
    assert max(len(line) for line in lines[1:] if "rejected, " not in line) <= 80
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


def test_a_model_on_a_gpu_stands_for_blocks_groups_and_limits(trace: str) -> None:
    run = kvblocks("replay", trace, "--model", "gpt-oss-20b", "--gpu", "l4,h100", "--json", "-")
    assert run.returncode == 0, run.stderr
    data = json.loads(run.stdout)
    plans = [
        json.loads(kvblocks("plan", "gpt-oss-20b", "--gpu", gpu, "--no-what-if", "--json", "-").stdout)
        for gpu in ("l4", "h100")
    ]
    assert [r["num_blocks"] for r in data["runs"]] == [plan["num_blocks"] for plan in plans]
    assert data["settings"]["model"] == "openai/gpt-oss-20b"
    assert data["settings"]["max_num_seqs"] == plans[0]["max_num_seqs"]
    table = kvblocks("replay", trace, "--model", "gpt-oss-20b", "--gpu", "l4").stdout
    assert "2 groups: sliding window (16 tokens a block), full attention (16 tokens a block)" in table
    assert "GiB for the cache (estimated)" in table


def test_a_model_s_cache_can_be_given_in_memory_or_blocks_and_its_flags_count(trace: str) -> None:
    def blocks(*arguments: str) -> list[int]:
        run = kvblocks("replay", trace, "--model", "qwen3-8b", *arguments, "--serial", "--json", "-")
        assert run.returncode == 0, run.stderr
        return [r["num_blocks"] for r in json.loads(run.stdout)["runs"]]

    assert blocks("--kv-memory", "9GiB") == [4096]
    assert blocks("--kv-memory", "9GiB", "--flags", "--kv-cache-dtype fp8") == [8192]
    assert blocks("--num-blocks", "3000,5000") == [3000, 5000]


def test_what_a_model_cannot_go_with_is_said(trace: str) -> None:
    failed(kvblocks("replay", trace, "--gpu", "l4"), "--gpu needs --model")
    failed(kvblocks("replay", trace, "--model", "qwen3-8b"), "--gpu G", "--kv-memory SIZE")
    failed(
        kvblocks("replay", trace, "--model", "qwen3-8b", "--gpu", "l4", "--block-size", "32"),
        '--flags "--block-size N"',
    )
    failed(kvblocks("replay", trace, "--model", "deepseek-v3", "--gpu", "l4"), "--gpu l4", "weights take")
    failed(kvblocks("replay", trace, "--model", "qwen3-8b", "--gpu", "l44"), "l4")
    failed(
        kvblocks("replay", trace, "--model", "qwen3-8b", "--gpu", "l4", "--flags", "--kv-dtype fp8"), "kv_cache_dtype"
    )


def test_memory_stands_for_blocks(trace: str) -> None:
    arguments = ("--kv-memory", "100MiB,0.2GiB", "--bytes-per-token", "131072", "--json", "-")
    data = json.loads(kvblocks("replay", trace, *arguments).stdout)
    assert [r["num_blocks"] for r in data["runs"]] == [50, 102]
    table = kvblocks("replay", trace, *arguments[:4]).stdout
    assert "98 MiB" in table
    assert "GiB" not in table
    assert max(len(line) for line in table.splitlines()[1:] if "rejected, " not in line) <= 80


def test_no_figure_is_cut_and_no_line_padded(trace: str) -> None:
    arguments = ("--kv-memory", "1MiB,1GiB,40GiB,128TiB", "--bytes-per-token", "131072", "--block-size", "512")
    for columns in ("80", "20"):
        run = kvblocks("replay", trace, *arguments[:1], "1GiB,40GiB,999GiB", *arguments[2:], env={"COLUMNS": columns})
        lines = run.stdout.splitlines()
        assert "…" not in run.stdout
        assert [line.split()[:3] for line in lines[3:6]] == [
            ["16", "960", "MiB"],
            ["640", "39.9", "GiB"],
            ["15,984", "999", "GiB"],
        ]
        assert not [line for line in lines if line != line.rstrip()]
        assert lines[2].split()[:2] == ["blocks", "memory"]  # in place of the tokens


def test_a_table_is_as_wide_as_its_figures() -> None:
    out = io.StringIO()
    row = ("1" * 30, "67,108,864", "1,023 GiB")
    print_table(Console(file=out, width=20, soft_wrap=True), ("a", "two\nlines", "last"), [row, ("1", "2", "")])
    assert out.getvalue().splitlines() == [
        " " * 30 + "        two",
        " " * 29 + "a      lines      last",
        "1" * 30 + " 67,108,864 1,023 GiB",
        " " * 29 + "1          2",
    ]


def test_a_time_is_short_whatever_its_size() -> None:
    times = (None, 0.0, 1e-7, 0.0495, 0.9994, 0.9996, 1.519, 71.234, 119.2, 9999.4, 10_000.0, 3.6e6, 1e9, 1e17)
    told = [seconds(value) for value in times]
    assert told[:11] == [
        "-", "0ms", "0.0001ms", "49.5ms", "999ms", "1s", "1.52s", "71.2s", "119s", "9999s", "2.78h"
    ]  # fmt: skip
    assert max(map(len, told)) <= 8


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
        (("--num-blocks", "1"), ["--num-blocks 1:", "at least 2"]),
        (("--num-blocks", "999999999"), ["--num-blocks '999999999':", "at most 67108864"]),
        (("--num-blocks", "many"), ["--num-blocks 'many'", "8193"]),
        (("--num-blocks", "-5"), ["--num-blocks '-5'"]),
        (("--kv-memory", "4GiB"), ["--kv-memory needs --bytes-per-token"]),
        (("--kv-memory", "4 apples", "--bytes-per-token", "1"), ["'4 apples' is not a size", "40GiB"]),
        (("--kv-memory", "1KiB", "--bytes-per-token", "1000"), ["holds 0 blocks", "at least 32000 bytes"]),
        (("--num-blocks", "9", "--block-size", "0"), ["--block-size 0 must be at least 1 token"]),
        (("--num-blocks", "9", "--limit", "0"), ["--limit 0 must be at least 1 request"]),
        (("--num-blocks", "9", "--max-num-seqs", "0"), ["--max-num-seqs 0 must be at least 1"]),
        (("--num-blocks", "9", "--block-size", "x"), ["--block-size", "'x'"]),
        (("--kv-memory", "1GiB", "--bytes-per-token", "0"), ["--bytes-per-token 0"]),
        (("--num-blocks", "9", "--watermark", "2"), ["--watermark 2.0 must be"]),
        (("--num-blocks", "9", "--decode-step-ms", "0"), ["--decode-step-ms 0 must be above 0"]),
        (("--num-blocks", "9", "--json", "/nowhere/x.json"), ["--json /nowhere/x.json", "does not exist"]),
        (("--num-blocks", "9", "--report", "/nowhere/x.html"), ["--report /nowhere/x.html", "does not exist"]),
        (("--num-blocks", "9", "--format", "poem"), ["'poem' is unknown", "mooncake"]),
        (("--num-blocks", "9", "--policy-of-mine"), ["No such option"]),
        (("--num-blocks", "9" * 5000), ["--num-blocks '9999", "...'", "at most 67108864"]),
        (("--num-blocks", "9", "--block-size", "4294967296"), ["--block-size 4294967296 must be", "below 4294967296"]),
        (("--num-blocks", "9", "--block-size", "9" * 5000), ["--block-size", "...' is too large"]),
        (("--num-blocks", "9", "--limit", "1" + "0" * 23), ["--limit", "is too large; give less than"]),
        (("--num-blocks", "9", "--tokens-per-id", "0"), ["--tokens-per-id 0 must be at least 1"]),
        (("--num-blocks", "9", "--decode-step-ms", "1e400"), ["--decode-step-ms inf"]),
        (("--num-blocks", "9", "--prefill-tokens-per-s", "1e-300"), ["--prefill-tokens-per-s 1e-300 must be"]),
        (("--num-blocks", "9", "--max-model-len", "0"), ["--max-model-len 0 must be"]),
        (("--num-blocks", "9", "--bytes-per-token", "-1"), ["--bytes-per-token -1 must be at least 1"]),
        (("--kv-memory", "999999TiB", "--bytes-per-token", "131072"), ["--kv-memory 999999TiB holds", "give at most"]),
        (("--kv-memory", "9" * 400 + ".5GiB", "--bytes-per-token", "1"), ["--kv-memory '9999", "is too large"]),
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


def test_help_teaches_and_the_version_is_printed() -> None:
    for command in (("replay",), ("trace", "describe"), ("trace", "generate")):
        run = kvblocks(*command, "--help")
        assert run.returncode == 0
        assert "kvblocks " + " ".join(command) in run.stdout  # at least one example
    assert kvblocks("--version").stdout.startswith("kvblocks 0.")
    assert "replay" in kvblocks().stdout + kvblocks().stderr


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ImportError('No module named typer', name='typer')\n")
    run = kvblocks("replay", "x", before=tmp_path)
    failed(run, "'typer', which is not installed: pip install 'kvblocks[cli]'")


def test_a_report_without_plotly_names_the_extra_before_the_replay(trace: str, tmp_path: Path) -> None:
    (tmp_path / "plotly.py").write_text("raise ImportError('No module named plotly', name='plotly')\n")
    page = str(tmp_path / "page.html")
    run = kvblocks("replay", trace, "--num-blocks", "99", "--report", page, before=tmp_path)
    failed(run, "kvblocks[report]")


def test_a_generated_workload_can_be_described(trace: str) -> None:
    run = kvblocks("trace", "describe", trace)
    assert run.returncode == 0
    assert "requests" in run.stdout
    data = json.loads(kvblocks("trace", "describe", trace, "--json", "-").stdout)
    assert data["requests"] == 60
    failed(kvblocks("trace", "generate", "poem"), "'poem' is unknown: choose one of")
    failed(kvblocks("trace", "generate", "chat", "--turns", "0"), "--turns 0.0 must be at least 1")
