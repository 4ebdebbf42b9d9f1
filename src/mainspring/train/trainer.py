"""The trainer: a loop to read in one sitting, and to copy and change.

Everything random is drawn from (seed, step), and the data's order is a function of (seed, step) too, so a run that
was interrupted and went on from a snapshot ends, on the same number of ranks, with the same bits as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from mainspring.data import Loader, View, gather
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.session import Session
from mainspring.session.jax_distributed import initialize
from mainspring.session.jax_state import blocks_of, tree_from
from mainspring.train.feed import fitted
from mainspring.train.policy import (
    Signature,
    Statistics,
    Weights,
    flow_loss,
    initial_weights,
    measure_statistics,
    signature_of,
    unit_statistics,
)
from mainspring.train.recipe import OptimizerRecipe, Recipe
from mainspring.train.sharding import BATCH, DATA, make_mesh, mean_over_ranks, place_batch, sharding, spec

STATISTICS_BATCHES = 32  # At the recipes' batch sizes some thousands of chunks: a deviation good to about 1 %.
STOP = "stop"  # Travels with the batch, so that all ranks learn of a stop at the same step.
Update = Callable[["TrainState", Mapping[str, jax.Array], Any], tuple["TrainState", dict[str, jax.Array]]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that changes in a run, and what was measured at its start: what a snapshot holds."""

    weights: Weights
    statistics: Statistics
    optimizer: Any


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where a run ended.

    Args:
        state: The state after the last step.
        step: Steps done.
        loss: Loss of the last step; None when there was nothing left to do.
        preempted: Whether it ended early because it was asked to; its last snapshot is of `step`.
    """

    state: TrainState
    step: int
    loss: float | None
    preempted: bool


def connect(session: Session, cache: Path) -> None:
    """Connects JAX to the other ranks, and keeps what it compiles, so that a restarted rank starts at once.

    Args:
        session: This rank's session.
        cache: Folder of compiled programs; made when missing.

    Raises:
        Unavailable: The coordination service does not answer.
    """
    for option, value in (
        ("jax_compilation_cache_dir", str(cache)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]
    initialize(session)


def train(session: Session, recipe: Recipe, view: View, *, snapshot_every: int, facts: Mapping[str, str]) -> Outcome:
    """Trains until the recipe's last step, or until the session asks to stop; leaves snapshots on the way.

    Args:
        session: This rank's session; `connect` has been called.
        recipe: What to learn, and how.
        view: What to learn from.
        snapshot_every: Steps between snapshots; there is always one at the end.
        facts: Kept with every snapshot, beside what is needed to use the policy.

    Raises:
        InvalidInput: The recipe does not fit the view or the number of ranks.
    """
    mesh = make_mesh()
    if recipe.batch_size % mesh.size:
        raise InvalidInput(
            "share a batch", got=f"{recipe.batch_size} chunks, {mesh.size} devices", wanted="a multiple", on=recipe.name
        )
    loader = open_loader(view, recipe, rank=session.rank, world_size=session.world_size)
    signature = signature_of(gather(view, np.arange(1), horizon=recipe.policy.horizon), recipe.policy)
    restored = session.restore()
    if restored is None:
        start, state = 0, initial_state(recipe, signature, statistics_of(view, recipe), mesh)
    else:
        start, state = restored.step, tree_from(restored, abstract_state(recipe, signature, mesh))
    facts = {**facts, "recipe": encode(recipe).decode(), "signature": encode(signature).decode()}
    update = make_update(recipe, mesh)
    step, stop = start, False
    done: Mapping[str, jax.Array] = {}  # Metrics of the step before: reading them leaves one step under way.
    with loader.stream(start) as batches:
        for step in range(start + 1, recipe.steps + 1):
            arrays = fitted(next(batches), partial(loader.rows, step - 1), view, recipe.policy)
            arrays[STOP] = np.full(jax.local_device_count(), session.stop_requested, np.float32)
            state, metrics = update(state, place_batch(mesh, arrays), np.int32(step))
            if done:
                stop = bool(done[STOP])
                session.report(step - 1, {"loss": float(done["loss"]), "steps": recipe.steps})
            done = metrics
            if step % snapshot_every == 0 or step == recipe.steps or stop:
                session.snapshot(step, blocks_of(state, session), facts)
            if stop:
                break
    loss = float(done["loss"]) if done else None
    if loss is not None:
        session.report(step, {"loss": loss, "steps": recipe.steps})
    return Outcome(state=state, step=step, loss=loss, preempted=step < recipe.steps)


def open_loader(view: View, recipe: Recipe, *, rank: int, world_size: int) -> Loader:
    """Returns a rank's share of the recipe's batches.

    Args:
        view: What to read.
        recipe: Says how much, and in which order.
        rank: Which rank.
        world_size: Of how many.

    Raises:
        InvalidInput: The batch cannot be shared equally.
    """
    return Loader(
        view,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        horizon=recipe.policy.horizon,
        rank=rank,
        world_size=world_size,
    )


def statistics_of(view: View, recipe: Recipe) -> Statistics:
    """Returns the statistics of a sample of a view; every rank reads the same one.

    Args:
        view: What to read.
        recipe: Says what the policy learns.
    """
    loader = open_loader(view, recipe, rank=0, world_size=1)
    sample = (
        fitted(loader.batch(step), partial(loader.rows, step), view, recipe.policy)
        for step in range(STATISTICS_BATCHES)
    )
    return measure_statistics(sample, recipe.policy)


def make_optimizer(optimizer: OptimizerRecipe, steps: int) -> optax.GradientTransformation:
    """Returns the optimizer of a run.

    Args:
        optimizer: Its recipe.
        steps: Steps of the whole run.
    """
    warmup = min(optimizer.warmup_steps, steps // 2)
    rate = optax.warmup_cosine_decay_schedule(0.0, optimizer.learning_rate, warmup, steps)
    return optax.chain(
        optax.clip_by_global_norm(optimizer.gradient_norm_max),
        optax.adamw(rate, weight_decay=optimizer.weight_decay),
    )


def initial_state(recipe: Recipe, signature: Signature, statistics: Statistics, mesh: jax.sharding.Mesh) -> TrainState:
    """Returns the state before the first step, the same on every rank.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        statistics: Of the data.
        mesh: Where the state lives.
    """

    state: TrainState = jax.jit(_fresh_state(recipe, signature), out_shardings=sharding(mesh))(statistics)
    return state


def abstract_state(recipe: Recipe, signature: Signature, mesh: jax.sharding.Mesh) -> TrainState:
    """Returns the shapes, types and places of the state's arrays.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        mesh: Where the state lives.
    """
    shapes = jax.eval_shape(_fresh_state(recipe, signature), unit_statistics(recipe.policy, signature))
    struct: Any = partial(jax.ShapeDtypeStruct, sharding=sharding(mesh))
    state: TrainState = jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype), shapes)
    return state


def _fresh_state(recipe: Recipe, signature: Signature) -> Callable[[Statistics], TrainState]:
    def fresh(statistics: Statistics) -> TrainState:
        weights = initial_weights(jax.random.key(recipe.seed), recipe.policy, signature)
        optimizer = make_optimizer(recipe.optimizer, recipe.steps).init(weights)
        return TrainState(weights=weights, statistics=statistics, optimizer=optimizer)

    return fresh


def make_update(recipe: Recipe, mesh: jax.sharding.Mesh) -> Update:
    """Returns the compiled function of one step: (state, global batch, step) -> (state, metrics); the state is donated.

    Args:
        recipe: What to learn, and how.
        mesh: Where state and batch live.
    """
    optimizer = make_optimizer(recipe.optimizer, recipe.steps)

    def local(weights: Weights, statistics: Statistics, batch: Mapping[str, jax.Array], step: jax.Array) -> Any:
        key = jax.random.fold_in(jax.random.key(recipe.seed), step)
        key = jax.random.fold_in(key, jax.lax.axis_index(DATA))
        loss, gradient = jax.value_and_grad(flow_loss)(weights, statistics, recipe.policy, batch, key)
        return mean_over_ranks((gradient, {"loss": loss, STOP: batch[STOP].max()}), mesh)

    over_ranks = jax.shard_map(
        local, mesh=mesh, in_specs=(spec(), spec(), spec(BATCH), spec()), out_specs=spec(), check_vma=False
    )

    def update(state: TrainState, batch: Mapping[str, jax.Array], step: jax.Array) -> Any:
        gradient, metrics = over_ranks(state.weights, state.statistics, batch, step)
        changes, moved = optimizer.update(gradient, state.optimizer, state.weights)
        weights = optax.apply_updates(state.weights, changes)
        return TrainState(weights=weights, statistics=state.statistics, optimizer=moved), metrics

    return jax.jit(update, donate_argnums=0)
