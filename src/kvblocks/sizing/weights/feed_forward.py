"""Parameters of the feed-forward layers: dense, with experts, with shared experts, in a latent width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import layers as kinds
from kvblocks.sizing.weights.mixers import hidden
from kvblocks.sizing.weights.parts import EXPERTS, WHOLE, Part, linear, small

UNGATED = frozenset(
    "gpt2 opt bloom falcon gpt_neox gptj gpt_bigcode phi starcoder2 mpt nemotron nemotron_h persimmon arcee "
    "apertus jais2 nanochat".split()
)
"""Families whose feed-forward has no gate: two matrices instead of three."""
BIASED = frozenset("gpt2 opt bloom gpt_neox gptj gpt_bigcode phi starcoder2".split())


def is_gated(config: ModelConfig) -> bool:
    """Whether the feed-forward has a gate beside its up-projection."""
    return config.text_type not in UNGATED and config.get("mlp_hidden_act") != "relu2"


def dense_width(config: ModelConfig, layer: int = 0) -> int:
    """The inner width of a dense feed-forward. Families without a field for it take four times the hidden size."""
    given = config.get("dense_intermediate_size", "intermediate_size_mlp")
    given = given or config.get("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "decoder_ffn_dim")
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = given[min(layer, len(given) - 1)] if given else None
    if given is None:
        return 4 * hidden(config)
    width = int(given)
    if config.get("use_double_wide_mlp"):
        shared = config.whole("num_kv_shared_layers", default=0)
        width *= 2 if layer >= kinds.num_layers(config) - shared else 1
    if config.text_type in ("lfm2", "lfm2_moe") and config.get("block_auto_adjust_ff_dim"):
        width = int(2 * width / 3 * float(config.get("block_ffn_dim_multiplier", default=1.0)))
        multiple = config.whole("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return width


def expert_width(config: ModelConfig) -> int:
    """The inner width of one routed expert."""
    given = config.get("moe_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size_moe", "moe_ffn_hidden_size")
    given = given if given is not None else config.get("intermediate_size", "ffn_dim")
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = given[-1]
    return int(given or 0)


def shared_width(config: ModelConfig) -> int:
    """The inner width of all shared experts of a layer together; 0 without."""
    for name in ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"):
        if config.get(name) is not None:
            return config.whole(name)
    count = config.get(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert", default=0
    )
    if isinstance(count, Sequence) and not isinstance(count, str):
        count = count[0] if count else 0
    if config.get("moe_shared_expert_intermediate_size") is not None:
        return config.whole("moe_shared_expert_intermediate_size") * int(count or 1)
    if config.text_type.startswith("llama4"):
        return config.whole("intermediate_size")
    return int(count or 0) * expert_width(config)


def latent_width(config: ModelConfig) -> int:
    """The width in which routed experts work: the hidden size, or a smaller one between two projections."""
    return config.whole("moe_latent_size", "routed_expert_hidden_size", default=hidden(config))


def feed_forward(config: ModelConfig, layer: int, kind: str) -> Iterator[Part]:
    """The parts of one layer's feed-forward."""
    if kind in (kinds.DENSE, kinds.BOTH):
        yield from _mlp(config, f"layers.{layer}.mlp", layer, dense_width(config, layer))
    if kind in (kinds.MOE, kinds.BOTH):
        yield from _experts(config, f"layers.{layer}.mlp", layer)


def _mlp(config: ModelConfig, name: str, layer: int, inner: int) -> Iterator[Part]:
    width = hidden(config)
    bias = bool(config.get("mlp_bias", default=config.text_type in BIASED))
    if is_gated(config):
        yield from linear(f"{name}.gate_proj", layer, width, inner, bias=bias)
    yield from linear(f"{name}.up_proj", layer, width, inner, bias=bias)
    yield from linear(f"{name}.down_proj", layer, inner, width, bias=bias)


def _experts(config: ModelConfig, name: str, layer: int) -> Iterator[Part]:
    width, latent, inner, count = hidden(config), latent_width(config), expert_width(config), kinds.num_experts(config)
    yield Part(f"{name}.gate", width * count, layer, WHOLE, linear=False)
    ups = 2 if is_gated(config) else 1
    yield Part(f"{name}.experts.gate_up_proj", count * ups * latent * inner, layer, EXPERTS, what="experts")
    yield Part(f"{name}.experts.down_proj", count * inner * latent, layer, EXPERTS, what="experts")
    if config.text_type == "gpt_oss":
        yield small(f"{name}.experts.bias", layer, count * (ups * inner + width) + count)
    if latent != width:
        yield from linear(f"{name}.fc1_latent_proj", layer, width, latent, share=WHOLE)
        yield from linear(f"{name}.fc2_latent_proj", layer, latent, width, share=WHOLE)
    shared = shared_width(config)
    if shared:
        yield from _mlp(config, f"{name}.shared_experts", layer, shared)
        if config.text_type.startswith(("qwen2_moe", "qwen3_next", "qwen3_5_moe")):
            yield small(f"{name}.shared_expert_gate", layer, width)
