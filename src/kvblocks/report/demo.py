"""The page of a demo: the same chats with and without the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvblocks.report.document import Section, document
from kvblocks.report.figures import BLUE, GREY, ORANGE, Figure, axis, figure
from kvblocks.report.values import Data, count, escape, percent, seconds

_TOTALS: tuple[tuple[str, Callable[[Data], str]], ...] = (
    ("hit rate", lambda run: percent(run["hit_rate"])),
    ("prompt tokens", lambda run: count(run["prompt_tokens"])),
    ("from the cache", lambda run: count(run["cached_tokens"])),
    ("computed tokens", lambda run: count(run["stats"]["computed_tokens"])),
    ("evicted blocks", lambda run: count(run["evicted_blocks"])),
    ("pre-emptions", lambda run: count(run["stats"]["preemptions"])),
    ("first token p50", lambda run: seconds(run["ttft_s"]["p50"])),
    ("first token p90", lambda run: seconds(run["ttft_s"]["p90"])),
    ("all", lambda run: seconds(run["duration_s"])),
)


def page(data: Data, plotly_js: str) -> str:
    """The whole page, for clean data and the source of plotly.js."""
    on, off = ({(r["chat"], r["turn"]): r for r in run["requests"]} for run in data["runs"])
    order = sorted(on)
    names = [f"{chat}.{turn}" for chat, turn in order]
    ons, offs = [on[key] for key in order], [off[key] for key in order]
    sections = [
        Section(
            title="Prompt tokens from the cache",
            reading="Each bar is a request, chat by chat. What the cache held needed no computing: the system prompt "
            "and the document from other chats, and everything before the last question from the same one.",
            figures={"tokens": _tokens(names, ons)},
            otherwise="",
        ),
        Section(
            title="Time to first token",
            reading="The same requests with the cache and without it.",
            figures={"ttft": _times(names, ons, offs)},
            otherwise="",
        ),
    ]
    total = len(order)
    lead = (
        f"{percent(data['runs'][0]['hit_rate'])} of the prompt tokens came from the cache. The first token came after "
        f"{seconds(data['runs'][0]['ttft_s']['p50'])} in the middle, without the cache after "
        f"{seconds(data['runs'][1]['ttft_s']['p50'])}. {data['equal_answers']} of {total} answers are the same."
    )
    blocks = data["runs"][0]["num_blocks"] - 1
    return document(
        title=f"kvblocks demo: {data['model']}",
        heading=f"{count(total, 'request')} with and without the cache",
        subtitle=f"{data['model']}, {count(blocks)} blocks of {data['runs'][0]['block_size']} tokens",
        body_html=[
            f"<div class='lead'><p>{escape(lead)}</p></div>",
            f"<h2>Both runs</h2>\n{_totals(data['runs'])}",
            f"<h2>Why the rest was computed</h2>\n{_missed(data['runs'][0])}",
            *(section.html() for section in sections),
            f"<h2>What was said</h2>\n{_said(ons)}",
        ],
        footer=f"kvblocks {data['kvblocks']}.",
        figures={name: drawn for section in sections for name, drawn in section.drawn.items()},
        plotly_js=plotly_js,
    )


def _tokens(names: Sequence[str], requests: Sequence[Data]) -> Figure:
    cached = [request["cached_tokens"] for request in requests]
    computed = [request["prompt_tokens"] - request["cached_tokens"] for request in requests]
    bars = [_bar("from the cache", names, cached, BLUE), _bar("computed", names, computed, ORANGE)]
    return figure(bars, barmode="stack", xaxis=_requests(), yaxis=axis("prompt tokens"))


def _times(names: Sequence[str], on: Sequence[Data], off: Sequence[Data]) -> Figure:
    bars = [
        _bar("with the cache", names, [1000 * request["ttft_s"] for request in on], BLUE),
        _bar("without", names, [1000 * request["ttft_s"] for request in off], GREY),
    ]
    return figure(bars, barmode="group", xaxis=_requests(), yaxis=axis("milliseconds", hoverformat=",.0f"))


def _requests() -> Figure:
    return axis("chat.turn", type="category")


def _bar(name: str, x: Sequence[str], y: Sequence[float], colour: str) -> Figure:
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour}}


def _scroll(label: str, head: Sequence[str], rows: Sequence[str]) -> str:
    cells = "".join(f"<th scope='col'>{name}</th>" for name in head)
    table = f"<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table>"
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{label}'>{table}</div>"


def _totals(runs: Sequence[Any]) -> str:
    rows = [
        f"<tr><th scope='row'>{'with the cache' if run['caching'] else 'without'}</th>"
        + "".join(f"<td>{cell(run)}</td>" for _, cell in _TOTALS)
        + "</tr>"
        for run in runs
    ]
    return _scroll("Both runs", ["", *(name for name, _ in _TOTALS)], rows)


def _missed(run: Data) -> str:
    total = run["prompt_tokens"]
    rows = [
        f"<tr><th scope='row'>{escape(reason.replace('_', ' '))}</th><td>{count(tokens)}</td>"
        f"<td>{percent(tokens / total)}</td><td class='words'>{escape(run['reasons'][reason])}</td></tr>"
        for reason, tokens in sorted(run["missed_tokens"].items(), key=lambda pair: -pair[1])
    ]
    return _scroll("Why the rest was computed", ["reason", "tokens", "of all", "what it means"], rows)


def _said(requests: Sequence[Data]) -> str:
    rows = [
        f"<tr><th scope='row'>{r['chat']}.{r['turn']}</th><td>{escape(r['question'])}</td>"
        f"<td>{escape(r['answer'].strip())}</td></tr>"
        for r in requests
    ]
    table = _scroll("What was said", ["request", "question", "answer"], rows)
    return f"<details><summary>Questions and answers</summary>{table}</details>"
