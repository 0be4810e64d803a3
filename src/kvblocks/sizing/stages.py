"""Pipeline stages: which layers each holds."""

from __future__ import annotations

from collections.abc import Mapping

from kvblocks.errors import UsageError

PP_PARTITION = "VLLM_PP_LAYER_PARTITION"


def stage_sizes(num_layers: int, pp: int, env: Mapping[str, str]) -> list[int]:
    """Layers of each pipeline stage: as `VLLM_PP_LAYER_PARTITION` says, else even; a rest goes to the middle stages."""
    given = env.get(PP_PARTITION)
    if given:
        try:
            sizes = [int(part) for part in given.split(",")]
        except ValueError:
            raise UsageError(f"{PP_PARTITION}={given!r} must be whole numbers separated by commas") from None
        if len(sizes) != pp or sum(sizes) != num_layers:
            raise UsageError(
                f"{PP_PARTITION}={given!r} must have pipeline_parallel_size={pp} numbers that sum up to {num_layers}"
            )
        return sizes
    sizes = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        sizes[-i] += 1
    return sizes


def stage_layers(num_layers: int, pp: int, stage: int, env: Mapping[str, str]) -> range:
    """The layers of one stage. Raises UsageError when there is no such stage."""
    if not 0 <= stage < pp:
        raise UsageError(f"stage={stage} must be at least 0 and below pipeline_parallel_size={pp}")
    sizes = stage_sizes(num_layers, pp, env)
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])
