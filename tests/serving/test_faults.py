"""What goes wrong at a server: a clear answer each, and the server lives on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvblocks.engine import Engine
from kvblocks.engine.loop import EngineLoop
from kvblocks.serving import ServerLimits
from tests.engine.words import engine, tokenizer
from tests.serving.server import Running, server

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with server(ServerLimits(max_body_bytes=20_000, max_requests=4, body_timeout_s=0.2)) as made:
        yield made


def alive(running: Running) -> None:
    reply = httpx.post(f"{running.url}/v1/completions", json=ASK, timeout=60)
    assert reply.status_code == 200
    assert len(reply.json()["choices"]) == 1


@pytest.mark.parametrize(
    "body, kind, status, words",
    [
        (b"{", "application/json", 400, "not JSON"),
        (b"[" * 15_000, "application/json", 400, ""),
        (b"\xff\xfe", "application/json", 400, ""),
        (b"{}", "application/json", 400, "prompt"),
        (b'{"prompt": 3}', "application/json", 400, "prompt"),
        (b'{"prompt": []}', "application/json", 400, "prompt"),
        (b'{"prompt": [[1], "a", 2]}', "application/json", 400, "prompt"),
        (b'{"prompt": [999]}', "application/json", 400, "outside the vocabulary of 260"),
        (b'{"prompt": ""}', "application/json", 400, "empty"),
        (b'{"prompt": "a", "temperature": "hot"}', "application/json", 400, "temperature"),
        (b'{"prompt": "a"}', "text/plain", 415, "application/json"),
        (b'{"prompt": "' + b"a" * 30_000 + b'"}', "application/json", 413, "20,000 bytes"),
        (b'{"prompt": "' + b"a" * 10_000 + b'"}', "application/json", 400, "2,047 at most"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(running: Running, body: bytes, kind: str, status: int, words: str) -> None:
    reply = httpx.post(f"{running.url}/v1/completions", content=body, headers={"content-type": kind}, timeout=60)
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]
    alive(running)


def test_an_unknown_path_is_told_in_the_same_form(running: Running) -> None:
    reply = httpx.get(f"{running.url}/v2/nothing")
    assert (reply.status_code, reply.json()["error"]["message"]) == (404, "there is no /v2/nothing here")


def test_a_host_name_from_elsewhere_is_refused(running: Running) -> None:
    reply = httpx.get(f"{running.url}/v1/models", headers={"host": "evil.example"})
    assert reply.status_code == 403


def test_a_body_that_does_not_arrive_is_given_up(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as client:
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
        assert b" 408 " in client.recv(1000)
    alive(running)


def _stream(running: Running, max_tokens: int) -> socket.socket:
    """A connection on which a stream has begun."""
    body = json.dumps({**ASK, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", running.port), timeout=60)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    while b"data: " not in client.recv(65536):
        pass
    return client


def _idle(running: Running) -> None:
    """Wait until the engine has nothing to do: steps between, no clock."""
    while running.loop.call(lambda e: e.has_work).result(60):
        pass


def test_a_client_that_hangs_up_frees_its_blocks(running: Running) -> None:
    before = running.engine.stats.generated_tokens
    for _ in range(3):
        _stream(running, 1000).close()
    _idle(running)
    assert running.live_blocks() == 0
    assert running.engine.stats.generated_tokens - before < 3000
    alive(running)


def test_a_reader_that_stops_reading_holds_nobody_up(running: Running) -> None:
    with _stream(running, 300):
        for _ in range(3):
            alive(running)
    _idle(running)
    assert running.live_blocks() == 0


def test_a_full_server_sends_further_requests_away(running: Running) -> None:
    open_streams = [_stream(running, 1000) for _ in range(4)]
    reply = httpx.post(f"{running.url}/v1/completions", json=ASK, timeout=60)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    for client in open_streams:
        client.close()
    _idle(running)


def test_a_step_that_fails_ends_its_requests_and_no_others(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for a step")

    with monkeypatch.context() as patch:
        patch.setattr(running.engine.model, "forward", fail)
        reply = httpx.post(f"{running.url}/v1/completions", json=ASK, timeout=60)
    assert reply.status_code == 500
    assert "no room for a step" in reply.json()["error"]["message"]
    assert running.live_blocks() == 0
    alive(running)


def test_the_cache_is_reset_only_when_nothing_runs(running: Running) -> None:
    json_type = {"content-type": "application/json"}
    client = _stream(running, 1000)
    assert httpx.post(f"{running.url}/reset_prefix_cache", headers=json_type).status_code == 409
    client.close()
    _idle(running)
    assert httpx.post(f"{running.url}/reset_prefix_cache", headers=json_type).status_code == 200


def test_metrics_count_what_happened(running: Running) -> None:
    text = httpx.get(f"{running.url}/metrics").text
    assert "kvblocks_engine_generated_tokens_total" in text
    assert 'kvblocks_blocks{state="live"} 0' in text


def test_an_answer_that_takes_too_long_is_ended() -> None:
    with server(ServerLimits(request_timeout_s=0.01)) as running:
        reply = httpx.post(f"{running.url}/v1/completions", json={**ASK, "max_tokens": 1000}, timeout=60)
        assert reply.status_code == 504
        _idle(running)
        assert running.live_blocks() == 0


def test_with_a_key_every_route_but_health_asks_for_it() -> None:
    with server(api_key="right") as running:
        for key, status in (("wrong", 401), ("right", 200)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.get(f"{running.url}/v1/models", headers=headers).status_code == status
        assert httpx.get(f"{running.url}/metrics").status_code == 401
        assert httpx.get(f"{running.url}/health").status_code == 200


def test_stopping_the_loop_ends_what_runs() -> None:
    loop = EngineLoop(engine())
    ended = threading.Event()
    reasons: list[str | None] = []

    def start(e: Engine) -> None:
        def tell(output: Any) -> None:
            if output.finish_reason:
                reasons.append(output.finish_reason)
                ended.set()

        e.add(tokenizer().encode("abc"), on_output=tell)

    loop.call(start).result(60)
    loop.stop()
    assert ended.wait(60)
    assert reasons[0] in ("abort", "length", "stop")
    assert loop.engine.manager.pool_usage.live == 0
