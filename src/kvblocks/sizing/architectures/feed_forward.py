"""What follows attention in a layer: a dense network, experts, or both. Only weights depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvblocks.sizing.model_config import ModelConfig

WITHOUT_GATE = (
    "arcee", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_j", "gpt_neox", "gptj", "mpt", "nemotron",
    "nemotron_h", "opt", "persimmon", "phi", "starcoder2", "whisper",
)  # fmt: skip
"""Families with two matrices in the dense network; the others have a third, the gate."""
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class Expert:
    """All routed experts of a layer, and what chooses among them."""

    parameters: float
    router: float


def feed_forward(config: ModelConfig, layer: int, mixes: bool) -> Iterator[float | Expert]:
    """Parameters of the dense network, and of the experts, of one layer. `mixes`: whether it also mixes tokens."""
    kind = config.text_type
    if kind in ("nemotron_h", "nemotron_h_puzzle"):
        kinds = config.get("hybrid_override_pattern", "layers_block_type", default="")
        own = kinds[layer] if layer < len(kinds) else "-"
        if own in ("E", "moe"):
            yield from _experts(config)
        elif own in ("-", "mlp"):
            yield _dense(config, config.whole("intermediate_size"))
        return
    if kind in ("mamba", "mamba2", "falcon_mamba"):
        return
    if kind == "zamba2":
        return
    if not has_experts(config, layer):
        sizes = config.get("intermediate_size_mlp", "dense_intermediate_size") if config.get(*EXPERTS) else None
        yield _dense(config, sizes or _inner(config, layer))
        return
    if config.get("enable_moe_block"):  # both, side by side
        yield _dense(config, _inner(config, layer))
    yield from _experts(config)


def has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether the layer's network is experts, by whichever field the family says it."""
    if not config.get(*EXPERTS):
        return False
    types = config.get("mlp_layer_types")
    if isinstance(types, list):
        return bool(types[layer] != "dense")
    if layer < (config.get("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0):
        return False
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[layer])
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    step = config.get("decoder_sparse_step", "interleave_moe_layer_step")
    if step:
        return (layer + 1) % int(step) == 0
    period = config.get("expert_layer_period")
    if period or config.text_type == "jamba":
        return layer % int(period or 2) == int(config.get("expert_layer_offset", default=1))
    return True


def _inner(config: ModelConfig, layer: int) -> int:
    given = config.get(
        "intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "d_ff", "block_ff_dim"
    )
    if isinstance(given, list):
        given = given[min(layer, len(given) - 1)]
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    if config.text_type == "lfm2" and config.get("block_auto_adjust_ff_dim") and isinstance(given, int):
        of = config.whole("block_multiple_of", default=256)
        given = int(2 * given / 3 * float(config.get("block_ffn_dim_multiplier") or 1))
        given = -(-given // of) * of
    return int(given or 4 * hidden)


def _dense(config: ModelConfig, inner: int) -> float:
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    return float((2 if config.text_type in WITHOUT_GATE else 3) * hidden * inner)


def _experts(config: ModelConfig) -> Iterator[float | Expert]:
    hidden = config.whole("hidden_size", "n_embd", "d_model")
    count = config.get(*EXPERTS)
    count = int(count[0] if isinstance(count, list) else count or 0)
    inner = config.get("moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")
    inner = int(inner[0] if isinstance(inner, list) else inner)
    matrices = 2 if config.text_type in WITHOUT_GATE else 3
    width = config.get("routed_expert_hidden_size", "moe_latent_size", default=hidden)
    yield Expert(float(count * matrices * width * inner), float(count * hidden))
    if width != hidden:
        yield float(2 * hidden * width)  # into the experts' width and back
    shared = config.get(
        "shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"
    )
    number = config.get("n_shared_experts", "num_shared_experts")
    if shared is None and number:
        shared = int(number) * inner
    if config.text_type in ("llama4", "llama4_text"):
        shared = inner
    if shared:
        yield float(matrices * hidden * int(shared))
