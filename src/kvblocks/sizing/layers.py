"""What the layers of a model keep, as its config says it; with an engine's settings, the specs of their caches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from kvblocks.errors import UsageError
from kvblocks.kinds import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.formats import PACKED_LATENT_BYTES, element_bytes, kernel_block, packed_bytes


class Cache(Protocol):
    """Something that a layer keeps."""

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        """What it takes with these settings. `layer` is its number, None for draft layers."""


def heads_per_rank(num_kv_heads: int, tp: int) -> int:
    """KV heads of one tensor-parallel rank: divided among them, or the same head on several."""
    if max(num_kv_heads, tp) % min(num_kv_heads, tp):
        raise UsageError(
            f"tensor_parallel_size={tp} does not go into {num_kv_heads} KV heads, nor they into it; use "
            f"{_nearest_divisor(num_kv_heads, tp)}"
        )
    return max(1, num_kv_heads // tp)


def divided(what: str, number: int, tp: int) -> int:
    """A rank's share of a number. Raises UsageError when there is a rest."""
    if number % tp:
        raise UsageError(
            f"tensor_parallel_size={tp} does not divide {what} ({number}); use {_nearest_divisor(number, tp)}"
        )
    return number // tp


def _nearest_divisor(number: int, wanted: int) -> int:
    return max((n for n in range(1, wanted + 1) if number % n == 0), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values of `num_kv_heads` heads in all; of the last `window` tokens, or of a `chunk`, if given."""

    num_kv_heads: int
    head_size: int
    head_size_v: int | None = None
    window: int | None = None
    chunk: int | None = None
    own_dtype: bool = False
    """Whether the layer keeps the model's dtype whatever the cache's format, as vLLM's code for a few families does."""
    kernel_block_size: int | None = None

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        cache_format = "auto" if self.own_dtype else engine.cache_format(layer, windowed=self.window is not None)
        values = self.head_size if self.head_size_v is None else self.head_size_v
        own = engine.dtype if cache_format == "auto" else cache_format
        full = FullAttentionSpec(
            block_size=engine.block_size,
            format=own,
            num_kv_heads=heads_per_rank(self.num_kv_heads, engine.tp),
            head_size=self.head_size,
            head_size_v=values,
            dtype_bytes=element_bytes(own),
            state_bytes=packed_bytes(cache_format, self.head_size, values),
            kernel_block_size=kernel_block(cache_format) or self.kernel_block_size,
            dcp_sharded=True,
        )
        shared = {name: getattr(full, name) for name in _SHARED}
        if self.window is not None:
            shared["page_size_padded"] = engine.skip_page_bytes
            shared["block_size"] = self._window_block(engine, full)
            return SlidingWindowSpec(**shared, sliding_window=self.window)
        if self.chunk is not None:
            return ChunkedLocalSpec(**shared, attention_chunk_size=self.chunk)
        return full

    def _window_block(self, engine: Engine, full: FullAttentionSpec) -> int:
        """Windows take the largest block that the kernels can run unsplit and that fits the page of the others."""
        one_token = full.content_size_bytes // full.block_size
        budget = engine.skip_page_bytes or one_token * engine.block_size
        smallest = engine.window_kernel_block(self.head_size, full.format)
        if engine.window_kernel_block_is_fixed(self.head_size, full.format):
            return smallest
        return max(smallest, budget // one_token // smallest * smallest)


_SHARED = (
    "block_size format page_size_padded kernel_block_size dcp_sharded num_kv_heads head_size head_size_v dtype_bytes "
    "state_bytes"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: one vector of `head_size` numbers per token, the same on every rank.

    Sparse attention reads whole rows of it, so its blocks are whole rows apart.
    """

    head_size: int
    sparse: bool = False
    window: int | None = None

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        cache_format = engine.cache_format(layer)
        if self.sparse and cache_format.startswith("fp8"):
            cache_format = "fp8_ds_mla"
        own = engine.dtype if cache_format == "auto" else cache_format
        packed = PACKED_LATENT_BYTES.get(cache_format)
        row = packed or self.head_size * element_bytes(own)
        shared = {
            "block_size": engine.block_size,
            "format": own,
            "head_size": self.head_size,
            "dtype_bytes": element_bytes(own),
            "state_bytes": packed,
            "stride_alignment": row if self.sparse else 1,
            "dcp_sharded": True,
        }
        if self.window is not None:
            return SlidingWindowMLASpec(**shared, sliding_window=self.window, head_size_v=0)  # type: ignore[arg-type]
        return MLASpec(**shared)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Keys by which sparse attention finds the tokens that matter: one vector per token."""

    head_size: int
    scaled_bytes: bool = True
    """A byte per number and a float32 scale for 128 of them; otherwise two bytes per number, whatever the dtype."""
    kernel_block_size: int = 64
    tokens_per_state: int = 1

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        size = self.head_size + self.head_size // 128 * 4 if self.scaled_bytes else self.head_size
        return MLASpec(
            block_size=engine.block_size,
            format="indexer uint8" if self.scaled_bytes else "indexer bfloat16",
            head_size=size,
            dtype_bytes=1 if self.scaled_bytes else 2,
            tokens_per_state=self.tokens_per_state,
            kernel_block_size=self.kernel_block_size,
            dcp_sharded=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Keys and values of the encoder's tokens."""

    num_kv_heads: int
    head_size: int

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        cache_format = engine.cache_format(layer)
        own = engine.dtype if cache_format == "auto" else cache_format
        return CrossAttentionSpec(
            block_size=engine.block_size,
            format=own,
            num_kv_heads=heads_per_rank(self.num_kv_heads, engine.tp),
            head_size=self.head_size,
            dtype_bytes=element_bytes(own),
            state_bytes=packed_bytes(cache_format, self.head_size, self.head_size),
            dcp_sharded=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A state per request: the shapes of its parts for some number of ranks, and their dtypes.

    `convolution` is (positions, channels): the last inputs of a short convolution, those of drafts too where
    `drafts_in_convolution`. `recurrent` is the shape of the sum over all tokens, its first axis divided among ranks.
    `recurrent_dtype` is that of the recurrent part where the flags do not say another; None takes the convolution's.
    """

    kind: Literal["mamba1", "mamba2", "gdn", "kda", "short_conv", "linear"]
    convolution: tuple[int, int] | None = None
    groups: tuple[int, int] | None = None
    """Mamba2: groups of heads that share inputs, and the numbers of each; both inputs pass through the convolution."""
    recurrent: tuple[int, ...] | None = None
    recurrent_dtype: str | None = None
    drafts_in_convolution: bool = True
    saves_in_prefill: bool = False

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        align = engine.mamba_cache_mode == "align"
        return MambaSpec(
            block_size=engine.mamba_block_size,
            format=f"{self.kind} {' + '.join(f'{shape} {dtype}' for shape, dtype in self.parts(engine))}",
            state_bytes=self.bytes(engine),
            page_size_padded=engine.state_page_bytes,
            cache_mode="align" if align else "none",
            num_speculative_blocks=engine.num_speculative_tokens,
            num_prefill_checkpoint_blocks=int(self.saves_in_prefill),
        )

    def parts(self, engine: Engine) -> Iterator[tuple[tuple[int, ...], str]]:
        """Shape and dtype of each part, of one rank."""
        dtype = engine.dtype if engine.flags.mamba_cache_dtype == "auto" else engine.flags.mamba_cache_dtype
        if self.convolution is not None:
            positions, channels = self.convolution
            if self.drafts_in_convolution:
                positions += engine.num_speculative_tokens
            if self.groups is not None:
                groups, size = self.groups
                # Groups that do not divide among the ranks are copied until they do.
                channels += 2 * size * (groups if groups % engine.tp == 0 else engine.tp)
            yield (positions, divided("the channels of the state's convolution", channels, engine.tp)), dtype
        if self.recurrent is not None:
            first, *rest = self.recurrent
            asked = engine.flags.mamba_ssm_cache_dtype
            if self.kind == "linear":
                own = dtype
            elif asked != "auto":
                own = asked
            else:
                own = self.recurrent_dtype or dtype
            if self.kind == "kda" and (own == "float16" or (own != "float32" and not self.saves_in_prefill)):
                allowed = "float32 or bfloat16" if self.saves_in_prefill else "float32"
                raise UsageError(f"mamba_ssm_cache_dtype={own!r}: the states of this family can be {allowed}")
            yield (divided("the heads of the state", first, engine.tp), *rest), own

    def bytes(self, engine: Engine) -> int:
        """Bytes of one state on one rank, without padding."""
        return sum(math.prod(shape) * element_bytes(dtype) for shape, dtype in self.parts(engine))
