"""Values on their way into a page: made safe for HTML, scripts and plot labels, and written for people."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]

NONE = "–"
"""Stands where a value is not known."""
NBSP = "\u00a0"
"""Keeps a number and its unit on one line."""

# Controls, line separators, half surrogate pairs (of undecodable file names), marks that turn the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def clean(value: Any) -> Any:
    """The same data with only printable text and finite numbers; what is neither becomes U+FFFD or None."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def escape(value: Any) -> str:
    """Text for HTML, between tags or in a quoted attribute."""
    return html.escape(str(value))


def plot_text(value: Any) -> str:
    """Text for a plot, where plotly reads some tags (bold, links) and character entities itself."""
    return html.escape(str(value), quote=False)


def script_json(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or the line."""
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def count(value: float | None, unit: str = "") -> str:
    """12031 as 12,031; with a unit in the number that it needs: `1 request`, `12,031 requests`."""
    if value is None:
        return NONE
    return f"{value:,.0f}{NBSP}{unit}{'' if value == 1 else 's'}" if unit else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """0.1923 as 19.2 %."""
    return NONE if share is None else f"{100 * share:.1f}{NBSP}%"


def seconds(value: float | None) -> str:
    """0.0421 as 42 ms, 3.14159 as 3.14 s, 1200 as 1,200 s."""
    if value is None:
        return NONE
    if 0 < value < 1:
        return f"{1000 * value:,.0f}{NBSP}ms" if value >= 0.01 else f"{1000 * value:,.2f}{NBSP}ms"
    return f"{value:,.2f}{NBSP}s" if value < 100 else f"{value:,.0f}{NBSP}s"


def short(value: float) -> str:
    """A number in at most six characters, for axes: 8,193 stays, 65537 is 65.5k, 1048576 is 1.05M."""
    if value < 10_000:
        return f"{value:,.0f}"
    for size, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if value < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value / 1e12:,.3g}T"
