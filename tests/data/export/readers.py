"""Environments of other people's readers, each of its own, kept between runs: they take gigabytes and minutes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HOME = Path(os.environ.get("MAINSPRING_READERS", Path(tempfile.gettempdir()) / "mainspring-readers"))
LIMIT_S = 1_800.0
TORCH = ("torch>=2.7,<2.11", "torchvision", "setuptools<81")
LEROBOT_044 = (
    "datasets>=4,<5",
    "huggingface-hub>=0.34.2,<0.36",
    "av>=15,<16",
    "pandas",
    "jsonlines",
    "packaging<26",
    "draccus==0.10.0",
    "einops",
    "imageio",
    "termcolor",
    "deepdiff<9",
    "accelerate",
    "opencv-python-headless<4.13",
    "requests",
)
LEROBOT_033 = ("datasets>=2.19,<=3.6", "huggingface-hub>=0.27.1,<0.36", "requests")  # The rest it shares.
TFDS = ("tensorflow-cpu", "tensorflow-datasets")
RERUN = ("rerun-sdk",)


def environment(name: str, *installs: tuple[str, ...], beneath: Path | None = None) -> Path:
    """Returns an environment's Python; skips with the command where it cannot be made, as without a network.

    Args:
        name: Of its folder.
        installs: What each call of pip installs.
        beneath: Another environment whose packages it sees where it has none of its own.
    """
    folder = HOME / name
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.is_file():
        calls = [[sys.executable, "-m", "venv", str(folder)]]
        calls += [[str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", *one] for one in installs]
        for call in calls:
            made = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S)
            if made.returncode:
                pytest.skip(f"no {name} here; it is made by: {' '.join(call)}: {made.stderr[-300:]}")
        if beneath is not None:
            (site,) = (folder / "lib").glob("python*/site-packages")
            (theirs,) = (beneath.parents[1] / "lib").glob("python*/site-packages")
            (site / "beneath.pth").write_text(f"{theirs}\n")
        done.touch()
    return python


def run(python: Path, script: str, *words: object, **more: str) -> str:
    """Runs a script in an environment, sealed off from hubs, and returns what it printed."""
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": "", **more}
    call = [str(python), "-c", script, *map(str, words)]
    made = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT_S, env=settings)
    assert made.returncode == 0, made.stderr[-3_000:]
    return made.stdout
