"""Which caches a replay runs at: blocks that are named, memory by bytes per token, or a model on GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvblocks.cli.engine_flags import environment, flag_words
from kvblocks.cli.output import counted
from kvblocks.cli.sizes import parse_bytes, parse_counts
from kvblocks.errors import UsageError
from kvblocks.replay import MAX_BLOCKS, CacheLayout
from kvblocks.sizing import EngineFlags, Plan, Setting
from kvblocks.sizing.catalogue import find_model
from kvblocks.sizing.devices import find_device
from kvblocks.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """The sizes of a replay's caches, in blocks, and what a block is."""

    sizes: list[int]
    block_size: int
    bytes_per_block: int | None = None
    """None where nothing says how large a token is."""
    layout: CacheLayout | None = None
    plan: Plan | None = None
    """A plan of the model, whose limits the replay takes; that of the first size."""
    words: tuple[str, ...] = ()
    """What a reader should know of how the sizes came about."""


def named_caches(
    num_blocks: list[str] | None, kv_memory: list[str] | None, bytes_per_token: int | None, block_size: int
) -> Caches:
    """Caches without a model: one group that keeps every token."""
    if bool(num_blocks) == bool(kv_memory):
        raise UsageError(
            "give the cache's size: --num-blocks N, or --kv-memory SIZE with --bytes-per-token B, or --model M with "
            "--gpu G"
        )
    if bytes_per_token is not None and bytes_per_token < 1:
        raise UsageError(f"--bytes-per-token {bytes_per_token} must be at least 1")
    per_block = None if bytes_per_token is None else bytes_per_token * block_size
    if num_blocks:
        sizes = parse_counts(num_blocks, "--num-blocks", MAX_BLOCKS)
        return Caches(sizes=sizes, block_size=block_size, bytes_per_block=per_block)
    if per_block is None:
        raise UsageError(
            "--kv-memory needs --bytes-per-token (2 x layers x KV heads x head size x bytes per number), or --model, "
            "which knows it"
        )
    sizes = []
    for text in _parts(kv_memory):
        blocks = parse_bytes(text, "--kv-memory") // per_block
        if blocks < 2:
            raise UsageError(
                f"--kv-memory {text} holds {blocks} blocks of {block_size} x {bytes_per_token} bytes; give at least "
                f"{2 * per_block} bytes"
            )
        if blocks > MAX_BLOCKS:
            raise UsageError(
                f"--kv-memory {text} holds {blocks} blocks of {block_size} x {bytes_per_token} bytes, whose "
                f"bookkeeping fits no memory; give at most {MAX_BLOCKS * per_block} bytes, or a larger --block-size"
            )
        sizes.append(blocks)
    return Caches(sizes=sizes, block_size=block_size, bytes_per_block=per_block)


def model_caches(
    model: str, gpus: list[str] | None, kv_memory: list[str] | None, num_blocks: list[str] | None, flags: str | None
) -> Caches:
    """Caches of a model, with the groups that vLLM would make, on GPUs or of a stated memory or size."""
    if sum(map(bool, (gpus, kv_memory, num_blocks))) != 1:
        raise UsageError(
            "--model needs one of --gpu G, --kv-memory SIZE (what a log calls available) or --num-blocks N"
        )
    config = find_model(model)
    setting = Setting(
        config=config,
        flags=EngineFlags.from_mapping(flag_words(flags or "", "--flags")),
        env=environment(),
        folders=(config.path, config.path.parent) if config.path else (),
    )
    plans: list[tuple[str, Plan]] = []
    if num_blocks:
        for blocks in parse_counts(num_blocks, "--num-blocks", MAX_BLOCKS):
            one = setting.changed(num_gpu_blocks_override=blocks)
            plans.append((f"--num-blocks {blocks}", _with_memory(one, 1)))
    plans += [
        (f"--kv-memory {text}", _with_memory(setting, parse_bytes(text, "--kv-memory"))) for text in _parts(kv_memory)
    ]
    for name in _parts(gpus):
        on = Setting(
            config=config, flags=setting.flags, env=setting.env, device=find_device(name), folders=setting.folders
        )
        plans.append((f"--gpu {name}", on.plan()))
    for option, plan in plans:
        if not plan.ok:
            raise UsageError(f"{option} with --model {model}: {plan.error}")
        if plan.num_blocks is not None and not 2 <= plan.num_blocks <= MAX_BLOCKS:
            raise UsageError(
                f"{option} with --model {model}: {plan.num_blocks} blocks; between 2 and {MAX_BLOCKS} work"
            )
    first = plans[0][1]
    assert first.block_size is not None
    return Caches(
        sizes=[plan.num_blocks or 0 for _, plan in plans],
        block_size=first.block_size,
        bytes_per_block=max(first.bytes_per_block),
        layout=CacheLayout.of_plan(first),
        plan=first,
        words=tuple(_words(plans)),
    )


def _with_memory(setting: Setting, available: int) -> Plan:
    return Setting(
        config=setting.config,
        flags=setting.flags,
        env=setting.env,
        available_bytes=available,
        folders=setting.folders,
    ).plan()


def _words(plans: Sequence[tuple[str, Plan]]) -> Iterator[str]:
    first = plans[0][1]
    kinds: dict[str, int] = {}
    for group in first.groups:
        words = f"{group.kind.replace('_', ' ')} ({counted(group.block_size, 'token')} a block)"
        kinds[words] = kinds.get(words, 0) + 1
    groups = ", ".join(f"{count} x {words}" if count > 1 else words for words, count in kinds.items())
    yield f"{first.model}: {counted(len(first.groups), 'group')}: {groups}; {size(max(first.bytes_per_block))} a block"
    if not first.enable_prefix_caching:
        yield 'prefix caching is off for this model; --flags "--enable-prefix-caching" turns it on where vLLM can'
    for option, plan in plans:
        if option.startswith("--gpu"):
            how = "estimated" if plan.memory else "given"
            yield (
                f"{option.removeprefix('--gpu ')}: {size(plan.memory_bytes or 0)} for the cache ({how}), "
                f"{plan.num_blocks:,} blocks"
            )


def _parts(texts: list[str] | None) -> list[str]:
    return [part.strip() for text in texts or () for part in text.split(",")]
