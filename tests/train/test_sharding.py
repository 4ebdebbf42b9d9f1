from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import json
import jax, numpy as np
from mainspring.train.state.sharding import BATCH, WHOLE, make_mesh, mean_over_ranks, place_batch

mesh = make_mesh()
rows = np.random.default_rng(0).normal(size=(2 * mesh.size, 3)).astype(np.float32)
batch = place_batch(mesh, {"rows": rows})

def local(batch):
    return mean_over_ranks({"sum": batch["rows"].sum(axis=0), "largest": batch["rows"].max()}, mesh)

means = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=BATCH, out_specs=WHOLE, check_vma=False))(batch)
copies = [np.asarray(shard.data).tobytes() for shard in means["sum"].addressable_shards]
print(json.dumps({
    "devices": mesh.size,
    "equal_bits": len(set(copies)) == 1 and len(copies) == mesh.size,
    "sum_error": float(abs(means["sum"] - rows.sum(axis=0) / mesh.size).max()),
    "largest_error": float(abs(means["largest"] - rows.reshape(mesh.size, 6).max(axis=1).mean())),
}))
"""


@pytest.mark.parametrize("devices", [1, 3, 4])
def test_mean_over_ranks_is_the_mean_with_the_same_bits_on_every_device(devices: int) -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    facts = json.loads(done.stdout)
    assert (facts["devices"], facts["equal_bits"]) == (devices, True)
    assert facts["sum_error"] < 1e-6
    assert facts["largest_error"] < 1e-6
