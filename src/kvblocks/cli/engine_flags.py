"""What several commands take to say on which engine: flags in vLLM's words, a GPU, vLLM's environment variables."""

from __future__ import annotations

import os
import shlex
from typing import Any

import msgspec

from kvblocks.cli.sizes import parse_bytes, parse_pairs
from kvblocks.errors import UsageError
from kvblocks.sizing import EngineFlags
from kvblocks.sizing.devices import Device, device_of_memory, find_device
from kvblocks.sizing.resolve import ENVIRONMENT


def device_of(gpu: str | None, memory: str | None) -> Device | None:
    """The device named by `--gpu` or described by `--memory`; None when neither is given."""
    if gpu is not None and memory is not None:
        raise UsageError("give either --gpu or --memory, not both: the GPU's memory is known")
    if gpu is not None:
        return find_device(gpu)
    return None if memory is None else device_of_memory(parse_bytes(memory, "--memory"))


def environment(given: list[str] | None = None) -> dict[str, str]:
    """vLLM's variables: those of this process, and those given as NAME=VALUE, which go before."""
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    for name, value in parse_pairs(given or [], "--env"):
        if name not in ENVIRONMENT:
            raise UsageError(f"--env {name}: does not change the cache; those that do: {', '.join(ENVIRONMENT)}")
        env[name] = value
    return env


def flag_words(text: str, option: str) -> dict[str, Any]:
    """Flags written as for a command line, as their names and values."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from None
    flags: dict[str, Any] = {}
    at = 0
    while at < len(words):
        name, _, value = words[at].partition("=")
        if not name.startswith("-"):
            raise UsageError(f"{option} {text!r}: {name!r} is no flag; write it as on the command line: -tp 2")
        if not value and at + 1 < len(words) and not words[at + 1].startswith("--"):
            at, value = at + 1, words[at + 1]
        flags[name] = _value(value) if value else True
        at += 1
    return EngineFlags.names_and_values(flags)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
