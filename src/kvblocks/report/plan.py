"""The page of a plan, of two side by side, or of a search for GPUs: what an engineer attaches to a capacity ticket."""

from __future__ import annotations

from collections.abc import Sequence

from kvblocks.report import plan_figures, plan_sections, plan_words
from kvblocks.report.document import Section, document, legend, paragraph, table
from kvblocks.report.figures import Figure
from kvblocks.report.values import NONE, Data, escape
from kvblocks.units import size


class _Body:
    """The parts of a page in order, and the figures that they have."""

    def __init__(self, *lead: str) -> None:
        self.parts = [f"<div class='lead'>{''.join(map(paragraph, lead))}</div>"]
        self.figures: dict[str, Figure] = {}

    def add(self, *parts: str | Section) -> None:
        for part in parts:
            if isinstance(part, Section):
                self.figures |= part.drawn
            self.parts.append(part.html() if isinstance(part, Section) else part)


def page(data: Data, plotly_js: str) -> str:
    """The whole page, for clean data (see `values.clean`) and the source of plotly.js."""
    where = f" on {data['gpu']['name']}" if data.get("gpu") else ""
    title = str(data["model"])
    if "compare" in data:
        body, subtitle = _comparison(data["compare"]), f"Two settings side by side{where}"
        title += f": {' and '.join(side['setting'] for side in data['compare'])}"
    elif "tried" in data:
        body, subtitle = _search(data), f"The fewest GPUs: a search{where}"
    else:
        body, subtitle = _plan(data), plan_words.place(data)
    body.add("<h2>The command</h2>", f"<pre>{escape(data['command'])}</pre>")
    return document(
        title=f"kvblocks plan: {title}",
        heading=f"KV cache of {data['model']}",
        subtitle=subtitle,
        body_html=body.parts,
        footer=f"kvblocks {data['kvblocks']}, by the arithmetic of vLLM 0.32. No GPU was asked.",
        figures=body.figures,
        plotly_js=plotly_js,
    )


def _plan(plan: Data) -> _Body:
    body = _Body(plan_words.headline(plan))
    if plan["status"] == "refused":
        return body
    if plan["status"] == "ok" and plan["groups"]:
        body.add("<h2>What vLLM will log, and what it means</h2>", f"<pre>{escape(plan_words.vllm_lines(plan))}</pre>")
        body.add(*map(paragraph, plan_words.meaning(plan)))
    body.add(*(paragraph(f"{note[:1].upper()}{note[1:]}.") for note in plan["notes"]))
    body.add(plan_sections.memory(plan), plan_sections.groups(plan), plan_sections.lengths({"": plan}))
    if "effects" in plan:
        body.add(plan_sections.effects(plan))
    body.add(plan_sections.settings(plan))
    return body


def _comparison(sides: Sequence[Data]) -> _Body:
    names = [str(side["setting"]) for side in sides]
    if names[0] == names[1]:
        names = [f"{name} ({which})" for name, which in zip(names, ("first", "second"), strict=True)]
    named = list(zip(names, sides, strict=True))
    body = _Body(*plan_words.comparison(sides))
    body.add(*(paragraph(f"{name}: {side['error']}.") for name, side in named if side["error"]))
    body.add(*(paragraph(f"{name}: {note}.") for name, side in named for note in side["notes"]))
    rows: list[Sequence[str]] = []
    for what, key, form in (
        ("status", "status", lambda value: value.replace("_", " ")),
        ("memory for the cache", "memory_bytes", size),
        ("blocks", "num_blocks", "{:,}".format),
        ("tokens of a block", "block_size", "{:,}".format),
        ("bytes of a block", "bytes_per_block", lambda widths: " + ".join(map(size, widths))),
        ("groups", "groups", lambda groups: str(len(groups))),
        ("KV cache size, tokens", "tokens", "{:,}".format),
        ("max_model_len", "max_model_len", "{:,}".format),
        ("maximum concurrency", "max_concurrency", "{:,.2f}x".format),
        ("longest that fits", "estimated_max_model_len", "{:,}".format),
        ("fixed bytes of a request", "fixed_bytes_per_request", size),
        ("bytes for each token", "bytes_per_token", size),
    ):
        rows.append([what, *(NONE if side[key] in (None, []) else form(side[key]) for side in sides)])
    different = [i for i, (_, first, second) in enumerate(rows) if first != second]
    body.add("<h2>Side by side</h2>", paragraph("Lines that differ stand out.", "quiet"))
    body.add(table("Side by side", ("", *names), rows, bold=different))
    body.add(plan_sections.lengths(dict(named)))
    estimates = [
        (name + (f", stage {i}" if len(side["memory"]) > 1 else ""), "best", estimate)
        for name, side in named
        for i, estimate in enumerate(side["memory"])
    ]
    if estimates:
        after = [legend(plan_figures.term_colours([estimate for _, _, estimate in estimates]))]
        for label, _, estimate in estimates:
            after += [paragraph(f"{label}:"), plan_sections.terms(f"Memory: {label}", estimate)]
        body.add(
            Section(
                title="Where the memory goes",
                reading="As estimated; the tables have the range of each term.",
                figures={"memory": plan_figures.memory(estimates)},
                otherwise="",
                after="\n".join(after),
            )
        )
    for i, (name, side) in enumerate(named):
        if side["groups"]:
            body.add(plan_sections.groups(side, f"What a block holds: {name}", f"block-{i}"))
    return body


def _search(data: Data) -> _Body:
    body = _Body(plan_words.search(data))
    rows = [
        (
            str(layout["gpus"]),
            str(layout["tensor_parallel_size"]),
            str(layout["pipeline_parallel_size"]),
            NONE if layout["available_bytes"] is None else size(layout["available_bytes"]),
            f"{layout['requests']:,.1f}" if layout["status"] == "ok" else layout["status"].replace("_", " "),
        )
        for layout in data["tried"]
    ]
    chosen = [i for i, layout in enumerate(data["tried"]) if layout == data["found"]]
    head = ("GPUs", "TP", "PP", "for the cache of each", "requests at once")
    body.add(
        Section(
            title="What was tried",
            reading="Tensor x pipeline parallel sizes, the fewest GPUs first. Requests count without the null block.",
            figures={"layouts": plan_figures.layouts(data)},
            otherwise="The model fits none of the layouts tried.",
            after=table("What was tried", head, rows, bold=chosen),
        )
    )
    return body
