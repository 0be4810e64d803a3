"""From a model's layers to KV-cache groups: which layers share a block table, and how many bytes a block then has.

The rules are vLLM 0.32's. Every group draws its blocks from one pool, so a block has to hold a page of each layer of
the widest group. One group if all layers need the same blocks; otherwise pages are made equal and each kind is dealt
out into groups of about as many layers as the rarest kind has. Layouts that store a block's pages side by side
("block-outermost") can do with unequal pages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvblocks.errors import UsageError
from kvblocks.kinds.base import AttentionSpec, KVCacheSpec, RequestLimits, blocks_for
from kvblocks.kinds.chunked_local import ChunkedLocalSpec
from kvblocks.kinds.full import FullAttentionGroup, FullAttentionSpec
from kvblocks.kinds.mamba import MambaSpec
from kvblocks.kinds.mla import MLASpec
from kvblocks.kinds.sliding_window import SlidingWindowMLASpec, SlidingWindowSpec

ABOUT_EQUAL = 1.5
"""Kinds whose numbers of layers differ by less than this factor are padded to the larger number (vLLM's figure)."""


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One cache of the model: a layer has one, several (an attention and its indexer) or none (it reads another's)."""

    name: str
    spec: KVCacheSpec
    stage: int = 0
    """Pipeline stage that holds it."""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table. Their specs may differ in the size of a page, else in nothing."""

    layers: tuple[CacheLayer, ...]
    spec: KVCacheSpec
    """What the group's tables go by: the first layer's spec."""

    def on_stage(self, stage: int) -> LayerGroup:
        """The group as a pipeline stage sees it; its own layers only."""
        return replace(self, layers=tuple(layer for layer in self.layers if layer.stage == stage))

    def blocks_per_request(self, limits: RequestLimits) -> int:
        """The most blocks of this group that one request holds."""
        return self.spec.blocks_per_request(limits)


def group_layers(
    layers: Sequence[CacheLayer], *, block_outermost: bool = False, hybrid: bool = True
) -> list[LayerGroup]:
    """The groups of a model, in vLLM's order; none for a model without a cache.

    block_outermost: whether a block's pages lie side by side (layouts BLHNC and BLNHC), so that they may differ.
    hybrid: False treats windows and chunks as full attention, as `--disable-hybrid-kv-cache-manager` does.

    Raises UsageError when pages of different sizes cannot be made equal, or kinds not be treated as one.
    """
    if not hybrid:
        layers = _promote_windows(layers)
    if not layers:
        return []
    if _alike(layers):
        return [LayerGroup(tuple(layers), layers[0].spec)]
    if block_outermost and len({layer.spec.page_size_bytes for layer in layers}) > 1:
        return _packed(layers)
    try:
        layers = _with_equal_pages(layers)
    except UsageError:
        promoted = _as_full_attention(layers) if _may_promote(layers) else None
        if promoted is None or not _alike(promoted):
            raise
        return [LayerGroup(tuple(promoted), promoted[0].spec)]
    return _dealt_out(layers)


def bytes_per_block(groups: Iterable[LayerGroup], *, block_outermost: bool = False) -> int:
    """Bytes that one block takes of the pool: those of the widest group's pages; 0 without any layer."""
    if not block_outermost:
        return max((sum(_stride(layer.spec) for layer in group.layers) for group in groups), default=0)
    groups = list(groups)
    widest = max((sum(layer.spec.page_size_bytes for layer in group.layers) for group in groups), default=0)
    alignment = math.lcm(*(layer.spec.stride_multiple for group in groups for layer in group.layers))
    return -(-widest // alignment) * alignment


def _stride(spec: KVCacheSpec) -> int:
    """Distance of two blocks of a layer, where the layer is outermost."""
    alignment = spec.stride_multiple
    return -(-spec.page_size_bytes // alignment) * alignment


def _alike(layers: Sequence[CacheLayer]) -> bool:
    return all(layers[0].spec.is_like(layer.spec) for layer in layers)


# -- Windows as full attention ----------------------------------------------------------------------------------------


def _promote_windows(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    """Windows and chunks next to full attention become full attention; sharded and replicated layers apart."""
    result = list(layers)
    for sharded in (True, False):
        at = [i for i, layer in enumerate(layers) if _sharded(layer.spec) == sharded]
        part = [layers[i] for i in at]
        if not part or _alike(part):
            continue
        promoted = _as_full_attention(part)
        if not _alike(promoted):
            kinds = ", ".join(sorted({type(layer.spec).__name__ for layer in promoted}))
            raise UsageError(
                "disable_hybrid_kv_cache_manager: Failed to promote local KV cache specs to one unified type: "
                f"the model has {kinds}; leave the hybrid manager on"
            )
        for i, layer in zip(at, promoted, strict=True):
            result[i] = layer
    return result


def _sharded(spec: KVCacheSpec) -> bool:
    return not isinstance(spec, AttentionSpec) or spec.dcp_sharded


def _may_promote(layers: Sequence[CacheLayer]) -> bool:
    """vLLM's last resort: latents next to ordinary windows whose pages cannot be made equal."""
    specs = [layer.spec for layer in layers]
    return (
        any(isinstance(spec, MLASpec) for spec in specs)
        and any(isinstance(spec, SlidingWindowSpec) for spec in specs)
        and not any(isinstance(spec, (SlidingWindowMLASpec, ChunkedLocalSpec)) for spec in specs)
    )


def _as_full_attention(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    specs = [layer.spec for layer in layers]
    sizes = {spec.block_size for spec in specs if spec.group_class is FullAttentionGroup}
    if not sizes:
        return list(layers)
    only_size = sizes.pop() if len(sizes) == 1 else None
    return [replace(layer, spec=_promoted(layer.spec, only_size or layer.spec.block_size)) for layer in layers]


def _promoted(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    """The spec as full attention of that block size, where it is a window or a chunk."""
    if not isinstance(spec, (SlidingWindowSpec, SlidingWindowMLASpec, ChunkedLocalSpec)):
        return spec
    padded = spec.page_size_padded
    if padded is not None:
        padded = max(padded, spec.content_size_bytes * block_size // spec.block_size)
    shared = {
        "block_size": block_size,
        "format": spec.format,
        "page_size_padded": padded,
        "stride_alignment": spec.stride_alignment,
        "kernel_block_size": spec.kernel_block_size,
        "dcp_sharded": spec.dcp_sharded,
        "num_kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
        "head_size_v": spec.head_size_v,
        "dtype_bytes": spec.dtype_bytes,
        "tokens_per_state": spec.tokens_per_state,
        "state_bytes": spec.state_bytes,
    }
    if isinstance(spec, SlidingWindowMLASpec):
        return MLASpec(**shared)  # type: ignore[arg-type]
    attended = spec.attention_chunk_size if isinstance(spec, ChunkedLocalSpec) else spec.sliding_window
    return FullAttentionSpec(**shared, attended_tokens=attended)  # type: ignore[arg-type]


# -- Equal pages ------------------------------------------------------------------------------------------------------


def _with_equal_pages(layers: Sequence[CacheLayer]) -> list[CacheLayer]:
    """Smaller pages get a larger block where the sizes allow it, and padding where they do not."""
    largest = max(layer.spec.page_size_bytes for layer in layers)
    return [replace(layer, spec=_with_page(layer, largest)) for layer in layers]


def _with_page(layer: CacheLayer, page: int) -> KVCacheSpec:
    spec = layer.spec
    if spec.page_size_bytes == page:
        return spec
    if isinstance(spec, MambaSpec):
        return replace(spec, page_size_padded=page)
    if page % spec.page_size_bytes == 0:
        # A padded page does not grow with its block; then nothing is gained, and vLLM's own check fails.
        larger = replace(spec, block_size=spec.block_size * (page // spec.page_size_bytes))
        if larger.page_size_bytes == page:
            return larger
    elif not isinstance(spec, (MLASpec, SlidingWindowMLASpec)):
        return replace(spec, page_size_padded=page)
    raise UsageError(
        f"layer {layer.name}: its page of {spec.page_size_bytes} bytes is not divisible by the largest page of {page} "
        "bytes and a latent cannot be padded; choose another block_size or kv_cache_dtype, or a draft model of the "
        "same kind"
    )


def _dealt_out(layers: Sequence[CacheLayer]) -> list[LayerGroup]:
    """Layers of one spec into groups of equal size: every n-th layer, so that each pipeline stage has its share."""
    kinds = _merged_kinds(layers)
    sizes = [len(kind) for kind in kinds]
    size = max(sizes) if max(sizes) < min(sizes) * ABOUT_EQUAL else min(sizes)
    groups = []
    for kind in kinds:
        count = blocks_for(len(kind), size)
        groups += [LayerGroup(tuple(kind[i::count]), kind[0].spec) for i in range(count)]
    return groups


def _merged_kinds(layers: Sequence[CacheLayer]) -> list[list[CacheLayer]]:
    """Layers by spec, in order of appearance; full attention that attends to different ranges counts as one."""
    by_spec: dict[KVCacheSpec, list[CacheLayer]] = {}
    for layer in layers:
        by_spec.setdefault(layer.spec, []).append(layer)
    kinds: dict[KVCacheSpec, list[CacheLayer]] = {}
    attended: dict[KVCacheSpec, int] = {}
    for spec, found in by_spec.items():
        key = spec
        if isinstance(spec, FullAttentionSpec):
            key = replace(spec, attended_tokens=None)
            if (
                spec.attended_tokens is not None
                and attended.setdefault(key, spec.attended_tokens) != spec.attended_tokens
            ):
                key = spec
        kinds.setdefault(key, []).extend(found)
    return list(kinds.values())


# -- Packed pages -----------------------------------------------------------------------------------------------------


def _packed(layers: Sequence[CacheLayer]) -> list[LayerGroup]:
    """Groups of pages of several sizes, for layouts that store a block's pages side by side.

    Layers that are alike form a bucket. A bucket in which every page size occurs equally often is a pattern that
    repeats, and is split so that all groups hold about as many repeats; states are split to fit the blocks that the
    others need anyway.
    """
    buckets: list[list[CacheLayer]] = []
    for layer in layers:
        for bucket in buckets:
            if bucket[0].spec.is_like(layer.spec):
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    by_page = [_by_page_size(bucket) for bucket in buckets]
    balanced = [len({len(names) for names in pages.values()}) == 1 for pages in by_page]
    repeats = [max(map(len, pages.values())) for pages in by_page]
    floor = max(
        (n for n, pages, even in zip(repeats, by_page, balanced, strict=True) if even and len(pages) > 1), default=0
    )
    per_group = _least_padding([n for n, even in zip(repeats, balanced, strict=True) if even], floor) if floor else None

    def is_state(bucket: list[CacheLayer]) -> bool:
        spec = bucket[0].spec
        return isinstance(spec, MambaSpec) or (
            per_group is None and isinstance(spec, (SlidingWindowSpec, SlidingWindowMLASpec))
        )

    counts = [
        blocks_for(n, per_group) if even and per_group is not None else 1
        for n, even in zip(repeats, balanced, strict=True)
    ]
    anchor = max(
        sum(blocks_for(len(names), len(bucket) if is_state(bucket) else count) * page for page, names in pages.items())
        for bucket, pages, count in zip(buckets, by_page, counts, strict=True)
    )
    groups = []
    for bucket, pages, count in zip(buckets, by_page, counts, strict=True):
        if anchor and is_state(bucket):
            count = max(count, blocks_for(len(bucket), max(anchor // bucket[0].spec.page_size_bytes, 1)))
        if count == 1:
            groups.append(LayerGroup(tuple(bucket), bucket[0].spec))
            continue
        pattern = list(zip(*pages.values(), strict=False))
        for i in range(count):
            members = tuple(layer for repeat in pattern[i::count] for layer in repeat)
            groups.append(LayerGroup(members, members[0].spec))
    return groups


def _by_page_size(layers: Sequence[CacheLayer]) -> dict[int, list[CacheLayer]]:
    pages: dict[int, list[CacheLayer]] = {}
    for layer in layers:
        pages.setdefault(layer.spec.page_size_bytes, []).append(layer)
    return pages


def _least_padding(counts: Sequence[int], lowest: int) -> int:
    """The group size from `lowest` up that pads the counts least; the larger of two that pad alike."""
    sizes = range(max(1, lowest), max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-n % size for n in counts), -size), default=max(1, lowest))


def num_padding_layers(groups: Sequence[LayerGroup]) -> int:
    """Layers' worth of pages that short groups leave unused in every block of theirs."""
    widths = Counter({i: len(group.layers) for i, group in enumerate(groups)})
    widest = max(widths.values(), default=0)
    return sum(widest - width for width in widths.values())
