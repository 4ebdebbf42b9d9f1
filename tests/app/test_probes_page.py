"""The page about probes tells the truth: its commands run, its manifests are read, its checks are those there are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from mainspring.app.server.programs.probes import arguments_of
from mainspring.node.probes.watchers.counters import COUNTERS
from mainspring.node.probes.watchers.kernel_log import PATTERNS
from mainspring.node.probes.watchers.scrape import ANSWER_BYTES_MAX, CALL_LIMIT_S, SCRAPED_S
from tests.app.ready_ms import path_with_ready_ms

PAGE = (Path(__file__).parents[2] / "docs" / "probes.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_of_the_page_about_probes_run(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment["MAINSPRING_HOME"] = str(tmp_path / "home")
    cluster = "ms cluster add local hall --chip cpu --nodes 2 --no-check"
    script = "\n".join(["set -eux -o pipefail", "trap 'ms down' EXIT", cluster, "ms up --port 0", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]


def test_services_of_the_page_say_what_the_program_understands() -> None:
    (daemons,) = yaml.safe_load_all("".join(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)))
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    assert words[:4] == ["python", "-m", "mainspring", "probes"]
    said = arguments_of(["n1" if word == "$(NODE)" else word for word in words[4:]])
    assert (said.root, said.cluster) == ("/host", "cloud")
    (unit,) = re.findall(r"ExecStart=\S+ -m mainspring probes (.*)", PAGE)
    assert arguments_of(unit.split()).to == "https://lab.example:7077"


def test_the_page_lists_the_checks_that_there_are() -> None:
    for check in {row.check for row in PATTERNS}:
        assert f"`{check}`" in PAGE, check
    assert f"and {len(COUNTERS) - 2} more counters" in PAGE  # A link's flaps are counted in two places.
    for check in ("ecc-corrected", "nvlink-errors", "pcie-replays", "dcgm", "ici-link", "libtpu"):
        assert f"`{check}`" in PAGE, check


def test_the_page_says_how_an_exporter_and_tpus_are_asked() -> None:
    words = arguments_of(["--cluster", "hall", "--dcgm", "http://127.0.0.1:9400/metrics"])
    assert (words.dcgm, words.no_dcgm, words.no_tpu) == ("http://127.0.0.1:9400/metrics", False, False)
    words = arguments_of(["--cluster", "hall", "--no-dcgm", "--no-tpu"])
    assert (words.dcgm, words.no_dcgm, words.no_tpu) == ("", True, True)
    for option in ("--dcgm URL", "--no-dcgm", "--no-tpu"):
        assert f"`{option}`" in PAGE
    bounds = f"every {SCRAPED_S:g} s, {CALL_LIMIT_S:g} s and {ANSWER_BYTES_MAX >> 20} MiB at the most"
    assert bounds in " ".join(PAGE.split())
