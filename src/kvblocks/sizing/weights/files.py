"""Weights beside a config: their sizes from the index or the headers of safetensors files, never the tensors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError
from kvblocks.sizing.weights.parts import EXPERTS, SPLIT, WHOLE

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100 * 10**6
"""Bytes of a header at most: the limit of the safetensors format's own readers."""
ELEMENT_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_WHOLE = re.compile(
    r"norm|\.bias$|\.gate\.weight|router|shared_expert_gate|q_a_proj|kv_a_proj|indexer|compressor|inv_freq|rotary|f_a_proj|g_a_proj"
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: its name and its bytes, where it goes and how ranks share it."""

    name: str
    size: int
    layer: int | None
    share: str
    wide: bool = False
    """Whether it is a matrix of 32-bit floats, which the engine casts to the model's dtype."""


def find_tensors(folder: Path) -> list[Tensor] | None:
    """All tensors in the safetensors files of a folder; None when the folder has none (or only their index).

    Raises UsageError naming the file when one is cut off, is not safetensors, or when the index names files that are
    only partly there.
    """
    files = _files(folder)
    if not files:
        return None
    return [tensor for file in files for tensor in read_header(file)]


def index_bytes(folder: Path) -> int | None:
    """`metadata.total_size` of the index; None when the folder has no index or the index does not say.

    Raises UsageError naming the file when it is not an index.
    """
    index = _index(folder)
    metadata = index.get("metadata") if index is not None else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return None
    if isinstance(total, bool) or not isinstance(total, (int, float)) or total <= 0:
        raise UsageError(
            f"{folder / INDEX}: metadata.total_size={total!r} must be a number of bytes; download it again"
        )
    return int(total)


def _index(folder: Path) -> dict[str, Any] | None:
    file = folder / INDEX
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not a JSON index of weights: {error}; download it again or remove it") from None
    if not isinstance(data, dict):
        raise UsageError(f"{file}: an index of weights is an object, not {type(data).__name__}; download it again")
    return data


def _files(folder: Path) -> list[Path]:
    index = _index(folder)
    names = index.get("weight_map") if index is not None else None
    if isinstance(names, dict) and names:
        wanted = sorted({str(name) for name in names.values()})
        there = [folder / name for name in wanted if (folder / name).is_file()]
        if there and len(there) < len(wanted):
            missing = next(name for name in wanted if not (folder / name).is_file())
            raise UsageError(
                f"{folder}: {len(wanted) - len(there)} of {len(wanted)} weight files of the index are missing (the "
                f"first is {missing}); download the rest, or remove all of them to count from the config"
            )
        return there
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    return sorted(file for file in folder.glob("*.safetensors") if file.is_file())


def read_header(file: Path) -> list[Tensor]:
    """The tensors of one safetensors file, from its header alone. Raises UsageError when it is not a whole one."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if start.startswith(b"version "):
                raise UsageError(f"{file}: is a pointer to a large file, not the file; fetch it, or remove it")
            if len(start) < 8 or not 2 <= length <= HEADER_LIMIT or length + 8 > size:
                raise UsageError(f"{file}: is not a whole safetensors file; download it again, or remove it")
            header = json.loads(stream.read(length))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: has a header that is not JSON: {error}; download it again, or remove it") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    if not isinstance(header, dict):
        raise UsageError(f"{file}: has a header that is not an object; download it again, or remove it")
    found = list(_tensors(file, header))
    data = size - 8 - length
    if sum(tensor.size for tensor in found) > data:
        raise UsageError(f"{file}: is cut off: its header names more bytes than the file has; download it again")
    return found


def _tensors(file: Path, header: dict[str, Any]) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape = entry.get("shape") if isinstance(entry, dict) else None
        bits = ELEMENT_BITS.get(str(entry.get("dtype"))) if isinstance(entry, dict) else None
        if not isinstance(shape, list) or bits is None or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise UsageError(f"{file}: tensor {name!r} has no shape or dtype that is known; download it again")
        match = _LAYER.search(name)
        layer = int(match.group(1)) if match and not is_vision(name) else None
        wide = entry["dtype"] == "F32" and len(shape) > 1
        yield Tensor(name, math.prod(shape) * bits // 8, layer, _share(name, len(shape)), wide)


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to a vision or audio tower or its projector."""
    return bool(re.search(r"visual|vision|audio|multi_modal_projector|mm_projector|image_newline", name))


def is_draft(name: str, num_layers: int) -> bool:
    """Whether a tensor belongs to the layers that only draft: `mtp.`, or numbered past the last layer."""
    match = _LAYER.search(name)
    return name.startswith(("mtp.", "model.mtp")) or (match is not None and int(match.group(1)) >= num_layers)


def _share(name: str, dimensions: int) -> str:
    if ".experts." in name:
        return EXPERTS
    return WHOLE if _WHOLE.search(name) or dimensions < 1 else SPLIT
