from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.plan.hlo import parsed_program
from mainspring.train.plan.traffic import bytes_by_axis
from mainspring.train.recipe import MeshRecipe
from mainspring.train.state.sharding import make_mesh

from .layouts_of_mesh import LAYOUTS
from .sent_of_mesh import MESHES, least_sent, words_sent

ROOT = Path(__file__).parents[2]
SHARES = {
    "one device": 1,
    "replicas alone": 1,
    "fsdp": 8,
    "tensor": 8,
    "sequence": 4,
    "padded": 2,
    "replica": 4,
    "accumulated": 4,
    "fsdp, lora": 8,
    "tensor, lora": 8,
    "fsdp, words": 8,
    "tensor, words": 8,
    "sequence, words": 2,
    "accumulated, words": 4,
}
QUICK = ("fsdp", "tensor, lora", "sequence, words")  # Each axis and each kind of policy once; all of them soak.


@cache
def trained(layout: str) -> Any:
    """Returns what came of a layout; its programs are compiled without much effort, which would take LLVM a minute."""
    with tempfile.TemporaryDirectory() as folder:
        return _trained(layout, folder)


def _trained(layout: str, folder: str) -> Any:
    devices = 1 if layout.startswith("one device") else 8
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    flags += f" --xla_dump_to={folder} --xla_dump_hlo_pass_re=spmd --xla_dump_hlo_module_re=jit_update"
    # A device's collectives may run at once, each in a thread that waits for the others: a thread a core is too few.
    environment = {
        **os.environ,
        "NPROC": "64",
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    command = [sys.executable, "-m", "tests.train.layouts_of_mesh", layout]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=True)
    assert "rematerialization" not in done.stderr  # An array gathered, because its compiler could not cut it.
    programs = [path.read_text() for path in Path(folder).glob("*.after_spmd-partitioning.*.txt")]
    mesh = MESHES.get(layout)
    sent = bytes_by_axis(parsed_program(programs[0]), mesh) if mesh else None
    return {**json.loads(done.stdout), "sent": sent}


@pytest.mark.slow
@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.soak)
        for name in LAYOUTS
        if not name.startswith("one device")
    ],
)
def test_layout_gives_the_loss_of_one_device_splits_weights_and_moments_alike_and_sends_no_more_than_it_must(
    layout: str,
) -> None:
    alone = next((f"one device, {kind}" for kind in ("lora", "words") if layout.endswith(kind)), "one device")
    one, found = trained(alone)["losses"], trained(layout)
    assert len(set(one)) == 20
    assert found["losses"] == pytest.approx(one, rel=1e-5)
    assert found["shares"] == {"weights": SHARES[layout], "moments": SHARES[layout]}
    assert found["specs"]["weights"] == found["specs"]["moments"]
    assert found["tokens"] == {"sequence": 3, "sequence, words": 3, "padded": 2}.get(layout, 5)  # Of the expert's 5.
    if layout in MESHES:
        least = words_sent if layout.endswith("words") else least_sent
        assert found["sent"] == pytest.approx(least(MESHES[layout]), rel=0.05)


@pytest.mark.parametrize("mesh", [MeshRecipe(data=3), MeshRecipe(replica=2, data=2), MeshRecipe(replica=4, data=0)])
def test_mesh_that_does_not_divide_the_devices_is_refused(mesh: MeshRecipe) -> None:
    with pytest.raises(InvalidInput, match=r"1 devices for replica=.*multiply to the number of devices"):
        make_mesh(mesh)


def test_mesh_of_two_axes_that_take_what_is_left_is_refused() -> None:
    with pytest.raises(InvalidInput, match="data"):
        MeshRecipe(replica=0, data=0)
