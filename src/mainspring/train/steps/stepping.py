"""A run's steps, one under way while the next is prepared; one that went wrong is done again before anything follows.

What a step measured is read while the next is under way, which costs nothing. Where it went wrong, the next one has
left the state alone (`update`), so all is still there: the state, and the batch, which is kept so long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from mainspring.train.recipe import Recipe
from mainspring.train.state.sharding import WHOLE
from mainspring.train.steps.again import Batch, Trials
from mainspring.train.steps.state import TrainState
from mainspring.train.steps.update import Measures, answered_kinds, make_update
from mainspring.train.steps.verdicts import Again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Over:
    """A step that is over.

    Args:
        again: What came of it done again, where it went wrong; `measures` are then of the time that counts.
    """

    step: int
    measures: Measures
    again: Again | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _UnderWay:
    step: int
    batch: Batch
    measured: jax.Array


@final
class Stepping:
    """The state of a run, and its steps in order.

    Args:
        recipe: What is learned.
        mesh: Where state and batches live.
        state: Before the first.
        trials: Do a step again.
        over: Is told of each step that is over, in order; returns the state to go back to, None to go on.
    """

    def __init__(
        self,
        recipe: Recipe,
        mesh: Mesh,
        state: TrainState,
        trials: Trials,
        over: Callable[[Over], TrainState | None],
    ) -> None:
        self.state = state
        self._update = make_update(recipe, mesh)
        self._trials, self._over = trials, over
        self._answered = answered_kinds(recipe)
        self._calm = calm_measures(mesh) if self._answered else None
        self._under_way: _UnderWay | None = None
        self._begun = False

    def do(self, step: int, batch: Batch) -> None:
        """Begins a step; the one before is over when it returns.

        Args:
            step: It.
            batch: The global batch.
        """
        if not self._begun:
            self._trials.prepare(self.state, batch, step - 1)
        before, self._under_way, self._begun = self._under_way, None, True
        follows = self._calm if before is None or self._calm is None else before.measured
        measured = self._step(step, batch, follows)
        if before is not None and self._end(before):  # This one has left all as it was.
            measured = self._step(step, batch, self._calm)
        self._under_way = _UnderWay(step, batch, measured)

    def settle(self) -> None:
        """Waits for the step under way: then all are over."""
        before, self._under_way = self._under_way, None
        if before is not None:
            self._end(before)

    def _step(self, step: int, batch: Batch, follows: jax.Array | None) -> jax.Array:
        given = () if follows is None else (follows,)
        measured: jax.Array
        self.state, measured = self._update(self.state, batch, np.int32(step), *given)
        return measured

    def _end(self, done: _UnderWay) -> bool:
        """Ends a step; returns whether it went wrong and something is done about that."""
        measures = Measures.of(np.asarray(done.measured))
        answered = measures.upset in self._answered
        again = self._trials.again(self.state, done.batch, done.step) if answered else None
        if again is not None and again.passed:
            self.state = uncounted(self.state)
            measures = Measures.of(np.asarray(self._step(done.step, done.batch, self._calm)))
        back = self._over(Over(step=done.step, measures=measures, again=again))
        self.state = self.state if back is None else back
        return answered


def uncounted(state: TrainState) -> TrainState:
    """Returns the state before a step that left it as it was, but for what counts steps."""

    def back(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf - 1

    before: TrainState = jax.tree.map(back, state)
    return before


def before_shape(recipe: Recipe, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shape and place of what a step is given of the one before; nothing where nobody looks at it."""
    struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
    like = struct((len(Measures._fields),), jnp.float32, sharding=NamedSharding(mesh, WHOLE))
    return (like,) if answered_kinds(recipe) else ()


def calm_measures(mesh: Mesh) -> jax.Array:
    """Returns measures of no step, nothing of which was wrong, on all devices."""
    fresh: Any = jax.jit(lambda: jnp.zeros(len(Measures._fields)), out_shardings=NamedSharding(mesh, WHOLE))
    calm: jax.Array = fresh()
    return calm
