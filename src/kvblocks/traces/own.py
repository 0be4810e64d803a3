"""kvblocks' own JSONL: prompts as token ids, content ids or text, and all that a cache may want to know of a request.

`docs/traces.md` describes the fields. Unknown fields are passed over.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvblocks.traces.formats import Format, LineParser, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, get, seconds, shown, text, token_count, token_ids

PROMPTS = ("prompt_token_ids", "block_ids", "messages", "prompt", "input_length")


def _lines(options: ReadOptions) -> LineParser:
    def parse(line: bytes, number: int) -> TraceRequest:
        record = parse_object(line)
        given = [field for field in PROMPTS if record.get(field) is not None]
        if given not in (["block_ids", "input_length"], *([field] for field in PROMPTS if field != "block_ids")):
            raise BadValue(
                None,
                f"has {', '.join(given) or 'no prompt'}; a request needs one of prompt_token_ids, messages, prompt, "
                "input_length, or block_ids with input_length and tokens_per_id",
            )
        tokens: Any = None
        ids: Any = None
        per_id = 0
        if "block_ids" in given:
            per_id, ids = token_count(record, "tokens_per_id", least=1), content_ids(record, "block_ids")
            prompt = token_count(record, "input_length", least=1)
            if len(ids) > -(-prompt // per_id):
                raise BadValue(
                    "block_ids", f"has {len(ids)} ids of {per_id} tokens, more than the {prompt} of input_length"
                )
        elif given == ["input_length"]:
            prompt = token_count(record, "input_length", least=1)
        else:
            tokens = _tokens(record, given[0], options)
            prompt = len(tokens)
        return TraceRequest(
            request_id=text(record, "request_id") or str(number),
            num_prompt_tokens=prompt,
            num_output_tokens=token_count(record, "output_length", least=0, default=0),
            timestamp_s=seconds(record, "timestamp", default=None),
            token_ids=tokens,
            block_ids=ids,
            tokens_per_id=per_id,
            session=text(record, "session"),
            cache_salt=text(record, "cache_salt"),
            lora=text(record, "lora"),
            priority=_priority(record),
        )

    return parse


def _tokens(record: dict[str, Any], field: str, options: ReadOptions) -> array[int]:
    if field == "prompt_token_ids":
        return array("I", token_ids(record, field))
    if options.encoder is None:
        raise BadValue(
            field, "is text, which needs a tokenizer: give --tokenizer FILE (a tokenizer.json) or its directory"
        )
    value = get(record, field)
    if field == "prompt":
        encoded = options.encoder.encode_prompt(text(record, field) or "")
    else:
        if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
            raise BadValue(field, f"is {shown(value)}; it must be a list of chat messages")
        encoded = options.encoder.encode_messages(value)
    if not encoded:
        raise BadValue(field, "has no tokens; a request needs at least one")
    return array("I", encoded)


def _priority(record: dict[str, Any]) -> int:
    value = get(record, "priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise BadValue("priority", f"is {shown(value)}; it must be a whole number, lower goes first")
    return value


def _looks_like(head: bytes) -> bool:
    keys = first_object(head).keys()
    return bool(keys & {"prompt_token_ids", "messages", "prompt", "tokens_per_id"}) or (
        "input_length" in keys and "hash_ids" not in keys
    )


register(Format("kvblocks", _looks_like, lines=_lines))
