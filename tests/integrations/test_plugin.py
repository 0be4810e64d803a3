"""The parts of the plugin for vLLM that need no vLLM: settings, guarded observers, the command line."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvblocks.errors import UsageError
from kvblocks.integrations.vllm.guard import GuardedObservers, load_observers
from kvblocks.integrations.vllm.settings import SETTINGS, PluginSettings, read_settings
from kvblocks.kinds import FullAttentionSpec
from kvblocks.manager import KVCacheManager, Observer, Observers, PrefixHit, Request, TokenRequest
from kvblocks.prefix import BlockHasher

ROOT = Path(__file__).parents[2]


class Failing(Observer):
    """Raises at its second look-up."""

    lookups = 0

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        self.lookups += 1
        if self.lookups == 2:
            raise RuntimeError("a fault")


class Counting(Observer):
    """Counts look-ups."""

    lookups = 0

    def on_lookup(self, request: Request, hit: PrefixHit) -> None:
        self.lookups += 1


def kvblocks(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from kvblocks.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVBLOCKS")}
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, timeout=60)


def test_the_entry_point_is_declared_in_vllms_group() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"kvblocks": "kvblocks.integrations.vllm:register"}


def test_settings_have_defaults_and_read_the_environment() -> None:
    assert read_settings({}) == PluginSettings(enabled=True, observers=(), check_steps=0)
    read = read_settings({"KVBLOCKS": "off", "KVBLOCKS_OBSERVERS": "a:B, c.d:E", "KVBLOCKS_CHECK_STEPS": "7"})
    assert read == PluginSettings(enabled=False, observers=("a:B", "c.d:E"), check_steps=7)


@pytest.mark.parametrize(
    "name, value, fix",
    [
        ("KVBLOCKS", "perhaps", "set it to on or off"),
        ("KVBLOCKS_OBSERVERS", "module.Class", "is not MODULE:NAME"),
        ("KVBLOCKS_CHECK_STEPS", "-1", "a number of steps"),
        ("KVBLOCKS_HTTP", "9400", "give an address and a port, such as 127.0.0.1:9400"),
        ("KVBLOCKS_HTTP", "0.0.0.0:9400", "use 127.0.0.1, or set KVBLOCKS_HTTP_OPEN=on"),
        ("KVBLOCKS_SHOW_TEXT", "maybe", "set it to on or off"),
        ("KVBLOCKS_OBSERVER", "a:B", "they are KVBLOCKS, KVBLOCKS_OBSERVERS, KVBLOCKS_HTTP"),
    ],
)
def test_a_wrong_setting_is_named_with_its_fix(name: str, value: str, fix: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fix)):
        read_settings({name: value})


def test_every_setting_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "inside-vllm.md").read_text()
    assert [setting.name for setting in SETTINGS if f"`{setting.name}`" not in page] == []


def test_a_failing_observer_is_dropped_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    failing, counting = Failing(), Counting()
    guarded = GuardedObservers([failing, counting], logging.getLogger("test.guard"))
    manager = KVCacheManager(9, [FullAttentionSpec(block_size=4)], max_model_len=32, observer=guarded)
    request = TokenRequest("a", range(9), BlockHasher(4))
    for _ in range(4):
        manager.get_computed_blocks(request)
    assert (failing.lookups, counting.lookups) == (2, 4)
    assert caplog.text.count("the observer Failing failed and is dropped") == 1


@pytest.mark.parametrize("several", [Observers, GuardedObservers])
def test_several_observers_pass_on_every_hook(several: type[Observer]) -> None:
    hooks = {name for name in vars(Observer) if name.startswith("on_")}
    assert hooks <= vars(several).keys()


def test_an_observer_that_cannot_be_made_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    names = ["no.such.module:Watcher", "kvblocks.manager:KVCacheManager", "builtins:dict", f"{__name__}:Counting"]
    observers = load_observers(names, logging.getLogger("test.guard"))
    assert [type(observer).__name__ for observer in observers] == ["Counting"]
    assert caplog.text.count("cannot be made and is left out") == 3


def test_settings_are_listed_with_their_values() -> None:
    run = kvblocks("vllm", "settings", "--json", "-", KVBLOCKS="off")
    assert (run.returncode, run.stderr) == (0, "")
    listed = {row["name"]: row["value"] for row in json.loads(run.stdout)}
    assert listed.items() >= {"KVBLOCKS": "off", "KVBLOCKS_OBSERVERS": "", "KVBLOCKS_CHECK_STEPS": "0"}.items()


def test_a_wrong_setting_is_an_error_of_the_command_line() -> None:
    run = kvblocks("vllm", "settings", KVBLOCKS="perhaps")
    assert run.returncode == 2
    assert run.stderr == "kvblocks: KVBLOCKS='perhaps': set it to on or off\n"


@pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import vllm"], capture_output=True).returncode == 0, reason="vLLM is here"
)
def test_a_check_without_vllm_says_so() -> None:
    run = kvblocks("vllm", "check")
    assert run.returncode == 2
    assert "vLLM cannot be imported" in run.stderr


@pytest.mark.parametrize("command", ["check", "settings"])
def test_help_explains_exit_codes(command: str) -> None:
    run = kvblocks("vllm", command, "--help")
    assert run.returncode == 0
    assert "Exit code 2" in run.stdout or "2: an error" in run.stdout
