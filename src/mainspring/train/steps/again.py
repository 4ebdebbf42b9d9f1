"""The same work done more than once: what a sound device does twice comes out the same, bit for bit.

A device that computes wrongly says nothing, and where gradients are summed over all, everybody's weights are wrong
alike from then on. Here each device's own sums of a step, before any other's are added, become two checksums, which all
ranks read of all devices, so that all come to the same verdict without a word. It changes no state, and nothing is run
between two checks.

Devices compute the same program on the same bits: the rows travel, as does the number of their first, by which noise
is drawn. Source: after the deterministic replay of Gemini (Gemini Team, 2023, section 3) and ByteRobust (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from mainspring.train.models.shapes import REPLICA
from mainspring.train.recipe import Recipe
from mainspring.train.state.sharding import BATCH, WHOLE, is_whole, mean_over_ranks, state_shardings
from mainspring.train.steps.state import TrainState
from mainspring.train.steps.update import Sums, guarded_by, sums_of_rows
from mainspring.train.steps.verdicts import THIRD, Again, Look, NeighbourChecks, Neighbours, compared

_SPREAD = 0x9E3779B1  # An odd number of many bits, so that numbers that change places change the sum (Knuth, 6.4).

Batch: TypeAlias = Mapping[str, jax.Array]


@final
class Trials:
    """Does work again. Programs are compiled when they are wanted first.

    Args:
        recipe: What is learned.
        mesh: Where state and batches live.
    """

    def __init__(self, recipe: Recipe, mesh: Mesh) -> None:
        self._recipe, self._mesh = recipe, mesh
        self._able = is_whole(mesh) and recipe.guard.check_every > 0
        self._checks = NeighbourChecks(mesh.size)
        self._moves: dict[int, jax.stages.Wrapped] = {}  # By distance, of which there are fewer than `THIRD`.

    @property
    def given_up(self) -> bool:
        """Returns whether no more is checked, for the program does not repeat itself."""
        return self._checks.given_up

    def due(self, step: int) -> bool:
        """Returns whether neighbours are to be checked before a step: never where a device has but a part of the state,
        or is alone, nor once it has shown that the program does not repeat itself.
        """
        return self._able and self._checks.able and step % self._recipe.guard.check_every == 0

    def ever_due(self, start: int) -> bool:
        """Returns whether neighbours are to be checked before any step after `start`."""
        every = self._recipe.guard.check_every
        return self._able and self._checks.able and self._recipe.steps // every > start // every

    def prepare(self, state: TrainState, batch: Batch, start: int) -> None:
        """Compiles what checks of neighbours will run, where there will be any; runs nothing.

        To be called in the first step of a generation, which is waited for: later on it would look like a hang.

        Args:
            state: As it is before the step; it stays.
            batch: The step's.
            start: The last step that is done.
        """
        if self.ever_due(start):
            self.lowered(state, batch).compile()
            for distance in range(1, min(THIRD, self._mesh.size)):
                self._moved(distance).lower(batch).compile()

    def lowered(self, state: Any, batch: Mapping[str, Any]) -> jax.stages.Lowered:
        """Returns the program of a look; arrays or their shapes will do."""
        return self._program.lower(state, batch, np.int32(0), np.int32(0))

    def look(self, state: TrainState, batch: Batch, step: int, distance: int = 0) -> Look:
        """Returns what each device makes of the rows of the one so many places on.

        Args:
            state: As it is before the step; it stays.
            batch: The step's.
            distance: Only where every device holds the whole state.
        """
        rows = self._moved(distance)(batch) if distance else batch
        sums, upset = self._program(state, rows, np.int32(step), np.int32(distance))
        found = np.asarray(sums).tolist()
        return Look(sums=tuple(tuple(each) for each in found), upset=float(np.asarray(upset)))

    def again(self, state: TrainState, batch: Batch, step: int) -> Again:
        """Returns what comes of a step that went wrong, done twice more on the same devices."""
        return compared(self.look(state, batch, step), self.look(state, batch, step))

    def neighbours(self, state: TrainState, batch: Batch, step: int) -> Neighbours | None:
        """Returns whether devices come to the same as their neighbours; where they do not, all are asked twice.

        None where too many then give two answers: the program's own affair, not a device's.
        """
        return self._checks.check(lambda distance: self.look(state, batch, step, distance).sums)

    def is_own_affair(self, unsteady: Sequence[int]) -> bool:
        """Returns whether two answers to one question are likely the program's own affair, for too many gave them.

        Args:
            unsteady: The devices that did.
        """
        return self._checks.is_own_affair(unsteady)

    @property
    def all_devices(self) -> tuple[int, ...]:
        """Returns the numbers of all."""
        return tuple(range(self._mesh.size))

    def name(self, device: int) -> str:
        """Returns what people call a device."""
        found = self._mesh.devices.flat[device]
        rank = found.process_index
        of_rank = [each.id for each in self._mesh.devices.flat if each.process_index == rank]
        return f"device {sorted(of_rank).index(found.id)} of rank {rank} ({found.device_kind})"

    def ranks(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Returns whose they are."""
        return tuple(sorted({self._mesh.devices.flat[device].process_index for device in devices}))

    @cached_property
    def _program(self) -> jax.stages.Wrapped:
        recipe, mesh = self._recipe, self._mesh
        everywhere = jax.sharding.NamedSharding(mesh, WHOLE)
        own_sums = _whole_sums(recipe, mesh) if is_whole(mesh) else partial(_shared_sums, recipe, mesh)

        def again(state: TrainState, batch: Batch, step: jax.Array, distance: jax.Array) -> Any:
            learned = state.learned(recipe)
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                checks, sums = own_sums(learned, state.weights, state.statistics, batch, step, distance)
            gradient, loss = jax.tree.map(
                lambda array: array / jnp.maximum(sums.steps, 1.0), (sums.gradient, sums.loss)
            )
            upset = guarded_by(recipe, state.usual, loss, optax.tree.norm(gradient)).upset
            place: Any = jax.lax.with_sharding_constraint
            return place(checks, everywhere), place(jnp.asarray(upset, jnp.float32), everywhere)

        return jax.jit(again)

    def _moved(self, distance: int) -> jax.stages.Wrapped:
        """Returns what gives every device the rows of the one so many places on."""
        if distance in self._moves:
            return self._moves[distance]
        size = self._mesh.size
        pairs = [((device + distance) % size, device) for device in range(size)]

        def move(rows: Batch) -> Batch:
            return {name: jax.lax.ppermute(array, REPLICA, pairs) for name, array in rows.items()}  # type: ignore[no-untyped-call]

        moved: Any = jax.shard_map(move, mesh=self._mesh, in_specs=BATCH, out_specs=BATCH, check_vma=False)
        self._moves[distance] = jax.jit(moved)
        return self._moves[distance]


def _whole_sums(recipe: Recipe, mesh: Mesh) -> Callable[..., Any]:
    """Returns each device's check of its own sums, and the mean of all sums, where every device holds the state."""

    def local(learned: Any, weights: Any, statistics: Any, batch: Batch, step: Any, distance: Any) -> Any:
        owner = (jax.lax.axis_index(REPLICA) + distance) % mesh.size
        sums = sums_of_rows(recipe, owner * len(batch["valid"]), learned, weights, statistics, batch, step)
        return check_of(sums)[None], mean_over_ranks(sums, mesh)

    places = (WHOLE, WHOLE, WHOLE, BATCH, WHOLE, WHOLE)
    each: PartitionSpec = PartitionSpec(REPLICA)  # type: ignore[no-untyped-call]
    found: Callable[..., Any] = jax.shard_map(
        local, mesh=mesh, in_specs=places, out_specs=(each, WHOLE), check_vma=False
    )
    return found


def _shared_sums(
    recipe: Recipe, mesh: Mesh, learned: Any, weights: Any, statistics: Any, batch: Batch, step: Any, distance: Any
) -> Any:
    """Returns each device's check of its own part of the sums, and the sums, where devices share the state."""
    del distance  # Nobody has a neighbour that could do all of its work.
    sums = sums_of_rows(recipe, 0, learned, weights, statistics, batch, step)
    places = state_shardings(sums.gradient, mesh, recipe.mesh)
    place: Any = jax.lax.with_sharding_constraint
    gradient = place(sums.gradient, places)
    specs = jax.tree.map(lambda one: one.spec, places)
    each: PartitionSpec = PartitionSpec(mesh.axis_names)  # type: ignore[no-untyped-call]
    checks: Any = jax.shard_map(
        lambda own: check_of(own)[None], mesh=mesh, in_specs=(specs,), out_specs=each, check_vma=False
    )
    return checks(gradient), Sums(gradient, sums.loss, sums.steps)


def check_of(tree: Any) -> jax.Array:
    """Returns a checksum of all bits of a device's arrays: their sum, and their sum by place.

    Whole numbers wrap around, so it is the same in whatever order they are added.
    """
    total, placed = jnp.zeros((), jnp.uint32), jnp.zeros((), jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        kind = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32).reshape(-1)
        places = jnp.arange(bits.size, dtype=jnp.uint32) * jnp.uint32(2) + jnp.uint32(2 * number + 1)
        total = total + bits.sum(dtype=jnp.uint32)
        placed = placed + (bits * places * jnp.uint32(_SPREAD)).sum(dtype=jnp.uint32)
    return jnp.stack([total, placed])
