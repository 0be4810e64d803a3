"""A start-up log on a terminal: what it says, what adds up and what does not."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kvblocks.cli import printable
from kvblocks.sizing.from_log import CheckedLog

_MARKS = {"says": " ", "agrees": "ok", "disagrees": "!!", "suspect": "!", "unknown": "?"}


def print_log(console: Console, checked: CheckedLog) -> None:
    """Findings, each with its verdict and the lines it is from; then the plan that they were compared with."""
    log = checked.log
    version = log.version.value if log.version else "of unknown version"
    start = f", start {log.start.number} of {len(log.starts)}" if len(log.starts) > 1 else ""
    title = f"{log.source}: vLLM {version}{start}"
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    for finding in checked.findings:
        where = f" (line {', '.join(map(str, finding.lines[:4]))})" if finding.lines else ""
        style = {"disagrees": "bold red", "suspect": "yellow", "agrees": "green"}.get(finding.verdict, "")
        console.print(
            Text(f"{_MARKS[finding.verdict]:>2} {printable(str(finding))}{where}", style=style), soft_wrap=True
        )
    flags = ", ".join(f"{name}={value}" for name, value in checked.flags.items() if not isinstance(value, dict))
    console.print(Text(printable(f"Compared with a plan of {checked.model} with {flags or 'no flags'}."
                                 if checked.plan is not None else f"Not compared with a plan: {checked.model}.")),
                  soft_wrap=True)  # fmt: skip
