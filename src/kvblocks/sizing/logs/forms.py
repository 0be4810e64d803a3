"""The forms of the lines that vLLM prints while it starts (0.8 to 0.33), one pattern each.

A pattern holds only the words that must match; the numbers are named groups. Each form is looked for where its
`fragment` occurs, so that the long tail of a serving log costs a few searches for a word per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_WHOLE = r"\d[\d,]{0,24}"
_GIB = r"-?\d{1,9}(?:\.\d{1,9})?"


@dataclass(frozen=True, slots=True)
class Form:
    """One line's form. `name` says what it states; a name may have several forms."""

    name: str
    fragment: str
    pattern: re.Pattern[str]


def _form(name: str, fragment: str, pattern: str) -> Form:
    """A form; `%N` stands for a whole number (with commas or not), `%G` for a size in GiB."""
    return Form(name, fragment, re.compile(pattern.replace("%N", _WHOLE).replace("%G", _GIB)))


FORMS = (
    # Who starts, and with what.
    _form(
        "version",
        "server version",
        r"vLLM (?:API )?server version (?P<version>[\w.+-]+)(?:, serving model (?P<model>\S+))?",
    ),
    _form("version", " version ", r"[▀▄█]\s+version (?P<version>[\w.+-]+)"),
    _form("banner-model", " model ", r"[▀▄█]\s+model\s+(?P<model>\S+)"),
    _form("arguments", "non-default args: ", r"non-default args: (?P<mapping>\{.*)"),
    _form("arguments", "args: Namespace(", r"args: Namespace\((?P<keywords>.*)"),
    _form(
        "engine",
        "LLM engine (v",
        r"Initializing an? (?:(?P<engine>V[01]) )?LLM engine \(v(?P<version>[^)\s]{1,80})\) with config: "
        r"(?P<keywords>.*)",
    ),
    _form("architecture", "Resolved architecture", r"Resolved architecture: (?P<architecture>\w+)"),
    _form("max-model-len", "Using max model len", r"Using max model len (?P<tokens>%N)"),
    _form(
        "batched-tokens",
        "max_num_batched_tokens=",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<tokens>%N)",
    ),
    # Blocks and pages.
    _form(
        "block-size",
        "Setting attention block size",
        r"Setting attention block size to (?P<tokens>%N) tokens(?: to ensure that attention page size is >= mamba)?",
    ),
    _form(
        "block-size",
        "Setting kv cache block size",
        r"Setting kv cache block size to (?P<tokens>%N)(?: tokens)? for",
    ),
    _form(
        "mamba-padding", "Padding mamba page size", r"Padding mamba page size by (?P<percent>\d{1,9}(?:\.\d{1,9})?)%"
    ),
    _form(
        "layer-padding",
        "padding layers",
        r"Add (?P<layers>%N) padding layers, may waste at most (?P<percent>\d{1,9}(?:\.\d{1,9})?)%",
    ),
    _form(
        "override",
        "num_gpu_blocks_override=",
        r"Overriding num_gpu_blocks=(?P<profiled>%N) with num_gpu_blocks_override=(?P<blocks>%N)",
    ),
    _form("context-parallel", "KV cache size by the", r"KV cache size by the (?:cp|dcp|pcp)_world_size (?P<ranks>%N)"),
    # Memory terms.
    _form("weights", "Model loading took", r"Model loading took (?P<weights>%G) ?(?P<unit>[GM]i?B)"),
    _form("weights", "Loading model weights took", r"Loading model weights took (?P<weights>%G) ?(?P<unit>[GM]i?B)"),
    _form(
        "budget",
        "total_gpu_memory",
        r"total_gpu_memory \((?P<total>%G)GiB\) x gpu_memory_utilization \((?P<utilization>%G)\) = (?P<budget>%G)GiB",
    ),
    _form(
        "terms",
        "reserved for KV Cache is",
        r"model weights take (?P<weights>%G)GiB; non_torch_memory takes (?P<non_torch>%G)GiB; "
        r"PyTorch activation peak memory takes (?P<activation>%G)GiB; "
        r"the rest of the memory reserved for KV Cache is (?P<available>%G)GiB",
    ),
    _form("available", "Available KV cache memory", r"Available KV cache memory: (?P<available>%G) ?(?P<unit>[GM]i?B)"),
    _form(
        "reserved",
        "Initial free memory",
        r"Initial free memory (?P<free>%G) GiB, reserved (?P<reserved>%G) ?GiB memory",
    ),
    _form(
        "graphs-estimated", "Estimated CUDA graph memory", r"Estimated CUDA graph memory: (?P<graphs_estimated>%G) GiB"
    ),
    _form("graphs", "Graph capturing finished", r"Graph capturing finished in %G secs?, took (?P<graphs>%G) GiB"),
    _form(
        "utilization",
        "current --gpu-memory-utilization",
        r"current --gpu-memory-utilization=(?P<utilization>%G) is equivalent",
    ),
    _form(
        "usage",
        "Desired GPU memory utilization is",
        r"Free memory on device (?:\S+ )?\((?P<free>%G)/(?P<total>%G) GiB\) on startup\. "
        r"Desired GPU memory utilization is \((?P<utilization>%G), (?P<budget>%G) GiB\)\. "
        r"Actual usage(?: is|:) (?P<terms>.*)",
    ),
    _form(
        "available",
        "GiB for KV cache on node",
        r"Auto set \((?P<available>%G)/(?P<total>%G)\) GiB for KV cache on node",
    ),
    _form(
        "reserved",
        "GiB for KV cache on node",
        r"Explicitly set \((?P<reserved>%G)/(?P<total>%G)\) GiB for KV cache on node",
    ),
    # The answer.
    _form(
        "blocks", "blocks: ", r"(?:^|[\s#])(?P<device>[A-Za-z]{2,8}) blocks: (?P<blocks>%N)(?:, # CPU blocks: %N)?\s*$"
    ),
    _form("tokens", "KV cache size: ", r"(?P<device>[A-Z]{2,8})(?: \+ host)? KV cache size: (?P<tokens>%N) tokens"),
    _form(
        "concurrency",
        "Maximum concurrency for",
        r"Maximum concurrency for (?P<length>%N) tokens per request: (?P<concurrency>\d{1,12}(?:\.\d{1,6})?)x",
    ),
    _form(
        "auto-fit",
        "Auto-fit max_model_len: reduced",
        r"Auto-fit max_model_len: reduced from (?P<before>%N) to (?P<after>%N)(?:[^(]{0,80}\((?P<available>%G) GiB)?",
    ),
    _form(
        "auto-fit",
        "Auto-fit max_model_len: full",
        r"full model context length (?P<before>%N) fits(?:[^(]{0,80}\((?P<available>%G) GiB)?",
    ),
    # Refusals and errors.
    _form(
        "refusal-length",
        "KV cache is needed",
        r"max seq len \((?P<length>%N)\),? \(?(?P<needed>%G) Gi?B KV cache is needed, which is larger than the "
        r"available KV cache memory \((?P<available>%G) Gi?B\)"
        r"(?:.{0,200}?estimated maximum model length is (?P<estimated>%N))?",
    ),
    _form(
        "refusal-length-in-tokens",
        "that can be stored in KV cache",
        r"max seq len \((?P<length>%N)\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((?P<capacity>%N)\)",
    ),
    _form("refusal-no-memory", "No available memory for the cache", r"Error: No available memory for the cache blocks"),
    _form("refusal-auto-fit", "Cannot auto-fit", r"Error: Cannot auto-fit max_model_len"),
    _form(
        "refusal-free-memory",
        "is less than desired GPU memory",
        r"Free memory on device (?:\S+ )?\((?P<available>%G)/(?P<total>%G) GiB\) on startup is less than desired GPU "
        r"memory utilization \((?P<utilization>%G), (?P<needed>%G) GiB\)",
    ),
    _form(
        "refusal-free-memory",
        "is less than requested memory for kv",
        r"Available memory on node \d{1,4} \((?P<available>%G)/(?P<total>%G) GiB\).{0,80}requested memory for kv "
        r"\((?P<needed>%G)",
    ),
    _form(
        "refusal-mamba-blocks",
        "Mamba cache blocks",
        r"max_num_seqs \((?P<seqs>%N)\) exceeds available Mamba cache blocks \((?P<capacity>%N)\)",
    ),
    _form("error", "Error: ", r"(?P<kind>(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}Error): (?P<message>\S.{0,400})"),
    # The end of a start.
    _form(
        "ready", "init engine (profile", r"init engine \(profile, create kv cache, warmup model\) took (?P<seconds>%G)"
    ),
    _form("ready", "Application startup complete", r"Application startup complete"),
)

LOOKED_FOR = (
    "vLLM API server version",
    "Initializing a V1 LLM engine",
    "Model loading took",
    "Available KV cache memory",
    "GPU KV cache size",
    "Maximum concurrency for",
    "# GPU blocks",
)
"""Words of the lines that matter most, for the message about a file that has none."""

_USAGE_TERM = re.compile(
    rf"(?P<size>{_GIB}) GiB\s+for\s+(?P<what>weight|consumed|peak activation|non-torch|\w+ ?graph)", re.I
)
_FRAGMENTS = tuple(dict.fromkeys(form.fragment for form in FORMS))
_REFUSAL_BEGINS = "To serve at least one request"


@dataclass(frozen=True, slots=True)
class Match:
    """A form that a piece of text has: its named groups that are there, and where it begins."""

    name: str
    groups: dict[str, str]
    text: str
    begin: int


def matches_of(text: str) -> Iterator[Match]:
    """The forms found in one piece of text, in the order of the table."""
    if not any(fragment in text for fragment in _FRAGMENTS):
        return
    for form in FORMS:
        if form.fragment in text and (found := form.pattern.search(text)):
            groups = {name: value for name, value in found.groupdict().items() if value is not None}
            yield Match(form.name, groups, found[0], found.start())


def usage_terms(text: str) -> dict[str, str]:
    """The sizes of `15.27 GiB for weight, 1.2 GiB for peak activation, ...` by the names of `Rank`'s fields."""
    names = {"weight": "weights", "consumed": "consumed", "peak activation": "activation", "non-torch": "non_torch"}
    return {names.get(m["what"].lower(), "graphs"): m["size"] for m in _USAGE_TERM.finditer(text[:2000])}


def is_unfinished_refusal(text: str) -> bool:
    """Whether a refusal begins here and its numbers must be on the next lines: terminals wrap long lines."""
    return _REFUSAL_BEGINS in text and all(match.name != "refusal-length" for match in matches_of(text))


@lru_cache(maxsize=1024)
def whole(text: str) -> int:
    """A whole number, with or without commas between the thousands."""
    return int(text.replace(",", ""))
