"""One setting to plan for: a model, flags and a place to run; and how it does with some of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.devices import Device
from kvblocks.sizing.flags import EngineFlags
from kvblocks.sizing.memory import estimate_available
from kvblocks.sizing.model_config import ModelConfig
from kvblocks.sizing.plan import Layout, fill, lay_out, refused
from kvblocks.sizing.result import Plan, gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What to plan. Memory is `available_bytes` where that is known, else estimated for the `device`.

    Raises UsageError on use when it has neither, and the flags no `kv_cache_memory_bytes`.
    """

    config: ModelConfig
    flags: EngineFlags = field(default_factory=EngineFlags)
    env: Mapping[str, str] = field(default_factory=dict)
    device: Device | None = None
    available_bytes: int | None = None
    """Bytes for the cache of each worker."""
    assume_full_attention: bool = False
    folders: tuple[Path, ...] = ()
    """Where draft models named by a relative path are looked for."""

    @property
    def memory_is_exact(self) -> bool:
        """Whether the memory is given, not estimated."""
        return self.available_bytes is not None or self.flags.kv_cache_memory_bytes is not None

    def changed(self, **flags: Any) -> Setting:
        """The same setting with some flags changed."""
        return replace(self, flags=self.flags.with_(**flags))

    def with_env(self, **env: str) -> Setting:
        """The same setting with some environment variables set."""
        return replace(self, env={**self.env, **env})

    def lay_out(self) -> Layout:
        """Layers to groups. Raises UsageError for what vLLM refuses whatever the memory."""
        device = {}
        if self.device is not None:
            device = {
                "device_bytes": self.device.total_bytes,
                "device_name": self.device.name,
                "capability": self.device.capability,
            }
        return lay_out(
            self.config,
            self.flags,
            self.env,
            assume_full_attention=self.assume_full_attention,
            folders=self.folders,
            **device,  # type: ignore[arg-type]
        )

    def plan(self) -> Plan:
        """What fits. Raises UsageError only when no memory is known."""
        try:
            layout = self.lay_out()
        except UsageError as error:
            return refused(self.config, error)
        if not self.memory_is_exact and self.device is None:
            raise UsageError(
                "no memory is given: name the GPU (--gpu h100), its memory (--memory 80GiB), or what a log said is "
                "available (--available 35.57GiB)"
            )
        return self.fill(layout)

    def fill(self, layout: Layout) -> Plan:
        """The plan of a layout of this setting."""
        if self.available_bytes is not None:
            return fill(layout, self.available_bytes)
        if self.flags.kv_cache_memory_bytes is not None:
            return fill(layout, self.flags.kv_cache_memory_bytes)
        assert self.device is not None
        engine = layout.engine
        with layout.config.explained():
            estimates = [
                estimate_available(
                    layout.config,
                    engine.flags.with_(dtype=engine.dtype),
                    self.device,
                    max_num_batched_tokens=engine.max_num_batched_tokens,
                    max_num_seqs=engine.max_num_seqs,
                    stage=stage,
                    env=engine.env,
                )
                for stage in range(engine.pp)
            ]
        plan = fill(layout, [estimate.available_best for estimate in estimates])
        for estimate in estimates:
            weights = estimate.weights.best
            if weights > estimate.requested_bytes and not plan.ok:
                plan = replace(plan, error=self._too_small(weights, estimate.requested_bytes, layout.engine.tp))
                break
        return replace(plan, memory=tuple(estimate.to_dict() for estimate in estimates))

    def _too_small(self, weights: int, requested: int, tp: int) -> str:
        assert self.device is not None
        enough = 2 * tp
        while weights * tp > requested * enough:
            enough *= 2
        return (
            f"the weights take {gib(weights)} GiB of each GPU, and gpu_memory_utilization="
            f"{self.flags.gpu_memory_utilization:g} gives {gib(requested)} GiB of a {self.device.name}; use more GPUs "
            f"(tensor_parallel_size={enough} or so; --gpus finds how many), a quantised checkpoint, or a larger GPU"
        )
