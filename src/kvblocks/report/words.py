"""What a replay found, in words: the answer first, then what it means. Never more than the numbers say."""

from __future__ import annotations

from collections.abc import Sequence

from kvblocks.report.values import NBSP, Data, count, percent, seconds

POINT = 0.01
"""Hit rates within this of each other are called the same."""


def summary(data: Data) -> list[str]:
    """Paragraphs of plain text; the first is the answer, for the largest size that ran to its end."""
    runs: Sequence[Data] = data["runs"]
    rejected = _rejected(runs)
    stopped = _interrupted(data)
    compared = comparable(runs)
    if not compared:
        return [part for part in ("No prompt fitted the cache, so nothing could be hit.", rejected, stopped) if part]
    largest = compared[-1]
    answer = (
        f"With {count(largest['num_blocks'])} blocks (room for {count(largest['capacity_tokens'], 'token')}), "
        f"{percent(largest['hit_rate'])} of the prompt tokens were "
        f"found in the cache: {count(largest['hit_tokens'])} of {count(largest['prompt_tokens'])} did not have to be "
        "computed."
    )
    warm = largest["hit_rate_last_half"]
    if abs(warm - largest["hit_rate"]) >= POINT:
        answer += f" Over the later half of the requests, when the cache was warm, it was {percent(warm)}."
    return [part for part in (answer, more_memory(data), rejected, _waits(largest), stopped) if part]


def comparable(runs: Sequence[Data]) -> list[Data]:
    """The runs that admitted most, and so the same requests: a size that refused the others hits a share of less."""
    most = max(((run["requests"], run["prompt_tokens"]) for run in runs), default=(0, 0))
    return [run for run in runs if run["prompt_tokens"] and (run["requests"], run["prompt_tokens"]) == most]


def more_memory(data: Data) -> str:
    """From which size on more memory does not raise the hit rate, or why it still may; empty for a single size."""
    runs = comparable(data["runs"])
    if not runs:
        return ""
    last = runs[-1]
    flat = last
    for run in reversed(runs):
        if abs(run["hit_rate"] - last["hit_rate"]) > POINT:
            break
        flat = run
    words = ""
    if flat is not last:
        words = (
            f"From {count(flat['num_blocks'])} blocks on the hit rate is within a point of that at the largest size."
        )
    elif (ceiling := _ceiling(data, last)) is not None:
        words = ceiling
    elif len(runs) > 1 and last["hit_rate"] > runs[-2]["hit_rate"]:
        words = "The hit rate still rises at the largest size: try larger ones."
    if words and len(runs) < len(data["runs"]):
        words += " Sizes that admitted fewer requests are not compared."
    return words


def _ceiling(data: Data, run: Data) -> str | None:
    """That no larger cache can hit more, when it is so: nothing was evicted, or all that came twice was hit."""
    size = f"{count(run['num_blocks'])} blocks"
    if not run["evicted_blocks"]:
        return f"With {size} nothing was evicted, so a larger cache cannot hit more."
    reuse: Data | None = data.get("reuse")
    if reuse is None or run["rejected"] or data["interrupted"]:
        return None
    again = sum(reuse["counts"])
    if again * run["block_size"] / run["prompt_tokens"] > run["hit_rate"] + POINT:
        return None
    cold = reuse["cold"] / ((again + reuse["cold"]) or 1)
    return (
        f"With {size} the hit rate is at the ceiling of this trace: {percent(cold)} of the touched blocks are of new "
        "content, which no cache can hit."
    )


def reuse_words(reuse: Data) -> str:
    """What share of the touches no cache can hit, and whether the counts are estimates."""
    again, cold = sum(reuse["counts"]), reuse["cold"]
    if not again + cold:
        return "The trace touched no full block."
    words = (
        f"Of {count(again + cold)} touches {count(cold)} ({percent(cold / (again + cold))}) were cold: of content not "
        "seen before, which a cache of no size can hit."
    )
    if reuse["sampled_share"] < 1:
        words += f" The counts are estimates: one block in {count(1 / reuse['sampled_share'])} is followed."
    return words


def rejections(run: Data) -> list[str]:
    """Why requests were rejected at one size, and what of them counts all the same."""
    return [
        f"At {count(run['num_blocks'])} blocks {count(number, 'request')} rejected: {reason}. "
        f"The first: {run['reject_examples'][reason]}"
        for reason, number in run["reject_reasons"].items()
    ]


COUNTED = (
    "A prompt that does not fit is in no figure of its size, but in the reuse distances and shared prefixes, which are "
    "those of the whole trace. Of a request whose outputs do not fit, the prompt counts, and the outputs that had room."
)
"""What of a rejected request is counted."""


def _rejected(runs: Sequence[Data]) -> str:
    sizes = [f"{count(run['rejected'])} at {count(run['num_blocks'])} blocks" for run in runs if run["rejected"]]
    return f"Requests were rejected: {', '.join(sizes)}. {COUNTED}" if sizes else ""


def _waits(run: Data) -> str:
    """How long requests waited, for a timed replay."""
    waits: Data = run.get("ttft_s") or {}
    if waits.get("p50") is None:
        return ""
    return (
        f"At this size half of the requests had their first token within {seconds(waits['p50'])} and 99{NBSP}% within "
        f"{seconds(waits['p99'])} of simulated time; compare these between sizes, not with a machine."
    )


def _interrupted(data: Data) -> str:
    if not data["interrupted"]:
        return ""
    words = "The replay was interrupted: the figures are those until then."
    if data.get("not_run"):
        words += f" Not run: {', '.join(map(count, data['not_run']))} blocks."
    return words
