"""Interrupts, pipes, and standard streams that are closed, full or not read to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvblocks.cli import main
from tests.cli.command import KVBLOCKS, kvblocks, shell

INTERRUPTED = (130, "kvblocks: interrupted\n")


def test_an_interrupt_while_a_trace_is_awaited_is_one_line(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for mode in ("--serial", "--outputs"):
        process = subprocess.Popen(
            [sys.executable, "-m", "kvblocks", "replay", str(pipe), "--num-blocks", "9,19", mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with pipe.open("w"):  # returns when the command has opened its end
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate()
        assert (process.returncode, errors) == INTERRUPTED
        assert out == ""


@pytest.mark.parametrize("command", [("replay", "-", "--num-blocks", "9,19"), ("trace", "describe", "-")])
def test_an_interrupt_while_a_trace_is_being_opened_is_one_line(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"kvblocks.cli.{command[0]}.open_traces", interrupted)
    monkeypatch.setattr(sys, "argv", ["kvblocks", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == INTERRUPTED


@pytest.mark.parametrize("package", ["typer", "msgspec", "numpy"])
def test_an_interrupt_while_packages_are_imported_is_one_line(package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text("raise KeyboardInterrupt\n")
    run = kvblocks("replay", "x", "--num-blocks", "9", before=tmp_path)
    assert (run.returncode, run.stderr) == INTERRUPTED


def test_next_to_nothing_is_imported_before_an_interrupt_is_caught() -> None:
    code = "import sys, kvblocks.cli; print(*sorted(name for name in sys.modules if name.startswith('kvblocks')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["kvblocks", "kvblocks.cli", "kvblocks.cli.streams", "kvblocks.errors"]


def test_an_interrupted_replay_of_several_sizes_says_which_were_not_run(tmp_path: Path) -> None:
    # The pipe stays open behind its last line, so the first size cannot have ended.
    process = subprocess.Popen(
        [sys.executable, "-m", "kvblocks", "replay", "-", "--num-blocks", "500,600,7000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    for number in range(20_000):
        line = {"input_length": 64, "tokens_per_id": 16, "block_ids": [number] * 4, "timestamp": number}
        process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert "Interrupted at 500 blocks: the figures are those so far. Not run: 600, 7,000 blocks." in out


@pytest.mark.parametrize("mode", ["--serial", "--outputs"])
@pytest.mark.parametrize("given", ["<(cat {0})", "<(gzip -c {0})", "/dev/stdin < <(cat {0})", "{1}"])
def test_a_pipe_of_any_name_is_replayed_at_every_size(given: str, mode: str, trace: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    arguments = f"{mode} --num-blocks 200,400 --json -"
    run = shell(f"cat {trace} > {pipe} & {KVBLOCKS} replay {given.format(trace, pipe)} {arguments}; kill %1; true")
    assert "Traceback" not in run.stderr
    expected = json.loads(shell(f"{KVBLOCKS} replay {trace} {arguments}").stdout)
    assert json.loads(run.stdout)["runs"] == expected["runs"]


def test_a_pipe_is_named_once(trace: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    run = kvblocks("replay", str(pipe), str(pipe), "--num-blocks", "9")
    assert (run.returncode, run.stderr) == (2, f"kvblocks: {pipe} can be read once; name it once\n")


@pytest.mark.parametrize(
    "command",
    [
        "trace generate chat --requests 20000",
        "trace describe {0}",
        "replay {0} --num-blocks 200 --json -",
        "replay {0} --num-blocks 200,400",
        "replay --help",
    ],
)
def test_a_standard_output_that_is_closed_or_full_is_told_and_one_that_has_enough_is_not(
    command: str, trace: str
) -> None:
    command = f"{KVBLOCKS} {command.format(trace)}"
    closed, full = shell(f"{command} >&-"), shell(f"{command} > /dev/full")
    assert (closed.returncode, full.returncode) == (2, 2)
    assert closed.stderr == (
        "kvblocks: standard output is closed; redirect it to a file, or to /dev/null if nobody reads it\n"
    )
    assert full.stderr.startswith("kvblocks: standard output cannot be written: No space left on device; redirect")
    assert len(full.stderr.splitlines()) == 1
    enough = shell(f"{command} | head -c 1")
    assert (enough.returncode, enough.stderr, len(enough.stdout)) == (0, "", 1)


def test_a_reader_that_has_enough_of_the_table_costs_no_file(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run = shell(f"{KVBLOCKS} replay {trace} --num-blocks 200 --json {out} | true")
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(out.read_text())["runs"]


def test_a_closed_standard_input_is_told() -> None:
    for command in ("replay - --num-blocks 9", "trace describe -"):
        run = shell(f"{KVBLOCKS} {command} <&-")
        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr == "kvblocks: standard input: is closed; pipe or redirect a trace into it, or name a file\n"


def test_a_closed_or_full_standard_error_leaves_the_exit_code(trace: str) -> None:
    for closed in ("2>&-", "2>/dev/full", "<&- >&- 2>&-"):
        run = shell(f"{KVBLOCKS} replay nothing --num-blocks 9 {closed}")
        assert (run.returncode, run.stdout, run.stderr) == (2, "", "")
    assert shell(f"{KVBLOCKS} trace describe {trace} 2>&-").returncode == 0


def test_a_terminal_that_lacks_a_character_shows_another(trace: str) -> None:
    run = kvblocks("replay", trace, "--num-blocks", "200,400", env={"PYTHONIOENCODING": "ascii"})
    assert (run.returncode, run.stderr) == (0, "")
    assert "???" in run.stdout
