"""A start-up log with the plan of the same model and flags beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.catalogue import find_model
from kvblocks.sizing.devices import Device
from kvblocks.sizing.flags import GIB, EngineFlags
from kvblocks.sizing.logs import Finding, StartupLog, compare_with_plan, explain, read_log
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.result import Plan
from kvblocks.sizing.setting import Setting

ROUNDING = GIB // 200
"""Half of the last decimal of a size in GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLog:
    """What a log says, what of it adds up, and the plan that it was compared with."""

    log: StartupLog
    findings: tuple[Finding, ...]
    plan: Plan | None
    model: str
    """The model of the plan, or why there is none."""
    flags: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON would have it."""
        return {
            "log": self.log.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "model": self.model,
            "flags": dict(self.flags),
            "plan": None if self.plan is None else self.plan.to_dict(),
        }


def read_and_check(
    lines: Iterable[bytes | str],
    path: str,
    model: str | None = None,
    flags: Mapping[str, Any] | None = None,
    device: Device | None = None,
    available_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
) -> CheckedLog:
    """Read a log and compare it with a plan.

    model: the model, where the log does not name one that is at hand. flags: flags that the log does not show; they
    go before those that it does. device, available_bytes: as for a plan; the log's own memory goes before a device.

    Raises UsageError when the lines are of no vLLM start-up.
    """
    log = read_log(lines, path)
    findings = explain(log)
    given = _known_flags({**log.arguments, **_from_facts(log), **(flags or {})})
    config, words = _model(model, log)
    plan: Plan | None = None
    memory = available_bytes
    if memory is None and log.available_gib is not None:
        memory = int(log.available_gib * GIB)
    refusal = log.get("refusal")
    if memory is None and refusal is not None:
        memory = int(refusal[2] * GIB)
    if config is not None and (memory is not None or device is not None):
        setting = Setting(
            config=config,
            flags=EngineFlags.from_mapping(given),
            env=env or {},
            device=device,
            available_bytes=memory,
            folders=(Path(),),
        )
        plan = setting.plan()
        bounds = [plan, plan]
        if memory is not None:
            spread = 0 if available_bytes is not None else ROUNDING
            bounds = [_with_memory(setting, memory + off) for off in (-spread, spread)]
        findings += compare_with_plan(log, *bounds)
    elif config is not None:
        words = f"{words}; the log does not say how much memory there was, give --available or --gpu"
    return CheckedLog(log=log, findings=tuple(findings), plan=plan, model=words, flags=given)


def _with_memory(setting: Setting, memory: int) -> Plan:
    return Setting(
        config=setting.config, flags=setting.flags, env=setting.env, available_bytes=memory, folders=setting.folders
    ).plan()


def _model(name: str | None, log: StartupLog) -> tuple[ModelConfig | None, str]:
    """The config to compare with, and its name; or none, and why."""
    if name is not None:
        return find_model(name), name
    told = log.arguments.get("model") or log.get("model") or log.arguments.get("model_tag")
    if not told:
        return None, "no model: the log does not name it; give it before --from-log"
    try:
        return find_model(str(told)), str(told)
    except UsageError:
        return None, f"no model: {told} is neither here nor in the catalogue; give its config.json before --from-log"


def _from_facts(log: StartupLog) -> dict[str, Any]:
    """Flags that other lines tell."""
    found: dict[str, Any] = {}
    said, refusal = log.get("concurrency"), log.get("refusal")
    if said is not None:
        found["max_model_len"] = said[0]
    elif refusal is not None:
        found["max_model_len"] = refusal[0]
    batched = log.get("max_num_batched_tokens")
    if batched is not None:
        found["max_num_batched_tokens"] = batched
    override = log.get("override")
    if override is not None:
        found["num_gpu_blocks_override"] = override[1]
    return found


def _known_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a plan knows and can use."""
    known = EngineFlags.__dataclass_fields__
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known or value is None:
            continue
        try:
            EngineFlags.from_mapping({name: value})
        except UsageError:
            continue
        found[name] = value
    return found
