"""Plans on a terminal: memory, groups, capacity in words, and a chart of the flags that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvblocks.cli import printable
from kvblocks.sizing import Plan, Setting
from kvblocks.sizing.effects import Effect
from kvblocks.sizing.search import Search
from kvblocks.units import size

SHOWN_EFFECTS = 12
"""Steps in the table; the rest are in the JSON."""
_KINDS = {
    "full_attention": "full",
    "mla_attention": "MLA",
    "sliding_window": "window",
    "sliding_window_mla": "window MLA",
    "chunked_local_attention": "chunks",
    "mamba": "state",
    "cross_attention": "cross",
}
BAR = 16
"""Cells of the longest bar of the chart."""


def print_plan(console: Console, setting: Setting, plan: Plan, effects: Sequence[Effect]) -> None:
    """Everything about one plan."""
    console.print(Text(_title(setting, plan), style="bold"), soft_wrap=True)
    for stage, estimate in enumerate(plan.memory):
        _print_memory(console, estimate, stage if len(plan.memory) > 1 else None)
    _print_groups(console, plan)
    console.print()
    for line in capacity_words(plan):
        console.print(Text(line), soft_wrap=True)
    for note in plan.notes:
        console.print(Text(f"Note: {note}."), soft_wrap=True)
    if effects:
        _print_effects(console, plan, effects)


def _title(setting: Setting, plan: Plan) -> str:
    flags = setting.flags
    parts = [printable(plan.model), plan.architecture, str(plan.dtype)]
    parts.append("cache in the model's dtype" if plan.kv_cache_dtype == "auto" else f"cache in {plan.kv_cache_dtype}")
    if setting.device is not None:
        ranks = flags.tensor_parallel_size * flags.pipeline_parallel_size
        parts.append(f"{ranks} x {setting.device.name}" if ranks > 1 else setting.device.name)
    for name, value in (("TP", flags.tensor_parallel_size), ("PP", flags.pipeline_parallel_size)):
        if value > 1:
            parts.append(f"{name} {value}")
    return ", ".join(part for part in parts if part)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=justify == "right")  # type: ignore[arg-type]
    return table


def _print_memory(console: Console, estimate: Mapping[str, Any], stage: int | None) -> None:
    where = "" if stage is None else f" of stage {stage}"
    console.print()
    table = _table(
        (f"memory of a GPU{where}", "left"), ("GiB", "right"), ("from", "right"), ("to", "right"), ("how", "left")
    )
    for term in estimate.get("terms", ()):
        table.add_row(
            printable(str(term["name"])),
            *(f"{term[which] / 2**30:.2f}" for which in ("best_bytes", "low_bytes", "high_bytes")),
            printable(str(term["formula"])),
        )
    bounds = [estimate[f"available_{which}"] / 2**30 for which in ("best", "low", "high")]
    table.add_row("for the cache", *(f"{bound:.2f}" for bound in bounds), "what is left", style="bold")
    console.print(table)
    left_out = estimate.get("not_modelled") or ()
    if left_out:
        console.print(Text(f"Not modelled: {'; '.join(map(printable, map(str, left_out)))}."))


def _print_groups(console: Console, plan: Plan) -> None:
    if not plan.groups:
        console.print("\nThis model keeps no cache.")
        return
    console.print()
    table = _table(
        ("group", "right"),
        ("kind", "left"),
        ("layers", "right"),
        ("block", "right"),
        ("page", "right"),
        ("padded", "right"),
        ("unused", "right"),
        ("per request", "right"),
    )
    first = 0
    for group, alike in groupby(plan.groups):
        count = len(list(alike))
        table.add_row(
            str(first) if count == 1 else f"{first}-{first + count - 1}",
            _KINDS.get(group.kind, group.kind),
            "+".join(map(str, group.n_layers_per_stage)),
            f"{group.block_size:,}",
            size(group.page_size_bytes),
            size(group.padding_bytes) if group.padding_bytes else "-",
            size(group.unused_bytes_per_block) if group.unused_bytes_per_block else "-",
            f"{group.blocks_per_request:,}",
        )
        first += count
    console.print(table)
    if any(group.unused_bytes_per_block for group in plan.groups):
        console.print("padded: bytes of a page that hold nothing; unused: bytes of a block")


def capacity_words(plan: Plan) -> list[str]:
    """What fits, in sentences: vLLM's own two lines, and what they mean."""
    lines = []
    blocks = " and ".join(size(width) for width in dict.fromkeys(plan.bytes_per_block))
    if plan.ok and plan.num_blocks is not None:
        memory = size(plan.memory_bytes or 0)
        lines.append(f"{plan.num_blocks:,} blocks of {blocks} in {memory}.")
    if not plan.groups:
        return lines
    length = plan.max_model_len or 0
    if plan.ok:
        lines += [
            f"GPU KV cache size: {plan.tokens:,} tokens",
            f"Maximum concurrency for {length:,} tokens per request: {plan.max_concurrency:.2f}x",
            *_meaning(plan),
        ]
    fixed, slope = plan.fixed_bytes_per_request or 0, plan.bytes_per_token or 0.0
    holds = []
    if fixed:
        holds.append(f"{size(fixed)} however long it gets")
    if slope:
        holds.append(f"{size(slope)} for each token")
    lines.append(f"A long request holds {' and '.join(holds) or 'nothing'}.")
    if plan.ok:
        fits = f"max_model_len={length:,} fits"
        if plan.estimated_max_model_len and plan.estimated_max_model_len > length:
            fits += f"; {plan.estimated_max_model_len:,} would too"
        lines.append(f"{fits}.")
    else:
        lines.append(f"Does not fit: {plan.error}.")
    return lines


def _meaning(plan: Plan) -> list[str]:
    """What vLLM's two figures are, for this model."""
    kinds = {group.kind for group in plan.groups}
    if len(plan.groups) == 1 and kinds <= {"full_attention", "mla_attention"}:
        return [
            "Every token of every request takes a place of its own, so the first figure is how many tokens the cache "
            "holds; the second is that figure divided by the length."
        ]
    return [
        "The first figure is the second times the length, not a number of places: shorter requests fit less often than "
        "it says, for each holds its states and windows whatever its length."
    ]


def _print_effects(console: Console, plan: Plan, effects: Sequence[Effect]) -> None:
    """Two lines a step: what it does, with a bar, and what it costs."""
    refused = [effect for effect in effects if effect.status == "refused"]
    helpful = [effect for effect in effects if effect.status == "ok" or (plan.ok and effect.status == "does_not_fit")]
    now = f"{plan.max_concurrency:.2f} now" if plan.ok else "none now"
    console.print(Text(f"\nWhat would change it, by requests of that length at once ({now})", style="bold"))
    widest = max((effect.max_concurrency or 0.0 for effect in helpful), default=0.0)
    for effect in helpful[:SHOWN_EFFECTS]:
        step = f"{effect.flag} {effect.before} -> {effect.after}"
        if effect.status != "ok":
            console.print(Text(f"  {step}: does not fit"), soft_wrap=True)
            continue
        bar = "█" * max(1, round(BAR * (effect.max_concurrency or 0.0) / max(widest, plan.max_concurrency or 0.0)))
        changes = [
            f"{change:+,} {what}"
            for change, what in ((effect.num_blocks_change, "blocks"), (effect.tokens_change, "tokens"))
            if change
        ]
        at_once = f"{effect.max_concurrency:.2f}"
        console.print(Text(f"  {step:<46} {at_once:>8} {bar:<{BAR}} {', '.join(changes)}".rstrip()), soft_wrap=True)
        console.print(Text(f"      {printable(effect.cost)}", style="dim"), soft_wrap=True)
    if not helpful:
        console.print("  No single step makes it fit.")
    for effect in refused:
        words = printable((effect.error or "").split(";")[0])
        console.print(Text(f"  {effect.flag} {effect.before} -> {effect.after} is refused: {words}"), soft_wrap=True)
    rest = len(helpful) - SHOWN_EFFECTS
    if rest > 0:
        console.print(f"  {rest} smaller effects are in --json.")


def print_comparison(console: Console, labels: Sequence[str], plans: Sequence[Plan]) -> None:
    """Two plans side by side."""
    table = _table(("", "left"), *((printable(label), "right") for label in labels))

    def row(name: str, values: Sequence[str]) -> None:
        style = "bold" if len(set(values)) > 1 else ""
        table.add_row(name, *values, style=style)

    def figures(name: str, spell: Any) -> list[str]:
        return ["-" if getattr(plan, name) is None else spell(getattr(plan, name)) for plan in plans]

    whole = "{:,}".format
    row("status", [plan.status.replace("_", " ") for plan in plans])
    row("memory for the cache", figures("memory_bytes", size))
    row("blocks", figures("num_blocks", whole))
    row("block size", figures("block_size", whole))
    row("bytes per block", [" + ".join(size(width) for width in plan.bytes_per_block) or "-" for plan in plans])
    row("groups", [str(len(plan.groups)) for plan in plans])
    row("GPU KV cache size, tokens", figures("tokens", whole))
    row("max_model_len", figures("max_model_len", whole))
    row("maximum concurrency", figures("max_concurrency", "{:.2f}x".format))
    row("longest that fits", figures("estimated_max_model_len", whole))
    row("fixed per request", figures("fixed_bytes_per_request", size))
    row("for each token", figures("bytes_per_token", size))
    console.print(table)
    for label, plan in zip(labels, plans, strict=True):
        if not plan.ok:
            console.print(Text(f"{printable(label)}: {plan.error}"), soft_wrap=True)


def print_search(console: Console, setting: Setting, found: Search) -> None:
    """What was tried, and the fewest GPUs that hold what was asked."""
    table = _table(
        ("GPUs", "right"), ("TP", "right"), ("PP", "right"), ("for the cache", "right"), ("requests", "right")
    )
    for layout in found.tried:
        plan = layout.plan
        table.add_row(
            str(layout.gpus),
            str(layout.tensor_parallel_size),
            str(layout.pipeline_parallel_size),
            size(plan.memory_bytes or 0),
            f"{layout.requests:.1f}" if plan.ok else "does not fit",
            style="bold" if layout is found.found else "",
        )
    console.print(table)
    asked = f"{found.wanted_requests:,} requests of {found.length:,} tokens at once"
    device = "" if setting.device is None else f" of {setting.device.name}"
    if found.found is None:
        console.print(f"No layout tried holds {asked}: use larger GPUs, --kv-cache-dtype fp8, or fewer requests.")
        return
    best = found.found
    console.print(
        f"{best.gpus} GPU{'s' if best.gpus > 1 else ''}{device} hold {asked}: "
        f"-tp {best.tensor_parallel_size} -pp {best.pipeline_parallel_size}."
    )
