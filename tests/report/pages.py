"""What tests look at in a page."""

from __future__ import annotations

import json
import re
from typing import Any


def own_part(page: str) -> str:
    """The page without the plotting library."""
    return re.sub(r"<script>.*?</script>", lambda m: m[0] if "const FIGURES" in m[0] else "", page, flags=re.S)


def figures(page: str) -> dict[str, Any]:
    """The data of its figures, by the id of their place; none for a page without."""
    if "const FIGURES = " not in page:
        return {}
    start = page.index("const FIGURES = ") + len("const FIGURES = ")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(page[start:])[0]
    return found


def readable(page: str) -> str:
    """What stands on it: no style, no script, no tags, blanks made one."""
    bare = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare))


def cells(page: str, first: str) -> list[list[str]]:
    """Rows of the table whose first heading is `first`."""
    for found in re.findall(r"<table>.*?</table>", page, flags=re.S):
        heads = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", found)
        if heads and heads[0] == first:
            rows = re.findall(r"<tr>(.*?)</tr>", found)
            return [
                [re.sub(r"</?b>", "", cell) for cell in re.findall(r"<td(?: [^>]*)?>(.*?)</td>", row)]
                for row in rows[1:]
            ]
    raise AssertionError(f"no table begins with {first!r}")
