"""One HTTP request's side of the engine: its generations, what they say, and the end when the client hangs up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

from fastapi import Request

from kvblocks.engine import Answer, Generation, Output, SamplingParams
from kvblocks.engine.loop import EngineLoop
from kvblocks.serving.limits import ApiError


class Exchange:
    """Submits prompts and yields their outputs. `close` ends what is not finished; call it in any case."""

    def __init__(self, loop: EngineLoop, request: Request, timeout_s: float) -> None:
        self.name = uuid.uuid4().hex
        self.generations: list[Generation] = []
        self.error: ApiError | None = None
        """Why it ended early; None when everything was answered."""
        self._loop, self._request, self._timeout_s = loop, request, timeout_s
        self._events: asyncio.Queue[Output | None] = asyncio.Queue()
        self._submitted = 0
        self._asyncio = asyncio.get_running_loop()

    async def submit(self, prompt: Sequence[int], params: SamplingParams, salt: str | None) -> None:
        """Queue a prompt. Raises UsageError when it cannot run."""
        name = f"{self.name}-{self._submitted}"
        self._submitted += 1
        future = self._loop.call(
            lambda engine: engine.add(prompt, params, request_id=name, cache_salt=salt, on_output=self._tell)
        )
        self.generations.append(await asyncio.wrap_future(future))

    def _tell(self, output: Output) -> None:
        """Called in the engine's thread."""
        try:
            self._asyncio.call_soon_threadsafe(self._events.put_nowait, output)
        except RuntimeError:  # the server's loop has ended, nobody listens any more
            return

    def index(self, answer: Answer) -> int:
        """The number of an answer among all of the request's."""
        at = next(i for i, generation in enumerate(self.generations) if generation is answer.generation)
        return at * answer.generation.params.n + answer.number

    async def outputs(self) -> AsyncIterator[Output]:
        """What is new, until all answers are finished, the client hangs up or the time is over."""
        watch = asyncio.create_task(self._watch())
        unfinished = sum(len(generation.answers) for generation in self.generations)
        deadline = self._asyncio.time() + self._timeout_s
        try:
            while unfinished:
                try:
                    async with asyncio.timeout_at(deadline):
                        output = await self._events.get()
                except TimeoutError:
                    self.error = ApiError(504, f"not answered within {self._timeout_s:g} s", kind="timeout_error")
                    return
                if output is None:
                    self.error = ApiError(499, "the client has hung up")
                    return
                if output.finish_reason is not None:
                    unfinished -= 1
                if output.finish_reason == "error":
                    self.error = ApiError(500, f"the engine failed: {output.answer.error}", kind="server_error")
                elif output.finish_reason == "abort":
                    self.error = ApiError(503, "the server is shutting down", kind="server_error")
                yield output
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._events.put_nowait(None)

    def close(self) -> None:
        """End what is unfinished; its blocks are free at the engine's next step."""
        for number in range(self._submitted):
            name = f"{self.name}-{number}"
            self._loop.call(lambda engine, name=name: engine.abort(name))  # type: ignore[misc]
