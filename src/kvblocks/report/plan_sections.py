"""The sections of a plan's page, one function each: words, a plot where there is something to draw, and a table.

`drawn` takes the figures, by the id of their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from kvblocks.report import plan_figures, plan_words
from kvblocks.report.chart import RUN_COLOURS, Data
from kvblocks.report.document import legend, paragraph, section, table
from kvblocks.units import size


def memory(drawn: dict[str, go.Figure], plan: Data) -> list[str]:
    title = "Where the memory goes"
    estimates: Sequence[Data] = plan["memory"]
    if not estimates:
        return [f"<h2>{title}</h2>", paragraph(plan_words.given_memory(plan))]
    if len(estimates) == 1:
        cases = (
            ("best", "as estimated"),
            ("low", "if all else takes the most"),
            ("high", "if all else takes the least"),
        )
        bounds = [(label, bound, estimates[0]) for bound, label in cases]
    else:
        bounds = [(f"in stage {i}", "best", estimate) for i, estimate in enumerate(estimates)]
    parts = section(drawn, title, plan_words.memory_range(plan), {"memory": plan_figures.memory(bounds)}, "")
    parts.append(legend(plan_figures.term_colours(estimates)))
    for i, estimate in enumerate(estimates):
        if len(estimates) > 1:
            parts.append(paragraph(f"A GPU of stage {i}:"))
        parts.append(terms(estimate))
    missing = dict.fromkeys(what for estimate in estimates for what in estimate["not_modelled"])
    if missing:
        parts.append(paragraph(f"Not modelled: {'; '.join(missing)}.", "quiet"))
    return parts


def terms(estimate: Data) -> str:
    head = ("GiB of one GPU", "best", "from", "to", "how")
    rows: list[Sequence[str]] = [("the GPU", *(_gib(estimate["total_bytes"]),) * 3, str(estimate["device"]))]
    rows += [
        (
            "vLLM's share" if term["name"] == "requested" else str(term["name"]),
            *(_gib(term[f"{bound}_bytes"]) for bound in ("best", "low", "high")),
            str(term["formula"]),
        )
        for term in estimate["terms"]
    ]
    rows.append(
        ("for the cache", *(_gib(estimate[f"available_{bound}"]) for bound in ("best", "low", "high")), "what is left")
    )
    return table(head, rows, words=(4,), bold=(len(rows) - 1,))


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f}"


def groups(drawn: dict[str, go.Figure], plan: Data, title: str, name: str) -> list[str]:
    groups: Sequence[Data] = plan["groups"]
    if not groups:
        return [f"<h2>{title}</h2>", paragraph("This model keeps no cache.")]
    widths = [size(width) for width in dict.fromkeys(plan["bytes_per_block"])]
    words = f"A block is {' or '.join(widths)}{', by pipeline stage' if len(widths) > 1 else ''}"
    if len(groups) > 1:
        words += (
            ", and belongs to one group at a time: the layers that share a block table. Groups with fewer or smaller "
            "layers leave part of it empty."
        )
        all_used = f"{words} Here every group uses all of its blocks."
    else:
        words += "; all layers share one block table."
        all_used = f"{words} Nothing of a block is empty."
    figure = plan_figures.block_by_group(plan)
    parts = section(drawn, title, words, {name: figure}, all_used)
    if figure is not None:
        parts.append(legend({"used": plan_figures.USED, "holds nothing": plan_figures.EMPTY}))
    head = (
        "group", "kind", "layers", "block, tokens", "page", "padding", "unused", "blocks of a request",
    )  # fmt: skip
    rows = [
        (
            str(i),
            plan_words.kind(group),
            " + ".join(map(str, group["n_layers_per_stage"])),
            f"{group['block_size']:,}",
            size(group["page_size_bytes"]),
            size(group["padding_bytes"]) if group["padding_bytes"] else "-",
            size(group["unused_bytes_per_block"]) if group["unused_bytes_per_block"] else "-",
            f"{group['blocks_per_request']:,}",
        )
        for i, group in enumerate(groups)
    ]
    parts.append(table(head, rows))
    where = " of the first stage" if len(plan["bytes_per_block"]) > 1 else ""
    parts.append(
        paragraph(
            "Page: what one layer keeps of a block. Padding: bytes of it that hold nothing. Unused: bytes of a block "
            f"that none of the group's layers uses{where}. The last column is for a request of "
            f"{plan['max_model_len']:,} tokens, at most. {plan_words.holds(plan)}",
            "quiet",
        )
    )
    return parts


def lengths(drawn: dict[str, go.Figure], plans: dict[str, Data]) -> list[str]:
    """Requests at once against their length; a curve and a column for each plan, by its name."""
    curves = {name: plan["requests_by_length"] for name, plan in plans.items() if plan["requests_by_length"]}
    limits = {plan["max_num_seqs"] for plan in plans.values() if plan["requests_by_length"]}
    limit = limits.pop() if len(limits) == 1 else None
    words = (
        "Whole requests that the cache holds at once if all have this many tokens (prompt and output), and share no "
        "prefix. Counted block by block, without the null block."
    )
    if limit is not None:
        words += f" More than max_num_seqs={limit:,} do not run at once, whatever fits."
    figure = plan_figures.requests_by_length(curves, limit)
    stopped = any(plan["status"] != "ok" for plan in plans.values())
    otherwise = f"{'vLLM does not start' if stopped else 'Nothing is kept'}, so there is no curve."
    parts = section(drawn, "How many requests, by their length", words, {"lengths": figure}, otherwise)
    if figure is None:
        return parts
    if len(curves) > 1:
        parts.append(legend(dict(zip(curves, RUN_COLOURS, strict=False))))
    held = {name: {row["tokens"]: row["requests"] for row in curve} for name, curve in curves.items()}
    longest = {max(curve) for curve in held.values()}
    lengths = sorted({n for curve in held.values() for n in curve if n & (n - 1) == 0 or n in longest})
    columns = [("requests at once", "tokens in all")] if len(held) == 1 else [(name,) for name in held]
    rows = []
    for tokens in lengths:
        cells = [f"{tokens:,}"]
        for curve in held.values():
            count = curve.get(tokens)
            cells.append("-" if count is None else f"{count:,}")
            if len(held) == 1:
                cells.append("-" if count is None else f"{count * tokens:,}")
        rows.append(cells)
    return [*parts, table(["tokens of each", *(name for column in columns for name in column)], rows)]


def effects(drawn: dict[str, go.Figure], plan: Data) -> list[str]:
    told: Sequence[Data] = plan["effects"]
    words = (
        "Each flag alone, one step up or down. Bars are requests of max_model_len at once, by vLLM's count; for a step "
        "of max_model_len itself, of the new length."
    )
    figure = plan_figures.effects(plan, told)
    none = f"No single step of a flag {'changes what fits' if plan['status'] == 'ok' else 'makes it fit'}."
    parts = section(drawn, "Which flags change it", words, {"effects": figure}, none)
    if figure is not None:
        head = ("step", "requests at once", "times", "blocks", "tokens", "what it costs")
        rows = [
            (
                plan_words.step(effect),
                f"{effect['max_concurrency']:,.2f}" if effect["status"] == "ok" else effect["status"].replace("_", " "),
                f"{effect['factor']:.2f}" if plan["status"] == effect["status"] == "ok" else "-",
                *(_change(effect, name) for name in ("num_blocks", "tokens")),
                effect["cost"],
            )
            for effect in plan_figures.by_requests(told)
            if effect["status"] != "refused"
        ]
        parts.append(table(head, rows, words=(0, 5)))
    refused = [(plan_words.step(effect), effect["error"]) for effect in told if effect["status"] == "refused"]
    if refused:
        parts += [paragraph("Steps that are refused:"), table(("step", "why"), refused, words=(0, 1))]
    return parts


def _change(effect: Data, name: str) -> str:
    """By how much a step changes it; where the plan itself does not fit, what it is then."""
    value, change = effect[name], effect[f"{name}_change"]
    if change is None:
        return "-" if value is None else f"{value:,}"
    return f"{change:+,}" if change else "0"


SETTINGS = (
    "dtype", "kv_cache_dtype", "max_model_len", "derived_max_model_len", "block_size", "max_num_batched_tokens",
    "max_num_seqs", "enable_prefix_caching", "num_blocks", "memory_bytes",
)  # fmt: skip


def settings(plan: Data) -> list[str]:
    rows = []
    for name in SETTINGS:
        value: Any = plan[name]
        if value is None:
            continue
        spelled = size(value) if name.endswith("_bytes") else f"{value:,}" if type(value) is int else str(value).lower()
        rows.append((name, spelled, "given" if name in plan.get("flags", {}) else ""))
    words = "As vLLM resolves them from the flags, the model and the GPU."
    return ["<h2>Settings</h2>", paragraph(words, "quiet"), table(("setting", "value", ""), rows)]
