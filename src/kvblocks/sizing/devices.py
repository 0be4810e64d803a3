"""GPUs and the bytes that their driver reports as total: what the engine multiplies with its share of memory.

The figure is neither the marketing number nor that of `nvidia-smi`: error-correction, page tables and firmware take
their part first, and `torch.cuda.mem_get_info` (which vLLM reads) gives what is left. Messages print it: PyTorch's "GPU
0 has a total capacity of X GiB", vLLM's "Free memory on device (F/T GiB) on startup" and its older "total_gpu_memory (T
GiB)". Most figures below are from such a message of a named card (`log`), some from one of that size that does not name
the card (`size`), some were seen in none (`unconfirmed`). Drivers differ by up to 0.5 %: where two figures are common
(an RTX 4090 says 23.65 with drivers of 2023, 23.52 with those of 2025), the newer one is taken. Give `--memory` where
you know better.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

from kvblocks.errors import UsageError

GIB = 2**30
SPREAD = 0.004
"""How far the totals of two drivers lie apart, as a share of the total: the range of every device from this table."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `total_bytes` is what the driver reports as total.

    `unified` devices share their memory with the host, so what is free depends on what else runs there.
    """

    name: str
    total_bytes: int
    capability: tuple[int, int] = (9, 0)
    """Compute capability; that of AMD's GPUs counts as 9.0, for their kernels take the same blocks."""
    unified: bool = False
    vendor: str = "NVIDIA"
    source: str = ""
    """`log`, `size` or `unconfirmed` (see the head of this file), or `given` by the user."""
    aliases: tuple[str, ...] = field(default=(), compare=False)

    @property
    def total_gib(self) -> float:
        """The total in GiB."""
        return self.total_bytes / GIB


def _device(
    name: str, gib: float, capability: str, *aliases: str, unified: bool = False, vendor: str = "NVIDIA",
    source: str = "log",
) -> Device:  # fmt: skip
    major, _, minor = capability.partition(".") if vendor == "NVIDIA" else ("9", ".", "0")
    return Device(name, round(gib * GIB), (int(major), int(minor)), unified, vendor, source, aliases)


DEVICES: tuple[Device, ...] = (
    # Data centre, Volta to Ada.
    _device("V100-16GB", 15.77, "7.0", "v100", "v100 sxm2", "v100 pcie"),
    _device("V100-32GB", 31.74, "7.0", "v100s"),
    _device("T4", 14.56, "7.5", "tesla t4", source="size"),
    _device("A10", 22.05, "8.6", source="size"),
    _device("A10G", 22.06, "8.6"),
    _device("A16", 14.56, "8.6", source="unconfirmed"),
    _device("A30", 23.50, "8.0", source="unconfirmed"),
    _device("A40", 44.35, "8.6", source="size"),
    _device("A100-40GB", 39.49, "8.0", "a100 40", "a100 sxm4 40gb", "a100 pcie 40gb"),
    _device("A100-80GB", 79.25, "8.0", "a100", "a100 80", "a100 sxm4 80gb", "a100 pcie 80gb", "a800"),
    _device("L4", 22.03, "8.9"),
    _device("L20", 44.52, "8.9", source="size"),
    _device("L40", 44.43, "8.9", source="size"),
    _device("L40S", 44.40, "8.9"),
    # Data centre, Hopper.
    _device("H100", 79.18, "9.0", "h100 sxm", "h100 80gb", "h100 sxm5", "h100 80gb hbm3", "h800"),
    _device("H100-PCIe", 79.11, "9.0", "h100 pcie 80gb", source="size"),
    _device("H100-NVL", 93.10, "9.0", "h100 94gb", source="size"),
    _device("H200", 139.80, "9.0", "h200 sxm", "h200 141gb"),
    _device("H200-NVL", 139.72, "9.0", source="unconfirmed"),
    _device("H20", 95.09, "9.0", "h20 96gb"),
    _device("GH200", 94.50, "9.0", "gh200 96gb", "gh200 480gb", source="unconfirmed"),
    _device("GH200-144GB", 139.0, "9.0", "gh200 141gb", source="unconfirmed"),
    # Data centre, Blackwell.
    _device("B200", 178.35, "10.0", "b200 180gb", "b200 192gb"),
    _device("B300", 267.69, "10.3", "b300 288gb"),
    _device("GB200", 184.31, "10.0", "gb200 nvl72"),
    _device("GB300", 276.0, "10.3", "gb300 nvl72", source="unconfirmed"),
    _device("GB10", 121.69, "12.1", "dgx spark", "spark", unified=True),
    # Workstations.
    _device("RTX A4000", 15.73, "8.6", "a4000", source="unconfirmed"),
    _device("RTX A5000", 23.57, "8.6", "a5000", source="unconfirmed"),
    _device("RTX A6000", 47.40, "8.6", "a6000", source="size"),
    _device("RTX 6000 Ada", 47.37, "8.9", "rtx 6000 ada", "6000 ada", source="size"),
    _device("RTX PRO 6000", 94.97, "12.0", "rtx pro 6000 blackwell", "rtx 6000 pro", "pro 6000", "rtx pro 6000 96gb"),
    # Gaming cards.
    _device("RTX 2080 Ti", 10.57, "7.5", source="unconfirmed"),
    _device("RTX 3060", 11.63, "8.6", source="unconfirmed"),
    _device("RTX 3080", 9.65, "8.6", source="size"),
    _device("RTX 3090", 23.56, "8.6", "3090"),
    _device("RTX 3090 Ti", 23.56, "8.6", source="unconfirmed"),
    _device("RTX 4060 Ti-16GB", 15.60, "8.9", "rtx 4060 ti", source="unconfirmed"),
    _device("RTX 4070 Ti SUPER", 15.57, "8.9", source="unconfirmed"),
    _device("RTX 4080", 15.57, "8.9", "rtx 4080 super", source="size"),
    _device("RTX 4090", 23.52, "8.9", "4090", "rtx 4090d"),
    _device("RTX 4090-48GB", 47.37, "8.9", source="size"),
    _device("RTX 5070 Ti", 15.48, "12.0", source="unconfirmed"),
    _device("RTX 5080", 15.51, "12.0", source="size"),
    _device("RTX 5090", 31.37, "12.0", "5090"),
    # AMD; a MI250X shows as two devices, of which this is one.
    _device("MI210", 63.98, "gfx90a", vendor="AMD"),
    _device("MI250X", 63.98, "gfx90a", "mi250", "mi250x gcd", vendor="AMD"),
    _device("MI300X", 191.69, "gfx942", "mi300", vendor="AMD"),
    _device("MI300A", 127.0, "gfx942", unified=True, vendor="AMD", source="unconfirmed"),
    _device("MI308X", 191.69, "gfx942", vendor="AMD", source="unconfirmed"),
    _device("MI325X", 255.69, "gfx942", "mi325", vendor="AMD", source="unconfirmed"),
    _device("MI350X", 287.69, "gfx950", "mi350", vendor="AMD", source="unconfirmed"),
    _device("MI355X", 287.69, "gfx950", "mi355", vendor="AMD", source="unconfirmed"),
    _device("R9700", 31.86, "gfx1201", "radeon ai pro r9700", vendor="AMD"),
    _device("RX 7900 XTX", 23.98, "gfx1100", "7900 xtx", vendor="AMD", source="size"),
)

_NOISE = re.compile(r"\b(nvidia|amd|geforce|instinct|tesla|radeon|graphics|gpu|tensor|core|accelerator)\b")
_FORM = re.compile(r"\b(sxm[0-9]?|pcie|hbm[0-9]e?|oam|nvl[0-9]*)\b")
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b|[kmgt]|bytes|b)?\s*$", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _key(name: str) -> str:
    """A name without case, maker, spaces and dashes."""
    text = _NOISE.sub(" ", name.lower().replace("_", " ").replace("-", " "))
    return re.sub(r"[^a-z0-9]", "", text)


_BY_KEY: dict[str, Device] = {}
for _entry in DEVICES:
    for _alias in (_entry.name, *_entry.aliases):
        _BY_KEY.setdefault(_key(_alias), _entry)


def find_device(name: str) -> Device:
    """The device of a name, however it is written (`h100`, `H100-80GB`, `NVIDIA GeForce RTX 4090`), or of a size.

    Raises UsageError with the nearest names when there is none.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"gpu={name!r} must be the name of a GPU, for example H100, or a size, for example 80GiB")
    key = _key(name)
    for other in (key, f"rtx{key}", _key(_FORM.sub(" ", name.lower().replace("-", " ")))):
        if other in _BY_KEY:
            return _BY_KEY[other]
    sized = next((device for other, device in _by_size() if other == key), None)
    if sized is not None:
        return sized
    if _SIZE.match(name):
        return device_of_memory(name)
    near = difflib.get_close_matches(key, [*_BY_KEY], 4, 0.5)
    names = list(dict.fromkeys(_BY_KEY[other].name for other in near)) or [device.name for device in DEVICES[:8]]
    raise UsageError(
        f"gpu={name!r} is not a GPU that is known; the nearest are {', '.join(names)} (--list-gpus has all); "
        "for another give its memory: --memory 80GiB"
    )


def _by_size() -> list[tuple[str, Device]]:
    """Names with their marketed size appended, as people write them: `rtx4090 24gb`."""
    return [(f"{key}{round(device.total_gib / 8 + 0.3) * 8}gb", device) for key, device in _BY_KEY.items()]


def device_of_memory(size: str | int) -> Device:
    """A device of a given size: bytes, or text with a unit (`80GiB`, `80 GB`, `81559MiB`; without one, bytes).

    The whole size counts as total. Raises UsageError naming the value when it is no size or an impossible one.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        amount = size
    else:
        match = _SIZE.match(str(size))
        if match is None:
            raise UsageError(f"memory={size!r} must be a size with its unit, for example 80GiB or 24 GB")
        unit = (match.group(2) or "").lower().removesuffix("ytes")
        table = _BINARY if "i" in unit else _UNITS
        amount = round(float(match.group(1)) * table[unit.replace("i", "").removesuffix("b") or ("b" if unit else "")])
    if amount < 2**28:
        raise UsageError(f"memory={size!r} is less than 256 MiB; give the unit too, for example {size}GiB")
    if amount > 2**50:
        raise UsageError(f"memory={size!r} is more than a PiB; give the memory of one GPU, for example 80GiB")
    return Device(f"GPU of {amount / GIB:.4g} GiB", amount, source="given")
