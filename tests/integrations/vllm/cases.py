"""The cache configurations under which the two managers are compared, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Group:
    """One KV-cache group. `size` is the block size of its spec, in tokens."""

    kind: str
    size: int
    eagle: bool = False
    window: int = 0
    """Of a sliding window; the chunk of chunked local attention."""
    extra: int = 0
    """Tokens retained beyond the window."""
    drafts: int = 0
    """Speculative blocks of a state."""
    heads: int = 1
    """Tells layers apart that are equal otherwise."""


@dataclass(frozen=True)
class Case:
    """What a manager is made from, and a pool so small that it evicts and refuses."""

    groups: tuple[Group, ...]
    blocks: int
    caching: bool = True
    use_eagle: bool = False
    retention: int | None = 0
    watermark: float = 0.0
    in_flight: int | None = None
    prefill_lookahead: int = 0
    hash_size: int | None = None
    dcp: int = 1
    max_model_len: int = field(default=10_000)


def full(size: int, *, eagle: bool = False, heads: int = 1) -> Group:
    return Group("full", size, eagle, heads=heads)


def mla(size: int) -> Group:
    return Group("mla", size)


def slide(size: int, window: int, *, eagle: bool = False, extra: int = 0) -> Group:
    return Group("sliding", size, eagle, window, extra)


def slide_mla(size: int, window: int) -> Group:
    return Group("sliding_mla", size, window=window)


def chunk(size: int, tokens: int) -> Group:
    return Group("chunked", size, window=tokens)


def align(size: int, *, drafts: int = 0) -> Group:
    return Group("mamba_align", size, drafts=drafts)


def state(size: int, *, drafts: int = 0) -> Group:
    return Group("mamba_none", size, drafts=drafts)


def cross(size: int) -> Group:
    return Group("cross", size)


def _case(*groups: Group, blocks: int) -> Case:
    return Case(groups, blocks)


_FS = _case(full(4), slide(4, 8), blocks=28)
_FM = _case(full(4), align(4), blocks=28)
_FINE = replace(_FM, hash_size=2)

CASES: dict[str, Case] = {
    # One group of full attention.
    "full": _case(full(4), blocks=16),
    "full, many blocks": _case(full(2), blocks=30),
    "full, caching off": replace(_case(full(4), blocks=16), caching=False),
    "full, watermark": replace(_case(full(4), blocks=20), watermark=0.15),
    "full, eagle": replace(_case(full(4), blocks=20), use_eagle=True),
    "full, chained draft modules": replace(_case(full(4), blocks=24), use_eagle=True, prefill_lookahead=3),
    "full, context parallel": replace(_case(full(4), blocks=14), dcp=2),
    "full, short model": replace(_case(full(4), blocks=24), max_model_len=50),
    "MLA": _case(mla(8), blocks=12),
    "MLA, eagle": replace(_case(mla(4), blocks=16), use_eagle=True),
    # One group of another kind.
    "sliding": _case(slide(4, 8), blocks=16),
    "sliding, dense": replace(_case(slide(4, 10), blocks=16), retention=None),
    "sliding, eagle": replace(_case(slide(4, 9), blocks=18), use_eagle=True, in_flight=16),
    "sliding MLA, interval": replace(_case(slide_mla(4, 8), blocks=16), retention=8),
    "chunked": _case(chunk(4, 8), blocks=16),
    "align": replace(_case(align(4), blocks=12), retention=None),
    "align, drafts": _case(align(4, drafts=2), blocks=16),
    "state": replace(_case(state(64, drafts=1), blocks=12), caching=False),
    # Full attention and sliding windows.
    "full + sliding": _FS,
    "full + sliding, dense": replace(_FS, groups=(full(4), slide(4, 7)), retention=None),
    "full + sliding, interval": replace(_FS, groups=(full(4), slide(4, 9)), retention=8, in_flight=12),
    "full + sliding, eagle": replace(_FS, blocks=30, use_eagle=True),
    "full + sliding, eagle in full": replace(
        _FS, groups=(full(4, eagle=True), slide(4, 8)), blocks=30, use_eagle=True, retention=None
    ),
    "full + sliding, eagle in sliding": replace(
        _FS, groups=(full(4), slide(4, 8, eagle=True)), blocks=30, use_eagle=True
    ),
    "full + sliding, tokens retained": replace(
        _FS, groups=(full(4), slide(4, 8, extra=3)), blocks=30, use_eagle=True, prefill_lookahead=4, retention=4
    ),
    "full 8 + sliding 4": _case(full(8), slide(4, 8), blocks=24),
    "full 8 + sliding 4, eagle": replace(_case(full(8), slide(4, 10), blocks=26), use_eagle=True),
    "full 4 + sliding 8, dense": replace(_case(full(4), slide(8, 12), blocks=28), retention=None),
    "full 4 + sliding 8, eagle": replace(_case(full(4), slide(8, 20), blocks=32), use_eagle=True, retention=16),
    "full 6 + sliding 4": _case(full(6), slide(4, 8), blocks=26),
    "full 6 + sliding 4, marked": replace(_case(full(6, eagle=True), slide(4, 6, eagle=True), blocks=28), retention=24),
    "full + three sliding": _case(full(4), slide(4, 8), slide(4, 8), slide(4, 12), blocks=44),
    "full + two sliding, marked": replace(
        _case(full(4), slide(2, 8, eagle=True), slide(4, 12), blocks=44), retention=None
    ),
    "two sliding": replace(_case(slide(4, 8), slide(4, 16), blocks=28), retention=None),
    "full + sliding, caching off": replace(_FS, blocks=26, caching=False, in_flight=8),
    "full + sliding, watermark": replace(_FS, blocks=34, watermark=0.1, retention=None),
    "MLA + sliding MLA": replace(_case(mla(4), slide_mla(4, 8), blocks=28), retention=None),
    "full + MLA + full 8": _case(full(4), mla(4), full(8), blocks=36),
    # Chunked local attention.
    "full + chunked": replace(_case(full(4), chunk(4, 12), blocks=28), in_flight=16),
    "full 8 + chunked 8": _case(full(8), chunk(8, 16), blocks=18),
    "full + chunked + sliding": replace(_case(full(4), chunk(4, 8), slide(4, 12), blocks=36), retention=None),
    # States with checkpoints.
    "full + align": _FM,
    "full + align, dense": replace(_FM, retention=None),
    "full + align, interval": replace(_FM, retention=8),
    "full + align, drafts": replace(_FM, groups=(full(4), align(4, drafts=2)), blocks=34),
    "full + align, drafts, dense": replace(_FM, groups=(full(4), align(4, drafts=2)), blocks=34, retention=None),
    "full + align, eagle": replace(_FM, blocks=30, use_eagle=True),
    "full + align, eagle in full": replace(
        _FM, groups=(full(4, eagle=True), align(4, drafts=1)), blocks=30, use_eagle=True, retention=None
    ),
    "full + two align": replace(_case(full(4), align(4), align(4), blocks=34), retention=None),
    "full 8 + align 4": _case(full(8), align(4), blocks=26),
    "full + align + sliding": replace(_case(full(4), align(4), slide(4, 8), blocks=40), retention=None),
    "full + align, caching off": replace(_case(full(4), align(4, drafts=1), blocks=26), caching=False),
    # Hash granularity below the block.
    "fine hits": _FINE,
    "fine hits, unit 1, dense": replace(_FM, hash_size=1, retention=None),
    "fine hits, block 8": replace(_case(full(8), align(8), blocks=22), hash_size=2),
    "fine hits, block 8, dense": replace(_case(full(8), align(8), blocks=22), hash_size=2, retention=None),
    "fine hits, drafts": replace(_FINE, groups=(full(4), align(4, drafts=2)), blocks=36),
    "fine hits, eagle": replace(_FINE, blocks=30, use_eagle=True),
    "fine hits, eagle in full": replace(
        _case(full(8, eagle=True), align(8, drafts=1), blocks=26), hash_size=2, use_eagle=True, retention=None
    ),
    "fine hits, full 2 + align 4": _case(full(2), align(4), blocks=36),
    "fine hits, four groups": replace(_case(full(4), full(4, heads=2), align(4), align(4), blocks=44), hash_size=2),
    "fine hits, with sliding of one unit": replace(
        _case(full(4), align(4), slide(2, 6), blocks=48), hash_size=2, retention=None
    ),
    "fine hits, context parallel": replace(_case(full(4), align(8), blocks=26), dcp=2, hash_size=8),
    "fine hits, context parallel, unit 4": replace(_case(full(4), align(8), blocks=26), dcp=2, hash_size=4),
    # States without checkpoints, and what cannot be hit.
    "full + state": replace(_case(full(4), state(64), blocks=20), caching=False),
    "full + state, drafts": replace(_case(full(4), state(64, drafts=2), blocks=26), caching=False),
    "full + state of 4": replace(_case(full(4), state(4), blocks=26), caching=False),
    "full + cross": replace(_case(full(4), cross(4), blocks=28), caching=False),
}
