"""Mooncake's JSONL: a timestamp in milliseconds, lengths, and a content id per 512 tokens.

The format of the traces that were published with Mooncake (FAST 2025): `hash_ids` has one id per started run of 512
tokens, so that the last one may stand for a partial run.
"""

from __future__ import annotations

from kvblocks.traces.formats import Format, LineParser, ReadOptions, first_object, parse_object, register
from kvblocks.traces.request import TraceRequest
from kvblocks.traces.values import BadValue, content_ids, seconds, token_count

TOKENS_PER_ID = 512


def _lines(options: ReadOptions) -> LineParser:
    def parse(line: bytes, number: int) -> TraceRequest:
        record = parse_object(line)
        prompt = token_count(record, "input_length", least=1)
        ids = content_ids(record, "hash_ids")
        expected = -(-prompt // TOKENS_PER_ID)
        if len(ids) != expected:
            raise BadValue(
                "hash_ids",
                f"has {len(ids)} ids, but {prompt} tokens start {expected} runs of {TOKENS_PER_ID}; "
                "is it another trace's format?",
            )
        return TraceRequest(
            request_id=str(number),
            num_prompt_tokens=prompt,
            num_output_tokens=token_count(record, "output_length", least=0),
            timestamp_s=seconds(record, "timestamp", scale=0.001),
            block_ids=ids,
            tokens_per_id=TOKENS_PER_ID,
        )

    return parse


def _looks_like(head: bytes) -> bool:
    return {"timestamp", "input_length", "hash_ids"} <= first_object(head).keys()


register(Format("mooncake", _looks_like, lines=_lines))
