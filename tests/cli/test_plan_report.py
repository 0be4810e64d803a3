"""`kvblocks plan --report`: a page beside the answer, whatever the answer is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvblocks.sizing.catalogue import find_model
from tests.cli.command import failed, kvblocks

pytest.importorskip("plotly")
from tests.report.sample import words


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model of the reader's own, in a folder with a name that has to be escaped."""
    path = tmp_path / "<script>alert(1)<" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(find_model("qwen3-8b").raw)))
    return path


def test_the_page_the_table_and_the_json_are_of_one_plan(config: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "plan.html", tmp_path / "plan.json"
    arguments = ("plan", str(config), "--gpu", "h100", "-tp", "2", "--json", str(out), "--report", str(page))
    run = kvblocks(*arguments)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith(f"Report: {page}\n")
    data = json.loads(out.read_text())
    text = words(page.read_text())
    for told in (f"{data['tokens']:,} tokens", "2 x H100", "tensor_parallel_size=2", "--gpu h100 -tp 2 --json"):
        assert told in text
    assert f"{data['tokens']:,} tokens" in run.stdout
    assert "<script>alert" not in page.read_text()
    assert data["requests_by_length"][-1]["tokens"] == data["max_model_len"]


def test_json_on_standard_output_stays_json(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    run = kvblocks("plan", "qwen3-8b", "--available", "20GiB", "--no-what-if", "--json", "-", "--report", str(page))
    assert json.loads(run.stdout)["status"] == "ok"
    assert run.stderr == f"Report: {page}\n"
    assert "Which flags change it" not in page.read_text()


def test_a_plan_that_does_not_fit_has_a_page_too(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    run = kvblocks("plan", "qwen3-8b", "--available", "2GiB", "--report", str(page))
    assert run.returncode == 1
    assert "Does not fit: max_model_len=40960 needs" in words(page.read_text())


def test_a_refused_plan_has_a_page_and_is_still_an_error(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    run = kvblocks("plan", "qwen3-8b", "--gpu", "h100", "-tp", "3", "--report", str(page))
    assert run.returncode == 2
    assert run.stderr.startswith("kvblocks: --tensor-parallel-size 3 does not divide")
    assert run.stdout == f"Report: {page}\n"
    assert "Refused: tensor_parallel_size=3" in words(page.read_text())


def test_a_comparison_and_a_search_have_pages(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    run = kvblocks(
        "plan", "qwen3-8b", "--gpu", "l4", "--max-model-len", "4096", "--compare", "", "--kv-cache-dtype fp8",
        "--report", str(page),
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert "Two settings side by side on L4" in words(page.read_text())
    search = ("--gpus", "--requests", "4", "--length", "4096")
    run = kvblocks("plan", "qwen3-32b", "--gpu", "h100", *search, "--report", str(page))
    assert (run.returncode, run.stderr) == (0, "")
    assert "4 requests of 4,096 tokens at once" in words(page.read_text())


def test_the_page_may_not_replace_what_is_read(config: Path) -> None:
    before = config.read_bytes()
    link = config.with_name("link.html")
    link.symlink_to(config)
    for model in (config, config.parent):
        for report in (config, link):
            run = kvblocks("plan", str(model), "--gpu", "h100", "--report", str(report))
            failed(run, f"--report {report}: is also read, and would be overwritten; name another file")
    failed(kvblocks("plan", str(config), "--gpu", "h100", "--json", str(config)), "--json", "is also read")
    assert config.read_bytes() == before
    out = str(config.with_name("out"))
    failed(kvblocks("plan", str(config), "--gpu", "h100", "--json", out, "--report", out), "is also where --json goes")


def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    for path, told in (
        (str(tmp_path), "is a directory; name a file in it"),
        (str(tmp_path / "none" / "plan.html"), "does not exist; make it first"),
        ("-", "--report -: a page is for a browser, not for standard output; name a file such as plan.html"),
    ):
        failed(kvblocks("plan", "qwen3-8b", "--gpu", "h100", "--report", path), told)


def test_what_has_no_page_is_said(tmp_path: Path) -> None:
    page = str(tmp_path / "plan.html")
    for option in ("--batch", "--from-log"):
        failed(kvblocks("plan", option, "questions", "--report", page), f"not of {option}")
