"""Weights, config and vocabulary of a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvblocks.errors import MissingExtraError, UsageError
from kvblocks.sizing import ModelConfig

Array = NDArray[np.float32]

_FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROWS = 4096  # dequantised at a time


class GGUFFile:
    """One GGUF file, mapped. Names are Hugging Face's."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that is cut off, no GGUF, or of a family without an engine."""
        try:
            import gguf
        except ImportError as error:
            raise MissingExtraError("gguf", "engine", "reading a GGUF file") from error
        self.path = path
        self._dequantize = gguf.dequantize
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:  # whatever a broken file makes the package raise
            raise UsageError(f"{path}: is cut off or no GGUF file ({error}); fetch it again") from error
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.family = str(self.get("general.architecture"))
        if self.family not in _FAMILIES:
            raise UsageError(
                f"{path}: general.architecture={self.family!r} has no engine here; choose {', '.join(_FAMILIES)}"
            )
        self._heads = {"q": self.get(f"{self.family}.attention.head_count")}
        self._heads["k"] = self.get(f"{self.family}.attention.head_count_kv", self._heads["q"])

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata field."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def forget_fields(self) -> None:
        """Drop the metadata, whose vocabulary takes more memory than one would think. Weights can still be read."""
        self._fields.clear()

    def config(self) -> ModelConfig:
        """The metadata as a Hugging Face config."""
        family = self.family

        def own(key: str, default: Any = None) -> Any:
            return self.get(f"{family}.{key}", default)

        if own("rope.scaling.type", "none") not in ("none", "linear") or "rope_freqs.weight" in self._tensors:
            raise UsageError(f"{self.path}: scaled rotary positions of this file have no engine here")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise UsageError(f"{self.path}: has no token_embd.weight; it holds no language model")
        head_size = own("attention.key_length") or own("embedding_length") // self._heads["q"]
        data = {
            "model_type": _FAMILIES[family],
            "architectures": [f"{_FAMILIES[family].capitalize()}ForCausalLM"],
            "vocab_size": int(embedding.shape[1]),
            "hidden_size": own("embedding_length"),
            "intermediate_size": own("feed_forward_length"),
            "num_hidden_layers": own("block_count"),
            "num_attention_heads": self._heads["q"],
            "num_key_value_heads": self._heads["k"],
            "head_dim": head_size,
            "rms_norm_eps": own("attention.layer_norm_rms_epsilon", 1e-6),
            "rope_theta": own("rope.freq_base", 10_000.0),
            "max_position_embeddings": own("context_length"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "partial_rotary_factor": own("rope.dimension_count", head_size) / head_size,
            "torch_dtype": "float32",
        }
        if own("rope.scaling.type") == "linear":
            data["rope_scaling"] = {"rope_type": "linear", "factor": own("rope.scaling.factor")}
        return ModelConfig.from_data(data, title=self.path.name)

    def _name(self, name: str) -> str:
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(weight|bias)", name)
        if match is None:
            return _TOP.get(name, name)
        return f"blk.{match[1]}.{_LAYER.get(match[2], match[2])}.{match[3]}"

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(self._name(name))
        return None if tensor is None else tuple(int(n) for n in reversed(tensor.shape))

    def read_into(self, name: str, out: Array) -> None:
        tensor = self._tensors[self._name(name)]
        target = out
        interleaved = re.search(r"self_attn\.([qk])_proj", name) if self.family == "llama" else None
        if interleaved:  # llama's files pair neighbours, the engine pairs the halves of a head
            heads = self._heads[interleaved[1]]
            halves = out.reshape(heads, 2, out.shape[0] // heads // 2, *out.shape[1:])
            target = halves.swapaxes(1, 2)
        rows = tensor.data if out.ndim > 1 else tensor.data[None]
        whole = np.empty(out.shape, np.float32) if interleaved else out
        flat = whole if out.ndim > 1 else whole[None]
        for at in range(0, len(rows), _ROWS):
            flat[at : at + _ROWS] = self._dequantize(rows[at : at + _ROWS], tensor.tensor_type)
        if interleaved:
            target[...] = whole.reshape(target.shape)
