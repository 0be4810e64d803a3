"""What the numbers of a start-up log mean, whether they add up, and how they compare with a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from kvblocks.sizing.flags import GIB
from kvblocks.sizing.logs.read import StartupLog
from kvblocks.sizing.result import Plan, gib

Verdict = Literal["says", "agrees", "disagrees", "unknown"]
HALF = 0.005 * GIB
"""A size in GiB is printed to two decimals."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the log says, or that follows from it."""

    verdict: Verdict
    text: str
    lines: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON would have it."""
        return {"verdict": self.verdict, "text": self.text, "lines": list(self.lines)}


def explain(log: StartupLog) -> list[Finding]:
    """The log's own numbers, in words, and what can be checked of them without the model."""
    return [*_memory(log), *_capacity(log), *_refusals(log), *_blocks(log)]


def _at(log: StartupLog, *names: str) -> tuple[int, ...]:
    return tuple(log.lines(*names))


# -- What it says -----------------------------------------------------------------------------------------------------


def _memory(log: StartupLog) -> Iterator[Finding]:
    weights, available = log.values("weights_gib"), log.values("available_gib")
    if weights:
        of = f" on each of {len(weights)} workers" if len(weights) > 1 else ""
        yield Finding("says", f"The weights take {_range(weights)} GiB{of}.", _at(log, "weights_gib"))
    if available:
        text = f"{_range(available)} GiB are left for the cache"
        if len(set(available)) > 1:
            text += f"; the worker with least, {min(available):g} GiB, decides how many blocks all have"
        yield Finding("says", f"{text}.", _at(log, "available_gib"))
        if min(available) <= 0:
            yield Finding(
                "disagrees",
                "Nothing is left: weights and activations take more than gpu_memory_utilization allows; raise it, or "
                "lower max_num_batched_tokens or max_num_seqs.",
                _at(log, "available_gib"),
            )
    total, share = log.get("total_gib"), log.get("utilization")
    terms = [log.get(name) for name in ("weights_gib", "non_torch_gib", "activation_gib")]
    if total and share and available and all(term is not None for term in terms):
        left = total * share - sum(terms)
        agrees = abs(left - min(available)) < 0.06
        yield Finding(
            "agrees" if agrees else "disagrees",
            f"{share:g} x {total:g} GiB less {' and '.join(f'{term:g}' for term in terms)} GiB leaves {left:.2f} GiB"
            + ("." if agrees else f", not {min(available):g}: something else takes {left - min(available):.2f} GiB."),
            _at(log, "total_gib", "utilization", "available_gib"),
        )


def _range(values: list[float]) -> str:
    return f"{min(values):g}" if min(values) == max(values) else f"{min(values):g} to {max(values):g}"


def _capacity(log: StartupLog) -> Iterator[Finding]:
    tokens, said = log.get("tokens"), log.get("concurrency")
    if tokens is not None:
        yield Finding(
            "says",
            f"KV cache size {tokens:,} tokens: how many tokens fit if every request is of the maximal length. For a "
            "model of one kind of attention it is blocks times block size; for others it is not a number of places.",
            _at(log, "tokens"),
        )
    if said is not None:
        length, times = said
        yield Finding(
            "says",
            f"Maximum concurrency {times:.2f}x: so many requests of {length:,} tokens fit at once. Shorter ones fit "
            "more often, longer ones are refused.",
            _at(log, "concurrency"),
        )
    if tokens is not None and said is not None:
        yield _tokens_and_concurrency(log, tokens, *said)
    available = log.available_gib
    if tokens and available and available > 0 and "tokens" in log.found:
        per = available * GIB / tokens
        off = HALF / (available * GIB)
        yield Finding(
            "says",
            f"{available:g} GiB over {tokens:,} tokens is {per:,.0f} bytes a token, to {off:.2%}: for one kind of "
            "attention that is 2 x layers x KV heads x head size x bytes per number, divided by the ranks.",
            _at(log, "available_gib", "tokens"),
        )


def _tokens_and_concurrency(log: StartupLog, tokens: int, length: int, times: float) -> Finding:
    ratio = tokens / length
    lines = _at(log, "tokens", "concurrency")
    if abs(ratio - times) <= 0.00501:
        return Finding("agrees", f"{tokens:,} tokens / {length:,} = {ratio:.3f}, which is the {times:.2f}x.", lines)
    if ratio < times:
        return Finding(
            "disagrees",
            f"{tokens:,} tokens / {length:,} = {ratio:.2f}, not {times:.2f}. vLLM before 0.20 counted tokens as blocks "
            "/ groups x block size, which is too little for a hybrid model: trust the concurrency, which stands for "
            f"{int(times * length):,} tokens.",
            lines,
        )
    return Finding(
        "disagrees",
        f"{tokens:,} tokens / {length:,} = {ratio:.2f}, more than the {times:.2f}x: the lines are of two starts, or a "
        "request takes more than its tokens (windows, states, encoder tokens), which the older token count left out.",
        lines,
    )


def _refusals(log: StartupLog) -> Iterator[Finding]:
    refusal = log.get("refusal")
    if refusal is not None:
        length, needed, available, longest = refusal
        yield Finding(
            "says",
            f"Refused: one request of {length:,} tokens needs {needed:g} GiB, {available:g} GiB are usable, so "
            f"{needed - available:.2f} GiB are missing"
            + (f"; up to {longest:,} tokens would fit." if longest else "; not even a short one fits."),
            _at(log, "refusal"),
        )
        if longest:
            linear = length * available / needed
            if longest < 0.97 * linear - 64:
                yield Finding(
                    "says",
                    f"{longest:,} tokens are less than {linear:,.0f}, the share that {available:g} of {needed:g} GiB "
                    "would be: a part of the need is the same for every request (windows, states, tokens in flight).",
                    _at(log, "refusal"),
                )
            elif longest > 1.03 * linear + 64:
                yield Finding(
                    "disagrees",
                    f"{longest:,} tokens are more than {linear:,.0f}, the share that {available:g} of {needed:g} GiB "
                    "would be; the need cannot fall faster than the length.",
                    _at(log, "refusal"),
                )
    shorter = log.get("refusal_tokens")
    if shorter is not None:
        yield Finding(
            "says",
            f"Refused: the cache holds {shorter[1]:,} tokens, max_model_len is {shorter[0]:,}; set it to at most that.",
            _at(log, "refusal_tokens"),
        )
    if "no_memory" in log.found:
        yield Finding(
            "says",
            "Refused: nothing is left for the cache; weights and activations take all that gpu_memory_utilization "
            "allows.",
            _at(log, "no_memory"),
        )
    busy = log.get("not_free")
    if busy is not None:
        free, total, share, asked = busy
        yield Finding(
            "says",
            f"Refused: {free:g} of {total:g} GiB were free, gpu_memory_utilization={share:g} asks for {asked:g}: "
            f"another process holds {total - free:.2f} GiB; end it, or use at most {free / total:.2f}.",
            _at(log, "not_free"),
        )
    reduced = log.get("auto_fit")
    if reduced is not None:
        yield Finding(
            "says", f"max_model_len was reduced from {reduced[0]:,} to {reduced[1]:,} to fit.", _at(log, "auto_fit")
        )


def _blocks(log: StartupLog) -> Iterator[Finding]:
    size = log.get("block_size")
    if size is not None:
        yield Finding(
            "says",
            f"A block of attention is {size:,} tokens, so that its page holds a state; prefix hits end on such blocks.",
            _at(log, "block_size"),
        )
    for layers, percent in log.values("padding_layers")[-1:]:
        yield Finding(
            "says",
            f"{layers} layers' worth of pages, up to {percent:g} % of the cache, hold nothing: the kinds of layers do "
            "not divide evenly into groups.",
            _at(log, "padding_layers"),
        )
    override = log.get("override")
    if override is not None:
        yield Finding(
            "says",
            f"num_gpu_blocks_override={override[1]:,} replaces the {override[0]:,} blocks that memory allows; one of "
            "them is the null block.",
            _at(log, "override"),
        )
        tokens = log.get("tokens")
        if tokens is not None and override[1] and tokens > override[1] * max(size or 16, 16) * 16:
            yield Finding(
                "disagrees",
                f"{tokens:,} tokens do not fit {override[1]:,} blocks: vLLM before 0.10 printed the size of the "
                f"{override[0]:,} profiled blocks, though it used the override.",
                _at(log, "override", "tokens"),
            )


# -- Against a plan ---------------------------------------------------------------------------------------------------


def compare_with_plan(log: StartupLog, low: Plan, high: Plan) -> list[Finding]:
    """The log's numbers against those of plans for the least and the most memory that its figure can stand for."""
    if low.status == "refused":
        return [Finding("unknown", f"No plan to compare with: {low.error}.")]
    found = []
    refusal = log.get("refusal")
    if refusal is not None:
        _, needed, _, longest = refusal
        stages = low.needed_bytes_max_len
        if len(stages) > 1 and abs(sum(stages) / GIB - needed) <= 0.011:
            each = " and ".join(gib(size) for size in stages)
            return [
                Finding(
                    "disagrees",
                    f"{needed:g} GiB is the need of all {len(stages)} pipeline stages together, which vLLM around 0.15 "
                    f"compared with the memory of one; the stages need {each} GiB.",
                )
            ]
        found.append(_close("needed", "GiB", needed, max(low.needed_bytes_max_len) / GIB, 0.011))
        if longest:
            found.append(
                _within("longest request", longest, low.estimated_max_model_len, high.estimated_max_model_len, 64)
            )
        return found
    if not low.ok:
        return [Finding("disagrees", f"The plan says that this does not fit: {low.error}.")]
    tokens, said, blocks = log.get("tokens"), log.get("concurrency"), log.get("num_blocks")
    if blocks is not None:
        found.append(_within("blocks", blocks, low.num_blocks, high.num_blocks, 0))
    if tokens is not None:
        found.append(_tokens(tokens, low, high))
    if said is not None:
        least, most = low.max_concurrency or 0.0, high.max_concurrency or 0.0
        agrees = least - 0.0051 <= said[1] <= most + 0.0051
        found.append(
            Finding(
                "agrees" if agrees else "disagrees",
                f"The plan's concurrency is {_span(least, most, '.2f')}, the log's {said[1]:.2f}.",
            )
        )
    return found or [Finding("unknown", f"The plan: {low.num_blocks:,} blocks, {low.tokens:,} tokens.")]


def _tokens(tokens: int, low: Plan, high: Plan) -> Finding:
    least, most = low.tokens or 0, high.tokens or 0
    if least <= tokens <= most:
        return Finding("agrees", f"The plan's tokens are {_span(least, most, ',')}, the log's {tokens:,}.")
    smallest = min((group.block_size for group in low.groups), default=1)
    old = [(plan.num_blocks or 0) // max(len(plan.groups), 1) * smallest for plan in (low, high)]
    if old[0] <= tokens <= old[1]:
        return Finding(
            "agrees",
            f"The log's {tokens:,} tokens are blocks / groups x block size, as vLLM before 0.20 counted; 0.32 would "
            f"print {_span(least, most, ',')}.",
        )
    middle = (least + most) / 2
    return Finding(
        "disagrees",
        f"The plan's tokens are {_span(least, most, ',')}, the log's {tokens:,} ({tokens / middle - 1:+.1%}): a flag "
        "that the log does not show, a draft model, or another version's rules.",
    )


def _within(what: str, value: int, low: int | None, high: int | None, slack: int) -> Finding:
    least, most = low or 0, high or 0
    agrees = least - slack <= value <= most + slack
    return Finding(
        "agrees" if agrees else "disagrees", f"The plan's {what}: {_span(least, most, ',')}; the log's {value:,}."
    )


def _close(what: str, unit: str, value: float, planned: float, off: float) -> Finding:
    agrees = abs(value - planned) <= off
    return Finding(
        "agrees" if agrees else "disagrees", f"The plan's {what}: {gib(planned * GIB)} {unit}; the log's {value:g}."
    )


def _span(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"
