"""Weights of a Hugging Face folder: safetensors files, mapped and read as they are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvblocks.errors import UsageError

Array = NDArray[np.float32]

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}
_ROWS_BYTES = 16 * 2**20  # converted at a time


class SafetensorsFolder:
    """All `*.safetensors` files of a folder as one source."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers. Raises UsageError naming the file that is missing, cut off or something else."""
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UsageError(f"{folder}: has no *.safetensors file; name the folder of a model with its weights")
        self._where: dict[str, tuple[Path, int, dict[str, Any]]] = {}
        for file in files:
            for name, entry in _header(file):
                self._where[name] = entry
        # Some files name their arrays without the leading "model.".
        if "model.embed_tokens.weight" not in self._where and "embed_tokens.weight" in self._where:
            self._where |= {f"model.{name}": entry for name, entry in list(self._where.items())}

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        found = self._where.get(name)
        return None if found is None else tuple(found[2]["shape"])

    def read_into(self, name: str, out: Array) -> None:
        file, start, entry = self._where[name]
        shape = tuple(entry["shape"])
        numbers = np.memmap(str(file), _DTYPES[entry["dtype"]], "r", start + entry["data_offsets"][0], shape)
        rows = max(1, _ROWS_BYTES // max(1, numbers.nbytes // max(1, len(numbers))))
        for at in range(0, len(numbers), rows):
            part = numbers[at : at + rows]
            if entry["dtype"] == "BF16":  # the upper half of a float32
                out[at : at + rows] = (part.astype(np.uint32) << 16).view(np.float32)
            else:
                out[at : at + rows] = part


def _header(file: Path) -> list[tuple[str, tuple[Path, int, dict[str, Any]]]]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise UsageError(f"{file}: is cut off or no safetensors file; fetch it again")
        try:
            header = json.loads(stream.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{file}: is no safetensors file ({error}); fetch it again") from error
    if end > size:
        raise UsageError(f"{file}: is cut off: its arrays end at byte {end:,}, the file at {size:,}; fetch it again")
    for name, entry in entries.items():
        if entry["dtype"] not in _DTYPES:
            raise UsageError(f"{file}: {name} is {entry['dtype']}; the engine reads {', '.join(_DTYPES)}")
    return [(name, (file, 8 + length, entry)) for name, entry in entries.items()]
