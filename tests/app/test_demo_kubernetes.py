"""`ms demo --engine kubernetes`: through a killed pod and a queue that takes its nodes back, on a real Kueue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.testing.kubernetes_kueue import kueue_missing
from tests.app.conftest import until
from tests.app.test_demo_slurm import left_of

MISSING = kueue_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
PROGRAM = str(Path(sys.executable).parent / "ms")


@pytest.mark.soak  # A minute and a half; each of its parts is a test of every day.
@pytest.mark.timeout(400)
def test_demo_on_kubernetes_loses_a_pod_then_its_nodes_and_ends_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    few = ("--episodes", "4", "--steps", "3000", "--starts", "1")
    words = [PROGRAM, "--home", str(home), "demo", "--engine", "kubernetes", *few, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-4_000:]
    report = json.loads(done.stdout)
    assert (report["cluster"], report["steps"]) == ("beta (simulated)", 3000)
    assert "kill -9 pod" in done.stderr
    assert "queue others takes back its 4 nodes" in done.stderr
    until(lambda: not left_of(home), "everything to be over")
