"""The page: complete in itself, safe with any text, and in words where there is nothing to draw."""

from __future__ import annotations

import json
import re
from typing import Any

import plotly.graph_objects as go
import pytest

from kvblocks.report import replay_page
from tests.report.sample import data, elements, figures, own_part, words

NASTY = "</script><script>alert(1)</script><a href='javascript:x'>\u2028\x00\x1b[31m\udcff\u202e&'\""


@pytest.fixture(scope="module")
def several() -> dict[str, Any]:
    return data(300, 600, 1200, 50_000)


def test_the_page_needs_nothing_from_outside(several: dict[str, Any]) -> None:
    page = replay_page(several)
    assert page.startswith("<!doctype html>")
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(|https?:", own_part(page))
    assert "default-src 'none'" in page
    assert len(page) > 1_000_000  # the plotting library is inside


@pytest.mark.parametrize("serial", [True, False])
def test_a_replay_fills_every_figure_and_plotly_takes_it(serial: bool) -> None:
    page = replay_page(data(300, 600, 50_000, serial=serial))
    drawn = figures(page)
    assert set(drawn) == {"by-size", "over-time", "reuse", "prefixes", *(f"occupancy-{i}" for i in range(3))}
    for name, figure in drawn.items():
        assert own_part(page).count(f"id='{name}'") == 1
        shown = go.Figure(data=figure["data"], layout=figure["layout"])  # raises for what plotly does not know
        shown.update_layout(figure.get("narrow", {}))
    assert elements(page).count("h2") == 7


def test_figures_and_tables_are_told_to_those_who_do_not_see_them(several: dict[str, Any]) -> None:
    page = own_part(replay_page(several))
    assert page.count("role='img' aria-label='") == 8
    assert "aria-label='What the blocks hold, 300 blocks' hidden" in page
    assert page.count("scope='row'") == 4
    assert "tabindex='0' role='region' aria-label='Runs'" in page


def test_the_same_data_gives_the_same_page(several: dict[str, Any]) -> None:
    assert replay_page(several) == replay_page(json.loads(json.dumps(several)))


def test_no_text_of_the_data_can_leave_its_place(several: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(several))
    changed |= {"kvblocks": NASTY, "settings": {NASTY: NASTY}}
    changed["trace"] = {"paths": [NASTY], "format": NASTY, "requests": 9}
    for run in changed["runs"]:
        run |= {"rejected": 1, "reject_reasons": {NASTY: 1}, "reject_examples": {NASTY: NASTY}}
    for row in changed["prefixes"]:
        row["label"] = NASTY
    page = replay_page(changed)
    assert elements(page).count("script") == 1  # and the library, which is left out here
    assert "a" not in elements(page)
    assert words(page).count("</script><script>alert(1)</script>") > 10  # it is shown as it is
    page.encode()  # no half surrogate pair is left
    assert not re.search("[\x00\x1b\u2028\u202e]", own_part(page))
    icicle = figures(page)["prefixes"]["data"][0]
    for text in (*icicle["labels"][1:], *icicle["hovertext"][1:]):  # plotly reads tags in them
        assert "<a" not in text
        assert "&lt;a href=" in text


@pytest.mark.parametrize("settings", [{"serial": True}, {}])
def test_one_size_or_nothing_to_show_is_said_in_words(settings: dict[str, Any]) -> None:
    one = data(600, requests=1, **settings)
    told = words(replay_page(one))
    for part in (
        "Replay of 1 request ",
        "A curve needs at least two cache sizes",
        "No two prompts share a beginning",
        "No content of this trace came twice",
    ):
        assert part in told
    del one["reuse"], one["prefixes"]
    assert "Reuse distances are measured for caches of one group" in words(replay_page(one))
    told = words(replay_page(data(3, **settings)))
    assert "No prompt fitted the cache" in told
    assert "there is no hit rate" in told
