"""The memory of the cache: keys, values and states of all layers, taken once and cut into blocks.

Layer i of every group uses the same memory, as in vLLM: a block number belongs to one group at a time, so no two groups
ever hold the same bytes. A page of attention is `[block_size, 2, kv_heads, head_size]`, token after token with key and
value side by side, so that blocks with consecutive numbers are one array of tokens and need no gathering.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvblocks.engine.model.shape import StateShape
from kvblocks.errors import IntegrityError, UsageError
from kvblocks.kinds import AttentionSpec, MambaSpec
from kvblocks.kinds.grouping import LayerGroup
from kvblocks.manager import BlockCopy
from kvblocks.pool import NULL_BLOCK

Array = NDArray[np.float32]
Numbers = NDArray[np.float32] | NDArray[np.float16]


class KVStorage:
    """Arrays of every layer over one memory.

    `groups` are those of the manager over the same pool, in the same order; layers are known by their names.
    `debug` fills fresh blocks and the null block with NaN, so that whoever reads what was never written gets NaN.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        num_blocks: int,
        *,
        dtype: str = "float32",
        state: StateShape | None = None,
        debug: bool = False,
    ) -> None:
        pages = {layer.spec.page_size_bytes for group in groups for layer in group.layers}
        if len(pages) != 1:
            raise UsageError(f"pages of {sorted(pages)} bytes cannot share one memory; they must be equal")
        self.page_bytes = pages.pop()
        self.num_blocks = num_blocks
        self.debug = debug
        width = max(len(group.layers) for group in groups)
        try:
            self._memory = np.zeros((width, num_blocks, self.page_bytes), np.uint8)
        except (MemoryError, ValueError) as error:
            size = width * num_blocks * self.page_bytes
            raise UsageError(f"{size:,} bytes of KV memory cannot be had; give a smaller --kv-memory") from error
        self.attention: dict[str, Numbers] = {}
        """By layer: [num_blocks, block_size, 2 (key, value), kv_heads, head_size]."""
        self.states: dict[str, tuple[Array, Array]] = {}
        """By layer: last inputs of the convolution [num_blocks, kernel - 1, channels], and sums over all tokens
        [num_blocks, heads, head_size, state_size]."""
        for group in groups:
            for i, layer in enumerate(group.layers):
                spec = layer.spec
                if isinstance(spec, AttentionSpec):
                    self.attention[layer.name] = self._attention_view(i, spec, dtype)
                elif isinstance(spec, MambaSpec) and state is not None:
                    self.states[layer.name] = self._state_view(i, state)
                else:
                    raise UsageError(f"layer {layer.name}: the engine has no arrays for {type(spec).__name__}")
        if debug:
            self.poison([NULL_BLOCK])

    @property
    def nbytes(self) -> int:
        """Bytes of the whole memory."""
        return self._memory.nbytes

    def _attention_view(self, at: int, spec: AttentionSpec, dtype: str) -> Numbers:
        numbers = self._memory[at, :, : spec.content_size_bytes].view(dtype)
        shape = (self.num_blocks, spec.block_size, 2, spec.num_kv_heads, spec.head_size)
        return numbers.reshape(shape)  # a view: only the last axis is split

    def _state_view(self, at: int, state: StateShape) -> tuple[Array, Array]:
        pages = self._memory[at]
        split = 4 * math.prod(state.convolution)
        end = split + 4 * math.prod(state.recurrent)
        return (
            pages[:, :split].view(np.float32).reshape(self.num_blocks, *state.convolution),
            pages[:, split:end].view(np.float32).reshape(self.num_blocks, *state.recurrent),
        )

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Copy whole blocks, all layers: what copy-on-write asks for before a step writes. In order."""
        for source, target in copies:
            self._memory[:, target] = self._memory[:, source]

    def poison(self, blocks: Sequence[int]) -> None:
        """Fill blocks with NaN: in float32 and float16 alike all bits set are one."""
        self._memory[:, list(blocks)] = 0xFF

    def check_null_block(self) -> None:
        """Raise IntegrityError when somebody wrote into the null block. In debug mode only; cheap."""
        if self.debug and not (self._memory[:, NULL_BLOCK] == 0xFF).all():
            raise IntegrityError("the null block was written to: a block table has a 0 where a slot was needed")
