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
from kvblocks.sizing.logs import Finding, StartupLog, check, compare_with_plan, explain, read_log
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.result import Plan
from kvblocks.sizing.setting import Setting


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
    findings = [*explain(log), *check(log)]
    given = {**_stated(log), **(flags or {})}
    config, words = _model(model, log)
    plan: Plan | None = None
    memory = available_bytes
    if memory is None and given.get("kv_cache_memory_bytes") is None:
        memory = _memory_of(log)
    known = memory is not None or device is not None or given.get("kv_cache_memory_bytes") is not None
    if config is not None and known:
        plan = Setting(
            config=config,
            flags=EngineFlags.from_mapping(given),
            env=env or {},
            device=device,
            available_bytes=memory,
            folders=(Path(),),
        ).plan()
        findings += _compare(log, plan, from_the_log=available_bytes is None and memory is not None)
    elif config is not None:
        words = f"{words}; the log does not say how much memory there was, give --available or --gpu"
    return CheckedLog(log=log, findings=tuple(findings), plan=plan, model=words, flags=given)


def _compare(log: StartupLog, plan: Plan, *, from_the_log: bool) -> list[Finding]:
    """The log beside the plan; its memory is left out where the plan has it from there."""
    if plan.status == "refused":
        return [Finding("plan", "unknown", f"No plan to compare with: {plan.error}")]
    found = [finding for finding in compare_with_plan(log, plan) if not (from_the_log and finding.topic == "available")]
    if not plan.ok and log.status == "ready":
        found.append(
            Finding("plan", "disagrees", f"The log's engine started; by the plan it does not fit: {plan.error}")
        )
    return found or [Finding("plan", "unknown", "The log states nothing that the plan has.")]


def _memory_of(log: StartupLog) -> int | None:
    """Bytes for the cache, as the log states them: of the worker with the least, or of the refusal."""
    sizes = [log.available.value] if log.available else []
    sizes += [fact.value.available for fact in log.refusals if fact.value.kind == "length" and fact.value.available]
    return int(sizes[0].gib * GIB) if sizes and sizes[0].gib > 0 else None


def _stated(log: StartupLog) -> dict[str, Any]:
    """The flags that the log states, with the length that the engine came to."""
    found = {name: getattr(log.flags, name) for name in sorted(log.stated)}
    if log.max_model_len is not None:
        found["max_model_len"] = log.max_model_len.value
    return found


def _model(name: str | None, log: StartupLog) -> tuple[ModelConfig | None, str]:
    """The config to compare with, and its name; or none, and why."""
    if name is not None:
        return find_model(name), name
    if log.model is None:
        return None, "no model: the log does not name it; give it before --from-log"
    told = log.model.value
    try:
        return find_model(told), told
    except UsageError:
        return None, f"no model: {told} is neither here nor in the catalogue; give its config.json before --from-log"
