"""What weights are made of: named tensors with their number of parameters and how ranks share them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SPLIT = "split"
"""Cut by tensor parallelism: each rank holds one part of `tp`."""
WHOLE = "whole"
"""Held by every rank as a whole: norms, routers, the latent down-projections of MLA."""
EXPERTS = "experts"
"""Routed experts: cut by tensor parallelism or dealt out to the ranks by expert parallelism; the same bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a checkpoint (or several of the same name and shape).

    `name` is the checkpoint's, without the prefix of the model and with the layer's number (`layers.3.mlp.up_proj`):
    what lists of unquantised modules name. `place` is its layer, or `first` (embeddings), `last` (head and
    last norm) or `every` (what every pipeline stage loads). `heads` is how many pieces a split can make; with fewer
    pieces than ranks each rank still holds one.
    """

    name: str
    numel: int
    place: int | str
    share: str = SPLIT
    linear: bool = True
    """Whether it is the matrix of a linear layer: only those are quantised."""
    heads: int = 0
    what: str = "layers"
    """The group it is reported in."""

    def on_rank(self, tp: int) -> float:
        """Parameters that one rank of `tp` holds."""
        if self.share == WHOLE:
            return float(self.numel)
        if self.heads:
            return self.numel / self.heads * max(1, -(-self.heads // tp))
        return self.numel / tp


def linear(
    name: str, place: int | str, inside: int, outside: int, *, bias: bool = False, heads: int = 0, share: str = SPLIT
) -> Iterator[Part]:
    """The matrix of a linear layer and its bias."""
    yield Part(name, inside * outside, place, share, heads=heads)
    if bias:
        yield Part(f"{name}.bias", outside, place, WHOLE, linear=False)


def small(name: str, place: int | str, numel: int) -> Part:
    """A vector that every rank holds: a norm, a bias, a scale."""
    return Part(name, numel, place, WHOLE, linear=False)
