"""The lines of a vLLM start-up log that tell of memory, from 0.6 to 0.33, whatever stands before them."""

# A line of a log and what it looks like stand side by side.
# ruff: noqa: E501

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"\((?:VllmWorker(?:Process)?|Worker|EngineCore)[^)]*?(?:rank=|_TP|TP)?(\d+)?[^)]*?pid=(\d+)\)")
NUMBER = r"([-\d][\d,]*(?:\.\d+)?)"


def number(text: str) -> float:
    """A number with or without commas."""
    return float(text.replace(",", ""))


def whole(text: str) -> int:
    """A whole number with or without commas."""
    return int(number(text))


# Name of the fact, what its line looks like, and what its groups are.
LINES: tuple[tuple[str, re.Pattern[str], Callable[..., Any]], ...] = (
    ("version", re.compile(r"(?:vLLM API server version|V1 LLM engine \(v|LLM engine \(v|\bversion) ?v?(\d+\.\d+[\w.+]*)"), str),
    ("model", re.compile(r"LLM engine \([^)]*\) with config: model='([^']+)'"), str),
    ("max_model_len", re.compile(r"Using max model len (\d+)"), whole),
    ("max_num_batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)"), whole),
    ("weights_gib", re.compile(r"(?:Model loading took|Loading model weights took) ([\d.]+) ?Gi?B"), number),
    ("available_gib", re.compile(r"Available KV cache memory: (-?[\d.]+) GiB"), number),
    ("available_gib", re.compile(r"memory reserved for KV Cache is (-?[\d.]+) ?GiB"), number),
    ("total_gib", re.compile(r"total_gpu_memory \(([\d.]+) ?GiB\)"), number),
    ("utilization", re.compile(r"gpu_memory_utilization \(([\d.]+)\)"), number),
    ("activation_gib", re.compile(r"PyTorch activation peak memory takes ([\d.]+) ?GiB"), number),
    ("activation_gib", re.compile(r"([\d.]+) GiB for peak activation"), number),
    ("non_torch_gib", re.compile(r"non_torch_memory takes ([\d.]+) ?GiB"), number),
    ("non_torch_gib", re.compile(r"([\d.]+) GiB for non-torch memory"), number),
    ("graphs_gib", re.compile(r"Graph capturing finished in [\d.]+ secs?, took (-?[\d.]+) GiB"), number),
    ("tokens", re.compile(r"(?:GPU|CPU|XPU|HPU|NPU|TPU)(?: \+ host)? KV cache size: ([\d,]+) tokens"), whole),
    ("concurrency", re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"), lambda n, x: (whole(n), number(x))),
    ("num_blocks", re.compile(r"# (?:GPU|cuda|CPU|cpu) blocks: (\d+), # CPU blocks"), whole),
    ("override", re.compile(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override=(\d+)"), lambda a, b: (whole(a), whole(b))),
    ("block_size", re.compile(r"Setting (?:attention|kv cache) block size to (\d+)"), whole),
    ("padding_percent", re.compile(r"Padding mamba page size by ([\d.]+)%"), number),
    ("padding_layers", re.compile(r"Add (\d+) padding layers, may waste at most ([\d.]+)%"), lambda n, x: (whole(n), number(x))),
    ("auto_fit", re.compile(r"Auto-fit max_model_len: reduced from (\d+) to (\d+)"), lambda a, b: (whole(a), whole(b))),
    (
        "refusal",
        re.compile(
            r"max seq len \((\d+)\), \((-?[\d.]+) GiB KV cache is needed, which is larger than the available KV cache "
            r"memory \((-?[\d.]+) GiB\)(?:.*?estimated maximum model length is (\d+))?"
        ),
        lambda length, need, have, most: (whole(length), number(need), number(have), None if most is None else whole(most)),
    ),
    (
        "refusal_tokens",
        re.compile(r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((\d+)\)"),
        lambda length, tokens: (whole(length), whole(tokens)),
    ),
    ("no_memory", re.compile(r"(No available memory for the cache blocks)"), str),
    (
        "not_free",
        re.compile(r"Free memory on device [^(]*\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory utilization \(([\d.]+), ([\d.]+) GiB\)"),
        lambda free, total, share, asked: (number(free), number(total), number(share), number(asked)),
    ),
)  # fmt: skip

ARGUMENTS = re.compile(r"(?:non-default args: |args: Namespace\()(.*)")
CONFIG = re.compile(r"LLM engine \([^)]*\) with config: (.*)")
STARTS = ("API server version", "non-default args", "LLM engine (v")
"""What an engine prints first."""


def clean(line: bytes | str) -> str:
    """The text of a line: decoded, without colours, unwrapped where a log collector put it in JSON."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    text = _ANSI.sub("", text.rstrip("\r\n"))
    if text.startswith("{"):
        try:
            wrapped = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(wrapped, dict):
            inner = next((wrapped[key] for key in ("log", "message", "msg", "textPayload") if key in wrapped), None)
            if isinstance(inner, str):
                return _ANSI.sub("", inner.rstrip("\r\n"))
    return text


def facts(text: str) -> Iterator[tuple[str, Any]]:
    """Every fact of a line, by name."""
    for name, pattern, convert in LINES:
        for match in pattern.finditer(text):
            try:
                yield name, convert(*match.groups())
            except (ValueError, OverflowError):
                continue


def rank_of(text: str) -> str:
    """The worker that printed the line; "" when it does not say."""
    match = _RANK.search(text)
    return "" if match is None else match[0]


def arguments(text: str) -> dict[str, Any]:
    """The server's arguments that the line lists, under vLLM's names."""
    match = ARGUMENTS.search(text)
    if match is not None and match[1].lstrip().startswith("{"):
        try:
            value = ast.literal_eval(match[1].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return _pairs(match[1].replace("': ", "=").replace("'", ""))
        return value if isinstance(value, dict) else {}
    if match is not None:
        return _pairs(match[1])
    match = CONFIG.search(text)
    return {} if match is None else _pairs(match[1])


_PAIR = re.compile(r"(?<![\w.])([a-z][a-z_0-9]*)=('[^']*'|\"[^\"]*\"|[-\w./]+)")
_RENAMED = {"max_seq_len": "max_model_len"}


def _pairs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _PAIR.findall(text):
        plain = value.strip("'\"")
        if plain in ("None", ""):
            continue
        if plain in ("True", "False"):
            found.setdefault(_RENAMED.get(name, name), plain == "True")
        elif re.fullmatch(r"-?\d+", plain):
            found.setdefault(_RENAMED.get(name, name), int(plain))
        elif re.fullmatch(r"-?\d+\.\d+", plain):
            found.setdefault(_RENAMED.get(name, name), float(plain))
        else:
            found.setdefault(_RENAMED.get(name, name), plain.removeprefix("torch."))
    return found
