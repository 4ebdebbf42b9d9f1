"""What `test_jax_state` runs, each in a process of its own that has four devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.session.agent import Agent, welcome

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.session import Part, Restored, Session
from mainspring.session.blocks import OnDevice
from mainspring.session.jax_state import apart, blocks_of, tree_from

struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
PARTS = {"weights": Part.WEIGHTS, "optimizer": Part.OPTIMIZER}


def placed(array: Any, *axes: Any) -> jax.Array:
    mesh, spec = jax.make_mesh((2, 2), ("a", "b")), PartitionSpec(*axes)  # type: ignore[no-untyped-call]
    found: jax.Array = jax.device_put(array, NamedSharding(mesh, spec))
    return found


def tree() -> dict[str, Any]:
    return {
        "weights": {"w": placed(jnp.arange(64.0).reshape(8, 8), "a", "b"), "b": placed(jnp.arange(8.0), "b")},
        "optimizer": [placed(jnp.arange(16, dtype=jnp.bfloat16), ("a", "b")), np.arange(3)],
        "count": 7,
    }


class Keeper(Agent):
    """Says that the state lies in `source`; in the store it lies nowhere near, so every byte is fetched."""

    source = "arena"

    def _answer(self, message: object) -> object:
        answer = super()._answer(message)
        return replace(answer, source=self.source) if isinstance(answer, wire.RestorePlan) else answer


def saved(agent: Agent, state: Any) -> Session:
    session = agent.session(welcome(rank=0, world_size=1))
    assert session.snapshot(3, blocks_of(state, session, PARTS))
    session.left()
    agent.resume_from(agent.all(wire.SnapshotCommit)[-1])
    return session


def restored_by(session: Session) -> Restored:
    restored = session.restore()
    assert restored is not None
    return restored


def same(one: Any, other: Any) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(left).dtype == np.asarray(right).dtype
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


def check_blocks_are_views_of_each_part_once(folder: Path) -> None:
    session, state = Session("", pid=1, stopwatch=lambda: 0.0), tree()
    blocks = blocks_of(state, session, PARTS)
    assert len({(block.path, block.start) for block in blocks}) == len(blocks) == 4 + 2 + 4 + 1 + 1
    assert all(block.once and not block.elsewhere for block in blocks)
    parts = {block.path: block.part for block in blocks}
    assert (parts["weights/w"], parts["optimizer/0"], parts["count"]) == (Part.WEIGHTS, Part.OPTIMIZER, Part.OTHER)
    views = [block.data for block in blocks if block.path == "weights/w"]
    for shard in state["weights"]["w"].addressable_shards:
        assert any(np.shares_memory(np.asarray(shard.data), view) for view in views)


def check_tree_comes_back_on_other_shardings(folder: Path) -> None:
    agent, state = Keeper(folder), tree()
    session = saved(agent, state)
    like = {
        "weights": {
            "w": struct((8, 8), jnp.float32, sharding=placed(0.0).sharding),
            "b": struct((8,), jnp.float32),
        },
        "optimizer": [placed(jnp.zeros(16, jnp.bfloat16), "b"), np.zeros(3, np.int64)],
        "count": 0,
    }
    back: Any = tree_from(restored_by(session), like)
    same(back, state)
    assert back["weights"]["w"].sharding.is_fully_replicated
    assert back["optimizer"][0].sharding.spec == PartitionSpec("b")  # type: ignore[no-untyped-call]
    assert (type(back["count"]), type(back["optimizer"][1])) == (int, np.ndarray)


def check_part_of_a_tree_is_read_alone_and_the_rest_kept(folder: Path) -> None:
    agent, state = Keeper(folder), tree()
    session = saved(agent, {name: state[name] for name in ("weights", "count")})
    fresh = jax.tree.map(lambda leaf: leaf * 0, state)
    with pytest.raises(NotFound, match="optimizer/0"):
        tree_from(restored_by(session), fresh)
    same(tree_from(restored_by(session), fresh, missing="keep"), {**state, "optimizer": fresh["optimizer"]})
    same(tree_from(restored_by(session), {"weights": fresh["weights"]}), {"weights": state["weights"]})
    described = [struct(leaf.shape, leaf.dtype) for leaf in fresh["optimizer"]]
    with pytest.raises(InvalidInput, match="a description"):
        tree_from(restored_by(session), {"optimizer": described}, missing="keep")


def check_other_dtypes_are_refused_or_cast_and_other_shapes_refused(folder: Path) -> None:
    session = saved(Keeper(folder), {"w": placed(jnp.arange(8.0) / 3, "a")})
    half = {"w": struct((8,), jnp.bfloat16)}
    with pytest.raises(InvalidInput, match="cast=True"):
        tree_from(restored_by(session), half)
    same(tree_from(restored_by(session), half, cast=True), {"w": (jnp.arange(8.0) / 3).astype(jnp.bfloat16)})
    with pytest.raises(InvalidInput, match=r"wanted float32 \(4, 4\)"):
        tree_from(restored_by(session), {"w": jnp.zeros((4, 4))}, cast=True)


def check_numbers_come_back_as_the_types_they_were(folder: Path) -> None:
    state = {
        "steps": 7,
        "rate": 0.5,
        "done": True,
        "seen": np.int64(8),
        "loss": np.float32(0.25),
        "half": jnp.dtype("bfloat16").type(1.5),
        "stop": np.bool_(True),
    }
    session = saved(Keeper(folder), state)
    back = tree_from(restored_by(session), {name: type(value)(0) for name, value in state.items()})
    assert {name: (type(value), value) for name, value in back.items()} == {
        name: (type(value), value) for name, value in state.items()
    }
    with pytest.raises(InvalidInput, match="cast=True"):
        tree_from(restored_by(session), {"seen": np.int32(0)})
    assert tree_from(restored_by(session), {"seen": np.int32(0)}, cast=True) == {"seen": np.int32(8)}


def check_arrays_from_the_arena_outlive_its_next_snapshots(folder: Path) -> None:
    agent, state = Keeper(folder), {"w": placed(jnp.arange(4096.0), "a")}
    session = saved(agent, state)
    back = tree_from(restored_by(session), state)
    for step in range(4, 8):
        assert session.snapshot(step, blocks_of({"w": state["w"] * 0}, session))
    same(back, state)


def check_arrays_from_the_arena_are_worked_in_by_a_step_that_takes_them(folder: Path) -> None:
    state = {"w": placed(jnp.arange(4096.0), "a")}
    back = tree_from(restored_by(saved(Keeper(folder), state)), state)
    before = [shard.data.unsafe_buffer_pointer() for shard in back["w"].addressable_shards]
    doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree), donate_argnums=0)(back)
    same(doubled, jax.tree.map(lambda leaf: leaf * 2, state))
    assert [shard.data.unsafe_buffer_pointer() for shard in doubled["w"].addressable_shards] == before


def check_arrays_from_the_store_are_fetched_and_can_be_donated(folder: Path) -> None:
    agent, state = Keeper(folder), {"w": placed(jnp.arange(4096.0), "a"), "b": placed(jnp.arange(64.0))}
    session = saved(agent, state)
    agent.source = "store"
    agent.far_bytes = Path(agent.arena).read_bytes()
    agent.elsewhere, agent.here = tuple(replace(shard, file="") for shard in agent.here), ()
    back = tree_from(restored_by(session), state)
    same(back, state)
    doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree), donate_argnums=0)(back)
    same(doubled, jax.tree.map(lambda leaf: leaf * 2, state))
    staged = next(folder.glob("staged-*"))
    assert agent.far_bytes[:4096] in staged.read_bytes(), "what others may map is not written to"


def check_arrays_apart_stay_when_theirs_are_given_away(folder: Path) -> None:
    give = jax.jit(lambda array: array * 0, donate_argnums=0)
    for room_bytes, kind in ((1 << 20, OnDevice), (0, np.ndarray)):
        arrays = [jax.device_put(jnp.arange(64.0) + number, device) for number, device in enumerate(jax.devices())]
        found = apart([*arrays, np.arange(3), 7.0], dict.fromkeys(jax.devices(), room_bytes).__getitem__)
        for array in arrays:
            give(array)
        for number, (array, held) in enumerate(zip(arrays, found, strict=False)):
            assert array.is_deleted()
            assert isinstance(held, kind)
            came = held.bring()() if isinstance(held, OnDevice) else held
            np.testing.assert_array_equal(came, np.arange(64.0) + number)
        assert [np.asarray(each).tolist() for each in found[4:]] == [[0, 1, 2], 7.0]


def check_typed_keys_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"jax\.random\.key_data"):
        blocks_of({"key": jax.random.key(0)}, Session("", pid=1, stopwatch=lambda: 0.0))


CHECKS: Mapping[str, Callable[[Path], None]] = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)  # type: ignore[no-untyped-call]
    CHECKS[sys.argv[1]](Path(sys.argv[2]))
