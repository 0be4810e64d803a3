"""The plots of a plan, one function each, from its JSON: plotly figures as plain data, None for nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvblocks.report.bars import bars
from kvblocks.report.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RUN_COLOURS,
    SKY,
    VERMILLION,
    Figure,
    axis,
    figure,
)
from kvblocks.report.plan_words import alike, kind, step
from kvblocks.report.values import Data
from kvblocks.units import length, size

GIB = 2**30
CACHE, UNUSED = "KV cache", "not taken: beyond vLLM's share"
TERM_COLOURS = {
    "weights": ORANGE,
    "activations": PINK,
    "CUDA graphs": SKY,
    "other": "#F0E442",
    CACHE: BLUE,
    UNUSED: "rgba(128,128,128,0.35)",
}
USED, EMPTY = BLUE, "rgba(128,128,128,0.45)"


def term_colours(estimates: Sequence[Data]) -> dict[str, str]:
    """Colours of what the memory goes to, in the order of the bars."""
    found = [term["name"] for term in estimates[0]["terms"] if term["name"] != "requested"] if estimates else []
    spare = iter((GREEN, VERMILLION, GREY))
    return {name: TERM_COLOURS.get(name) or next(spare, GREY) for name in (*found, CACHE, UNUSED)}


def memory(bounds: Sequence[tuple[str, str, Data]]) -> Figure | None:
    """Where the memory of a GPU goes: a bar for each label, bound (`low`, `best` or `high`) and estimate."""
    if not bounds:
        return None
    parts = []
    for name, colour in term_colours([estimate for _, _, estimate in bounds]).items():
        taken = [_taken(estimate, bound, name) for _, bound, estimate in bounds]
        parts.append((colour, [size_ / GIB for size_ in taken], [f"{name}: {size(size_)}" for size_ in taken]))
    labels = [
        (size(left) if (left := estimate[f"available_{bound}"]) > 0 else "nothing", f"for the cache: {label}")
        for label, bound, estimate in bounds
    ]
    shares = {estimate["requested_bytes"] for _, _, estimate in bounds}
    mark = None
    if len(shares) == 1:
        share = shares.pop()
        mark = (share / GIB, f"vLLM's share: {size(share)}")
    return bars(labels, parts, title="GiB of one GPU", mark=mark)


def _taken(estimate: Data, bound: str, name: str) -> int:
    """Bytes of one part of the bar."""
    if name == CACHE:
        return max(int(estimate[f"available_{bound}"]), 0)
    if name == UNUSED:
        # A model larger than the share takes of this part, and then goes beyond the GPU.
        share = sum(int(term[f"{bound}_bytes"]) for term in estimate["terms"] if term["name"] == "requested")
        return max(int(estimate["total_bytes"] - share + min(estimate[f"available_{bound}"], 0)), 0)
    return sum(-int(term[f"{bound}_bytes"]) for term in estimate["terms"] if term["name"] == name)


def block_by_group(plan: Data) -> Figure | None:
    """What each group uses of one block. None where every group uses all of it."""
    groups = alike(plan["groups"])
    if not any(group["unused_bytes_per_block"] for _, group in groups):
        return None
    block = plan["bytes_per_block"][0]
    unit, factor = next(pair for pair in (("MiB", 2**20), ("KiB", 2**10), ("bytes", 1)) if block >= pair[1])
    empty = [group["unused_bytes_per_block"] for _, group in groups]
    used = [block - unused for unused in empty]
    return bars(
        [
            (f"{bytes_ / block:.0%}", f"group {numbers}: {kind(group)}, layers: {group['n_layers']:,}")
            for (numbers, group), bytes_ in zip(groups, used, strict=True)
        ],
        [
            (USED, [bytes_ / factor for bytes_ in used], [f"used: {size(bytes_)}" for bytes_ in used]),
            (EMPTY, [bytes_ / factor for bytes_ in empty], [f"holds nothing: {size(bytes_)}" for bytes_ in empty]),
        ],
        title=f"{unit} of one block",
    )


def requests_by_length(curves: Mapping[str, Sequence[Data]], max_num_seqs: int | None) -> Figure | None:
    """Requests at once against their length, both on logarithmic axes; a line for each named curve."""
    points = [row for curve in curves.values() for row in curve]
    if not points:
        return None
    lengths, most = [row["tokens"] for row in points], max(row["requests"] for row in points)
    fewest = max(min(row["requests"] for row in points), 1)
    lines: list[Figure] = [
        {
            "type": "scatter",
            "x": [row["tokens"] for row in curve],
            "y": [row["requests"] or None for row in curve],
            "mode": "lines+markers",
            "line": {"color": colour, "width": 2},
            "marker": {"size": 6},
            "hovertemplate": "%{x:,} tokens: %{y:,} requests<extra></extra>",
        }
        for curve, colour in zip(curves.values(), RUN_COLOURS, strict=False)
    ]
    notes: list[Figure] = []
    shapes: list[Figure] = []
    if max_num_seqs is not None and fewest <= max_num_seqs <= most:
        shapes.append(
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": max_num_seqs,
                "y1": max_num_seqs,
                "line": {"color": GREY, "width": 2, "dash": "dot"},
            }
        )
        notes.append(
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "y": math.log10(max_num_seqs),
                "yanchor": "bottom",
                "text": f"max_num_seqs {max_num_seqs:,}",
                "showarrow": False,
                "font": {"size": 12},
            }
        )
    across, up = _octaves(min(lengths), max(lengths)), _decades(fewest, most)
    return figure(
        lines,
        showlegend=False,
        hovermode="closest",
        annotations=notes,
        shapes=shapes,
        xaxis=axis(
            "tokens of each request",
            type="log",
            fixedrange=True,
            tickvals=across,
            ticktext=[length(tick) for tick in across],
        ),
        yaxis=axis(
            "requests at once",
            type="log",
            fixedrange=True,
            tickvals=up,
            ticktext=[f"{tick:,}" for tick in up],
            range=[math.log10(fewest / 1.5), math.log10(most * 1.5)],
        ),
    )


def _octaves(low: int, high: int) -> list[int]:
    """At most seven powers of two from `low` to `high`, evenly apart."""
    powers = range(max(low, 1).bit_length() - 1, high.bit_length())
    return [2**power for power in powers][:: -(-len(powers) // 7)]


def _decades(low: int, high: int) -> list[int]:
    """Powers of ten from `low` to `high`, below two decades with 2 and 5 times each; below one, a few round numbers."""
    first, last = low / 1.5, high * 1.5
    if high >= 10 * low:
        powers = range(int(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1,) if high >= 100 * low else (1, 2, 5)
        return [tick for power in powers for factor in factors if first <= (tick := factor * 10**power) <= last]
    unit = 10 ** int(math.log10(max((last - first) / 5, 1)))
    step = next(factor * unit for factor in (1, 2, 5, 10) if (last - first) / (factor * unit) <= 6)
    return list(range(-(-math.ceil(first) // step) * step, int(last) + 1, step))


def by_requests(told: Sequence[Data]) -> list[Data]:
    """Effects, those that leave the most requests first."""
    return sorted(told, key=lambda effect: -(effect["max_concurrency"] or 0.0))


def effects(plan: Data, told: Sequence[Data]) -> Figure | None:
    """Requests of max_model_len at once after each step, the most first, beside what it is now."""
    now = plan["max_concurrency"] or 0.0
    rows = [
        (effect["max_concurrency"] or 0.0, step(effect))
        for effect in told
        if effect["status"] == "ok" or (plan["status"] == "ok" and effect["status"] == "does_not_fit")
    ]
    if not rows:
        return None
    rows.append((now, "as planned"))
    rows.sort(key=lambda row: -row[0])
    values = [value for value, _ in rows]
    colours = [GREY if f"{value:.2f}" == f"{now:.2f}" else BLUE if value > now else ORANGE for value in values]
    return bars(
        [(f"{value:,.2f}" if value else "none", words) for value, words in rows],
        [(colours, values, [f"{value:,.2f} requests at once" for value in values])],
        title="requests at once",
    )


def layouts(search: Data) -> Figure | None:
    """Requests at once with each layout that was tried, and how many are wanted."""
    tried = [layout for layout in search["tried"] if layout["status"] == "ok"]
    if not tried:
        return None
    found = search["found"]
    return bars(
        [
            (
                f"{layout['requests']:,.1f}",
                f"{layout['gpus']} GPUs: TP {layout['tensor_parallel_size']}, PP {layout['pipeline_parallel_size']}",
            )
            for layout in tried
        ],
        [
            (
                [GREEN if layout == found else BLUE for layout in tried],
                [layout["requests"] for layout in tried],
                [f"{layout['requests']:,.1f} requests at once" for layout in tried],
            )
        ],
        title=f"requests of {search['length']:,} tokens at once",
        mark=(search["wanted_requests"], f"wanted: {search['wanted_requests']:,}"),
    )
