"""HTML reports and plots, from data: one self-contained page that opens without a network."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from kvblocks.errors import MissingExtraError
from kvblocks.report import demo, plan
from kvblocks.report.page import page
from kvblocks.report.values import clean

# Looked for here, so that its absence is told before long work; loaded only when a page is made. A lone file of that
# name on the path is not the package.
_found = find_spec("plotly")
if _found is None or _found.submodule_search_locations is None:
    raise MissingExtraError("plotly", "report", "an HTML report")


def replay_page(data: Mapping[str, Any]) -> str:
    """The page for a replay's data: its JSON with series, reuse distances and prefixes."""
    from plotly.offline import get_plotlyjs

    return page(clean(data), get_plotlyjs())


def plan_page(data: Mapping[str, Any]) -> str:
    """The page for a plan's data.

    data: a plan's JSON; or `compare` with two of them, each with its `setting`; or a search's, with all that was
        `tried`. Each with `kvblocks` (the version), `command` and `model`, and where they are known `gpu` (`name`,
        `count`) and `flags`.
    """
    from plotly.offline import get_plotlyjs

    return plan.page(clean(data), get_plotlyjs())


def demo_page(data: Mapping[str, Any]) -> str:
    """The page for the JSON of `kvblocks demo`."""
    from plotly.offline import get_plotlyjs

    return demo.page(clean(data), get_plotlyjs())


__all__ = ["demo_page", "plan_page", "replay_page"]
