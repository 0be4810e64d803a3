"""GPUs, by name: the memory that a program sees, which is less than what is sold.

The figures are what the driver gives as total memory (`torch.cuda.mem_get_info`), as public start-up logs and
out-of-memory messages print it. They differ between driver versions, and with ECC on, by some hundred MiB: give
`--memory` where you know better.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kvblocks.errors import UsageError
from kvblocks.sizing.flags import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU."""

    name: str
    total_bytes: int
    """Memory that a program sees."""
    capability: tuple[int, int] = (9, 0)
    """Compute capability; that of AMD's GPUs counts as 9.0, for their kernels take the same blocks."""
    unified: bool = False
    """Whether the memory is the host's too, so that other programs use it."""


def _gpu(name: str, gib: float, capability: tuple[int, int], unified: bool = False) -> Device:
    return Device(name=name, total_bytes=int(gib * GIB), capability=capability, unified=unified)


DEVICES: tuple[Device, ...] = (
    _gpu("V100-16GB", 15.77, (7, 0)),
    _gpu("V100-32GB", 31.73, (7, 0)),
    _gpu("T4", 14.56, (7, 5)),
    _gpu("RTX 3060", 11.63, (8, 6)),
    _gpu("RTX 3080", 9.77, (8, 6)),
    _gpu("RTX 3090", 23.58, (8, 6)),
    _gpu("RTX A5000", 23.68, (8, 6)),
    _gpu("RTX A6000", 47.43, (8, 6)),
    _gpu("A10", 22.06, (8, 6)),
    _gpu("A10G", 22.06, (8, 6)),
    _gpu("A30", 23.50, (8, 0)),
    _gpu("A40", 44.42, (8, 6)),
    _gpu("A100-40GB", 39.39, (8, 0)),
    _gpu("A100-80GB", 79.25, (8, 0)),
    _gpu("RTX 4060 Ti", 15.60, (8, 9)),
    _gpu("RTX 4070", 11.60, (8, 9)),
    _gpu("RTX 4080", 15.60, (8, 9)),
    _gpu("RTX 4090", 23.53, (8, 9)),
    _gpu("RTX 6000 Ada", 47.50, (8, 9)),
    _gpu("L4", 22.03, (8, 9)),
    _gpu("L20", 44.53, (8, 9)),
    _gpu("L40", 44.39, (8, 9)),
    _gpu("L40S", 44.39, (8, 9)),
    _gpu("H20", 95.22, (9, 0)),
    _gpu("H100", 79.19, (9, 0)),
    _gpu("H100-PCIe", 79.19, (9, 0)),
    _gpu("H100-NVL", 93.11, (9, 0)),
    _gpu("H200", 139.80, (9, 0)),
    _gpu("H200-NVL", 139.72, (9, 0)),
    _gpu("GH200", 94.50, (9, 0)),
    _gpu("GH200-144GB", 139.80, (9, 0)),
    _gpu("B200", 178.35, (10, 0)),
    _gpu("GB200", 184.31, (10, 0)),
    _gpu("B300", 267.69, (10, 3)),
    _gpu("GB300", 276.20, (10, 3)),
    _gpu("RTX 5070 Ti", 15.47, (12, 0)),
    _gpu("RTX 5080", 15.47, (12, 0)),
    _gpu("RTX 5090", 31.36, (12, 0)),
    _gpu("RTX PRO 6000", 94.97, (12, 0)),
    _gpu("GB10", 119.70, (12, 1), unified=True),
    _gpu("MI210", 63.98, (9, 0)),
    _gpu("MI250X", 63.98, (9, 0)),
    _gpu("MI300X", 191.69, (9, 0)),
    _gpu("MI325X", 255.69, (9, 0)),
    _gpu("MI355X", 287.69, (9, 0)),
)
"""MI250X is one of its two dies, which is what a program sees."""

_ALIASES = {
    "a100": "A100-80GB",
    "a100-sxm": "A100-80GB",
    "v100": "V100-32GB",
    "h100-80gb": "H100",
    "h100-sxm": "H100",
    "h100-sxm5": "H100",
    "h200-141gb": "H200",
    "dgx-spark": "GB10",
    "spark": "GB10",
    "mi250": "MI250X",
    "pro-6000": "RTX PRO 6000",
    "6000-ada": "RTX 6000 Ada",
    "a6000": "RTX A6000",
    "a5000": "RTX A5000",
}


def find_device(name: str) -> Device:
    """A GPU by its name, in any spelling: `h100`, `H100-80GB`, `RTX 4090`, `nvidia l4`.

    Raises UsageError naming the nearest ones.
    """
    wanted = _plain(name)
    wanted = _plain(_ALIASES.get(wanted, wanted))
    by_name = {_plain(device.name): device for device in DEVICES}
    found = by_name.get(wanted) or by_name.get(f"rtx-{wanted}")
    if found is not None:
        return found
    near = difflib.get_close_matches(wanted, by_name, 3, 0.5)
    known = ", ".join(by_name[key].name for key in near) or "h100, h200, a100-80gb, l40s, l4, b200, mi300x"
    raise UsageError(
        f"--gpu {name!r} is unknown; the nearest known: {known} (--list-gpus has all), or give its memory: "
        "--memory 80GiB"
    )


def device_of_memory(total_bytes: int) -> Device:
    """A GPU of which only the memory is known; its kernels are taken for those of an H100."""
    if total_bytes < GIB // 4:
        raise UsageError(f"--memory {total_bytes} bytes is less than 0.25 GiB: no GPU has so little; write 80GiB")
    return Device(name=f"GPU of {total_bytes / GIB:.4g} GiB", total_bytes=total_bytes)


def _plain(name: str) -> str:
    text = re.sub(r"[\s_]+", "-", name.strip().lower())
    return re.sub(r"^(nvidia|amd|geforce|instinct|tesla)-", "", re.sub(r"^(nvidia|amd)-", "", text))
