"""An engine's settings for one model, as vLLM resolves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvblocks.sizing.flags import EngineFlags

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything that the size of a cache depends on, besides the layers. All counts are tokens."""

    flags: EngineFlags
    env: Mapping[str, str] = field(default_factory=dict)
    capability: tuple[int, int] = (9, 0)
    """Compute capability of the device; the attention kernels and their block sizes depend on it."""
    dtype: str = "bfloat16"
    """What the model computes in."""
    kv_cache_dtype: str = "auto"
    """The cache's format; "auto" is the model's dtype."""
    skip_layers: frozenset[str] = frozenset()
    """Layers that keep the model's dtype whatever the cache's format."""
    max_model_len: int = 2048
    derived_max_model_len: int | None = None
    """The longest that the model was made for; None when its config does not say."""
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    async_scheduling: bool = True
    enable_prefix_caching: bool = True
    hybrid_manager: bool = True
    mamba_cache_mode: str = "none"
    block_size: int = DEFAULT_BLOCK_SIZE
    mamba_block_size: int = 1
    state_page_bytes: int | None = None
    """The page that states are padded to; None leaves them as they are."""
    skip_page_bytes: int | None = None
    """The page that layers in `skip_layers` are padded to."""
    layout: str = "LBNHC"
    """How the axes layer, block, head, token and content are nested in memory."""

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.flags.tensor_parallel_size

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.flags.pipeline_parallel_size

    @property
    def dcp(self) -> int:
        """Ranks that share the tokens of a request in decoding."""
        return self.flags.decode_context_parallel_size

    @property
    def num_speculative_tokens(self) -> int:
        return self.flags.num_speculative_tokens

    @property
    def block_outermost(self) -> bool:
        """Whether a block's pages of all layers lie side by side."""
        return self.layout.startswith("B")

    @property
    def max_in_flight_tokens(self) -> int:
        """A batch for each step that can be under way at once."""
        steps = self.pp + 1 if self.async_scheduling else self.pp
        return steps * self.max_num_batched_tokens

    def cache_format(self, layer: int | None, *, windowed: bool = False) -> str:
        """The format of a layer's cache; "auto" for the model's dtype."""
        if str(layer) in self.skip_layers or (windowed and "sliding_window" in self.skip_layers):
            return "auto"
        return self.kv_cache_dtype

    def window_kernel_block(self, head_size: int, cache_format: str) -> int:
        """The smallest block that the attention kernels take for a window of such heads."""
        fixed = self._fixed_kernel_block(head_size, cache_format)
        return fixed or DEFAULT_BLOCK_SIZE

    def window_kernel_block_is_fixed(self, head_size: int, cache_format: str) -> bool:
        """Whether the kernels take that block only, and no multiple of it."""
        return self._fixed_kernel_block(head_size, cache_format) is not None

    def _fixed_kernel_block(self, head_size: int, cache_format: str) -> int | None:
        """FlashAttention 4 takes fp8 heads of 512 in pages of 64 tokens on compute capability 9."""
        if self.capability[0] == 9 and head_size == 512 and cache_format in ("fp8", "fp8_e4m3"):
            return 64
        return None
