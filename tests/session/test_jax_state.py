from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="the train extra is not installed")

ROOT = Path(__file__).parents[2]
CHECKS = re.findall(r"^def check_(\w+)\(", (Path(__file__).parent / "jax_checks.py").read_text(), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_jax_state(check: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.session.jax_checks", check, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
