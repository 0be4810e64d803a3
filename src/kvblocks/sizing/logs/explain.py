"""What the lines of a start-up log mean, in words, with the numbers of this log."""

from __future__ import annotations

from collections.abc import Iterator

from kvblocks.sizing.logs.facts import CacheSize, Fact, Refusal, StartupLog, lines_of
from kvblocks.sizing.logs.findings import (
    CROSS_ATTENTION,
    GRAPH_ESTIMATE,
    OLD_TOKENS,
    Finding,
    KnownBug,
    gib_text,
    tokens_text,
)
from kvblocks.sizing.logs.formula import reading_of

_OLD_FORMULA = (
    "It can only be the old figure for several groups, (blocks // groups) x block size. The groups do not share "
    "evenly, so the cache holds what the concurrency says."
)
_ENCODER_DECODERS = ("whisper", "bart", "mllama", "nemotron-parse", "nemotronparse")


def explain(log: StartupLog) -> list[Finding]:
    """What the log's lines mean, in the order in which the engine computes them. `check` says whether they fit."""
    return [*_which(log), *_memory(log), *_blocks(log), *_cache(log), *_refusals(log)]


def _which(log: StartupLog) -> Iterator[Finding]:
    """What was read of the file."""
    others = log.other_starts
    if others:
        yield Finding(
            "starts",
            "says",
            f"The file holds {len(log.starts)} starts; {log.start} was read. Others: "
            + "; ".join(str(start) for start in others[-5:])
            + (" and earlier ones." if len(others) > 5 else "."),
            {"starts": len(log.starts), "read": log.start.number},
        )
    if log.errors:
        yield Finding(
            "errors",
            "says",
            f"The start printed {len(log.errors)} error{'s' if len(log.errors) > 1 else ''}; the first: "
            f"{log.errors[0].value}",
            {"errors": len(log.errors)},
            lines_of(*log.errors),
        )


def _memory(log: StartupLog) -> Iterator[Finding]:
    """Where the memory for the cache comes from."""
    loaded = [rank.weights for rank in log.ranks if rank.weights]
    if loaded:
        least, most = (bound(fact.value.gib for fact in loaded) for bound in (min, max))
        text = f"Loading the model took {least:.2f} GiB" + (f" to {most:.2f} GiB" if most > least else "")
        text += f" on each of {len(loaded)} workers." if len(loaded) > 1 else "."
        yield Finding("weights", "says", text, {"least_gib": least, "most_gib": most}, lines_of(*loaded))
    available = log.available
    if available is None:
        return
    size = gib_text(available.value)
    stating = [rank for rank in log.ranks if rank.available or rank.reserved]
    reserved = any(rank.reserved for rank in stating)
    if reserved:
        text = f"{size} were given for the cache of each worker (kv_cache_memory_bytes); nothing was subtracted."
    else:
        text = (
            f"{size} of each worker's device are left for the cache: device memory x gpu_memory_utilization, less "
            "weights, less the peak of a trial run with max_num_batched_tokens tokens, less what else is in use."
        )
    yield Finding("available", "says", text, {"available_gib": available.value.gib}, lines_of(available))
    workers = log.flags.tensor_parallel_size * log.flags.pipeline_parallel_size
    if len(stating) > 1:
        facts = [fact for rank in stating if (fact := rank.reserved or rank.available)]
        most = max(fact.value.gib for fact in facts)
        yield Finding(
            "ranks",
            "says",
            f"{len(stating)} workers state {size} to {most:.2f} GiB. All must hold the same block numbers, so the one "
            "with the fewest blocks decides for all; what the others have more is not used."
            if most > available.value.gib
            else f"{len(stating)} workers state the same {size}; the one with the fewest blocks decides for all.",
            {"ranks": len(stating), "least_gib": available.value.gib, "most_gib": most},
            lines_of(*facts),
        )
    elif workers > 1:
        yield Finding(
            "ranks",
            "says",
            f"The engine ran {workers} workers and one of them states its memory. The worker with the fewest blocks "
            "decides for all, so the cache can be smaller than this figure gives.",
            {"ranks": 1, "workers": workers},
            lines_of(available),
        )
    graphs = [rank.graphs_estimated for rank in log.ranks if rank.graphs_estimated]
    if graphs and (log.release is None or log.release >= (0, 21)):
        most_fact = max(graphs, key=lambda fact: fact.value.gib)
        taken = [rank.graphs.value.gib for rank in log.ranks if rank.graphs]
        far = bool(taken) and most_fact.value.gib > 2 * max(*taken, 0.25)
        yield Finding(
            "graphs",
            "suspect" if far else "says",
            f"{gib_text(most_fact.value)} were set aside for CUDA graphs before the cache was sized"
            + (f"; capturing them took {max(taken):.2f} GiB." if taken else "."),
            {"estimated_gib": most_fact.value.gib, "taken_gib": max(taken) if taken else None},
            lines_of(*graphs),
            GRAPH_ESTIMATE if far else None,
        )


def _blocks(log: StartupLog) -> Iterator[Finding]:
    """What was done to blocks and pages."""
    for fact in log.block_sizes[-1:]:
        why = " so that a block of attention is no smaller than a state of its recurrent layers" * (
            "mamba" in fact.text
        )
        yield Finding(
            "block size",
            "says",
            f"A block holds {tokens_text(fact.value)}{why}. Prefix hits come in whole blocks, and a request leaves up "
            "to a block unused in each group.",
            {"block_size_tokens": fact.value},
            lines_of(fact),
        )
    if log.mamba_padding:
        yield Finding(
            "state padding",
            "says",
            f"Each state is padded by {log.mamba_padding.value:g} % to the size of a block; that share is not used.",
            {"percent": log.mamba_padding.value},
            lines_of(log.mamba_padding),
        )
    for padding in log.layer_padding:
        yield Finding(
            "layer padding",
            "says",
            f"{padding.value.layers} layers that do not exist were added to a kind of layer so that all groups have "
            f"the same number; at most {padding.value.percent:g} % of the memory of that kind is not used.",
            {"layers": padding.value.layers, "percent": padding.value.percent},
            lines_of(padding),
        )
    if log.override:
        value = log.override.value
        yield Finding(
            "override",
            "says",
            f"num_gpu_blocks_override={value.blocks} took the place of the {value.profiled:,} blocks that memory "
            f"allows; {value.blocks - 1:,} can be used, as block 0 is the null block.",
            {"profiled_blocks": value.profiled, "blocks": value.blocks},
            lines_of(log.override),
        )
    if log.auto_fit:
        fit = log.auto_fit.value
        yield Finding(
            "automatic length",
            "says",
            f"max_model_len was {'lowered from ' + tokens_text(fit.before) if fit.after < fit.before else 'kept'} "
            f"at {tokens_text(fit.after)}: the longest request that the cache can hold alone.",
            {"before_tokens": fit.before, "after_tokens": fit.after},
            lines_of(log.auto_fit),
        )


def _cache(log: StartupLog) -> Iterator[Finding]:
    """What the size and the concurrency say."""
    cache = log.cache
    if cache is None:
        return
    if len({c.process.partition(" pid=")[0] for c in log.caches if "DP" in c.process}) > 1:
        yield Finding(
            "engines",
            "says",
            "Several data-parallel engines state a cache of their own; the figures are of one engine, the smallest.",
            {"caches": len(log.caches)},
            tuple(line for c in log.caches for line in c.lines),
        )
    if cache.num_blocks:
        blocks = cache.num_blocks.value
        size = log.block_size or 16
        yield Finding(
            "blocks",
            "says",
            f"The cache has {blocks:,} blocks; with blocks of {size} tokens that is {tokens_text(blocks * size)}.",
            {"num_blocks": blocks, "block_size_tokens": size, "tokens": blocks * size},
            lines_of(cache.num_blocks),
        )
    if cache.tokens:
        yield _tokens(log, cache, cache.tokens)
    if cache.concurrency and cache.length:
        times, length = cache.concurrency.value, cache.length.value
        charged = _is_encoder_decoder(log) and (log.release is None or log.release >= (0, 12))
        yield Finding(
            "concurrency",
            "says",
            f"{times:.2f} requests fit if each has the full {tokens_text(length)} (max_model_len) and shares nothing. "
            "It limits nothing: shorter requests fit more often, further ones wait or are preempted, and max_num_seqs "
            "is a limit of its own."
            + ("" if log.engine == "V0" else " It counts the null block, which no request can use."),
            {"concurrency": times, "length_tokens": length},
            lines_of(cache.concurrency),
            CROSS_ATTENTION if charged else None,
        )


def _tokens(log: StartupLog, cache: CacheSize, tokens: Fact[int]) -> Finding:
    """What the number of tokens is."""
    reading = reading_of(log)
    said = f"{cache.device} KV cache size: {tokens_text(tokens.value)}"
    numbers: dict[str, object] = {"tokens": tokens.value, "formula": reading.formula if reading else None}
    bug: KnownBug | None = None
    if reading is None or reading.formula == "none":
        text = (
            f"{said}. For a model whose layers are all alike it is blocks x block size; for others it is "
            "concurrency x max_model_len since 0.21, and was (blocks // groups) x block size before."
        )
    elif reading.formula == "one-group":
        numbers |= {"num_blocks": reading.num_blocks, "block_size_tokens": reading.span}
        text = (
            f"{said} = {reading.num_blocks:,} blocks x {reading.span}, if all layers are alike. One block of them is "
            "the null block; all running requests and the cached prefixes share the rest."
        )
    elif reading.formula == "concurrency":
        text = (
            f"{said} = concurrency x max_model_len. It is no number of slots: it is how many tokens requests of full "
            "length would hold. Windows and states cost the same for a short request, so short requests hold fewer."
        )
    else:
        bug = OLD_TOKENS
        if reading.groups is None:
            return Finding("tokens", "says", f"{said}. {_OLD_FORMULA}", numbers, lines_of(tokens), bug)
        blocks, groups, needed = reading.num_blocks or 0, reading.groups or 0, reading.blocks_per_request or 0
        numbers |= {"num_blocks": blocks, "groups": groups, "blocks_per_request": needed}
        text = (
            f"{said} fits {groups} groups over {blocks:,} blocks: {blocks:,} // {groups} x {reading.span}. The groups "
            f"do not share evenly: a request of full length takes {needed} blocks in all, so the cache holds what the "
            "concurrency says."
        )
    return Finding("tokens", "says", text, numbers, lines_of(tokens), bug)


def _is_encoder_decoder(log: StartupLog) -> bool:
    """Whether the model's name or class is of a family with cross attention."""
    names = [fact.value.lower() for fact in (log.model, log.architecture) if fact]
    return any(part in name for part in _ENCODER_DECODERS for name in names)


def _refusals(log: StartupLog) -> Iterator[Finding]:
    """Why there is no cache."""
    for fact in log.refusals:
        text, bug = _refusal(log, fact.value)
        yield Finding("refusal", "says", text, {"kind": fact.value.kind}, lines_of(fact), bug)


def _refusal(log: StartupLog, refusal: Refusal) -> tuple[str, KnownBug | None]:
    """One refusal in words."""
    if refusal.kind == "length" and refusal.needed and refusal.available:
        text = (
            f"One request of {tokens_text(refusal.max_model_len or 0)} needs {gib_text(refusal.needed)} per worker and "
            f"there are {gib_text(refusal.available)}. "
        )
        if refusal.estimated:
            text += f"A max_model_len of {refusal.estimated:,} fits; it would fit exactly one request."
        else:
            text += "Lower max_model_len, or make room (gpu_memory_utilization, kv_cache_dtype, more ranks)."
        return text, CROSS_ATTENTION if _is_encoder_decoder(log) else None
    if refusal.kind == "length-in-tokens":
        return (
            f"The cache holds {tokens_text(refusal.capacity or 0)}, fewer than max_model_len "
            f"({refusal.max_model_len:,}).",
            None,
        )
    if refusal.kind == "free-memory" and refusal.needed and refusal.available:
        return (
            f"{gib_text(refusal.needed)} were asked for and {gib_text(refusal.available)} are free: another process "
            "holds memory of the device, or gpu_memory_utilization is too high for it.",
            None,
        )
    if refusal.kind == "mamba-blocks":
        return (
            f"max_num_seqs={refusal.max_num_seqs} needs a state block each and there are {refusal.capacity}: lower "
            "max_num_seqs.",
            None,
        )
    return (
        "Weights and the peak of the trial run leave nothing for the cache: raise gpu_memory_utilization, lower "
        "max_num_batched_tokens, or use more ranks.",
        None,
    )
