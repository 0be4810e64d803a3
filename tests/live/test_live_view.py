"""The live view: what it shows is what the manager holds, and nothing else gets out."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvblocks.errors import UsageError
from kvblocks.kinds import FullAttentionSpec, SlidingWindowSpec
from kvblocks.live import Address, LiveServer, LiveView, answer, check_open, parse_address
from kvblocks.manager import Observers, TokenRequest
from kvblocks.prefix import ExtraKeys
from tests.cases.scenario import Engine
from tests.cli.command import kvblocks

SECRET = ExtraKeys(cache_salt="the salt of a tenant")


class Scene:
    """A cache with some past and two requests in it."""

    def __init__(self, *, show_text: bool = False, name: str = "") -> None:
        decode = (lambda tokens: " ".join(map(str, tokens))) if show_text else None
        self.view = LiveView(title="a <b>model</b>", decode=decode)
        specs = [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=4, sliding_window=8)]
        self.engine = Engine(
            usable_blocks=40, specs=specs, retention_interval=None, observer=Observers(self.view.observers)
        )
        for start in (0, 100, 0, 200, 300):
            self.engine.free(self.engine.admit([*range(12), *range(start + 1000, start + 1021)], SECRET))
        hasher = self.engine.hasher
        self.live = [
            self.engine.admit(range(12), SECRET),
            TokenRequest(name or "<script>alert(1)</script>", range(50), hasher),
        ]
        assert self.engine.try_admit(self.live[1]) is not None

    def state(self) -> dict[str, Any]:
        self.engine.manager.new_step_starts()
        return self.view.state()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def server(scene: Scene) -> Iterator[LiveServer]:
    made = LiveServer(scene.view, Address("127.0.0.1", 0))
    yield made
    made.close()


def get(server: LiveServer, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=20)
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    return reply.status, dict(reply.getheaders()), reply.read().decode()


def test_the_state_is_that_of_the_manager(scene: Scene) -> None:
    state, manager = scene.state(), scene.engine.manager
    usage = manager.pool_usage
    pool = state["pool"]
    assert (pool["live"], pool["cached"], pool["blank"]) == tuple(usage)
    assert sum(state["map"]["live"]) == usage.live
    assert sum(state["map"]["cached"]) == usage.cached
    assert len(state["map"]["live"]) == 40
    assert sum(group["live"] for group in pool["groups"]) == usage.live
    counts = state["counts"]
    assert (
        counts["hit_tokens"] + counts["external_tokens"] + sum(counts["missed_tokens"].values())
        == counts["prompt_tokens"]
    )
    assert counts["requests"] == 7
    assert counts["evicted_blocks"] == manager.block_pool.num_evicted
    tables = {row["request_id"]: row["tables"] for row in state["requests"]}
    for request in scene.live:
        for group in range(2):
            runs = tables[request.request_id][group]["ranges"]
            blocks = [block for first, count in runs for block in range(first, first + count)]
            assert blocks == [block for block in scene.engine.table(request, group) if block]
    order = [row["block"] for row in state["next_victims"]]
    assert order == list(manager.block_pool.free_order())[: len(order)]
    assert any(row["hits"] for row in state["prefixes"])


def test_no_token_and_no_salt_leaves_the_process_unless_text_is_asked_for(scene: Scene) -> None:
    shown = json.dumps(scene.state())
    assert "salt" not in shown
    assert all(row["text"] is None for row in scene.state()["requests"])
    assert all(row["text"] is None for row in scene.state()["prefixes"])
    open_state = Scene(show_text=True).state()
    assert "salt" not in json.dumps(open_state)
    assert any(row["text"] == " ".join(map(str, range(12))) for row in open_state["requests"])


def test_metrics_are_in_prometheus_format_and_agree_with_the_state(scene: Scene) -> None:
    state = scene.state()
    text = answer(scene.view, "/metrics").body.decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    counts = state["counts"]
    assert found["kvblocks_prompt_tokens_total",] == counts["prompt_tokens"]
    assert found["kvblocks_hit_tokens_total",] == counts["hit_tokens"]
    for reason, tokens in counts["missed_tokens"].items():
        assert found["kvblocks_missed_tokens_total", reason] == tokens
    assert found["kvblocks_blocks", "live"] == state["pool"]["live"]
    assert found["kvblocks_eviction_age_seconds_count",] == counts["evicted_blocks"]


def test_the_page_loads_nothing_from_elsewhere_and_tells_browsers_so(server: LiveServer) -> None:
    status, headers, page = get(server, "/")
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|innerHTML|@import|url\(", without_namespace)


def test_only_this_machine_s_names_are_answered(server: LiveServer) -> None:
    assert get(server, "/state", Host="evil.example")[0] == 403
    assert get(server, "/state", Host=f"localhost:{server.address.port}")[0] == 200
    status, _, text = get(server, "/nothing")
    assert status == 404
    assert "there are /, /state, /metrics" in text


@pytest.mark.parametrize(
    "text, fix",
    [
        ("9400", "give an address and a port"),
        ("127.0.0.1:", "give an address and a port"),
        ("127.0.0.1:99999", "from 0 to 65535"),
        ("::1:80", "give an address and a port"),
    ],
)
def test_a_bad_address_is_named_with_its_fix(text: str, fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        parse_address(text, "KVBLOCKS_HTTP")


def test_an_open_address_needs_permission() -> None:
    with pytest.raises(UsageError, match="set OPEN=on"):
        check_open(Address("0.0.0.0", 80), False, "HTTP", "OPEN=on")
    check_open(Address("0.0.0.0", 80), True, "HTTP", "OPEN=on")
    check_open(Address("::1", 80), False, "HTTP", "OPEN=on")


def test_a_taken_port_is_a_clear_error(server: LiveServer, scene: Scene) -> None:
    with pytest.raises(UsageError, match="choose another port"):
        LiveServer(scene.view, server.address)


def test_top_shows_the_same_and_escapes_what_could_steer_a_terminal() -> None:
    scene = Scene(name="evil\x1b[2J\nname")
    server = LiveServer(scene.view, Address("127.0.0.1", 0))
    try:
        run = kvblocks("top", server.address.url, "--once")
        assert (run.returncode, run.stderr) == (0, "")
        assert "\x1b" not in run.stdout
        assert "evil\\x1b[2J\\nname" in run.stdout
        assert "first seen" in run.stdout
        as_json = kvblocks("top", server.address.url, "--json", "-")
        assert json.loads(as_json.stdout)["counts"]["requests"] == 7
    finally:
        server.close()
    run = kvblocks("top", server.address.url)
    assert run.returncode == 1
    assert "start kvblocks serve, or vLLM with KVBLOCKS_HTTP" in run.stderr
    assert kvblocks("top", "localhost").returncode == 2


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_draws_the_page_and_takes_names_as_text(server: LiveServer, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=3000 --dump-dom"
    run = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path}", server.address.url + "/"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    dom = run.stdout
    assert "hit rate, in tokens" in dom
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
    assert "a &lt;b&gt;model&lt;/b&gt;" in dom
    assert dom.count("<tr>") > 5
    assert re.search(r"first seen [\d.]+ %", dom)
    assert 'id="problem" role="status" hidden' in dom
