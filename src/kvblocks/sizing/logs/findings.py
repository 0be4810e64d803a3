"""A finding: one sentence or two about a log, with the numbers it used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kvblocks.sizing.flags import GIB
from kvblocks.sizing.logs.facts import Gib

Verdict = Literal["says", "agrees", "disagrees", "suspect", "unknown"]
"""`says`: what a line means. `agrees`, `disagrees`: two figures do or do not fit. `suspect`: they fit, yet what they
say together will not work, or is a known fault of the engine. `unknown`: there was nothing to compare with."""


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A fault of vLLM that shows in its start-up log. `since` and `fixed` are versions, as far as known."""

    name: str
    what: str
    since: str
    fixed: str
    source: str

    def __str__(self) -> str:
        return f"{self.what} ({self.source}; since {self.since}, {self.fixed})"


@dataclass(frozen=True, slots=True)
class Finding:
    """What can be said about `topic`. `lines` are those of the log that it used; names in `numbers` end in units."""

    topic: str
    verdict: Verdict
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[int, ...] = ()
    bug: KnownBug | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}" + (f" Known: {self.bug}." if self.bug else "")

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON would have it."""
        return {**asdict(self), "numbers": dict(self.numbers), "lines": list(self.lines)}


OVERRIDE_IGNORED = KnownBug(
    "override-ignored",
    "num_gpu_blocks_override was logged but the cache was built with the measured number of blocks",
    "0.8",
    "fixed in 0.9.2",
    "vLLM pull request 19503",
)
OVERRIDE_UNCHECKED = KnownBug(
    "override-unchecked",
    "the check that one request of max_model_len fits did not look at num_gpu_blocks_override, so the engine starts "
    "and a long request waits for ever",
    "0.8",
    "fixed in 0.21",
    "vLLM issue 27181, pull request 41069",
)
NULL_BLOCK_UNCHECKED = KnownBug(
    "null-block-unchecked",
    "the check that one request of max_model_len fits counted the null block as usable, so the engine starts and a "
    "request of full length waits for ever",
    "0.8",
    "fixed by 0.32",
    "vLLM pull requests 47272 and 48724",
)
STAGES_UNCHECKED = KnownBug(
    "pipeline-stages",
    "the layers of all pipeline stages were checked against the memory of one stage",
    "0.14",
    "fixed in 0.16",
    "vLLM issues 32105 and 34076, pull request 33698",
)
OLD_TOKENS = KnownBug(
    "tokens-of-hybrids",
    "before 0.21 the tokens of a model with several cache groups were (blocks // groups) x block size, as if every "
    "group took the same share of the blocks",
    "0.9",
    "changed in 0.21 to concurrency x length",
    "vLLM issue 40691, pull request 38364",
)
CROSS_ATTENTION = KnownBug(
    "cross-attention",
    "an encoder-decoder request is charged max_num_batched_tokens of cross attention and not its encoder's length",
    "0.12",
    "still so in 0.32",
    "vLLM pull requests 29421 and 30772",
)
GRAPH_ESTIMATE = KnownBug(
    "graph-estimate",
    "the estimate of CUDA graphs, which is taken from the cache since 0.21, can be several times what they take; "
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 turns it off",
    "0.21",
    "still so in 0.32",
    "vLLM issues 45178, 50780 and 53013",
)


def tokens_text(count: float) -> str:
    """`471,232 tokens`."""
    return f"{count:,.0f} token{'' if count == 1 else 's'}"


def bytes_text(num_bytes: float) -> str:
    """`35.57 GiB`, `2.5 MiB`, `147,456 bytes`: the unit that people use for such a size."""
    if abs(num_bytes) >= GIB / 2:
        return f"{num_bytes / GIB:,.2f} GiB"
    if abs(num_bytes) >= 1 << 20:
        return f"{num_bytes / (1 << 20):,.2f} MiB"
    return f"{num_bytes:,.0f} bytes"


def gib_text(size: Gib) -> str:
    """`35.57 GiB`, as the log prints it."""
    return f"{size.gib:.2f} GiB" if size.half >= 0.004 else f"{size.gib:.4f} GiB"
