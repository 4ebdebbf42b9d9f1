from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="the train extra is not installed")

PROGRAM = """
import jax
jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from mainspring.session import Restored, Session
from mainspring.session.jax_state import blocks_of, tree_from

session = Session("", pid=1, stopwatch=lambda: 0.0)
mesh = jax.make_mesh((2, 2), ("a", "b"))
def placed(array, *axes):
    return jax.device_put(array, NamedSharding(mesh, P(*axes)))
tree = {
    "w": placed(jnp.arange(64.0).reshape(8, 8), "a", "b"),
    "b": placed(jnp.arange(8, dtype=jnp.bfloat16), "b"),
    "layers": [placed(jnp.float32(3)), 7, np.arange(3)],
}
blocks = blocks_of(tree, session)
assert all(block.once for block in blocks)
assert len({(block.path, block.start) for block in blocks}) == len(blocks) == 4 + 2 + 3, len(blocks)
restored = Restored(step=1, state={}, source="arena", blocks=blocks)
like = {
    "w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P(None, ("a", "b")))),
    "b": jax.ShapeDtypeStruct((8,), jnp.bfloat16),
    "layers": [placed(jnp.float32(0), ), 0, np.zeros(3, np.int64)],
}
back = tree_from(restored, like)
assert back["w"].sharding.spec == P(None, ("a", "b"))
for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
    assert np.asarray(one).dtype == np.asarray(other).dtype
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
shards = tree["w"].addressable_shards
assert np.shares_memory(blocks[-1].data, np.asarray(shards[-1].data)), "blocks are views where arrays lie in memory"
try:
    tree_from(restored, {"w": jnp.zeros((4, 4))})
except Exception as error:
    assert "wanted float32 (4, 4)" in str(error), error
else:
    raise AssertionError("another shape was accepted")
try:
    blocks_of({"key": jax.random.key(0)}, session)
except Exception as error:
    assert "jax.random.key_data" in str(error), error
else:
    raise AssertionError("a typed key was accepted")
"""


@pytest.mark.slow
def test_jax_tree_taken_apart_comes_back_on_another_sharding() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
