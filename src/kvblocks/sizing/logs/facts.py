"""What a start-up log says: typed facts, each with the line that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, Literal, TypeVar

from kvblocks.sizing.flags import GIB, EngineFlags

T = TypeVar("T")
Status = Literal["ready", "refused", "failed", "unfinished"]
"""How a start ended: with a cache, with a refusal of the cache, with another error, or before any of them."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """One value of the log. `line` counts from 1; `text` is the matched words; `process` is "" where none is named."""

    value: T
    line: int
    text: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class Gib:
    """A size in GiB as printed. The true size lies within `half` GiB of it: half a unit of the last printed digit.

    vLLM rounds to two digits and then drops zeros (`24.0`), so fewer than two printed digits do not mean less known.
    """

    gib: float
    half: float = 0.005

    @property
    def low_bytes(self) -> float:
        """The fewest bytes that are printed like this."""
        return (self.gib - self.half) * GIB

    @property
    def high_bytes(self) -> float:
        """The most bytes that are printed like this."""
        return (self.gib + self.half) * GIB

    def contains(self, num_bytes: float) -> bool:
        """Whether so many bytes are printed like this (both ends included: engines round halves both ways)."""
        return self.low_bytes - 1 <= num_bytes <= self.high_bytes + 1

    def __str__(self) -> str:
        return f"{self.gib:g} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Memory terms of one worker process, as far as its lines state them.

    `weights` is what loading took; `consumed` is weights and everything else that stays (newer versions give only
    the sum). `budget` is `total` x `utilization`. `reserved` is a cache size that was given and not measured.
    """

    name: str
    total: Fact[Gib] | None = None
    free: Fact[Gib] | None = None
    utilization: Fact[float] | None = None
    budget: Fact[Gib] | None = None
    weights: Fact[Gib] | None = None
    consumed: Fact[Gib] | None = None
    non_torch: Fact[Gib] | None = None
    activation: Fact[Gib] | None = None
    graphs_estimated: Fact[Gib] | None = None
    graphs: Fact[Gib] | None = None
    available: Fact[Gib] | None = None
    reserved: Fact[Gib] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """The lines that state the cache of one engine: tokens, or blocks in older engines, and the concurrency.

    `length` is the tokens per request for which `concurrency` holds. `concurrency` is printed with two decimals.
    """

    device: str = "GPU"
    tokens: Fact[int] | None = None
    num_blocks: Fact[int] | None = None
    concurrency: Fact[float] | None = None
    length: Fact[int] | None = None

    @property
    def process(self) -> str:
        """The process that printed it."""
        fact = self.tokens or self.num_blocks or self.concurrency
        return fact.process if fact else ""

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines of its facts, in order and without repeats."""
        return lines_of(self.tokens, self.num_blocks, self.concurrency)


@dataclass(frozen=True, slots=True)
class Override:
    """`num_gpu_blocks_override` took the place of the number of blocks that memory allows (`profiled`)."""

    profiled: int
    blocks: int


@dataclass(frozen=True, slots=True)
class LayerPadding:
    """Layers that do not exist, added so that all groups have the same number; `percent` of memory at most."""

    layers: int
    percent: float


@dataclass(frozen=True, slots=True)
class AutoFit:
    """`--max-model-len auto`: from the model's length to the one that fits `available`."""

    before: int
    after: int
    available: Gib | None = None


RefusalKind = Literal["length", "length-in-tokens", "no-memory", "free-memory", "auto-fit", "mamba-blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the engine did not start.

    - `length`: one request of `max_model_len` tokens needs `needed`, there is `available`; `estimated` tokens fit.
    - `length-in-tokens`: the same of older engines; the cache holds `capacity` tokens.
    - `no-memory`: nothing is left for the cache. `auto-fit`: not even one token fits.
    - `free-memory`: `available` of `total` is free on the device, `needed` (`utilization` of it) was asked for.
    - `mamba-blocks`: `max_num_seqs` states are wanted and there are `capacity` blocks.
    """

    kind: RefusalKind
    max_model_len: int | None = None
    needed: Gib | None = None
    available: Gib | None = None
    estimated: int | None = None
    capacity: int | None = None
    total: Gib | None = None
    utilization: float | None = None
    max_num_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an engine in the file, by its lines (from 1, both ends included)."""

    number: int
    first_line: int
    last_line: int
    status: Status
    version: str | None
    model: str | None

    def __str__(self) -> str:
        what = f" of {self.model}" if self.model else ""
        by = f" by vLLM {self.version}" if self.version else ""
        return f"start {self.number} (lines {self.first_line}-{self.last_line}){what}{by}: {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupLog:
    """One start of vLLM, read from its log. A None or an empty tuple means that the log does not say.

    `starts` are all starts of the file; `start` is the one that was read: the last with a cache size or a refusal.
    `flags` are the engine's arguments as far as they are stated, with vLLM's defaults for the rest; `stated` names
    those that are, `not_understood` gives arguments that could not be taken over, with the reason.
    """

    source: str
    lines_read: int
    start: Start
    starts: tuple[Start, ...]
    version: Fact[str] | None = None
    engine: str | None = None
    model: Fact[str] | None = None
    architecture: Fact[str] | None = None
    arguments: Fact[Mapping[str, Any]] | None = None
    config: Fact[Mapping[str, Any]] | None = None
    flags: EngineFlags = field(default_factory=EngineFlags)
    stated: frozenset[str] = frozenset()
    not_understood: Mapping[str, str] = field(default_factory=dict)
    max_model_len: Fact[int] | None = None
    ranks: tuple[Rank, ...] = ()
    caches: tuple[CacheSize, ...] = ()
    block_sizes: tuple[Fact[int], ...] = ()
    mamba_padding: Fact[float] | None = None
    layer_padding: tuple[Fact[LayerPadding], ...] = ()
    override: Fact[Override] | None = None
    context_parallel: Fact[int] | None = None
    auto_fit: Fact[AutoFit] | None = None
    refusals: tuple[Fact[Refusal], ...] = ()
    errors: tuple[Fact[str], ...] = ()
    ready: Fact[float | None] | None = None
    """The line that says that start-up is over, with its seconds where it has them."""

    @property
    def status(self) -> Status:
        """How this start ended."""
        return self.start.status

    @property
    def other_starts(self) -> tuple[Start, ...]:
        """The starts of the file that were not read."""
        return tuple(start for start in self.starts if start.number != self.start.number)

    @property
    def cache(self) -> CacheSize | None:
        """The smallest cache that is stated: the one that counts where ranks print their own."""
        sized = [cache for cache in self.caches if cache.tokens or cache.num_blocks]
        if not sized:
            return self.caches[0] if self.caches else None
        return min(sized, key=lambda cache: (cache.tokens or cache.num_blocks or _NO_FACT).value)

    @property
    def available(self) -> Fact[Gib] | None:
        """The smallest memory for the cache that a rank prints (measured, or given): the one that counts."""
        facts = [fact for rank in self.ranks if (fact := rank.reserved or rank.available)]
        return min(facts, key=lambda fact: fact.value.gib) if facts else None

    @property
    def block_size(self) -> int | None:
        """Tokens of a block: what the engine set it to last, else the argument, else None (16 on most GPUs)."""
        if self.block_sizes:
            return self.block_sizes[-1].value
        return self.flags.block_size

    def to_dict(self) -> dict[str, Any]:
        """The facts as JSON would have it; what the log does not say is left out."""
        return {name: value for name, value in _plain(self).items() if value not in (None, [], {})}

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor version; None when the log does not say or the build has no number."""
        return release_of(self.version.value) if self.version else None


def release_of(version: str) -> tuple[int, int] | None:
    """`(0, 11)` of `0.11.2rc1.dev3+g1234`; None when it is no number, or that of a build from source (`0.1.dev`)."""
    parts = version.lstrip("v").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()) or len(parts[0] + parts[1]) > 8:
        return None
    found = (int(parts[0]), int(parts[1]))
    return None if found == (0, 1) else found


def lines_of(*facts: Fact[Any] | None) -> tuple[int, ...]:
    """The lines of the facts that are there, in order and without repeats."""
    return tuple(sorted({fact.line for fact in facts if fact is not None}))


def _plain(value: Any) -> Any:
    """Data of lists, mappings and plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


_NO_FACT: Fact[int] = Fact(0, 0, "")
