"""A real server on a loopback port, in a thread, for the tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from kvblocks.engine import Engine
from kvblocks.engine.loop import EngineLoop
from kvblocks.live import LiveView
from kvblocks.serving import ServerLimits, create_app
from tests.engine.words import engine, talker


@dataclass
class Running:
    """Where it listens, and what is behind it."""

    url: str
    port: int
    engine: Engine
    loop: EngineLoop

    def live_blocks(self) -> int:
        """Blocks that requests hold, once everything submitted before has been seen to."""

        def count(engine: Engine) -> int:
            engine.scheduler.check()
            return engine.manager.pool_usage.live

        return self.loop.call(count).result(60)


@contextmanager
def server(limits: ServerLimits | None = None, api_key: str | None = None, **settings: Any) -> Iterator[Running]:
    """A server over the tiny talker."""
    model, view = talker(), LiveView(title="talker")
    made = engine(observers=view.observers, **settings)
    loop = EngineLoop(made)
    app = create_app(loop, model.tokenizer, model.name, view, limits=limits, api_key=api_key)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{port}", port, made, loop)
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
