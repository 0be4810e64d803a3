"""Data of a replay as its page gets it, and a page taken apart."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from typing import Any

from kvblocks.replay import ReplaySettings, replay
from kvblocks.traces import Workload, generate

START = "const FIGURES = "


def data(*sizes: int, requests: int = 80, **settings: Any) -> dict[str, Any]:
    """A real replay at these sizes."""
    trace = list(generate("chat", Workload(requests=requests, seed=2, system_tokens=1024)))
    found = replay(lambda: trace, sizes, ReplaySettings(**settings), analyse=True)
    about = {"paths": ["chat.jsonl"], "format": "kvblocks", "requests": found.num_read}
    return {"kvblocks": "0.1.0", "trace": about, **found.to_dict(series=True)}


def run(num_blocks: int, hit_rate: float, **fields: Any) -> dict[str, Any]:
    """What the words read of a run, all prompts admitted unless `fields` say otherwise."""
    return {
        "num_blocks": num_blocks,
        "block_size": 16,
        "capacity_tokens": 16 * (num_blocks - 1),
        "requests": 100,
        "rejected": 0,
        "reject_reasons": {},
        "reject_examples": {},
        "prompt_tokens": 16_000,
        "hit_tokens": round(16_000 * hit_rate),
        "hit_rate": hit_rate,
        "hit_rate_last_half": hit_rate,
        "evicted_blocks": 50,
    } | fields


def found(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A replay of these runs."""
    return {"runs": list(runs), "interrupted": False, **fields}


def figures(page: str) -> dict[str, Any]:
    """The figures by id, as the script of the page gets them."""
    shown: dict[str, Any] = json.JSONDecoder().raw_decode(page[page.index(START) + len(START) :])[0]
    return shown


def own_part(page: str) -> str:
    """The page without the plotting library."""
    return re.sub(r"<script>(?!const FIGURES).*?</script>", "", page, count=1, flags=re.DOTALL)


class _Text(HTMLParser):
    """Collects text, and the names of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def _read(page: str) -> _Text:
    reader = _Text()
    reader.feed(own_part(page))
    return reader


def words(page: str) -> str:
    """What a reader reads, with ordinary spaces."""
    return " ".join(" ".join(_read(page).words).split())


def elements(page: str) -> list[str]:
    """The names of the page's elements, in order."""
    return _read(page).elements


def cells(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is `first`, their headings included."""
    for found in re.findall(r"<table>.*?</table>", own_part(page), flags=re.DOTALL):
        heads = re.findall(r"<th scope='col'[^>]*>(.*?)</th>", found)
        if heads and heads[0] == first:
            rows = re.findall(r"<tr[^>]*>(.*?)</tr>", found.split("<tbody>")[1])
            return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]
    raise AssertionError(f"no table begins with {first!r}")
