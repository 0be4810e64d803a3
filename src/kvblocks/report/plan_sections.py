"""The sections of a plan's page, one function each: words, a figure where there is something to draw, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvblocks.report import plan_figures, plan_words
from kvblocks.report.document import Section, legend, paragraph, table
from kvblocks.report.figures import RUN_COLOURS
from kvblocks.report.values import NONE, Data, escape
from kvblocks.units import size

BOUNDS = ("best", "low", "high")


def memory(plan: Data) -> Section:
    """The subtraction: bars, and each term with its formula."""
    estimates: Sequence[Data] = plan["memory"]
    if len(estimates) == 1:
        cases = ("as estimated", "if all else takes the most", "if all else takes the least")
        bounds = [(label, bound, estimates[0]) for label, bound in zip(cases, BOUNDS, strict=True)]
    else:
        bounds = [(f"in stage {i}", "best", estimate) for i, estimate in enumerate(estimates)]
    after = []
    if estimates:
        after.append(legend(plan_figures.term_colours(estimates)))
    for i, estimate in enumerate(estimates):
        name = f"Memory of a GPU of stage {i}" if len(estimates) > 1 else "Memory of a GPU"
        if len(estimates) > 1:
            after.append(paragraph(f"{name}:"))
        after.append(terms(name, estimate))
    missing = dict.fromkeys(what for estimate in estimates for what in estimate["not_modelled"])
    if missing:
        after.append(paragraph(f"Not modelled: {'; '.join(missing)}.", "quiet"))
    return Section(
        title="Where the memory goes",
        reading=plan_words.memory_range(plan) if estimates else "",
        figures={"memory": plan_figures.memory(bounds)},
        otherwise=plan_words.given_memory(plan),
        after="\n".join(after),
    )


def terms(name: str, estimate: Data) -> str:
    """The terms of one estimate as a table."""
    rows: list[Sequence[str]] = [("the GPU", *(_gib(estimate["total_bytes"]),) * 3, str(estimate["device"]))]
    rows += [
        (
            "vLLM's share" if term["name"] == "requested" else str(term["name"]),
            *(_gib(term[f"{bound}_bytes"]) for bound in BOUNDS),
            str(term["formula"]),
        )
        for term in estimate["terms"]
    ]
    rows.append(("for the cache", *(_gib(estimate[f"available_{bound}"]) for bound in BOUNDS), "what is left"))
    return table(name, ("GiB", "best", "from", "to", "how"), rows, words=(4,), bold=(len(rows) - 1,))


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f}"


def groups(plan: Data, title: str = "What a block holds", name: str = "block") -> Section:
    """What each group makes of a block; `name` is the figure's id."""
    found: Sequence[Data] = plan["groups"]
    widths = [size(width) for width in dict.fromkeys(plan["bytes_per_block"])]
    reading = f"A block is {' or '.join(widths)}{', by pipeline stage' if len(widths) > 1 else ''}"
    if len(found) > 1:
        reading += (
            ", and belongs to one group at a time: the layers that share a block table. Groups with fewer or smaller "
            "layers leave part of it empty."
        )
        all_used = f"{reading} Here every group uses all of its blocks."
    else:
        reading += "; all layers share one block table."
        all_used = f"{reading} Nothing of a block is empty."
    figure = plan_figures.block_by_group(plan)
    after = [] if figure is None else [legend({"used": plan_figures.USED, "holds nothing": plan_figures.EMPTY})]
    head = ("group", "kind", "layers", "tokens of a block", "page", "padding", "unused", "blocks of a request")
    rows = [
        (
            numbers,
            plan_words.kind(group),
            " + ".join(map(str, group["n_layers_per_stage"])),
            f"{group['block_size']:,}",
            size(group["page_size_bytes"]),
            size(group["padding_bytes"]) if group["padding_bytes"] else NONE,
            size(group["unused_bytes_per_block"]) if group["unused_bytes_per_block"] else NONE,
            f"{group['blocks_per_request']:,}",
        )
        for numbers, group in plan_words.alike(found)
    ]
    where = " of the first stage" if len(plan["bytes_per_block"]) > 1 else ""
    if found:
        after.append(table(title, head, rows))
        after.append(
            paragraph(
                "Page: what one layer keeps of a block. Padding: bytes of it that hold nothing. Unused: bytes of a "
                f"block that none of a group's layers uses{where}. The last column is for a request of "
                f"{plan['max_model_len']:,} tokens, at most, and for each group. {plan_words.holds(plan)}",
                "quiet",
            )
        )
    return Section(
        title=title,
        reading=reading,
        figures={name: figure},
        otherwise=all_used if found else "This model keeps no cache.",
        after="\n".join(after),
    )


def lengths(plans: Mapping[str, Data]) -> Section:
    """Requests at once against their length; a curve and a column for each plan, by its name."""
    curves = {name: plan["requests_by_length"] for name, plan in plans.items() if plan["requests_by_length"]}
    limits = {plan["max_num_seqs"] for plan in plans.values() if plan["requests_by_length"]}
    limit = limits.pop() if len(limits) == 1 else None
    reading = (
        "Whole requests that the cache holds at once if all have this many tokens (prompt and output), and share no "
        "prefix. Counted block by block, without the null block."
    )
    if limit is not None:
        reading += f" More than max_num_seqs={limit:,} do not run at once, whatever fits."
    stopped = any(plan["status"] != "ok" for plan in plans.values())
    after = ""
    if curves:
        after = legend(dict(zip(curves, RUN_COLOURS, strict=False))) if len(curves) > 1 else ""
        after += _counts(curves)
    return Section(
        title="How many requests, by their length",
        reading=reading,
        figures={"lengths": plan_figures.requests_by_length(curves, limit)},
        otherwise=f"{'vLLM does not start' if stopped else 'Nothing is kept'}, so there is no curve.",
        after=after,
    )


def _counts(curves: Mapping[str, Sequence[Data]]) -> str:
    """Powers of two and the longest, as a table."""
    held = {name: {row["tokens"]: row["requests"] for row in curve} for name, curve in curves.items()}
    longest = {max(curve) for curve in held.values()}
    alone = len(held) == 1
    rows = []
    for tokens in sorted({n for curve in held.values() for n in curve if n & (n - 1) == 0 or n in longest}):
        found = [curve.get(tokens) for curve in held.values()]
        cells = [NONE if count is None else f"{count:,}" for count in found]
        rows.append([f"{tokens:,}", *cells, *(f"{(count or 0) * tokens:,}" for count in found if alone)])
    head = ("tokens of each", "requests at once", "tokens in all") if alone else ("tokens of each", *held)
    return table("Requests at once by length", head, rows)


def effects(plan: Data) -> Section:
    """Each flag a step up and down, and what it costs."""
    told: Sequence[Data] = plan["effects"]
    figure = plan_figures.effects(plan, told)
    after = []
    if figure is not None:
        rows = [
            (
                plan_words.step(effect),
                f"{effect['max_concurrency']:,.2f}" if effect["status"] == "ok" else effect["status"].replace("_", " "),
                f"{effect['factor']:.2f}" if plan["status"] == effect["status"] == "ok" else NONE,
                *(_change(effect, name) for name in ("num_blocks", "tokens")),
                effect["cost"],
            )
            for effect in plan_figures.by_requests(told)
            if effect["status"] != "refused"
        ]
        head = ("step", "requests at once", "times", "blocks", "tokens", "what it costs")
        after.append(table("Steps of flags", head, rows, words=(0, 5)))
    refused = [(plan_words.step(effect), effect["error"]) for effect in told if effect["status"] == "refused"]
    if refused:
        after.append(paragraph("Steps that are refused:"))
        after.append(table("Refused steps", ("step", "why"), refused, words=(0, 1)))
    return Section(
        title="Which flags change it",
        reading="Each flag alone, one step up or down. Bars are requests of max_model_len at once, by vLLM's count; "
        "for a step of max_model_len itself, of the new length.",
        figures={"effects": figure},
        otherwise=f"No single step of a flag {'changes what fits' if plan['status'] == 'ok' else 'makes it fit'}.",
        after="\n".join(after),
    )


def _change(effect: Data, name: str) -> str:
    """By how much a step changes it; where the plan itself does not fit, what it is then."""
    value, change = effect[name], effect[f"{name}_change"]
    if change is None:
        return NONE if value is None else f"{value:,}"
    return f"{change:+,}" if change else "0"


SETTINGS = (
    "dtype", "kv_cache_dtype", "max_model_len", "derived_max_model_len", "block_size", "max_num_batched_tokens",
    "max_num_seqs", "enable_prefix_caching", "num_blocks", "memory_bytes",
)  # fmt: skip


def settings(plan: Data) -> str:
    """What vLLM makes of flags, model and GPU."""
    lines = []
    for name in SETTINGS:
        value: Any = plan[name]
        if value is None:
            continue
        spelled = size(value) if name.endswith("_bytes") else f"{value:,}" if type(value) is int else str(value).lower()
        given = " (given)" if name in plan.get("flags", {}) else ""
        lines.append(f"<dt>{escape(name)}</dt><dd>{escape(spelled + given)}</dd>")
    return f"<h2>Settings, as vLLM resolves them</h2>\n<dl>{''.join(lines)}</dl>"
