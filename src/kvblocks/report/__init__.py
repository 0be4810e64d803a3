"""HTML reports and plots, from data: one self-contained page that opens without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvblocks.errors import MissingExtraError, UsageError

try:
    import plotly  # noqa: F401 - told here, before long work, not when the report is written
except ImportError as error:
    raise MissingExtraError("plotly", "report", "an HTML report") from error

from kvblocks.report.page import replay_page
from kvblocks.report.plan_page import plan_page


def write_replay_report(data: Mapping[str, Any], path: Path) -> None:
    """Write the page for a replay's data (its JSON with series); whole or not at all.

    Raises UsageError naming the path when it cannot be written.
    """
    _write(replay_page(data), path)


def write_plan_report(data: Mapping[str, Any], path: Path) -> None:
    """Write the page for a plan's data (see `plan_page`); whole or not at all.

    Raises UsageError naming the path when it cannot be written.
    """
    _write(plan_page(data), path)


def _write(page: str, path: Path) -> None:
    part = Path(f"{path}.part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from error


__all__ = ["replay_page", "write_plan_report", "write_replay_report"]
