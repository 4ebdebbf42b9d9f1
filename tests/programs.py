"""Programs that tests run for real where they are installed; where one is not, a test skips and says what brings it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

BUILD = Path(__file__).parent.parent / "build" / "prometheus"


def program(name: str, remedy: str) -> str:
    """Returns where a program is, on the path or in `build/`; without it the test skips."""
    found = shutil.which(name, path=f"{BUILD}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        pytest.skip(f"{name} is not installed: {remedy}")
    return found
