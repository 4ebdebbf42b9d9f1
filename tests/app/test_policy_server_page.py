"""The page about the policy server tells the truth: its commands run, and what it names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.server.programs.serve import arguments_of
from mainspring.robots.serving.metrics import ServingMetrics
from mainspring.robots.serving.server import ServeLimits
from mainspring.robots.serving.wire import Refusal

PAGE = (Path(__file__).parents[2] / "docs" / "policy-server.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_commands_of_the_page_about_serving_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    script = "\n".join(["set -eux -o pipefail", "trap 'kill $(jobs -p) || true' EXIT", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=350
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert "follow no trouble" in done.stdout
    assert "unsafe_action: could not send a chunk; on step 0, number 0; got 5; wanted -1 to 1" in done.stdout
    assert "reach:act" in done.stdout.splitlines()[-1]


def test_the_page_names_what_there_is() -> None:
    for reason in Refusal:
        assert f"`{reason.value}`" in PAGE
    told = ServingMetrics().text().decode()
    for name in re.findall(r"`_(\w+)`", PAGE):
        assert f"mainspring_serving_{name}" in told, name
    limits = ServeLimits()
    assert f"{limits.message_bytes >> 20} MiB a message, {limits.connections:,} robots" in PAGE
    assert f"{limits.requests_per_s:g} requests a\nsecond" in PAGE
    given = arguments_of(["a:b"])
    for option in re.findall(r"`--([a-z-]+)", PAGE):
        assert hasattr(given, option.replace("-", "_")) or option in ("no-deps",), option
