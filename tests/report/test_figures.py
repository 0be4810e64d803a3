"""The figures show the numbers they are given, each in its place."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvblocks.report.figures import hit_rate_by_size, hit_rate_over_time, occupancy, smooth, spaced
from kvblocks.report.prefixes import in_order, prefix_table, shared_prefixes
from kvblocks.report.reuse import reuse_distances
from tests.report.sample import run


def prefix(row_id: str, parent: str | None, start: int, end: int, requests: int) -> dict[str, Any]:
    return {
        "id": row_id,
        "parent": parent,
        "label": f"tokens {start:,}-{end:,}",
        "tokens": end - start,
        "requests": requests,
        "hit_tokens": (end - start) * (requests - 1),
    }


def series(points: int, **fields: Any) -> dict[str, Any]:
    x = list(range(points))
    return {"x_unit": "request", "x": x, "live": x, "cached": x, "blank": x, "hit_rate": [0.5] * points} | fields


def test_the_curve_has_a_point_per_size_in_percent() -> None:
    curve = hit_rate_by_size([run(1025, 0.04316), run(8193, 0.2, hit_rate_last_half=0.25)])
    assert curve is not None
    overall, warm = curve["data"]
    assert (overall["x"], overall["y"], warm["y"]) == ([1025, 8193], [4.316, 20.0], [4.316, 25.0])
    assert curve["layout"]["xaxis"]["ticktext"] == ["1,025<br>16.4k tok", "8,193<br>131k tok"]


def test_a_hit_rate_is_averaged_over_the_intervals_that_have_one() -> None:
    assert smooth([0.2, None, 0.4, None, None], 2) == [0.2, 0.2, 0.4, 0.4, None]
    assert occupancy(run(9, 0.1, series=series(1))) is None
    assert hit_rate_over_time([run(9, 0.1, series=series(5, hit_rate=[None] * 5))]) is None


def test_every_cache_size_stands_at_its_true_place_among_the_distances() -> None:
    reuse = {"edges": [0, 1, 2, 4, 8, 16], "counts": [0, 0, 10, 20, 10], "cold": 60}
    sizes = (2, 5, 13, 17, 200)  # below the first bin, on an edge, inside a bin, at the end, beyond it
    figure = reuse_distances(reuse, [run(size, 0.1) for size in sizes])
    assert figure is not None
    bars, cumulative = figure["data"]
    assert bars["y"] == [10, 20, 10]  # the empty bins before them are left out
    assert bars["customdata"] == ["2 to 3 other blocks", "4 to 7 other blocks", "8 to 15 other blocks"]
    assert bars["x"] == [1.5, 2.5, 3.5]
    assert cumulative["y"] == [0, 10, 30, 40]
    # What comes back after fewer others than there are usable blocks is held: the bins left of the line.
    places = [line["x0"] for line in figure["layout"]["shapes"]]
    assert places == [0, 2, pytest.approx(math.log2(12)), 4, pytest.approx(math.log2(199))]
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < 0 < places[-1] < high
    assert [label["text"] for label in figure["layout"]["annotations"]][-1] == "200"


def test_touches_with_nothing_in_between_have_a_place_on_the_logarithmic_axis() -> None:
    figure = reuse_distances({"edges": [0, 1, 2], "counts": [5, 5], "cold": 0}, [run(2, 0.1)])
    assert figure is not None
    assert figure["data"][0]["x"] == [-0.5, 0.5]
    assert figure["data"][0]["customdata"] == ["0 other blocks", "1 other block"]
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [0]  # one usable block keeps what comes back at once


def test_several_beginnings_hang_from_one_root() -> None:
    rows = [prefix("a", None, 0, 512, 4), prefix("b", None, 0, 1024, 9), prefix("c", "a", 512, 1024, 2)]
    figure = shared_prefixes(rows)
    assert figure is not None
    icicle = figure["data"][0]
    assert icicle["ids"] == ["all", "b", "a", "c"]
    assert icicle["parents"] == ["", "all", "all", "a"]
    assert icicle["values"] == [0, 1024 * 8, 512 * 3, 512]
    assert icicle["text"][1] == "9\u00a0requests"
    assert len({len(icicle[key]) for key in ("ids", "parents", "labels", "values", "text", "hovertext")}) == 1
    assert shared_prefixes([]) is None


def test_the_text_of_every_box_stands_out_from_its_colour() -> None:
    rows = [prefix(f"n{i}", f"n{i - 1}" if i else None, 512 * i, 512 * i + 512, 9 - i) for i in range(7)]
    figure = shared_prefixes([*rows, prefix("m", None, 0, 512, 2)])
    assert figure is not None
    icicle = figure["data"][0]
    for box, text in zip(icicle["marker"]["colors"], icicle["textfont"]["color"], strict=True):
        light, dark = sorted((luminance(box), luminance(text)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (box, text)  # WCAG 2.1, level AA


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_table_of_prefixes_is_indented_and_ordered_by_what_is_saved() -> None:
    rows = [prefix("a", None, 0, 512, 4), prefix("b", "a", 512, 1024, 2), prefix("c", "a", 512, 1536, 3)]
    assert [(depth, row["id"]) for depth, row in in_order(rows)] == [(0, "a"), (1, "c"), (1, "b")]
    table = prefix_table(rows)
    assert table.count("padding-left:0.9em") == 2
    assert "<td>1,024</td><td>3</td><td>2,048</td><td>50.0\u00a0%</td>" in table


def test_labels_keep_their_distance_and_the_last_one_stays() -> None:
    assert spaced("abcdef", [0, 1, 2, 3, 4, 10], 0.2) == ["a", "c", "e", "f"]
    assert spaced("a", [3], 0.2) == ["a"]
    assert spaced("abc", [3, 3, 3], 0.2)[-1] == "c"
