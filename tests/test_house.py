"""The rules of the house: who imports whom, how long a file may be, what the core may need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kvblocks"

# From the ground up; each folder may import those named with it. `errors` is open to all.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "units": set(),
    "prefix": set(),
    "pool": {"prefix"},
    "kinds": {"prefix", "pool"},
    "manager": {"kinds", "pool", "prefix"},
    "observe": {"manager", "kinds", "prefix"},
    "scheduling": {"manager"},
    "sizing": {"kinds", "prefix", "pool"},
    "traces": set(),
    "replay": {"scheduling", "traces", "sizing", "observe", "manager", "kinds", "pool", "prefix"},
    "explain": {"replay", "traces", "observe", "manager", "kinds"},
    "report": {"units"},
    "engine": {"scheduling", "sizing", "observe", "traces", "manager", "kinds", "pool", "prefix"},
    "serving": {"engine", "live", "observe", "manager", "prefix"},
    "live": {"observe", "manager"},
    "integrations": {"live", "observe", "manager", "kinds", "pool", "prefix"},
    "cli": {
        "files",
        "units",
        "integrations",
        "engine",
        "serving",
        "report",
        "explain",
        "replay",
        "sizing",
        "traces",
        "scheduling",
        "live",
        "observe",
        "manager",
        "kinds",
        "pool",
        "prefix",
    },
}
CORE = ("prefix", "pool", "kinds", "manager")
ENTRY_POINTS = {"__init__", "__main__"}
"""Modules at the root: the package may show the core's names, the main module starts the command line."""


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_modules(path: Path) -> set[str]:
    """Every module that the file imports, anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the folder; name it"
            modules.add(node.module or "")
    return modules


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_a_folder_imports_only_the_folders_below_it() -> None:
    wrong = []
    for path in source_files():
        folder = folder_of(path)
        if folder in ENTRY_POINTS:
            continue
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] == "kvblocks" and len(parts) > 1:
                target = parts[1]
                if target not in {folder, "errors"} | MAY_IMPORT[folder]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_every_folder_is_named_in_the_rule() -> None:
    assert {folder_of(path) for path in source_files()} - ENTRY_POINTS == set(MAY_IMPORT)


def test_the_core_needs_nothing_but_python() -> None:
    optional = {"src/kvblocks/prefix/hashing.py": {"blake3", "xxhash"}}  # behind their extra
    wrong = []
    for path in source_files():
        if folder_of(path) not in (*CORE, "errors", "scheduling", "observe", "live"):
            continue
        name = str(path.relative_to(ROOT))
        for module in imported_modules(path):
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names | {"kvblocks"} | optional.get(name, set()):
                wrong.append(f"{name} imports {module}")
    assert not wrong


def test_importing_the_plugin_loads_nothing_of_vllm() -> None:
    code = "import sys, kvblocks.integrations.vllm as plugin; print(plugin.register is not None, 'vllm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


def test_importing_the_package_loads_no_optional_package() -> None:
    code = (
        "import sys, kvblocks, kvblocks.manager, kvblocks.scheduling, kvblocks.observe; "
        "print([m for m in ('numpy', 'typer', 'rich', 'msgspec', 'plotly', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks"])
def test_no_file_is_longer_than_600_lines(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 600
    }
    assert not long


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in source_files() if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
