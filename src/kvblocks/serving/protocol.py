"""OpenAI's requests as data, checked; what would change the answer and is not supported is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from kvblocks.engine import SamplingParams
from kvblocks.errors import UsageError
from kvblocks.serving.limits import ApiError, ServerLimits

TokenIds = list[Annotated[int, Meta(ge=0)]]


class StreamOptions(Struct):
    include_usage: bool = False


class Common(Struct, kw_only=True):
    """What both kinds of requests share."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    ignore_eos: bool = False
    # Refused unless they say what is done anyway:
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


class ChatRequest(Common, kw_only=True):
    """`/v1/chat/completions`"""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class CompletionRequest(Common, kw_only=True):
    """`/v1/completions`"""

    prompt: str | list[Any]


R = TypeVar("R", bound=Common)


def parse(body: bytes, kind: type[R]) -> R:
    """The request in a body. Raises ApiError naming the field."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        what = "the body's" if isinstance(error, msgspec.ValidationError) else "the body is not JSON:"
        raise ApiError(400, f"{what} {error}" if "JSON" in what else str(error)) from error
    plain = {"response_format": {"type": "text"}, "n": 1, "best_of": 1}
    for name in (
        "logprobs top_logprobs logit_bias frequency_penalty presence_penalty response_format tools echo best_of suffix"
    ).split():
        value = getattr(request, name)
        if value and value != plain.get(name):
            raise ApiError(400, f"{name}={value!r} is not supported by this server; leave it out", param=name)
    return request


def sampling(request: Common, limits: ServerLimits) -> SamplingParams:
    """How the request wants its tokens chosen. Raises ApiError."""
    asked = request.max_completion_tokens or request.max_tokens
    if asked is not None and asked > limits.max_output_tokens:
        raise ApiError(
            400, f"max_tokens={asked} exceeds this server's limit of {limits.max_output_tokens}", param="max_tokens"
        )
    stop = request.stop or []
    try:
        return SamplingParams(
            max_tokens=asked or limits.max_output_tokens,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            n=1 if request.n is None else request.n,
            seed=request.seed,
            stop=tuple([stop] if isinstance(stop, str) else stop),
            ignore_end=request.ignore_eos,
        )
    except UsageError as error:
        raise ApiError(400, str(error), param=str(error).partition("=")[0]) from error


def messages_of(request: ChatRequest) -> list[dict[str, Any]]:
    """The messages with plain text contents. Raises ApiError naming the message."""
    plain = []
    for i, message in enumerate(request.messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, dict) else None for part in content]
            content = None if any(not isinstance(part, str) for part in parts) else "".join(parts)  # type: ignore[arg-type]
        if not isinstance(message.get("role"), str) or not isinstance(content, str):
            raise ApiError(400, f"messages[{i}] must have a role and a content of text", param=f"messages[{i}]")
        plain.append({**message, "content": content})
    return plain


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """One or several prompts, as text or token ids. Raises ApiError."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(type(item) is int for item in prompt):
        return [prompt]
    good = all(
        isinstance(item, str) or (isinstance(item, list) and all(type(t) is int for t in item)) for item in prompt
    )
    if not prompt or not good:
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of those", param="prompt")
    return prompt
