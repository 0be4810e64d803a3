"""Public data beside the repository, for tests that skip where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parent.parent.parent / "shared"


def shared(path: str) -> Path:
    """The path of a shared file; skips the test when it is not there."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"{path} is not beside this repository")
    return found
