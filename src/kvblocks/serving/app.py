"""The routes: OpenAI's completions over the engine's thread, and what an operator needs beside them."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kvblocks import live
from kvblocks.engine import Generation, SamplingParams, Tokenizer
from kvblocks.engine.loop import EngineLoop
from kvblocks.errors import UsageError
from kvblocks.serving.exchange import Exchange
from kvblocks.serving.limits import ApiError, ServerLimits
from kvblocks.serving.metrics import exposition
from kvblocks.serving.protocol import (
    ChatRequest,
    Common,
    CompletionRequest,
    messages_of,
    parse,
    prompts_of,
    sampling,
)

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1", "testserver")


def create_app(
    loop: EngineLoop,
    tokenizer: Tokenizer,
    model_name: str,
    view: live.LiveView,
    *,
    limits: ServerLimits | None = None,
    api_key: str | None = None,
) -> FastAPI:
    """The server's app. `view` is the engine's live view, shown at `/`.

    With an `api_key` every route asks for it but /health and the page, which holds no data by itself; without one only
    loopback host names are answered.
    The loop is stopped when the app shuts down.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(loop.stop)

    app = FastAPI(title="kvblocks", lifespan=lifespan, openapi_url=None)
    server = _Server(loop, tokenizer, model_name, view, limits or ServerLimits())
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(404, _not_found)
    app.add_middleware(_Guard, api_key=api_key)
    app.post("/v1/chat/completions")(server.chat)
    app.post("/v1/completions")(server.completions)
    app.get("/v1/models")(server.models)
    app.get("/metrics")(server.metrics)
    app.get("/health")(server.health)
    app.post("/reset_prefix_cache")(server.reset)
    app.get("/")(server.page)
    app.get("/state")(server.state)
    return app


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body, error.status, headers)


async def _not_found(request: Request, _: Exception) -> Response:
    return JSONResponse(ApiError(404, f"there is no {request.url.path} here").body, 404)


class _Guard:
    """Lets in who has the key, or, without a key, who calls the server by a loopback name."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._key = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(refusal.body, refusal.status)(scope, receive, send)

    def _refusal(self, request: Request) -> ApiError | None:
        if self._key is None:
            if (request.url.hostname or "") not in LOOPBACK:  # a page elsewhere whose name was pointed at us
                return ApiError(403, "this server answers loopback host names only")
            return None
        given = request.headers.get("authorization", "").encode()
        if request.url.path in ("/", "/health") or hmac.compare_digest(given, self._key):
            return None
        return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


class _Stream(StreamingResponse):
    """Server-sent events. `on_close` is called when all is sent, and when the client has gone before."""

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


class _Server:
    """The handlers."""

    def __init__(
        self, loop: EngineLoop, tokenizer: Tokenizer, model_name: str, view: live.LiveView, limits: ServerLimits
    ) -> None:
        self._loop, self._tokenizer, self._model, self._limits = loop, tokenizer, model_name, limits
        self._view = view
        self._started = int(time.time())
        self._open = 0

    # -- Completions ----------------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """`/v1/chat/completions`"""
        asked = parse(await self._body(request), ChatRequest)
        messages = messages_of(asked)
        return await self._answer(request, asked, [messages], chat=True)

    async def completions(self, request: Request) -> Response:
        """`/v1/completions`"""
        asked = parse(await self._body(request), CompletionRequest)
        return await self._answer(request, asked, prompts_of(asked), chat=False)

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type {kind!r}: send application/json")
        most = self._limits.max_body_bytes
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise ApiError(413, f"the body exceeds {most:,} bytes; send less")
        except TimeoutError as error:
            raise ApiError(408, f"the body took longer than {self._limits.body_timeout_s:g} s to arrive") from error
        return bytes(body)

    async def _answer(self, request: Request, asked: Common, prompts: Sequence[Any], *, chat: bool) -> Response:
        if asked.model is not None and asked.model != self._model:
            raise ApiError(
                404,
                f"there is no model {asked.model!r} here; use {self._model!r}",
                param="model",
                code="model_not_found",
            )
        params = sampling(asked, self._limits)
        if self._open + len(prompts) > self._limits.max_requests:
            raise ApiError(
                429, f"{self._open} requests wait or run, the limit is {self._limits.max_requests}; try again later",
                kind="rate_limit_error",
            )  # fmt: skip
        self._open += len(prompts)
        exchange = Exchange(self._loop, request, self._limits.request_timeout_s)

        def close() -> None:
            exchange.close()
            self._open -= len(prompts)

        try:
            encoded = await asyncio.to_thread(self._encode, prompts, chat)
            await self._submit(exchange, encoded, params, asked.cache_salt)
            reply = _Reply(f"{'chatcmpl' if chat else 'cmpl'}-{exchange.name}", self._model, chat)
            if not asked.stream:
                async for _ in exchange.outputs():
                    pass
                if exchange.error is not None:
                    raise exchange.error
                whole = JSONResponse(reply.whole(exchange.generations))
        except BaseException:
            close()
            raise
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            return _Stream(self._stream(exchange, reply, usage), close)
        close()
        return whole

    def _encode(self, prompts: Sequence[Any], chat: bool) -> list[list[int]]:
        try:
            if chat:
                return [self._tokenizer.encode_chat(messages) for messages in prompts]
            return [self._tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
        except UsageError as error:
            raise ApiError(400, str(error), param="messages") from error

    async def _submit(
        self, exchange: Exchange, prompts: list[list[int]], params: SamplingParams, salt: str | None
    ) -> None:
        try:
            for prompt in prompts:
                if not prompt:
                    raise ApiError(400, "the prompt is empty", param="prompt")
                await exchange.submit(prompt, params, salt)
        except UsageError as error:
            code = "context_length_exceeded" if "tokens" in str(error) else ""
            raise ApiError(400, str(error), param="prompt", code=code) from error

    async def _stream(self, exchange: Exchange, reply: _Reply, usage: bool) -> AsyncIterator[bytes]:
        if reply.chat:
            for generation in exchange.generations:
                for answer in generation.answers:
                    yield _event(reply.chunk(exchange.index(answer), "", None, first=True))
        async for output in exchange.outputs():
            if exchange.error is None and (output.text or output.finish_reason):
                yield _event(reply.chunk(exchange.index(output.answer), output.text, output.finish_reason))
        if exchange.error is not None:
            yield _event(exchange.error.body)
        elif usage:
            yield _event({**reply.head(streaming=True), "choices": [], "usage": reply.usage(exchange.generations)})
        yield b"data: [DONE]\n\n"

    # -- Beside them ----------------------------------------------------------------------------------------------

    async def models(self) -> Response:
        """`/v1/models`"""
        longest = self._loop.engine.max_request_tokens
        model = {"id": self._model, "object": "model", "created": self._started, "owned_by": "kvblocks"}
        return JSONResponse({"object": "list", "data": [{**model, "max_model_len": longest}]})

    async def metrics(self) -> Response:
        """Prometheus' text format."""
        text, kind = exposition(self._loop.engine, self._open)
        reply = await asyncio.to_thread(live.answer, self._view, "/metrics")
        return Response(text + (reply.body if reply.status == 200 else b""), media_type=kind)

    async def health(self) -> Response:
        """Whether the server is there."""
        return JSONResponse({"status": "ok"})

    async def reset(self, request: Request) -> Response:
        """Forget all cached content; 409 while a request runs."""
        await self._body(request)
        done = await asyncio.wrap_future(self._loop.call(lambda engine: engine.reset_prefix_cache()))
        if not done:
            raise ApiError(409, "requests are running, so their blocks cannot be forgotten; try again later")
        return JSONResponse({"status": "ok"})

    async def page(self) -> Response:
        """The live page."""
        return await self._show("/")

    async def state(self) -> Response:
        """What the page shows, as JSON."""
        return await self._show("/state")

    async def _show(self, path: str) -> Response:
        reply = await asyncio.to_thread(live.answer, self._view, path)
        return Response(reply.body, reply.status, live.HEADERS, reply.content_type)


class _Reply:
    """The answers in OpenAI's form."""

    def __init__(self, name: str, model: str, chat: bool) -> None:
        self._name, self._model, self.chat = name, model, chat
        self._created = int(time.time())

    def head(self, *, streaming: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if streaming else "chat.completion") if self.chat else "text_completion"
        return {"id": self._name, "object": kind, "created": self._created, "model": self._model}

    def chunk(self, index: int, text: str, reason: str | None, *, first: bool = False) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if first else {"content": text} if text else {}
        else:
            choice["text"] = text
        return {**self.head(streaming=True), "choices": [choice]}

    def whole(self, generations: Sequence[Generation]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for answer in (answer for generation in generations for answer in generation.answers):
            choice: dict[str, Any] = {"index": len(choices), "finish_reason": answer.finish_reason, "logprobs": None}
            if self.chat:
                choice["message"] = {"role": "assistant", "content": answer.text}
            else:
                choice["text"] = answer.text
            choices.append(choice)
        return {**self.head(streaming=False), "choices": choices, "usage": self.usage(generations)}

    @staticmethod
    def usage(generations: Sequence[Generation]) -> dict[str, Any]:
        prompt = sum(len(generation.prompt_token_ids) for generation in generations)
        made = sum(len(answer.output_token_ids) for generation in generations for answer in generation.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(g.num_cached_tokens for g in generations)},
        }


def _event(data: Any) -> bytes:
    # In ASCII: some clients take more characters for the end of a line than the two that are.
    return f"data: {json.dumps(data)}\n\n".encode("ascii")
