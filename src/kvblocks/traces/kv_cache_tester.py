"""kv-cache-tester's session JSON: one recorded coding session per file, with nested subagents.

Each request has a content id per whole run of `block_size` (64) tokens; the rest of its prompt is content of its own.
With `hash_id_scope` "local" an id means something within its file only, subagents included. A subagent is an entry
with `requests` of its own, whose times count from the entry's time; sorted by time they mix with their parent's. (The
project's `docs/trace_replay_tester.md`, and its published traces.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvblocks.traces.formats import Format, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, get, seconds, shown, text, token_count

MAX_DEPTH = 8
"""Subagents of subagents; deeper nesting is taken for a mistake."""


def _document(data: bytes, options: ReadOptions) -> Iterator[TraceRequest | BadValue]:
    session = parse_object(data)
    size = token_count(session, "block_size", least=1)
    name = text(session, "id") or options.name
    scope = text(session, "hash_id_scope") or "local"
    if scope not in ("local", "global"):
        raise BadValue("hash_id_scope", f"is {shown(scope)}; it must be 'local' or 'global'")
    namespace = options.name if scope == "local" else ""
    entries = get(session, "requests")
    if not isinstance(entries, list):
        raise BadValue("requests", f"is {shown(entries)}; it must be a list of requests")
    found: list[TraceRequest] = []
    for place, start_s, agent, entry in _flatten(entries, 0.0, name, "requests", 0):
        try:
            if isinstance(entry, BadValue):
                raise entry
            found.append(_request(entry, start_s, f"{agent}:{place}", name, namespace, size))
        except BadValue as error:
            yield BadValue(f"{place}.{error.field}" if error.field else place, str(error))
    found.sort(key=lambda request: request.timestamp_s or 0.0)
    yield from found


def _flatten(
    entries: list[Any], start_s: float, agent: str, place: str, depth: int
) -> Iterator[tuple[str, float, str, dict[str, Any] | BadValue]]:
    """Every request with its place in the file, the time from which its own counts, and the agent that made it."""
    for i, entry in enumerate(entries):
        here = f"{place}[{i}]"
        if not isinstance(entry, dict):
            yield here, start_s, agent, BadValue(None, f"is {shown(entry)}; it must be an object")
        elif "requests" not in entry:
            yield here, start_s, agent, entry
        else:
            try:
                nested = get(entry, "requests")
                if not isinstance(nested, list) or depth == MAX_DEPTH:
                    raise BadValue(
                        "requests", f"is {shown(nested)}; it must be a list, nested at most {MAX_DEPTH} deep"
                    )
                nested_start_s = start_s + (seconds(entry, "t") or 0.0)
                nested_agent = f"{agent}:{text(entry, 'agent_id') or i}"
            except BadValue as error:
                yield here, start_s, agent, error
            else:
                yield from _flatten(nested, nested_start_s, nested_agent, f"{here}.requests", depth + 1)


def _request(
    record: dict[str, Any], start_s: float, request_id: str, session: str, namespace: str, size: int
) -> TraceRequest:
    prompt = token_count(record, "in", least=1)
    ids = content_ids(record, "hash_ids")
    if len(ids) != prompt // size:
        raise BadValue(
            "hash_ids",
            f"has {len(ids)} ids, but {prompt} tokens have {prompt // size} whole runs of {size} tokens (block_size)",
        )
    return TraceRequest(
        request_id=request_id,
        num_prompt_tokens=prompt,
        num_output_tokens=token_count(record, "out", least=0, default=0),
        timestamp_s=start_s + (seconds(record, "t") or 0.0),
        block_ids=ids,
        tokens_per_id=size,
        namespace=namespace,
        session=session,
    )


def _looks_like(head: bytes) -> bool:
    return {"block_size", "requests"} <= first_object(head.replace(b"\r", b"").replace(b"\n", b"")).keys()


register(Format("kv-cache-tester", _looks_like, document=_document))
