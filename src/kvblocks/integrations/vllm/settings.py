"""The plugin's settings: environment variables, since vLLM starts its processes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvblocks.errors import UsageError
from kvblocks.live import Address, check_open, parse_address


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
        "KVBLOCKS_HTTP",
        "",
        "ADDRESS:PORT",
        "Serve the live view there, in the engine's process: a page at /, /state, /metrics. With data parallelism "
        "each engine takes the next port. Empty: none.",
    ),
    Setting(
        "KVBLOCKS_HTTP_OPEN",
        "off",
        "on, off",
        "Whether KVBLOCKS_HTTP may be an address that other machines can reach. It asks for no key.",
    ),
    Setting(
        "KVBLOCKS_SHOW_TEXT",
        "off",
        "on, off",
        "Whether the live view shows how prompts and prefixes begin. Salts are never shown.",
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
    http: Address | None = None
    show_text: bool = False


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

    def switch(name: str) -> bool:
        given = value(name).lower()
        if given not in ("on", "off", "1", "0", "true", "false"):
            raise UsageError(f"{name}={given!r}: set it to on or off")
        return given in ("on", "1", "true")

    enabled = switch("KVBLOCKS")
    observers = tuple(part.strip() for part in value("KVBLOCKS_OBSERVERS").split(",") if part.strip())
    for observer in observers:
        module, _, name = observer.partition(":")
        if not module or not name:
            raise UsageError(f"KVBLOCKS_OBSERVERS: {observer!r} is not MODULE:NAME, such as mypackage.watch:Watcher")
    steps = value("KVBLOCKS_CHECK_STEPS")
    if not steps.isascii() or not steps.isdigit():
        raise UsageError(f"KVBLOCKS_CHECK_STEPS={steps!r}: set it to a number of steps, or to 0 for never")
    http = None
    if value("KVBLOCKS_HTTP"):
        http = parse_address(value("KVBLOCKS_HTTP"), "KVBLOCKS_HTTP")
        check_open(http, switch("KVBLOCKS_HTTP_OPEN"), "KVBLOCKS_HTTP", "KVBLOCKS_HTTP_OPEN=on")
    return PluginSettings(enabled, observers, int(steps), http, switch("KVBLOCKS_SHOW_TEXT"))
