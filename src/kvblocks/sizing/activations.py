"""Bytes of the largest moment of a profiling run: forward pass, sampler, vision encoder, expert workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.weights import layers as kinds
from kvblocks.sizing.weights import odd
from kvblocks.sizing.weights.count import vocabulary
from kvblocks.sizing.weights.feed_forward import dense_width, expert_width, is_gated, latent_width, shared_width
from kvblocks.sizing.weights.mixers import activation_widths, hidden
from kvblocks.sizing.weights.quantisation import plain_bytes
from kvblocks.sizing.weights.vision import vision_config, vision_shape

STREAMS = 3
"""Hidden states alive beside a layer's own: the residual, the layer's input and its output.

Fits the logged peak of a run that only the forward pass decides (Qwen2.5-0.5B, 32,768 tokens: 1.06 GiB) to 1 %."""
EXPERT_CHUNK = 16384
"""Tokens that pass the experts at once (vLLM's fused-expert chunk)."""
IMAGE_TOKENS = {
    "qwen": 16384,
    "kimi": 4096,
    "llama4": 2304,
    "gemma": 280,
    "mistral3": 3025,
    "minimax": 4096,
    "glm": 9600,
}
"""Tokens of the largest image or video that a family's processor makes, which the profiling run encodes."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A number of bytes with its range and its formula in words."""

    low: float
    best: float
    high: float
    formula: str


def forward_peak(config: ModelConfig, flags: EngineFlags, tokens: int, stage_layers: Sequence[int]) -> Peak:
    """The widest layer of a pass of all batched tokens: its matrices' results and the hidden states around it."""
    size, tp, width = plain_bytes(config, flags), flags.tensor_parallel_size, hidden(config)
    widest, what = 0.0, "no layer"
    for layer in stage_layers:
        for inner, text in _widths(config, layer, tp):
            if inner > widest:
                widest, what = inner, text
    streams = STREAMS + int(config.get("hc_mult", default=1)) - 1
    best = tokens * size * (widest + streams * width)
    formula = f"{tokens} tokens x {size} bytes x ({widest:.0f} of {what} + {streams} hidden states of {width})"
    return Peak(tokens * size * (widest + 2 * width), best, best * 1.3 + tokens * size * width, formula)


def _widths(config: ModelConfig, layer: int, tp: int) -> list[tuple[float, str]]:
    """Elements per token of one rank, for the mixer and the dense feed-forward of a layer."""
    if config.text_type in odd.WHOLE_MODEL:
        return [(2 * dense_width(config), "the feed-forward")]
    if config.text_type in odd.LAYER:
        heads = config.whole("num_attention_heads") * config.whole("head_dim")
        return [(2.0 * heads / tp, "attention"), (3.0 * shared_width(config) / tp, "the shared experts")]
    found: list[tuple[float, str]] = []
    mixers, feeds = _kinds(config)
    if mixers[layer] != kinds.NONE:
        inside, outside = activation_widths(config, mixers[layer])
        found.append(((inside + outside) / tp, f"{mixers[layer]} projections"))
    up = 3 if is_gated(config) else 2
    if feeds[layer] in (kinds.DENSE, kinds.BOTH):
        found.append((up * dense_width(config, layer) / tp, "gate, up and their product"))
    if feeds[layer] in (kinds.MOE, kinds.BOTH) and shared_width(config):
        found.append((up * shared_width(config) / tp, "the shared experts"))
    return found


def _kinds(config: ModelConfig) -> tuple[list[str], list[str]]:
    return kinds.mixers(config)[0], kinds.feed_forwards(config)


def distinct_layers(config: ModelConfig, stage: range) -> list[int]:
    """One layer of each kind on a stage: the others are as wide."""
    if config.text_type in odd.WHOLE_MODEL or config.text_type in odd.LAYER:
        return [stage.start] if len(stage) else []
    mixers, feeds = _kinds(config)
    inner = config.get("intermediate_size")
    sizes = inner if isinstance(inner, list) else [0] * len(mixers)
    seen: dict[tuple[object, ...], int] = {}
    for layer in stage:
        seen.setdefault((mixers[layer], feeds[layer], sizes[min(layer, len(sizes) - 1)]), layer)
    return list(seen.values())


def expert_workspace(config: ModelConfig, flags: EngineFlags, tokens: int, stage: range) -> Peak | None:
    """The buffers between the two matrices of the experts, held between runs; None without experts on the stage.

    Fused kernels keep one buffer for the results of both matrices and one for the product of gate and up, each with a
    row per token and chosen expert.
    """
    if not kinds.num_experts(config):
        return None
    if config.text_type not in odd.LAYER:
        feeds = kinds.feed_forwards(config)
        if not any(feeds[layer] in (kinds.MOE, kinds.BOTH) for layer in stage):
            return None
    chosen = config.whole(
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k", "moe_top_k", default=2
    )
    tp = 1 if flags.enable_expert_parallel else flags.tensor_parallel_size
    rows = min(tokens, EXPERT_CHUNK) * chosen
    share = flags.tensor_parallel_size if flags.enable_expert_parallel else 1
    inner, latent, size = expert_width(config) / tp, latent_width(config), plain_bytes(config, flags)
    best = rows * size * (max((2 if is_gated(config) else 1) * inner, latent) + inner)
    formula = (
        f"{min(tokens, EXPERT_CHUNK)} tokens x {chosen} experts x {size} bytes x (the wider of "
        f"{2 * inner:.0f} and {latent}, + {inner:.0f})"
    )
    return Peak(best / max(2, share), best, best * 2, formula)


def sampler_peak(
    config: ModelConfig, flags: EngineFlags, tokens: int, seqs: int, per_logit: tuple[float, float, float]
) -> Peak:
    """Logits of one row per sequence, and the copies that the sampler makes of them, above the hidden states."""
    size, rows = plain_bytes(config, flags), min(tokens, seqs)
    words = vocabulary(config)
    held = tokens * hidden(config) * size
    logits = rows * words
    gathered = 0.0 if flags.tensor_parallel_size == 1 else logits * size / flags.tensor_parallel_size
    low, best, high = (held + gathered + logits * cost for cost in per_logit)
    formula = f"{rows} sequences x {words} words x {per_logit[1]:g} bytes + hidden states of {tokens} tokens"
    return Peak(low, best, high, formula)


def encoder_peak(config: ModelConfig, flags: EngineFlags, tokens: int) -> tuple[Peak, float] | None:
    """The vision tower on the largest input, and the bytes of its results; None without a tower.

    The engine encodes as many of the largest items as its encoder budget holds: the batched tokens, or one item when it
    is larger.
    """
    part, shape = vision_config(config), vision_shape(config)
    if part is None or shape is None or flags.language_model_only:
        return None
    _, width, inner, merged = shape
    item = next((size for name, size in IMAGE_TOKENS.items() if config.model_type.startswith(name)), 4096)
    budget = max(tokens, item)
    size, patches = plain_bytes(config, flags), budget * merged
    per_patch = 2 * inner / flags.tensor_parallel_size + 2 * width
    results = float(budget * hidden(config) * size * (1 + len(part.get("deepstack_visual_indexes") or ())))
    best = patches * size * per_patch + results
    low = min(tokens, item) * merged * size * per_patch * 0.5
    formula = f"{budget} tokens of image = {patches} patches x {size} bytes x {per_patch:.0f} + results"
    return Peak(low, best, best * 1.5, formula), results
