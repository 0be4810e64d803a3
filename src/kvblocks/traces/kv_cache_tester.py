"""kv-cache-tester's session JSON: one recorded coding session per file, with nested subagents.

Each request has a content id per whole run of `block_size` (64) tokens; the rest of its prompt is content of its own.
With `hash_id_scope` "local" an id means something within its file only. A subagent is an entry with `requests` of its
own; their times count from the session's start, or from the entry's time when they begin before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvblocks.traces.formats import Format, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, get, seconds, shown, text, token_count

MAX_DEPTH = 8


def _document(data: bytes, options: ReadOptions) -> Iterator[TraceRequest | BadValue]:
    session = parse_object(data)
    size = token_count(session, "block_size", least=1)
    name = text(session, "id") or options.name
    scope = text(session, "hash_id_scope") or "local"
    if scope not in ("local", "global"):
        raise BadValue("hash_id_scope", f"is {shown(scope)}; it must be 'local' or 'global'")
    namespace = f"{options.name}\0{name}" if scope == "local" else ""
    found: list[tuple[float, TraceRequest]] = []
    for place, entry in _flatten(get(session, "requests"), 0.0, "requests", 0):
        try:
            if isinstance(entry, BadValue):
                raise entry
            start, record = entry
            request = _request(record, start, place, name, namespace, size)
            found.append((request.timestamp_s or 0.0, request))
        except BadValue as error:
            yield BadValue(f"{place}.{error.field}" if error.field else place, str(error))
    found.sort(key=lambda pair: pair[0])
    for _, request in found:
        yield request


def _flatten(
    entries: Any, start: float, place: str, depth: int
) -> Iterator[tuple[str, tuple[float, dict[str, Any]] | BadValue]]:
    """Every request with its place in the file and the time from which its own time counts."""
    if not isinstance(entries, list) or depth > MAX_DEPTH:
        message = f"is {shown(entries)}; it must be a list of requests, nested at most {MAX_DEPTH} deep"
        yield place, BadValue(None, message)
        return
    for i, entry in enumerate(entries):
        here = f"{place}[{i}]"
        if not isinstance(entry, dict):
            yield here, BadValue(None, f"is {shown(entry)}; it must be an object")
        elif "requests" in entry:
            nested = entry["requests"]
            yield from _flatten(nested, start + _base(entry.get("t"), nested), f"{here}.requests", depth + 1)
        else:
            yield here, (start, entry)


def _base(own: Any, nested: Any) -> float:
    """From when the times of a subagent count: its entry's time, if they begin before it, else the session's start."""
    if not isinstance(own, int | float) or not isinstance(nested, list):
        return 0.0
    times = [r["t"] for r in nested if isinstance(r, dict) and isinstance(r.get("t"), int | float)]
    return float(own) if times and min(times) < own else 0.0


def _request(record: dict[str, Any], start: float, place: str, name: str, namespace: str, size: int) -> TraceRequest:
    prompt = token_count(record, "in", least=1)
    ids = content_ids(record, "hash_ids")
    if len(ids) != prompt // size:
        raise BadValue(
            "hash_ids", f"has {len(ids)} ids, but {prompt} tokens have {prompt // size} whole runs of {size}"
        )
    return TraceRequest(
        request_id=f"{name}:{place}",
        num_prompt_tokens=prompt,
        num_output_tokens=token_count(record, "out", least=0, default=0),
        timestamp_s=start + (seconds(record, "t") or 0.0),
        block_ids=ids,
        tokens_per_id=size,
        namespace=namespace,
        session=name,
    )


def _looks_like(head: bytes) -> bool:
    return {"block_size", "requests"} <= first_object(head.replace(b"\r", b"").replace(b"\n", b"")).keys()


register(Format("kv-cache-tester", _looks_like, document=_document))
