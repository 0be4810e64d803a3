"""The fewest GPUs that hold a model and so many requests of such a length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.result import Plan
from kvblocks.sizing.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A way to spread the model over GPUs, and what then fits."""

    gpus: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    plan: Plan
    requests: float
    """Requests of the asked length that fit at once; 0 when the model itself does not."""

    def to_dict(self) -> dict[str, Any]:
        """The layout as JSON would have it."""
        return {
            "gpus": self.gpus,
            "tensor_parallel_size": self.tensor_parallel_size,
            "pipeline_parallel_size": self.pipeline_parallel_size,
            "requests": self.requests,
            "status": self.plan.status,
            "error": self.plan.error,
            "num_blocks": self.plan.num_blocks,
            "available_bytes": self.plan.available_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was tried, the fewest GPUs first, and the first that holds what was asked."""

    wanted_requests: int
    length: int
    tried: tuple[Layout, ...]
    found: Layout | None

    def to_dict(self) -> dict[str, Any]:
        """The search as JSON would have it."""
        return {
            "wanted_requests": self.wanted_requests,
            "length": self.length,
            "found": None if self.found is None else self.found.to_dict(),
            "tried": [layout.to_dict() for layout in self.tried],
        }


def fewest_gpus(
    setting: Setting,
    *,
    requests: int,
    length: int,
    at_most: int = 64,
    on_try: Callable[[int], None] | None = None,
) -> Search:
    """Try tensor x pipeline parallel sizes, fewest GPUs first, until `requests` requests of `length` tokens fit.

    Of layouts with as many GPUs that hold them, the one that holds most. Raises UsageError when the setting has no
    device, for then more GPUs bring no memory.
    """
    if setting.device is None:
        raise UsageError("a search for GPUs needs the kind of GPU: --gpu h100, or --memory 80GiB")
    for name, value in (("requests", requests), ("length", length)):
        if value < 1:
            raise UsageError(f"{name}={value} must be at least 1")
    tried: list[Layout] = []
    for gpus in range(1, at_most + 1):
        if on_try is not None:
            on_try(gpus)
        candidates = [
            _try(setting, tensor, gpus // tensor, requests, length)
            for tensor in range(gpus, 0, -1)
            if gpus % tensor == 0 and tensor & (tensor - 1) == 0
        ]
        tried += [layout for layout in candidates if layout.plan.status != "refused"]
        enough = [layout for layout in candidates if layout.requests >= requests]
        if enough:
            best = max(enough, key=lambda layout: layout.requests)
            return Search(wanted_requests=requests, length=length, tried=tuple(tried), found=best)
    return Search(wanted_requests=requests, length=length, tried=tuple(tried), found=None)


def _try(setting: Setting, tensor: int, pipeline: int, requests: int, length: int) -> Layout:
    changed = setting.changed(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, max_model_len=length)
    plan = changed.plan()
    held = 0.0
    if plan.ok and plan.capacity is not None and plan.num_blocks is not None:
        # The null block holds nothing, so it does not count here, unlike in vLLM's own figure.
        held = plan.capacity.concurrency(plan.num_blocks - 1, length)
    return Layout(
        gpus=tensor * pipeline, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, plan=plan, requests=held
    )
