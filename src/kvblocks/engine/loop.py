"""The engine in a thread of its own: requests from any thread, told of their tokens as they come."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kvblocks.engine.answer import Output
from kvblocks.engine.engine import Engine

T = TypeVar("T")
log = logging.getLogger("kvblocks.engine")


class EngineLoop:
    """Runs steps while there is work. Everything that touches the engine goes through `call`.

    Listeners (`on_output`) are called in this thread and must be quick.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvblocks-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Run the function on the engine between two steps; its result or its exception."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self.engine))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        """End every request and the thread; returns when it has ended."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            idle = not self.engine.has_work
            while idle or not self._calls.empty():
                call = self._calls.get()
                if call is None:
                    _tell(self.engine.abort_all())
                    return
                call()
                idle = False
            if self.engine.has_work:
                try:
                    self.engine.step()
                except Exception as error:  # the server lives on: its requests are told, and give their blocks back
                    log.exception("a step failed; its requests are ended")
                    _tell(self.engine.abort_all("error", f"{type(error).__name__}: {error}"))


def _tell(outputs: list[Output]) -> None:
    for output in outputs:
        if output.answer.generation.on_output is not None:
            output.answer.generation.on_output(output)
