"""What a plan's page says, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from kvblocks.report.values import Data, count
from kvblocks.units import size


def kind(group: Data) -> str:
    """A group's kind, to read."""
    return str(group["kind"]).replace("_", " ").replace("mla", "MLA").replace("mamba", "state (Mamba)")


def alike(groups: Sequence[Data]) -> list[tuple[str, Data]]:
    """Groups that are the same but for their number as one: `0`, `1-3`."""
    found: list[tuple[str, Data]] = []
    first = 0
    for group, same in groupby(groups):
        last = first + len(list(same)) - 1
        found.append((f"{first}-{last}" if last > first else f"{first}", group))
        first = last + 1
    return found


def step(effect: Data) -> str:
    """A flag, and from what to what it goes."""
    return f"{effect['flag']} {effect['before']} → {effect['after']}"


def headline(plan: Data) -> str:
    """Whether it fits, and how much."""
    if plan["status"] == "refused":
        return f"Refused: {plan['error']}."
    if plan["status"] != "ok":
        return f"Does not fit: {plan['error']}."
    if not plan["groups"]:
        return "This model keeps no KV cache, so that memory does not limit its requests."
    held, limit = plan["requests_by_length"][-1]["requests"], plan["max_model_len"]
    words = (
        f"It fits: {count(held, 'request')} of {limit:,} tokens (max_model_len) at once, "
        f"{plan['tokens']:,} tokens by vLLM's count."
    )
    longest = plan["estimated_max_model_len"]
    if longest and longest > limit:
        words += f" A single request could have up to {longest:,} tokens."
    return words


def place(plan: Data) -> str:
    """The model and where it runs, in a line."""
    gpu = plan.get("gpu")
    where = f"{gpu['count']} x {gpu['name']}" if gpu else "memory as given"
    parts = [plan.get("architecture"), where, plan.get("dtype")]
    if plan.get("kv_cache_dtype"):
        auto = plan["kv_cache_dtype"] == "auto"
        parts.append("cache in the model's dtype" if auto else f"cache in {plan['kv_cache_dtype']}")
    flags = ", ".join(f"{name}={_spelled(value)}" for name, value in plan.get("flags", {}).items())
    return ", ".join(str(part) for part in parts if part) + (f"; {flags}" if flags else "")


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def vllm_lines(plan: Data) -> str:
    """The two lines that vLLM's log will have."""
    length = plan["max_model_len"]
    return (
        f"GPU KV cache size: {plan['tokens']:,} tokens\n"
        f"Maximum concurrency for {length:,} tokens per request: {plan['max_concurrency']:.2f}x"
    )


def meaning(plan: Data) -> list[str]:
    """What vLLM means by its two figures, for this model."""
    length, groups = plan["max_model_len"], plan["groups"]
    per_request = sum(group["blocks_per_request"] for group in groups)
    words = [
        f"Maximum concurrency is the number of blocks ({plan['num_blocks']:,}) divided by those that one request of "
        f"max_model_len={length:,} tokens holds at most ({per_request:,}). It is no limit on requests: shorter ones "
        "hold fewer blocks, so that more of them fit, and max_num_seqs is what limits how many run at once."
    ]
    if len(groups) == 1 and groups[0]["kind"] in ("full_attention", "mla_attention"):
        words.append(
            "KV cache size is that figure times max_model_len. In this model every token of every request takes a "
            "place of its own, so it is also how many tokens the cache holds."
        )
    else:
        words.append(
            "KV cache size is that figure times max_model_len. In this model it is no number of places: a request "
            "holds windows or states whatever its length, so that the tokens held in all depend on the lengths."
        )
    held = plan["requests_by_length"][-1]["requests"]
    if held < int(plan["max_concurrency"]):
        words.append(
            f"vLLM counts the null block, which no request can have; without it {count(held, 'request')} of that "
            f"length {'fits' if held == 1 else 'fit'} whole."
        )
    return words


def holds(plan: Data) -> str:
    """What a request takes."""
    fixed, slope = plan["fixed_bytes_per_request"] or 0, plan["bytes_per_token"] or 0.0
    parts = [f"{size(fixed)} however long it gets"] if fixed else []
    parts += [f"{size(slope)} for each token"] if slope else []
    return f"A long request holds {' and '.join(parts) or 'nothing'}."


def given_memory(plan: Data) -> str:
    """For a plan whose memory was not estimated."""
    return f"The memory for the cache was given, not estimated: {size(plan['memory_bytes'] or 0)} on each GPU."


def memory_range(plan: Data) -> str:
    """What the range of the estimate means for requests; empty where the memory did not decide."""
    estimates, widths, groups = plan["memory"], plan["bytes_per_block"], plan["groups"]
    if not groups:
        return ""

    def blocks(bound: str) -> int:
        return min(
            (
                int(estimate[f"available_{bound}"]) // width
                for estimate, width in zip(estimates, widths, strict=True)
                if width
            ),
            default=0,
        )

    if plan["status"] == "ok" and blocks("best") != plan["num_blocks"]:
        return f"num_gpu_blocks_override sets the cache to {size(plan['memory_bytes'] or 0)}, whatever is left."
    per_request = sum(group["blocks_per_request"] for group in groups)
    if blocks("high") <= 0:
        return "Weights are counted, the other terms estimated. Nothing is left for the cache, over the whole range."
    low, high = (f"{max(blocks(bound), 0) / per_request:.2f}" for bound in ("low", "high"))
    length = plan["max_model_len"]
    words = (
        f"Weights are counted, the other terms estimated. Over the whole range maximum concurrency for {length:,} "
        f"tokens is between {low} and {high}"
    )
    fits = blocks("low") - 1 >= per_request
    return words + ("." if fits else "; below 1 (besides the null block) vLLM does not start.")


def comparison(sides: Sequence[Data]) -> list[str]:
    """The answer of a comparison, a sentence for each paragraph."""
    words = []
    for side in sides:
        if side["status"] != "ok":
            words.append(f"{side['setting']}: {side['status'].replace('_', ' ')}.")
        elif side["max_concurrency"] is not None:
            words.append(
                f"{side['setting']}: {side['max_concurrency']:,.2f} requests of {side['max_model_len']:,} tokens at "
                f"once, {side['tokens']:,} tokens by vLLM's count."
            )
    first, second = sides
    both = first["max_concurrency"] and second["max_concurrency"]
    if both and first["max_model_len"] == second["max_model_len"]:
        words.append(f"The second holds {second['max_concurrency'] / first['max_concurrency']:.2f} times the first.")
    return words


def search(data: Data) -> str:
    """What a search for GPUs found."""
    wanted = f"{count(data['wanted_requests'], 'request')} of {data['length']:,} tokens at once"
    found = data["found"]
    if found is None:
        return f"No layout that was tried holds {wanted}: use larger GPUs, kv_cache_dtype=fp8, or fewer requests."
    tensor, pipeline = found["tensor_parallel_size"], found["pipeline_parallel_size"]
    return (
        f"{found['gpus']:,} x {data['gpu']['name']} {'holds' if found['gpus'] == 1 else 'hold'} {wanted}: "
        f"tensor_parallel_size={tensor}, pipeline_parallel_size={pipeline}, room for {found['requests']:,.1f}."
    )
