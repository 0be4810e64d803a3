"""Which flags change what fits: each tried one step up and one down, and what the gain costs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.engine import DEFAULT_BLOCK_SIZE
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.resolve import LAYOUT
from kvblocks.sizing.result import Plan
from kvblocks.sizing.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One flag, one step: what it does to what fits."""

    flag: str
    before: str
    after: str
    status: str
    error: str | None
    num_blocks: int | None
    tokens: int | None
    max_concurrency: float | None
    num_blocks_change: int | None
    tokens_change: int | None
    concurrency_change: float | None
    """Change of requests at once; None where either does not fit."""
    factor: float
    """How many times as many requests fit at once; 0 when none does any more, 1 when none did and some do now."""
    cost: str
    """What it costs elsewhere, or what the gain is where it loses."""

    def to_dict(self) -> dict[str, Any]:
        """The effect as JSON would have it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Step:
    """A change of one flag."""

    flag: str
    before: str
    after: str
    changes: dict[str, Any]
    cost: str
    env: dict[str, str] | None = None


def effects(setting: Setting, base: Plan, on_step: Callable[[], None] | None = None) -> list[Effect]:
    """Every flag that can change the outcome, one step up and down, the largest effects first.

    Steps that change nothing are left out, but for those that vLLM refuses. `base` is the setting's own plan.
    """
    found = []
    for step in steps(setting, base):
        if on_step is not None:
            on_step()
        try:
            changed = setting.changed(**step.changes)
            if step.env is not None:
                changed = changed.with_env(**step.env)
            plan = changed.plan()
        except UsageError as error:
            plan = Plan(status="refused", error=str(error))
        found.append(_effect(step, base, plan))
    told = [
        effect
        for effect in found
        if effect.status != base.status or (base.ok and (effect.factor != 1 or effect.tokens_change))
    ]
    return sorted(
        told, key=lambda effect: (effect.status == "refused", -_weight(effect), -(effect.max_concurrency or 0.0))
    )


def count_steps(setting: Setting, base: Plan) -> int:
    """How many steps `effects` will try."""
    return sum(1 for _ in steps(setting, base))


def _weight(effect: Effect) -> float:
    """How far from no effect, up or down alike."""
    return max(effect.factor, 1 / effect.factor) if effect.factor else 1e9


def _effect(step: Step, base: Plan, plan: Plan) -> Effect:
    both = base.ok and plan.ok
    concurrency = (plan.max_concurrency or 0.0) if plan.ok else 0.0
    before = (base.max_concurrency or 0.0) if base.ok else 0.0
    return Effect(
        flag=step.flag,
        before=step.before,
        after=step.after,
        status=plan.status,
        error=plan.error,
        num_blocks=plan.num_blocks,
        tokens=plan.tokens,
        max_concurrency=plan.max_concurrency,
        num_blocks_change=_minus(plan.num_blocks, base.num_blocks) if both else None,
        tokens_change=_minus(plan.tokens, base.tokens) if both else None,
        concurrency_change=concurrency - before if both else None,
        factor=concurrency / before if before else float(plan.ok),
        cost=step.cost,
    )


def _minus(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


# -- The steps --------------------------------------------------------------------------------------------------------


def steps(setting: Setting, base: Plan) -> Iterator[Step]:
    """One step up and one down of each flag that can change the outcome, from what the setting has."""
    flags = setting.flags
    yield from _memory_steps(setting)
    yield from _format_steps(flags, base)
    yield from _length_steps(flags, base)
    yield from _parallel_steps(flags)
    yield from _manager_steps(flags, base, setting)
    yield from _state_steps(flags, base)
    yield from _draft_steps(setting, base)


def _double_and_half(name: str, value: int, up: str, down: str, lowest: int = 1) -> Iterator[Step]:
    yield Step(name, f"{value:,}", f"{2 * value:,}", {name: 2 * value}, up)
    if value // 2 >= lowest:
        yield Step(name, f"{value:,}", f"{value // 2:,}", {name: value // 2}, down)


def _memory_steps(setting: Setting) -> Iterator[Step]:
    flags = setting.flags
    if flags.num_gpu_blocks_override is not None:
        yield from _double_and_half(
            "num_gpu_blocks_override",
            flags.num_gpu_blocks_override,
            "vLLM does not check that so much memory is there",
            "for tests only",
        )
        return
    if setting.memory_is_exact:
        return
    now = flags.gpu_memory_utilization
    for after, cost in (
        (round(min(now + 0.03, 0.98), 2), "less is left for what vLLM does not count; out of memory under load"),
        (round(max(now - 0.05, 0.05), 2), "leaves room for other processes on the GPU"),
    ):
        if after != now:
            yield Step("gpu_memory_utilization", f"{now:g}", f"{after:g}", {"gpu_memory_utilization": after}, cost)
    yield Step(
        "enforce_eager",
        str(flags.enforce_eager).lower(),
        str(not flags.enforce_eager).lower(),
        {"enforce_eager": not flags.enforce_eager},
        "CUDA graphs take memory" if flags.enforce_eager else "no CUDA graphs: slower decoding, most at small batches",
    )


def _format_steps(flags: EngineFlags, base: Plan) -> Iterator[Step]:
    now = base.kv_cache_dtype or flags.kv_cache_dtype
    costs = {
        "fp8": "a byte per number: slightly lower quality on long contexts; check it on your task",
        "nvfp4": "four bits per number: needs Blackwell GPUs, and a check of quality",
        "auto": "the model's own format: twice the bytes of fp8, no loss of quality",
    }
    blackwell = base.capacity is not None and base.capacity.engine.capability >= (10, 0)
    latent = any(group.kind.endswith("mla") or group.kind.startswith("mla") for group in base.groups)
    chain = ["auto", "fp8", "nvfp4"] if blackwell and not latent else ["auto", "fp8"]
    if now in chain:
        at = chain.index(now)
        for i in (at - 1, at + 1):
            if 0 <= i < len(chain):
                yield Step("kv_cache_dtype", now, chain[i], {"kv_cache_dtype": chain[i]}, costs[chain[i]])
    if base.dtype in ("bfloat16", "float16"):
        yield Step("dtype", base.dtype, "float32", {"dtype": "float32"}, "twice the weights and activations too")
    elif base.dtype == "float32":
        yield Step("dtype", "float32", "bfloat16", {"dtype": "bfloat16"}, "half the weights too; the usual choice")
    if now != "auto" and any(group.kind == "sliding_window" for group in base.groups):
        yield Step(
            "kv_cache_dtype_skip_layers",
            ",".join(flags.kv_cache_dtype_skip_layers) or "none",
            "sliding_window",
            {"kv_cache_dtype_skip_layers": ["sliding_window"]},
            "windows keep the model's format: better quality, more bytes",
        )


def _length_steps(flags: EngineFlags, base: Plan) -> Iterator[Step]:
    if base.max_model_len:
        now = base.max_model_len
        longest = base.derived_max_model_len
        if longest is None or 2 * now <= longest:
            yield Step("max_model_len", f"{now:,}", f"{2 * now:,}", {"max_model_len": 2 * now}, "longer requests")
        if now > 1:
            yield Step(
                "max_model_len", f"{now:,}", f"{now // 2:,}", {"max_model_len": now // 2}, "refuses longer requests"
            )
    if base.max_num_batched_tokens:
        yield from _double_and_half(
            "max_num_batched_tokens",
            base.max_num_batched_tokens,
            "faster prefill, larger activations, longer steps between tokens",
            "slower prefill of long prompts, steadier decoding",
        )
    if base.max_num_seqs:
        yield from _double_and_half(
            "max_num_seqs",
            base.max_num_seqs,
            "more requests in a step, if the cache holds them; larger sampling buffers and graphs",
            "fewer requests in a step: the rest waits",
        )
    # States set the size of attention's blocks, so that what was asked for is the start, not what came out.
    states = any(group.kind == "mamba" for group in base.groups)
    block = flags.block_size or (DEFAULT_BLOCK_SIZE if states else base.block_size) or DEFAULT_BLOCK_SIZE
    yield from _double_and_half(
        "block_size",
        block,
        "prefix hits end on larger blocks; more of a request's last block is empty",
        "prefix hits are finer; longer block tables",
        lowest=16,
    )


def _parallel_steps(flags: EngineFlags) -> Iterator[Step]:
    for name, up, down in (
        (
            "tensor_parallel_size",
            "twice the GPUs and communication in every layer; latents are copied, not divided",
            "half the GPUs; each holds twice the weights",
        ),
        (
            "pipeline_parallel_size",
            "twice the GPUs; bubbles when few requests run",
            "half the GPUs; each holds twice the layers",
        ),
        (
            "decode_context_parallel_size",
            "communication in every decoding step",
            "each rank keeps more tokens of every request",
        ),
    ):
        if name.startswith("decode") and flags.tensor_parallel_size == 1:
            continue  # it shares tokens among tensor-parallel ranks
        yield from _double_and_half(name, getattr(flags, name), up, down)


def _manager_steps(flags: EngineFlags, base: Plan, setting: Setting) -> Iterator[Step]:
    windowed = any(group.kind.startswith(("sliding", "chunked")) for group in base.groups)
    if windowed:
        engine = base.capacity.engine if base.capacity else None
        now = engine.async_scheduling if engine else True
        yield Step(
            "async_scheduling",
            str(now).lower(),
            str(not now).lower(),
            {"async_scheduling": not now},
            "steps wait for each other: lower throughput" if now else "windows keep a second batch in flight",
        )
    if windowed or flags.disable_hybrid_kv_cache_manager:
        now = flags.disable_hybrid_kv_cache_manager
        yield Step(
            "disable_hybrid_kv_cache_manager",
            str(now).lower(),
            str(not now).lower(),
            {"disable_hybrid_kv_cache_manager": not now},
            "some KV connectors need it" if not now else "some KV connectors do not support it",
        )
    if len({group.page_size_bytes for group in base.groups}) > 1 or len(base.groups) > 1:
        layout = setting.env.get(LAYOUT)
        if layout is None and base.capacity is not None and not base.capacity.engine.block_outermost:
            yield Step(
                LAYOUT,
                base.capacity.engine.layout,
                "BLHNC",
                {},
                "pages of several sizes lie side by side; not every attention kernel supports it",
                {LAYOUT: "BLHNC"},
            )


def _state_steps(flags: EngineFlags, base: Plan) -> Iterator[Step]:
    if not any(group.kind == "mamba" for group in base.groups):
        return
    caching = bool(base.enable_prefix_caching)
    yield Step(
        "enable_prefix_caching",
        str(caching).lower(),
        str(not caching).lower(),
        {"enable_prefix_caching": not caching},
        "no prefix is reused" if caching else "states are kept at block ends: two blocks per group and request",
    )
    for name, what in (
        ("mamba_ssm_cache_dtype", "of the recurrent part: errors add up over long contexts"),
        ("mamba_cache_dtype", "of the convolution's inputs"),
    ):
        now = getattr(flags, name)
        for after, cost in (
            ("bfloat16", f"lower precision {what}"),
            ("float32", f"full precision {what.split(':')[0]}"),
        ):
            if after != now:
                yield Step(name, now, after, {name: after}, cost)


def _draft_steps(setting: Setting, base: Plan) -> Iterator[Step]:
    flags = setting.flags
    if flags.speculative_config is not None:
        method = str(flags.draft.get("method") or "draft_model")
        yield Step(
            "speculative_config", method, "none", {"speculative_config": None}, "no speculation: slower decoding"
        )
        tokens = flags.num_speculative_tokens
        for after in (tokens - 1, tokens + 1):
            if after >= 1:
                config = {**flags.draft, "num_speculative_tokens": after}
                yield Step(
                    "num_speculative_tokens",
                    str(tokens),
                    str(after),
                    {"speculative_config": config},
                    "more tokens per step if they are accepted" if after > tokens else "fewer tokens per step",
                )
        return
    try:
        model = setting.lay_out().model
    except UsageError:
        return
    if model.mtp:
        yield Step(
            "speculative_config",
            "none",
            "mtp, 1 token",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
            "faster decoding at small batches; its layers keep a cache too",
        )
