"""Checks of the memory terms: does the sum come out, and is there anything left?"""

from __future__ import annotations

from collections.abc import Iterator

from kvblocks.sizing.logs.facts import Fact, Gib, Rank, StartupLog, lines_of
from kvblocks.sizing.logs.findings import Finding, gib_text

_EDGE = 1e-9


def check_memory(log: StartupLog) -> Iterator[Finding]:
    """The sum of each rank's terms; a negative rest. Ranks with equal figures are named once."""
    seen = set()
    for rank in log.ranks:
        for finding in _of_rank(log, rank):
            key = (finding.topic, finding.text)
            if key not in seen:
                seen.add(key)
                yield finding


def _of_rank(log: StartupLog, rank: Rank) -> Iterator[Finding]:
    yield from _budget(rank)
    if rank.available and rank.available.value.gib + rank.available.value.half < 0:
        missing = -rank.available.value.gib
        ready = log.status == "ready"
        yield Finding(
            "nothing left",
            "disagrees" if ready else "agrees",
            f"{gib_text(rank.available.value)} for the cache: weights and the peak of the trial run are "
            f"{missing:.2f} GiB more than gpu_memory_utilization allows, "
            + ("yet the engine did not refuse." if ready else "so the engine cannot start."),
            {"available_gib": rank.available.value.gib},
            lines_of(rank.available),
        )
    if rank.available and rank.budget:
        yield from _sum(log, rank, rank.budget, rank.available)


def _budget(rank: Rank) -> Iterator[Finding]:
    """Total x utilisation = budget."""
    if not (rank.total and rank.utilization and rank.budget):
        return
    total, share, budget = rank.total.value, rank.utilization.value, rank.budget.value
    # The share is printed whole, or with two digits by the oldest form.
    slack = total.half * share + budget.half + (0.005 * total.gib if "x gpu_memory" in rank.budget.text else 0) + _EDGE
    gap = total.gib * share - budget.gib
    yield Finding(
        "budget",
        "agrees" if abs(gap) <= slack else "disagrees",
        f"{gib_text(total)} x {share:g} = {total.gib * share:.2f} GiB, printed {gib_text(budget)}"
        + ("." if abs(gap) <= slack else f": {abs(gap):.2f} GiB apart, more than rounding explains."),
        {"total_gib": total.gib, "utilization": share, "budget_gib": budget.gib},
        lines_of(rank.total, rank.budget),
    )


def _sum(log: StartupLog, rank: Rank, budget: Fact[Gib], available: Fact[Gib]) -> Iterator[Finding]:
    """Budget - terms = available, or what of it is not stated."""
    named = {
        "weights": None if rank.consumed else rank.weights,
        "weights and non-torch": rank.consumed,
        "non-torch": None if rank.consumed else rank.non_torch,
        "activation peak": rank.activation,
    }
    terms = {name: fact for name, fact in named.items() if fact is not None}
    if not terms:
        return
    whole = rank.activation is not None and (rank.consumed is not None or rank.non_torch is not None)
    if not whole and rank.graphs_estimated and (log.release is None or log.release >= (0, 21)):
        terms["CUDA graphs"] = rank.graphs_estimated
    rest = budget.value.gib - sum(fact.value.gib for fact in terms.values())
    gap = rest - available.value.gib
    slack = budget.value.half + available.value.half + sum(fact.value.half for fact in terms.values()) + _EDGE
    shown = " - ".join([gib_text(budget.value), *(f"{gib_text(fact.value)} ({name})" for name, fact in terms.items())])
    text = f"{shown} = {rest:.2f} GiB; {gib_text(available.value)} are left for the cache"
    numbers = {"rest_gib": rest, "available_gib": available.value.gib, "gap_gib": gap}
    lines = lines_of(budget, available, *terms.values())
    if whole and abs(gap) <= slack:
        yield Finding("sum of memory", "agrees", text + ".", numbers, lines)
    elif whole:
        yield Finding(
            "sum of memory",
            "disagrees",
            text + f": {abs(gap):.2f} GiB apart, more than rounding explains.",
            numbers,
            lines,
        )
    elif gap >= -slack:
        yield Finding(
            "sum of memory", "agrees", text + f", so {max(gap, 0):.2f} GiB went to what is not stated.", numbers, lines
        )
    else:
        yield Finding("sum of memory", "disagrees", text + f": {-gap:.2f} GiB more than there can be.", numbers, lines)
