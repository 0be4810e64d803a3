"""The page of a plan: it says what the plan says, for any plan, and needs nothing from outside."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kvblocks.sizing import EngineFlags, Plan, Setting
from kvblocks.sizing.catalogue import find_model, names
from kvblocks.sizing.devices import find_device
from kvblocks.sizing.effects import effects
from kvblocks.sizing.search import fewest_gpus

pytest.importorskip("plotly")
import plotly.graph_objects as go

from kvblocks.report import plan_page
from tests.report.sample import cells, elements, figures, own_part, words

GIB = 2**30


def setting(model: str, gpu: str | None = "h100", gib: float | None = None, **flags: Any) -> Setting:
    return Setting(
        config=find_model(model),
        flags=EngineFlags.from_mapping(flags),
        device=None if gpu is None or gib is not None else find_device(gpu),
        available_bytes=None if gib is None else int(gib * GIB),
    )


def about(one: Setting) -> dict[str, Any]:
    gpu = None if one.device is None else {"name": one.device.name, "count": one.flags.tensor_parallel_size}
    command = "kvblocks plan m --gpu h100"
    return {
        "kvblocks": "0.1.0", "command": command, "model": one.config.name, "gpu": gpu, "flags": one.flags.given(),
    }  # fmt: skip


def planned(one: Setting) -> tuple[Plan, dict[str, Any]]:
    plan = one.plan()
    steps = [] if plan.status == "refused" else effects(one, plan)
    return plan, {**about(one), **plan.to_dict(), "effects": [step.to_dict() for step in steps]}


def compared(*sides: Setting) -> dict[str, Any]:
    plans = [{"setting": f"side {i}", **side.plan().to_dict()} for i, side in enumerate(sides)]
    return {**about(sides[0]), "compare": plans}


@pytest.fixture(scope="module")
def dense() -> dict[str, Any]:
    return planned(setting("qwen3-8b"))[1]


@pytest.fixture(scope="module")
def hybrid() -> dict[str, Any]:
    return planned(setting("gemma-3-27b-it-text", max_model_len=32768))[1]


def test_the_page_needs_nothing_from_outside(dense: dict[str, Any]) -> None:
    page = plan_page(dense)
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(|https?:", own_part(page))
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_the_same_data_gives_the_same_page(hybrid: dict[str, Any]) -> None:
    assert plan_page(hybrid) == plan_page(json.loads(json.dumps(hybrid)))


def test_the_headline_says_what_fits_and_the_command_that_asked(dense: dict[str, Any]) -> None:
    page = plan_page(dense)
    text = words(page)
    held, tokens = dense["requests_by_length"][-1]["requests"], dense["tokens"]
    assert f"It fits: {held} requests of 40,960 tokens (max_model_len) at once, {tokens:,} tokens by vLLM" in text
    assert f"GPU KV cache size: {tokens:,} tokens" in text
    assert f"Maximum concurrency for 40,960 tokens per request: {dense['max_concurrency']:.2f}x" in text
    assert "so it is also how many tokens the cache holds" in text
    assert "1 x H100" in text
    assert "kvblocks plan m --gpu h100" in text
    assert "kvblocks 0.1.0" in text
    assert set(figures(page)) == {"memory", "lengths", "effects"}


@pytest.mark.parametrize("data", ["dense", "hybrid"])
def test_plotly_takes_every_figure(data: str, request: pytest.FixtureRequest) -> None:
    page = plan_page(request.getfixturevalue(data))
    for name, figure in figures(page).items():
        assert own_part(page).count(f"id='{name}'") == 1
        go.Figure(data=figure["data"], layout=figure["layout"])  # raises for what plotly does not know


def test_vllm_s_token_count_is_explained_where_it_is_no_number_of_places(hybrid: dict[str, Any]) -> None:
    text = words(plan_page(hybrid))
    assert "In this model it is no number of places" in text
    assert "also how many tokens the cache holds" not in text


def test_a_null_block_that_makes_a_difference_is_told() -> None:
    _, data = planned(setting("llama-3.3-70b-instruct", gib=200))
    text = words(plan_page(data))
    assert "Maximum concurrency for 131,072 tokens per request: 5.00x" in text
    assert "It fits: 4 requests" in text
    assert "without it 4 requests of that length fit whole" in text


def test_the_bars_of_memory_add_up_to_the_gpu_in_every_case(dense: dict[str, Any]) -> None:
    page = plan_page(dense)
    parts = [trace["x"] for trace in figures(page)["memory"]["data"]]
    total = dense["memory"][0]["total_bytes"] / GIB
    assert [round(sum(lengths), 6) for lengths in zip(*parts, strict=True)] == [round(total, 6)] * 3
    rows = cells(page, "GiB")
    assert [row[0] for row in rows][:3] == ["the GPU", "vLLM's share", "weights"]
    last = rows[-1]
    assert last[0] == "for the cache"
    for column in (1, 2, 3):
        terms = sum(float(row[column]) for row in rows[1:-1])
        assert float(last[column]) == pytest.approx(terms, abs=0.04)
    assert all(row[4] for row in rows)  # each has its formula


def test_the_range_of_the_estimate_is_told_in_requests(dense: dict[str, Any]) -> None:
    estimate, per_request = dense["memory"][0], dense["groups"][0]["blocks_per_request"]
    low, high = (
        estimate[f"available_{bound}"] // dense["bytes_per_block"][0] / per_request for bound in ("low", "high")
    )
    assert f"between {low:.2f} and {high:.2f}." in words(plan_page(dense))
    assert low < dense["max_concurrency"] < high


def test_memory_that_was_given_has_no_bars_and_is_said() -> None:
    page = plan_page(planned(setting("qwen3-8b", gib=20))[1])
    assert "The memory for the cache was given, not estimated: 20 GiB" in words(page)
    assert "memory" not in figures(page)


def test_an_override_is_told_beside_the_estimate() -> None:
    text = words(plan_page(planned(setting("qwen3-8b", num_gpu_blocks_override=3000))[1]))
    assert "num_gpu_blocks_override sets the cache to 6.59 GiB, whatever is left" in text


def test_what_groups_leave_empty_of_a_block_is_drawn_and_listed(hybrid: dict[str, Any]) -> None:
    page = plan_page(hybrid)
    used, empty = (trace["x"] for trace in figures(page)["block"]["data"])
    block = hybrid["bytes_per_block"][0] / 2**20
    assert [a + b for a, b in zip(used, empty, strict=True)] == [block] * 3
    assert empty[0] < empty[1]
    assert empty[2] == 0
    rows = cells(page, "group")  # groups that are the same have one
    assert [row[:3] for row in rows] == [
        ["0-3", "sliding window", "9"],
        ["4-5", "sliding window", "8"],
        ["6", "full attention", "10"],
    ]
    assert [row[-1] for row in rows] == [f"{hybrid['groups'][i]['blocks_per_request']:,}" for i in (0, 4, 6)]
    plain = plan_page(planned(setting("gpt-oss-20b"))[1])
    assert "block" not in figures(plain)
    assert "Here every group uses all of its blocks." in words(plain)


def test_the_curve_and_its_table_have_the_plan_s_counts(hybrid: dict[str, Any]) -> None:
    page = plan_page(hybrid)
    (line,) = figures(page)["lengths"]["data"]
    assert list(zip(line["x"], line["y"], strict=True)) == [
        (row["tokens"], row["requests"]) for row in hybrid["requests_by_length"]
    ]
    rows = cells(page, "tokens of each")
    assert rows[-1][0] == "32,768"
    held = {f"{row['tokens']:,}": row["requests"] for row in hybrid["requests_by_length"]}
    for tokens, requests, in_all in rows:
        assert requests == f"{held[tokens]:,}"
        assert in_all == f"{held[tokens] * int(tokens.replace(',', '')):,}"


def test_flags_are_drawn_with_the_most_requests_first_beside_the_plan(dense: dict[str, Any]) -> None:
    page = plan_page(dense)
    (bars,) = figures(page)["effects"]["data"]
    assert bars["x"] == sorted(bars["x"], reverse=True)
    told = [note["text"] for note in figures(page)["effects"]["layout"]["annotations"]]
    assert f"<b>{dense['max_concurrency']:.2f}</b>  as planned" in told
    fp8 = next(row for row in cells(page, "step") if row[0] == "kv_cache_dtype auto → fp8")
    assert fp8[2] == "2.00"
    assert "quality" in fp8[-1]


def test_what_does_not_fit_says_how_much_is_missing_and_what_would_fit() -> None:
    plan, data = planned(setting("gemma-3-27b-it-text", gpu_memory_utilization=0.88))
    assert plan.status == "does_not_fit"
    page = plan_page(data)
    text = words(page)
    assert "Does not fit: max_model_len=131072 needs" in text
    assert "GiB too little" in text
    assert f"use max_model_len={plan.estimated_max_model_len} or less" in text
    assert "vLLM does not start, so there is no curve." in text
    told = [note["text"] for note in figures(page)["effects"]["layout"]["annotations"]]
    assert "<b>none</b>  as planned" in told


def test_weights_larger_than_the_gpu_are_drawn_as_they_are() -> None:
    _, data = planned(setting("llama-3.3-70b-instruct", "l4"))
    page = plan_page(data)
    assert "the weights take 131.45 GiB of each GPU" in words(page)
    assert "Nothing is left for the cache, over the whole range." in words(page)
    assert "No single step of a flag makes it fit." in words(page)
    parts = [trace["x"] for trace in figures(page)["memory"]["data"]]
    assert all(length >= 0 for lengths in parts for length in lengths)
    assert min(sum(lengths) for lengths in zip(*parts, strict=True)) > 100


def test_what_is_refused_has_a_page_that_says_why() -> None:
    plan, data = planned(setting("qwen3-8b", tensor_parallel_size=3))
    assert plan.status == "refused"
    page = plan_page(data)
    assert "Refused: tensor_parallel_size=3 does not divide the 32 attention heads" in words(page)
    assert "FIGURES" not in page
    assert "need JavaScript" not in page
    assert len(page) < 10_000  # no plot, no plotting library


def test_every_pipeline_stage_is_there() -> None:
    _, data = planned(setting("deepseek-v3", "h200", tensor_parallel_size=8, pipeline_parallel_size=2))
    page = plan_page(data)
    assert len(figures(page)["memory"]["data"][0]["x"]) == 2
    assert "Memory of a GPU of stage 1:" in words(page)
    assert "31 + 30" in words(page)


def test_a_model_that_keeps_nothing_is_said_in_words(dense: dict[str, Any]) -> None:
    nothing = {
        **dense, "groups": [], "bytes_per_block": [0], "tokens": None, "max_concurrency": None, "num_blocks": 1,
        "requests_by_length": [], "effects": [], "estimated_max_model_len": None,
    }  # fmt: skip
    text = words(plan_page(nothing))
    assert "This model keeps no KV cache" in text
    assert "No single step of a flag changes what fits." in text
    assert "Nothing is kept, so there is no curve." in text


def test_two_settings_stand_side_by_side() -> None:
    page = plan_page(compared(setting("qwen3-8b"), setting("qwen3-8b", kv_cache_dtype="fp8")))
    text = words(page)
    assert "The second holds 2.00 times the first." in text
    rows = {row[0]: row[1:] for row in cells(page, "")}
    assert rows["bytes for each token"] == ["144 KiB", "72 KiB"]
    assert rows["max_model_len"] == ["40,960", "40,960"]
    assert len(figures(page)["lengths"]["data"]) == 2
    assert set(figures(page)) == {"lengths", "memory"}


@pytest.mark.parametrize("other", [setting("qwen3-8b", tensor_parallel_size=3), setting("qwen3-8b", "t4")])
def test_a_side_that_does_not_come_out_says_why_and_leaves_the_other(other: Setting) -> None:
    plan = other.plan()
    assert not plan.ok
    for sides in ((setting("qwen3-8b"), other), (other, setting("qwen3-8b"))):
        page = plan_page(compared(*sides))
        assert f"side {sides.index(other)}: {plan.error}." in words(page)
        assert len(figures(page)["lengths"]["data"]) == 1
    both = plan_page(compared(other, other))
    assert "vLLM does not start, so there is no curve." in words(both)


def test_a_search_shows_what_was_tried_and_what_was_found() -> None:
    one = setting("llama-3.3-70b-instruct")
    found = fewest_gpus(one, requests=64, length=8192)
    page = plan_page({**about(one), **found.to_dict()})
    assert "5 x H100 hold 64 requests of 8,192 tokens at once: tensor_parallel_size=1" in words(page)
    assert len(cells(page, "GPUs")) == len(found.tried)
    assert len(figures(page)["layouts"]["data"][0]["x"]) == sum(layout.plan.ok for layout in found.tried)
    none = fewest_gpus(one, requests=10**6, length=8192, at_most=2)
    assert "No layout that was tried holds 1,000,000 requests" in words(plan_page({**about(one), **none.to_dict()}))
    small = fewest_gpus(one, requests=1, length=8192, at_most=1)
    assert "The model fits none of the layouts tried." in words(plan_page({**about(one), **small.to_dict()}))


@pytest.mark.parametrize("model", names())
def test_every_model_of_the_catalogue_has_a_page_without_a_gap(model: str) -> None:
    plan = setting(model, gib=200).plan()
    page = plan_page({**about(setting(model, gib=200)), **plan.to_dict(), "effects": []})
    assert plan.ok
    text = words(page)
    assert "It fits: " in text
    assert not re.search(r"\b(None|nan|inf)\b", text)
    lengths = figures(page)["lengths"]["layout"]
    for axis in ("xaxis", "yaxis"):
        assert 1 <= len(lengths[axis]["tickvals"]) <= 8
    assert len(lengths["yaxis"]["tickvals"]) >= 2 or plan.requests_at(1) < 3


def test_no_name_can_leave_its_place(hybrid: dict[str, Any]) -> None:
    nasty = "</script><script>alert(1)</script>\u2028&'\"<b><img src=x onerror=alert(1)>"
    changed = json.loads(json.dumps(hybrid))
    for name in ("model", "architecture", "command", "kvblocks", "dtype", "kv_cache_dtype"):
        changed[name] = nasty
    changed["notes"], changed["flags"], changed["gpu"] = [nasty], {nasty: nasty}, {"name": nasty, "count": 1}
    changed["effects"][0] |= {"flag": nasty, "before": nasty, "after": nasty, "cost": nasty}
    changed["effects"].append({**changed["effects"][1], "status": "refused", "flag": nasty, "error": nasty})
    changed["groups"][0]["kind"] = nasty
    changed["memory"][0] |= {"device": nasty, "not_modelled": [nasty]}
    changed["memory"][0]["terms"][1] |= {"name": nasty, "formula": nasty}
    several = {**changed, "compare": [{"setting": nasty, **changed}, {"setting": nasty, **changed}]}
    refused = {**changed, "status": "refused", "error": nasty}
    for data in (changed, several, refused):
        page = plan_page(data)
        assert elements(page).count("script") == (0 if data is refused else 1)  # and the library, which is left out
        assert "img" not in elements(page)
        assert "alert(1)" in words(page)
        assert "\u2028" not in own_part(page)
        for figure in figures(page).values() if data is not refused else ():  # plotly reads tags in its texts
            assert "<img" not in json.dumps([figure["data"], figure["layout"].get("annotations")])
