"""`kvblocks top`: the live view of a running engine, in the terminal."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvblocks.cli import model as options
from kvblocks.cli.output import check_outputs, plain_console, write_json
from kvblocks.cli.streams import printable
from kvblocks.errors import KVBlocksError, UsageError

HELP = """Watch the cache of a running engine in the terminal, as the page at URL shows it.

\b
  kvblocks top                                    # kvblocks serve on this machine
  kvblocks top http://127.0.0.1:9400              # vLLM started with KVBLOCKS_HTTP=127.0.0.1:9400
  kvblocks top --once
  kvblocks top --json -

With --once or --json it prints the state of now and ends; else it goes on until ctrl-c.

Exit codes: 0 shown, 1 the engine does not answer, 2 bad usage.
"""
TIMEOUT_S = 10
MAX_STATE_BYTES = 64 * 2**20
MAX_ROWS = 12


class NoAnswerError(KVBlocksError):
    """The engine's live view does not answer."""


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the live view is.")] = "http://127.0.0.1:8000",
    every_s: Annotated[
        float, typer.Option("--every", parser=options.number, metavar="S", help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the state of now and end.")] = False,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="KVBLOCKS_API_KEY", help="What the server asks for.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the state of now as JSON, and end.")
    ] = None,
) -> None:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise UsageError(f"URL {url!r}: give where the live view is, such as http://127.0.0.1:8000")
    if not every_s >= 0.1:
        raise UsageError(f"--every {every_s:g} must be at least 0.1 seconds")
    check_outputs({"--json": json_path})
    console = plain_console(soft_wrap=False)
    try:
        state = ask(url, api_key)
        if json_path is not None:
            write_json(state, json_path)
        elif once or not console.is_terminal:
            console.print(view(state))
        else:
            with Live(view(state), console=console, screen=True, auto_refresh=False) as screen:
                while True:
                    time.sleep(every_s)
                    screen.update(view(ask(url, api_key)), refresh=True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        plain_console(stderr=True).print(f"kvblocks: {printable(url)} is no live view of this version of kvblocks")
        raise typer.Exit(1) from error
    except NoAnswerError as error:
        plain_console(stderr=True).print(f"kvblocks: {printable(str(error))}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        return


def ask(url: str, api_key: str | None) -> dict[str, Any]:
    """The state. Raises NoAnswerError that says what to try."""
    place = f"{url.rstrip('/')}/state"
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(place, headers=headers), timeout=TIMEOUT_S) as answer:
            state = json.loads(answer.read(MAX_STATE_BYTES))
    except urllib.error.HTTPError as error:
        fix = {
            401: "give its key by --api-key",
            404: "kvblocks serve has a live view, and vLLM with KVBLOCKS_HTTP=127.0.0.1:PORT, on that port",
        }.get(error.code, "its log may say more")
        raise NoAnswerError(f"{place} answers {error.code} {error.reason}: {fix}") from error
    except (OSError, ValueError) as error:
        raise NoAnswerError(
            f"{place} does not answer ({getattr(error, 'reason', error)}): start kvblocks serve, or vLLM with "
            "KVBLOCKS_HTTP=127.0.0.1:PORT, and give its address"
        ) from error
    if not isinstance(state, dict) or not {"pool", "counts", "requests", "prefixes"} <= state.keys():
        raise NoAnswerError(f"{place} is no live view of kvblocks")
    return state


def view(state: dict[str, Any]) -> Group:
    """One screen."""
    pool, counts = state["pool"], state["counts"]
    lines = [
        Text(printable(f"{state['title'] or 'kvblocks'}  policy {pool['policy']}, up {state['up_s']:.0f} s"), "bold"),
        _pool_bar(pool),
        Text(
            f"hit rate {100 * counts['hit_rate']:.1f} %   {counts['requests']:,} requests, "
            f"{counts['prompt_tokens']:,} prompt tokens   {counts['evicted_blocks']:,} evictions   "
            f"{counts['preemptions']:,} preemptions"
        ),
    ]
    return Group(*lines, _reasons(counts), _requests(state), _prefixes(state))


def _pool_bar(pool: dict[str, Any]) -> Text:
    width = 50
    live, cached = (round(width * pool[state] / max(pool["usable"], 1)) for state in ("live", "cached"))
    bar = Text("█" * live, "blue")
    bar.append("█" * cached, "yellow")
    bar.append("░" * (width - live - cached), "dim")
    bar.append(f" {pool['live']:,} live, {pool['cached']:,} cached, {pool['blank']:,} blank of {pool['usable']:,}")
    return bar


def _reasons(counts: dict[str, Any]) -> Table:
    table = _table("prompt tokens", "tokens", "share", "")
    rows = {"hit": counts["hit_tokens"], "from a connector": counts["external_tokens"], **counts["missed_tokens"]}
    for name, tokens in rows.items():
        if tokens:
            share = tokens / counts["prompt_tokens"]
            words, bar = (
                printable(name).replace("_", " "),
                Text("█" * round(30 * share), "green" if name == "hit" else "red"),
            )
            table.add_row(Text(words), f"{tokens:,}", f"{100 * share:.1f} %", bar)
    return table


def _requests(state: dict[str, Any]) -> Table:
    table = _table(f"requests ({state['num_requests']:,} hold blocks)", "prompt", "cached", "tokens", "blocks", "age")
    for row in state["requests"][:MAX_ROWS]:
        counts = [f"{row[name]:,}" for name in ("prompt_tokens", "hit_tokens", "tokens", "blocks")]
        table.add_row(Text(printable(row["request_id"])), *counts, f"{row['age_s']:.1f} s")
    return table


def _prefixes(state: dict[str, Any]) -> Table:
    table = _table("prefixes that save most", "length", "hits", "saved", "")
    depth: dict[str, int] = {}
    for row in state["prefixes"][:MAX_ROWS]:
        depth[row["id"]] = depth.get(row["parent"], -1) + 1
        name = f"{'  ' * depth[row['id']]}{row['start_tokens']:,} to {row['end_tokens']:,}"
        counts = [f"{row['end_tokens'] - row['start_tokens']:,}", f"{row['hits']:,}", f"{row['hit_tokens']:,}"]
        table.add_row(Text(name), *counts, Text(printable(row["text"] or ""), overflow="ellipsis", no_wrap=True))
    return table


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at, head in enumerate(heads):
        table.add_column(Text(f"\n{head}" if not at else head), justify="right" if at and head else "left")
    return table
