"""The plugin's settings: environment variables, since vLLM starts its processes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvblocks.errors import UsageError


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: what it may be, and what it does."""

    name: str
    default: str
    values: str
    meaning: str


SETTINGS = (
    Setting(
        "KVBLOCKS",
        "on",
        "on, off",
        "Whether kvblocks manages the KV cache where it can. With off, vLLM runs as if kvblocks were not installed.",
    ),
    Setting(
        "KVBLOCKS_OBSERVERS",
        "",
        "MODULE:NAME[,MODULE:NAME...]",
        "Observers to attach: each NAME is called without arguments in the engine's process and returns a "
        "kvblocks.manager.Observer. One that raises is logged once and dropped.",
    ),
    Setting(
        "KVBLOCKS_CHECK_STEPS",
        "0",
        "0 or more",
        "Verify every structure each so many scheduler steps and when the engine ends, and raise if one is wrong; "
        "0 is never. A check reads the whole pool: for tests.",
    ),
)


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The settings, read and checked."""

    enabled: bool = True
    observers: tuple[str, ...] = ()
    check_steps: int = 0


def read_settings(environment: Mapping[str, str]) -> PluginSettings:
    """The settings of an environment. Raises UsageError that names the variable and what it may be.

    A variable whose name starts with KVBLOCKS_ and that is not one of these is an error too: it is a typing mistake
    that would go unnoticed.
    """
    known = {setting.name: setting for setting in SETTINGS}
    for name in environment:
        if name.startswith("KVBLOCKS_") and name not in known:
            raise UsageError(f"{name} is not a setting of kvblocks: they are {', '.join(known)}")

    def value(name: str) -> str:
        return environment.get(name, "").strip() or known[name].default

    switch = value("KVBLOCKS").lower()
    if switch not in ("on", "off", "1", "0", "true", "false"):
        raise UsageError(f"KVBLOCKS={switch!r}: set it to on or off")
    observers = tuple(part.strip() for part in value("KVBLOCKS_OBSERVERS").split(",") if part.strip())
    for observer in observers:
        module, _, name = observer.partition(":")
        if not module or not name:
            raise UsageError(f"KVBLOCKS_OBSERVERS: {observer!r} is not MODULE:NAME, such as mypackage.watch:Watcher")
    steps = value("KVBLOCKS_CHECK_STEPS")
    if not steps.isascii() or not steps.isdigit():
        raise UsageError(f"KVBLOCKS_CHECK_STEPS={steps!r}: set it to a number of steps, or to 0 for never")
    return PluginSettings(switch in ("on", "1", "true"), observers, int(steps))
