"""The report: one self-contained page that says what its plots show, for any data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import UsageError
from kvblocks.replay import ReplaySettings, replay
from kvblocks.traces import Workload, generate

pytest.importorskip("plotly")
from kvblocks.report import replay_page, write_replay_report
from tests.report.pages import figures, own_part


def data(*sizes: int, requests: int = 80, **settings: Any) -> dict[str, Any]:
    trace = list(generate("chat", Workload(requests=requests, seed=2, system_tokens=1024)))
    found = replay(lambda: trace, sizes, ReplaySettings(**settings), analyse=True)
    about = {"paths": ["chat.jsonl"], "format": "kvblocks", "requests": found.num_read}
    return {"kvblocks": "0.1.0", "trace": about, **found.to_dict(series=True)}


@pytest.fixture(scope="module")
def several() -> dict[str, Any]:
    return data(300, 600, 1200, 50_000)


def test_the_page_needs_nothing_from_outside(several: dict[str, Any]) -> None:
    page = replay_page(several)
    assert not re.findall(r"(?:src|href)\s*=", own_part(page))
    assert "Plotly.react" in page
    assert len(page) > 1_000_000  # the library is inside


def test_every_figure_is_there_and_says_what_it_shows(several: dict[str, Any]) -> None:
    page = replay_page(several)
    expected = {"by-size", "over-time", "reuse", "prefixes", *(f"occupancy-{i}" for i in range(4))}
    assert set(figures(page)) == expected
    for name in expected:
        assert f"id={name}" in page
    by_size = figures(page)["by-size"]["data"][0]
    assert by_size["x"] == [300, 600, 1200, 50_000] or "bdata" in by_size["x"]
    assert "50,000 blocks of 16 tokens the cache held" in page
    assert "of content not seen before" in page
    assert page.count("<h2>") == 6


def test_the_same_data_gives_the_same_page(several: dict[str, Any]) -> None:
    assert replay_page(several) == replay_page(json.loads(json.dumps(several)))


def test_what_the_trace_is_called_cannot_leave_its_place(several: dict[str, Any]) -> None:
    nasty = "</script><script>alert(1)</script>\u2028&'\""
    changed = json.loads(json.dumps(several))
    changed["trace"]["paths"] = [nasty]
    for row in changed["prefixes"]:
        row["label"] = nasty
    page = own_part(replay_page(changed))
    assert "<script>alert" not in page
    assert "\u2028" not in page[page.index("const FIGURES") :]
    assert any(nasty in label for label in figures(page)["prefixes"]["data"][0]["labels"])


@pytest.mark.parametrize("settings", [{"serial": True}, {}])
def test_one_size_or_nothing_to_show_is_said_in_words(settings: dict[str, Any]) -> None:
    one = data(600, requests=1, **settings)
    page = replay_page(one)
    assert "No two prompts share a beginning" in page
    assert "No content of this trace came twice" in page
    nothing = data(3, **settings)
    page = replay_page(nothing)
    assert "No prompt fitted the cache" in page
    assert "there is no hit rate" in page
    del one["reuse"], one["prefixes"]
    assert "No content of this trace came twice" in replay_page(one)


def test_the_summary_says_where_more_memory_stops_helping(several: dict[str, Any]) -> None:
    def told(*rates: float) -> str:
        changed = json.loads(json.dumps(several))
        for run, rate in zip(changed["runs"], rates, strict=True):
            run["hit_rate"] = rate
        return replay_page(changed)

    assert "From 600 blocks on the hit rate is within a point" in told(0.2, 0.595, 0.6, 0.6)
    assert "The hit rate still rises at the largest size" in told(0.2, 0.3, 0.4, 0.6)


def test_a_report_is_written_whole_or_not_at_all(several: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_replay_report(several, path)
    assert path.read_text() == replay_page(several)
    with pytest.raises(UsageError, match="the report cannot be written: No such file or directory"):
        write_replay_report(several, tmp_path / "none" / "page.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
