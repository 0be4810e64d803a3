"""kvblocks' own JSONL: prompts as token ids, content ids or text, and all that a cache may want to know of a request.

`docs/traces.md` describes the fields. Unknown fields are passed over.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from kvblocks.traces.formats import Format, LineParser, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, get, names, seconds, shown, text, token_count, token_ids

PROMPTS = ("prompt_token_ids", "messages", "prompt", "block_ids", "input_length")


@dataclass(frozen=True, slots=True)
class _Prompt:
    num_tokens: int
    token_ids: array[int] | None = None
    block_ids: array[int] | None = None
    tokens_per_id: int = 0


def _lines(options: ReadOptions) -> LineParser:
    def parse(line: bytes, number: int) -> TraceRequest:
        record = parse_object(line)
        prompt = _prompt(record, options)
        given = text(record, "namespace")
        return TraceRequest(
            request_id=text(record, "request_id") or str(number),
            num_prompt_tokens=prompt.num_tokens,
            num_output_tokens=token_count(record, "output_length", least=0, default=0),
            timestamp_s=seconds(record, "timestamp", default=None),
            token_ids=prompt.token_ids,
            block_ids=prompt.block_ids,
            tokens_per_id=prompt.tokens_per_id,
            # Token ids mean the same in every file, content ids do not.
            namespace=(options.name if given is None else given) if prompt.block_ids is not None else "",
            session=text(record, "session"),
            cache_salt=text(record, "cache_salt"),
            lora=text(record, "lora"),
            priority=_priority(record),
        )

    return parse


def _prompt(record: dict[str, Any], options: ReadOptions) -> _Prompt:
    """What the prompt is, by the one field that says it."""
    given = [field for field in PROMPTS if record.get(field) is not None]
    match given:
        case ["prompt_token_ids"]:
            tokens = token_ids(record, "prompt_token_ids")
        case ["messages"] | ["prompt"]:
            tokens = _encoded(record, given[0], options)
        case ["block_ids", "input_length"]:
            return _by_content(record)
        case ["input_length"]:
            return _Prompt(token_count(record, "input_length", least=1))
        case _:
            raise BadValue(
                None,
                f"has {' and '.join(given) or 'no prompt'} (there is {names(record)}); a request has exactly one of "
                "prompt_token_ids, messages, prompt, input_length, or block_ids with input_length and tokens_per_id",
            )
    return _Prompt(len(tokens), token_ids=tokens)


def _by_content(record: dict[str, Any]) -> _Prompt:
    per_id = token_count(record, "tokens_per_id", least=1)
    ids = content_ids(record, "block_ids")
    prompt = token_count(record, "input_length", least=1)
    most = -(-prompt // per_id)
    if len(ids) > most:
        raise BadValue(
            "block_ids",
            f"has {len(ids)} ids of {per_id} tokens, but the {prompt} tokens of input_length start only {most} runs",
        )
    return _Prompt(prompt, block_ids=ids, tokens_per_id=per_id)


def _encoded(record: dict[str, Any], field: str, options: ReadOptions) -> array[int]:
    """The tokens of a text."""
    if options.encoder is None:
        raise BadValue(
            field, "is text, which needs a tokenizer: give --tokenizer FILE (a tokenizer.json) or its directory"
        )
    if field == "prompt":
        encoded = options.encoder.encode_prompt(text(record, field) or "")
    else:
        messages = get(record, field)
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise BadValue(field, f"is {shown(messages)}; it must be a list of chat messages, each an object")
        encoded = options.encoder.encode_messages(messages)
    if not encoded:
        raise BadValue(field, "has no tokens; a request needs at least one")
    return array("I", encoded)


def _priority(record: dict[str, Any]) -> int:
    value = get(record, "priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        raise BadValue("priority", f"is {shown(value)}; it must be a whole number; lower goes first")
    return value


def _looks_like(head: bytes) -> bool:
    keys = first_object(head).keys()
    return bool(keys & {"prompt_token_ids", "messages", "prompt", "block_ids", "tokens_per_id"}) or (
        "input_length" in keys and "hash_ids" not in keys
    )


register(Format("kvblocks", _looks_like, lines=_lines))
