"""DeepSeek-V4: in every layer a window of latents, compressed latents of all tokens, and what compressing needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvblocks.kinds import KVCacheSpec, MLASpec, SlidingWindowMLASpec
from kvblocks.sizing.architectures.base import Architecture, architecture, decoder, head_size, num_layers
from kvblocks.sizing.engine import Engine
from kvblocks.sizing.layers import Cache
from kvblocks.sizing.model_config import ModelConfig

LATENT_BYTES = 584
"""One latent: 448 bytes without positions, 64 numbers of 2 bytes with, 8 scales (the format fp8_ds_mla of V4)."""
ALIGNMENT = 576
"""Pages are rounded up to a multiple of this, the rows that the kernels load."""
WINDOW_BLOCK_SIZE = 64
STATE_BLOCK_SIZE = {4: 4, 128: 8}
"""Tokens of a block of partial sums, by how many tokens are compressed into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLatent:
    """Latents of the last tokens."""

    head_size: int
    window: int

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        return _padded(
            SlidingWindowMLASpec(
                block_size=WINDOW_BLOCK_SIZE,
                format="fp8_ds_mla v4",
                head_size=self.head_size,
                dtype_bytes=1,
                state_bytes=LATENT_BYTES,
                sliding_window=self.window,
                dcp_sharded=True,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLatent:
    """One latent for every `ratio` tokens; for an indexer, its keys with their scale."""

    head_size: int
    ratio: int
    indexer: bool = False

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        return _padded(
            MLASpec(
                block_size=engine.block_size,
                format="indexer uint8" if self.indexer else "fp8_ds_mla v4",
                head_size=self.head_size + self.head_size // 128 * 4 if self.indexer else self.head_size,
                dtype_bytes=1,
                state_bytes=None if self.indexer else LATENT_BYTES,
                tokens_per_state=self.ratio,
                kernel_block_size=256,
                dcp_sharded=True,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorState:
    """Partial sums and their weights of the tokens that are not compressed yet, in float32."""

    head_size: int
    ratio: int

    def spec(self, engine: Engine, layer: int | None) -> KVCacheSpec:
        overlap = 2 if self.ratio == 4 else 1  # groups of 4 tokens overlap, so both are open
        return _padded(
            SlidingWindowMLASpec(
                block_size=STATE_BLOCK_SIZE[self.ratio],
                format="compressor float32",
                head_size=2 * overlap * self.head_size,
                dtype_bytes=4,
                sliding_window=overlap * self.ratio,
                dcp_sharded=True,
            )
        )


def _padded(spec: KVCacheSpec) -> KVCacheSpec:
    page = -(-spec.content_size_bytes // ALIGNMENT) * ALIGNMENT
    return replace(spec, page_size_padded=page)


@architecture("deepseek_v4")
def deepseek_v4(config: ModelConfig) -> Architecture:
    """Each layer compresses 4 or 128 tokens into one, as `compress_ratios` says; those of 4 have an indexer too."""
    size, index_size = head_size(config), config.whole("index_head_dim", default=128)
    window = WindowLatent(head_size=size, window=config.whole("sliding_window"))

    def caches(ratio: int) -> tuple[Cache, ...]:
        if ratio <= 1:
            return (window,)
        own: tuple[Cache, ...] = (
            window,
            CompressedLatent(head_size=size, ratio=ratio),
            CompressorState(head_size=size, ratio=ratio),
        )
        if ratio != 4:
            return own
        return (
            window,
            CompressedLatent(head_size=index_size, ratio=ratio, indexer=True),
            CompressorState(head_size=index_size, ratio=ratio),
            *own[1:],
        )

    ratios = [int(ratio) for ratio in config.get("compress_ratios", default=())]
    layers = [caches(ratio) for ratio in ratios[: num_layers(config)]]
    return replace(
        decoder(config, layers),
        latent=True,
        head_size=size,
        default_block_size=256,
        block_unit=256,
        packs_blocks=True,
        cache_dtype="fp8_ds_mla",
        mtp=(window,),
        mtp_depth=config.whole("num_nextn_predict_layers", default=1),
    )
