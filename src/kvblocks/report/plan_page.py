"""The page of a plan, of two side by side, or of a search for GPUs: what an engineer attaches to a capacity ticket."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from kvblocks.report import plan_figures, plan_sections, plan_words
from kvblocks.report.chart import Data
from kvblocks.report.document import document, legend, paragraph, preformatted, section, table
from kvblocks.units import size


def plan_page(data: Data) -> str:
    """The whole page. The same data gives the same bytes.

    data: a plan's JSON; or `compare` with two of them, each with its `setting`; or a search with all that was `tried`.
        Each with `kvblocks` (the version), `command`, `model`, and where they are known `gpu` (`name`, `count`) and
        `flags`.
    """
    drawn: dict[str, go.Figure] = {}
    where = f" on {data['gpu']['name']}" if data.get("gpu") else ""
    if "compare" in data:
        parts, subtitle = _comparison(drawn, data["compare"]), f"Two settings side by side{where}"
        what = f"{data['model']}: {' and '.join(side['setting'] for side in data['compare'])}"
    elif "tried" in data:
        parts, subtitle, what = _search(drawn, data), f"The fewest GPUs: a search{where}", f"GPUs for {data['model']}"
    else:
        parts, subtitle, what = _plan(drawn, data), plan_words.place(data, data), str(data["model"])
    parts += ["<h2>The command</h2>", preformatted(data["command"])]
    return document(
        title=f"kvblocks plan: {what}",
        heading=f"KV cache of {data['model']}",
        subtitle=subtitle,
        parts_html=parts,
        footer=f"kvblocks {data['kvblocks']}; by the arithmetic of vLLM 0.32. No GPU was asked.",
        drawn=drawn,
    )


def _plan(drawn: dict[str, go.Figure], plan: Data) -> list[str]:
    parts = [paragraph(plan_words.headline(plan), "lead")]
    if plan["status"] == "refused":
        return parts
    if plan["status"] == "ok" and plan["groups"]:
        parts += ["<h2>What vLLM will log, and what it means</h2>", preformatted(plan_words.vllm_lines(plan))]
        parts += map(paragraph, plan_words.meaning(plan))
    parts += [paragraph(f"{note[:1].upper()}{note[1:]}.") for note in plan["notes"]]
    parts += plan_sections.memory(drawn, plan)
    parts += plan_sections.groups(drawn, plan, "What a block holds", "block")
    parts += plan_sections.lengths(drawn, {"": plan})
    if "effects" in plan:
        parts += plan_sections.effects(drawn, plan)
    return [*parts, *plan_sections.settings(plan)]


def _comparison(drawn: dict[str, go.Figure], sides: Sequence[Data]) -> list[str]:
    names = [str(side["setting"]) for side in sides]
    if names[0] == names[1]:
        names = [f"{name} ({which})" for name, which in zip(names, ("first", "second"), strict=True)]
    parts = [paragraph(plan_words.comparison(sides), "lead")]
    parts += [paragraph(f"{name}: {side['error']}.") for name, side in zip(names, sides, strict=True) if side["error"]]
    parts += [paragraph(f"{name}: {note}.") for name, side in zip(names, sides, strict=True) for note in side["notes"]]
    rows: list[Sequence[str]] = []
    different: list[int] = []
    for what, name, form in (
        ("status", "status", lambda value: value.replace("_", " ")),
        ("memory for the cache", "memory_bytes", size),
        ("blocks", "num_blocks", "{:,}".format),
        ("block size, tokens", "block_size", "{:,}".format),
        ("bytes per block", "bytes_per_block", lambda widths: " + ".join(map(size, widths))),
        ("groups", "groups", lambda groups: str(len(groups))),
        ("KV cache size, tokens", "tokens", "{:,}".format),
        ("max_model_len", "max_model_len", "{:,}".format),
        ("maximum concurrency", "max_concurrency", "{:.2f}x".format),
        ("longest that fits", "estimated_max_model_len", "{:,}".format),
        ("fixed bytes of a request", "fixed_bytes_per_request", size),
        ("bytes for each token", "bytes_per_token", size),
    ):
        cells = ["-" if side[name] in (None, [], ()) else form(side[name]) for side in sides]
        if cells[0] != cells[1]:
            different.append(len(rows))
        rows.append([what, *cells])
    parts += ["<h2>Side by side</h2>", paragraph("Lines that differ stand out.", "quiet")]
    parts.append(table(["", *names], rows, bold=different))
    parts += plan_sections.lengths(drawn, dict(zip(names, sides, strict=True)))
    estimates = [
        (name + (f", stage {i}" if len(side["memory"]) > 1 else ""), "best", estimate)
        for name, side in zip(names, sides, strict=True)
        for i, estimate in enumerate(side["memory"])
    ]
    if estimates:
        words = "As estimated; the range of each term is in the page of a single plan."
        parts += section(drawn, "Where the memory goes", words, {"memory": plan_figures.memory(estimates)}, "")
        parts.append(legend(plan_figures.term_colours([estimate for _, _, estimate in estimates])))
        for label, _, estimate in estimates:
            parts += [paragraph(f"{label}:"), plan_sections.terms(estimate)]
    for i, (name, side) in enumerate(zip(names, sides, strict=True)):
        if side["groups"]:
            parts += plan_sections.groups(drawn, side, f"What a block holds: {name}", f"block-{i}")
    return parts


def _search(drawn: dict[str, go.Figure], data: Data) -> list[str]:
    parts = [paragraph(plan_words.search(data), "lead")]
    words = "Tensor x pipeline parallel sizes, the fewest GPUs first. Requests count without the null block."
    figure = plan_figures.layouts(data)
    parts += section(drawn, "What was tried", words, {"layouts": figure}, "The model fits none of the layouts tried.")
    rows = [
        (
            str(layout["gpus"]),
            str(layout["tensor_parallel_size"]),
            str(layout["pipeline_parallel_size"]),
            "-" if layout["available_bytes"] is None else size(layout["available_bytes"]),
            f"{layout['requests']:,.1f}" if layout["status"] == "ok" else layout["status"].replace("_", " "),
        )
        for layout in data["tried"]
    ]
    chosen = [i for i, layout in enumerate(data["tried"]) if layout == data["found"]]
    head = ("GPUs", "TP", "PP", "for the cache of each", "requests at once")
    return [*parts, table(head, rows, bold=chosen)]
