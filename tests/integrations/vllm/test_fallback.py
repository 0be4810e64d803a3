"""In doubt vLLM keeps its own manager, with one warning that names the reason; with KVBLOCKS=off nothing changes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.core import kv_cache_manager as stock
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector
from vllm.v1.core.sched import scheduler

from kvblocks.integrations.vllm import contract, plugin
from kvblocks.integrations.vllm.manager import VLLMKVCacheManager
from tests.integrations.vllm.cases import CASES
from tests.integrations.vllm.sides import arguments
from tests.integrations.vllm.test_end_to_end import models_folder

HEADS = {"block_size": 4, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}


def build(caplog: pytest.LogCaptureFixture, **changes: Any) -> tuple[Any, list[str]]:
    """What the plugin makes of a plain case with changes, and its warnings."""
    logging.getLogger("vllm").propagate = True
    case = replace(CASES["full"], **{name: changes.pop(name) for name in ("groups", "caching") if name in changes})
    made = arguments(case, events=False, log_stats=True)
    spec = changes.pop("spec", None)
    if spec is not None:
        made["kv_cache_config"].kv_cache_groups[0].kv_cache_spec = spec
    for name in ("host_resident", "is_eagle_group"):
        if name in changes:
            setattr(made["kv_cache_config"].kv_cache_groups[0], name, changes.pop(name))
    config = changes.pop("vllm_config", None)
    token = plugin._building.set(config)
    try:
        manager = plugin.build(stock.KVCacheManager, **{**made, **changes})
    finally:
        plugin._building.reset(token)
    return manager, [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Transfer:
    """A configuration with a KV connector."""

    def __init__(self, connector: str, module_path: str | None = None) -> None:
        self.kv_transfer_config = self
        self.kv_connector = connector
        self.kv_connector_module_path = module_path


def test_the_installed_vllm_is_as_expected() -> None:
    assert contract.doubts() == []


def test_a_supported_configuration_is_managed_by_kvblocks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    manager, warnings = build(caplog)
    assert isinstance(manager, VLLMKVCacheManager)
    assert warnings == []
    assert "policy lru, 1 KV-cache groups (full 4), 16 blocks" in caplog.text


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"spec": interface.RSWASpec(**HEADS, rswa_window=8)}, "group 0 is a RSWASpec"),
        ({"spec": interface.CircularBufferSpec(**HEADS)}, "group 0 is a CircularBufferSpec"),
        ({"host_resident": True}, "has a role of its own"),
        ({"metrics_collector": KVCacheMetricsCollector()}, "--kv-cache-metrics samples vLLM's own block objects"),
        ({"vllm_config": Transfer("OffloadingConnector")}, "the KV connector OffloadingConnector is not known"),
        ({"vllm_config": Transfer("ExampleConnector", "my.module")}, "the KV connector ExampleConnector is not known"),
        ({"hash_block_size": 2}, "hashes of 2 tokens"),
    ],
)
def test_what_is_not_supported_stays_with_vllm_and_is_named(
    changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    # vLLM's own manager may refuse the odd configuration too; what matters is that kvblocks stayed away first.
    try:
        manager, _ = build(caplog, **changes)
    except (AssertionError, ValueError, NotImplementedError):
        manager = None
    warnings = [record.getMessage() for record in caplog.records if record.name == "vllm.kvblocks"]
    assert not isinstance(manager, VLLMKVCacheManager)
    assert len(warnings) == 1
    assert warnings[0].startswith("kvblocks leaves the KV cache to vLLM's own manager: ")
    assert reason in warnings[0]


def test_a_fault_in_kvblocks_leaves_vllm_its_manager(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("kvblocks.integrations.vllm.manager.KVCacheManager", fail)
    manager, warnings = build(caplog)
    assert type(manager) is stock.KVCacheManager
    assert warnings == ["kvblocks leaves the KV cache to vLLM's own manager: ZeroDivisionError: a fault"]


def test_another_version_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.99.1")
    assert contract.doubts() == ["vLLM 0.99.1 is not a version that kvblocks was compared with: 0.32"]


def test_a_new_method_or_parameter_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate_slots(self: Any, request: Any, num_new_tokens: int, speed: int = 1) -> None: ...

    monkeypatch.setattr(stock.KVCacheManager, "allocate_slots", allocate_slots)
    monkeypatch.setattr(stock.KVCacheManager, "pin", lambda self: None, raising=False)
    found = contract.doubts()
    assert found[0].startswith("KVCacheManager.allocate_slots takes self, request, num_new_tokens, speed=1; kvblocks")
    assert found[1:] == ["KVCacheManager.pin is new"]


def test_a_lost_attribute_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("vllm.v1.core.kv_cache_utils.to_event_extra_keys")
    assert contract.doubts() == ["to_event_extra_keys is gone or takes other parameters than extra_keys"]


def run_python(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


LOAD = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.v1.core.sched import scheduler
print(scheduler.KVCacheManager.__module__, hasattr(scheduler.KVCacheManager, "kvblocks_original"),
      hasattr(scheduler.Scheduler.__init__, "__wrapped__"))
"""


@pytest.mark.parametrize("value", ["off", "perhaps"])
def test_vllm_is_untouched_when_kvblocks_is_off_or_its_settings_are_wrong(value: str) -> None:
    assert run_python(LOAD, KVBLOCKS=value) == "vllm.v1.core.kv_cache_manager False False"


def test_the_plugin_is_loaded_by_vllm_itself() -> None:
    assert run_python(LOAD, KVBLOCKS="on").endswith("True True")


def test_loading_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "KVCacheManager", scheduler.KVCacheManager)
    monkeypatch.setattr(scheduler.Scheduler, "__init__", scheduler.Scheduler.__init__)
    monkeypatch.delenv("KVBLOCKS", raising=False)
    plugin.register()
    first = scheduler.KVCacheManager
    plugin.register()
    assert scheduler.KVCacheManager is first


def check(*arguments: str, **environment: str) -> tuple[int, Any]:
    command = [
        sys.executable,
        "-c",
        "from kvblocks.cli import main; main()",
        "vllm",
        "check",
        "--json",
        "-",
        *arguments,
    ]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    return run.returncode, json.loads(run.stdout) if run.stdout else run.stderr


def test_check_says_that_kvblocks_would_be_active() -> None:
    code, answer = check()
    assert (code, answer["active"], answer["vllm_version"]) == (0, True, "0.32.0")


def test_check_says_why_not() -> None:
    code, answer = check(KVBLOCKS="off")
    assert (code, answer["active"], answer["reasons"]) == (1, False, ["KVBLOCKS=off"])


@pytest.mark.parametrize(
    "model, arguments, groups",
    [
        ("llama", (), ["full 128"]),
        ("sliding", ("--", "--block-size", "32"), [*["sliding window 32"] * 3, "full 32"]),
        ("states", ("--", "--block-size", "32", "--prefix-match-unit", "8"), ["Mamba 32", "full 32"]),
    ],
)
def test_check_knows_the_groups_of_a_model(model: str, arguments: tuple[str, ...], groups: list[str]) -> None:
    code, answer = check("--model", str(models_folder() / model), *arguments)
    assert (code, answer["groups"]) == (0, groups)


def test_check_takes_vllms_arguments_into_account() -> None:
    code, answer = check("--model", str(models_folder() / "llama"), "--", "--kv-cache-metrics")
    assert code == 1
    assert answer["reasons"] == ["--kv-cache-metrics samples vLLM's own block objects"]


def test_check_refuses_what_is_no_model() -> None:
    code, message = check("--model", "/no/such/model")
    assert code == 2
    assert message.splitlines()[-1].startswith("kvblocks: ")
