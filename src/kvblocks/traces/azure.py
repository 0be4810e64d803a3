"""Azure's CSV: arrival time and lengths of LLM requests, no content; nothing of it can be shared.

The format of the Azure LLM inference traces (2023 and 2024): `TIMESTAMP,ContextTokens,GeneratedTokens`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from kvblocks.traces.formats import Format, LineParser, ReadOptions, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.source import BOM
from kvblocks.traces.values import BadValue, shown, token_count

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SORT_COMMAND = "(head -n 1 FILE; tail -n +2 FILE | sort -t, -k1,1)"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


def _lines(options: ReadOptions) -> LineParser:
    start_ns: int | None = None

    def parse(line: bytes, number: int) -> TraceRequest | None:
        nonlocal start_ns
        try:
            fields = [field.strip() for field in line.decode().split(",")]
        except UnicodeDecodeError as error:
            raise BadValue(None, f"is not UTF-8 text ({error.reason}); mend it or leave it out") from error
        if tuple(fields) == HEADER:
            return None
        if len(fields) != len(HEADER):
            raise BadValue(
                None,
                f"has {len(fields)} columns: {shown(','.join(fields))}; it must have {len(HEADER)}: {','.join(HEADER)}",
            )
        record = {name: _number(value) for name, value in zip(HEADER, fields, strict=True)}
        time_ns = _nanoseconds(fields[0])
        if start_ns is None:
            start_ns = time_ns
        return TraceRequest(
            request_id=str(number),
            num_prompt_tokens=token_count(record, "ContextTokens", least=1),
            num_output_tokens=token_count(record, "GeneratedTokens", least=0),
            timestamp_s=(time_ns - start_ns) / 1e9,
        )

    return parse


def _number(value: str) -> int | str:
    return int(value) if re.fullmatch(r"-?\d{1,18}", value) else value


def _nanoseconds(value: str) -> int:
    """Since 1970; without a zone it is UTC. Whole numbers, since a float would round the trace's seventh digit."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise BadValue("TIMESTAMP", f"is {shown(value)}; it must look like 2023-11-16 18:17:03.9799600")
    date, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{zone or ''}")
    except ValueError as error:
        raise BadValue("TIMESTAMP", f"is {shown(value)}: {error}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _looks_like(head: bytes) -> bool:
    return head.removeprefix(BOM).startswith(b"TIMESTAMP,ContextTokens,GeneratedTokens")


register(Format("azure", _looks_like, lines=_lines, sort_command=SORT_COMMAND))
