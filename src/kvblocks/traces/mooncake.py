"""Mooncake's JSONL: a timestamp in milliseconds, lengths, and a content id per 512 tokens.

The format of the traces that were published with Mooncake (FAST 2025): `hash_ids` has one id per started run of 512
tokens, so that the last one may stand for a partial run. The files do not say the 512; traces of the same form with
runs of another length are read with `tokens_per_id`.
"""

from __future__ import annotations

from kvblocks.traces.formats import Format, LineParser, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, seconds, token_count

TOKENS_PER_ID = 512


def _lines(options: ReadOptions) -> LineParser:
    per_id = options.tokens_per_id or TOKENS_PER_ID

    def parse(line: bytes, number: int) -> TraceRequest:
        record = parse_object(line)
        prompt = token_count(record, "input_length", least=1)
        ids = content_ids(record, "hash_ids")
        expected = -(-prompt // per_id)
        if len(ids) != expected:
            raise BadValue(
                "hash_ids",
                f"has {len(ids)} ids, but {prompt} tokens start {expected} runs of {per_id} tokens; mend the line, or "
                "name the trace's own run length (--tokens-per-id)",
            )
        return TraceRequest(
            request_id=str(number),
            num_prompt_tokens=prompt,
            num_output_tokens=token_count(record, "output_length", least=0),
            timestamp_s=seconds(record, "timestamp", scale=0.001),
            block_ids=ids,
            tokens_per_id=per_id,
            namespace=options.name,
        )

    return parse


def _looks_like(head: bytes) -> bool:
    keys = first_object(head).keys()
    return "hash_ids" in keys and ("input_length" in keys or "timestamp" in keys)


register(Format("mooncake", _looks_like, lines=_lines))
