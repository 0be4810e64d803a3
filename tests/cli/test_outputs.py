"""Output files: refused before the work when they cannot be, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvblocks.cli.output import check_outputs
from kvblocks.cli.trace import app
from kvblocks.errors import UsageError
from kvblocks.files import written_whole
from tests.cli.command import KVBLOCKS, failed, kvblocks, shell


@pytest.fixture
def copy(trace: str, tmp_path: Path) -> Path:
    path = tmp_path / "traces" / "chat.jsonl"
    path.parent.mkdir()
    path.write_bytes(Path(trace).read_bytes())
    return path


def names_of(path: Path) -> list[str]:
    """The file by its own name, by a link, by a hard link, and by a detour."""
    link, hard = path.with_name("link"), path.with_name("hard")
    link.symlink_to(path)
    os.link(path, hard)
    return [str(path), str(link), str(hard), str(path.parent / ".." / path.parent.name / path.name)]


def test_an_output_that_is_also_read_is_refused_under_whatever_name(copy: Path) -> None:
    before = copy.read_bytes()
    for name in names_of(copy):
        for read in (str(copy), str(copy.parent)):
            for option in ("--json", "--report"):
                with pytest.raises(UsageError, match=f"{option} {name}: is also read, and would be overwritten"):
                    check_outputs({option: name}, [str(copy)] if read == str(copy) else [str(copy), name])
    failed(kvblocks("replay", str(copy), "--num-blocks", "9", "--json", str(copy)), f"--json {copy}: is also read")
    failed(kvblocks("replay", str(copy.parent), "--num-blocks", "9", "--report", str(copy)), "--report", "also read")
    failed(kvblocks("trace", "describe", str(copy), "--json", str(copy)), "--json", "also read")
    failed(shell(f"{KVBLOCKS} trace describe - --json {copy} < {copy}"), "--json", "also read")
    failed(kvblocks("replay", "x", "--num-blocks", "9", "--tokenizer", str(copy), "--json", str(copy)), "also read")
    failed(kvblocks("plan", str(copy), "--json", str(copy)), "--json", "also read")
    assert copy.read_bytes() == before


def test_standard_output_may_not_go_to_what_is_read_or_written(copy: Path) -> None:
    before = copy.read_bytes()
    run = shell(f"{KVBLOCKS} trace describe {copy} >> {copy}")
    assert (run.returncode, run.stderr) == (
        2,
        f"kvblocks: standard output goes to '{copy}', which is also read; redirect it elsewhere\n",
    )
    assert copy.read_bytes() == before
    out = copy.with_name("out")
    run = shell(f"{KVBLOCKS} replay {copy} --num-blocks 9 --json {out} > {out}")
    assert (run.returncode, run.stderr) == (
        2,
        f"kvblocks: --json {out}: is also where standard output goes; name another file\n",
    )


def test_two_outputs_to_one_file_are_refused(trace: str, tmp_path: Path) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(out)
    for other in (out, link):
        run = kvblocks("replay", trace, "--num-blocks", "9", "--json", str(out), "--report", str(other))
        failed(run, f"--report {other}: is also where --json goes")
    check_outputs({"--json": os.devnull, "--report": os.devnull})


def test_a_name_that_is_no_file_s_is_refused(trace: str) -> None:
    for arguments, words in (
        (("replay", trace, "--num-blocks", "9", "--json", ""), "--json '' is empty; name a file"),
        (("replay", trace, "--num-blocks", "9", "--report", ""), "--report '' is empty; name a file"),
        (("replay", trace, "--num-blocks", "9", "--report", "-"), "--report -: a page is for a browser"),
        (("replay", "", "--num-blocks", "9"), "the name of a trace is empty; name a file"),
        (("trace", "describe", ""), "the name of a trace is empty; name a file"),
        (("trace", "describe", trace, "--tokenizer", ""), "--tokenizer '' is empty"),
        (("trace", "generate", "chat", "--output", ""), "--output '' is empty"),
    ):
        failed(kvblocks(*arguments), words)


def test_an_interrupted_generation_leaves_no_file_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, file: object) -> int:
        assert hasattr(file, "write")
        file.write("half a line")
        raise KeyboardInterrupt

    monkeypatch.setattr("kvblocks.cli.trace.write_trace", interrupted)
    for name in ("trace.jsonl", "trace.jsonl.gz"):
        path = tmp_path / name
        path.write_text("an older trace")
        CliRunner().invoke(app, ["generate", "chat", "--output", str(path)])
        assert path.read_text() == "an older trace"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.jsonl", "trace.jsonl.gz"]


def test_a_link_stays_a_link_a_device_a_device_and_a_mode_a_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for content in (b"one", b"two"):
        with written_whole(link) as file:
            file.write(content)
        assert (link.is_symlink(), target.read_bytes()) == (True, content)
        target.chmod(0o640)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    with written_whole(os.devnull) as file:
        file.write(b"nothing")
    assert not Path(os.devnull).is_file()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_fails_does_not_take_the_figures_with_it(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run = kvblocks("replay", trace, "--num-blocks", "200", "--report", "/dev/full", "--json", str(out))
    assert run.returncode == 2
    assert run.stderr.startswith("kvblocks: --report /dev/full: cannot be written: No space left on device")
    assert "blocks tokens" in run.stdout
    assert json.loads(out.read_text())["runs"]
