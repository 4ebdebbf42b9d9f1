"""The trainer: a loop to read in one sitting, and to copy and change.

Everything random is drawn from (seed, step), and the data's order is a function of (seed, step) too, so a run that
was interrupted and went on from a snapshot ends, on the same number of ranks, with the same bits as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from mainspring.data import View
from mainspring.data.features import ACTION, STATE
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, InvalidMessage
from mainspring.session import Restored, Session
from mainspring.session.jax_ahead import compile_ahead
from mainspring.session.jax_state import blocks_of, tree_from
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.measured import statistics_of
from mainspring.train.inputs.sources import GivenView, Sources
from mainspring.train.models.attention import check_attention
from mainspring.train.models.shapes import PolicyRecipe, Signature
from mainspring.train.recipe import InitRecipe, Recipe
from mainspring.train.robots import KnownRobot, robots_told
from mainspring.train.state.sharding import batch_sharding, batch_shares, make_mesh, place_batch, share_of
from mainspring.train.steps.again import Trials
from mainspring.train.steps.checks import Checks
from mainspring.train.steps.guard import Guard
from mainspring.train.steps.held_out import HeldOut
from mainspring.train.steps.pace import Pace, tokens_of
from mainspring.train.steps.state import PARTS, TrainState, abstract_state, initial_state
from mainspring.train.steps.stepping import Over, Stepping, before_shape
from mainspring.train.steps.update import make_update

Work = Callable[[Recipe, Signature], Callable[[float], float] | None]
"""From a recipe and its data's dimensions to what `Pace` takes as `mfu`."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where a run ended.

    Args:
        state: The state after the last step.
        step: Steps done; fewer than the recipe's when it was asked to leave, and then the last snapshot is of it.
        loss: Loss of the last step; None when there was nothing left to do.
    """

    state: TrainState
    step: int
    loss: float | None


def train(
    session: Session,
    recipe: Recipe,
    view: View | Sequence[GivenView],
    *,
    facts: Mapping[str, str],
    bring: Callable[[InitRecipe], InitRecipe] = lambda init: init,
    work: Work = lambda recipe, signature: None,
) -> Outcome:
    """Trains until the recipe's last step, or until the session asks to leave; leaves snapshots on the way.

    Args:
        session: This rank's session; JAX is connected (`jax_distributed.run`).
        recipe: What to learn, and how.
        view: What to learn from: a view, or the sources that the recipe names.
        facts: Kept with every snapshot, beside what is needed to use the policy.
        bring: Brings the weights that the recipe begins with to where they can be read, when they are wanted.
        work: Knows what the chips can do, so that steps are told by it.

    Raises:
        InvalidInput: The recipe does not fit data or devices; or a step went wrong, and the recipe says to stop.
        Unavailable: A device computes otherwise than two that agree, and there is no lead to go on without it.
    """
    mesh = make_mesh(recipe.mesh)
    check_shares(recipe, mesh)
    share, sources = share_of(mesh), Sources(recipe, view)
    signature = sources.signature
    Fitting(sources).check_tasks()
    restored = own_state(session.restore(), recipe)
    if restored is None:
        start, state = 0, begun_state(recipe, sources, mesh, bring)
    else:
        start, state = restored.step, tree_from(restored, abstract_state(recipe, signature, mesh))
    fitting = Fitting(sources, jax.tree.map(np.asarray, state.statistics))
    loader = sources.loader(rank=share.rank, world_size=share.world_size, fit=fitting)
    held_out, trials = HeldOut(sources, fitting, mesh, share), Trials(recipe, mesh)
    guard, checks = Guard(recipe.guard, restored), Checks(session, trials, restored)
    facts = {**facts, **described(recipe, sources)}
    pace = Pace(session.stopwatch, tokens=tokens_of(recipe, signature), mfu=work(recipe, signature))
    loss, step = None, start

    def over(done: Over) -> TrainState | None:
        """Reports a step that is over; returns the state to go back to, where it went wrong and that is wanted."""
        nonlocal loss
        loss = done.measures.loss
        session.report(done.step, {**done.measures.told, **pace.measures(), "steps": recipe.steps})
        upset = guard.judged(session, done.step, done.measures, checks.again(done.step, done.again))
        back = None if upset is None else upset.back
        return None if back is None else tree_from(back, abstract_state(recipe, signature, mesh))

    run = Stepping(recipe, mesh, state, trials, over)
    with loader.stream(start) as stream:
        batches = pace.timed(session.timed(stream))
        for step in session.steps(start, recipe.steps):
            batch = place_batch(mesh, next(batches))
            if checks.due(step):
                run.settle()
                checks.check(run.state, batch, step)
                pace.rest()
            run.do(step, batch)
            if step == start + 1:
                compile_ahead(session, *programs(recipe, signature, batch, checked=trials.ever_due(step)))
            if session.snapshot_due(step):
                run.settle()  # What went wrong is in no snapshot.
                session.snapshot(step, blocks_of(run.state, session, PARTS), {**facts, **checks.facts})
            if held_out.due(step):
                session.report(step, held_out.measures(run.state))
                pace.rest()
    run.settle()
    return Outcome(state=run.state, step=step, loss=loss)


def begun_state(
    recipe: Recipe, sources: Sources, mesh: jax.sharding.Mesh, bring: Callable[[InitRecipe], InitRecipe]
) -> TrainState:
    """Returns the state before the first step.

    Args:
        recipe: What to learn, and how.
        sources: What from.
        mesh: Of all devices.
        bring: See `train`.
    """
    begun = recipe if recipe.init is None else replace(recipe, init=bring(recipe.init))
    return initial_state(begun, sources.signature, statistics_of(sources, begun.init), mesh)


def own_state(restored: Restored | None, recipe: Recipe) -> Restored | None:
    """Returns what a session restores where it is the run's own; None for a checkpoint that its weights come from.

    Args:
        restored: From the session.
        recipe: Of the run; its `init` is that of each of its own snapshots.
    """
    if restored is None or recipe.init is None:
        return restored
    try:
        theirs = decode(Recipe, str(restored.state.get("recipe", "")).encode())
    except (InvalidMessage, InvalidInput):  # Somebody else's checkpoint.
        return None
    return restored if theirs.init == recipe.init else None


def described(recipe: Recipe, sources: Sources) -> dict[str, str]:
    """Returns what is kept beside a policy's arrays, to use it: its recipe, the data's dimensions, its robots'.

    Args:
        recipe: What is learned.
        sources: What from.
    """
    described = {"recipe": encode(recipe).decode(), "signature": encode(sources.signature).decode()}
    if len(recipe.data.robots) == 1 and recipe.data.robots[0].cameras is None:
        return described
    robots = [
        KnownRobot(
            name=one.kind.name,
            number=one.robot,
            state_dim=one.dims(STATE),
            action_dim=one.dims(ACTION),
            cameras=one.cameras,
        )
        for one in sources.opened
    ]
    return {**described, "robots": robots_told(robots)}


def check_shares(recipe: Recipe, mesh: jax.sharding.Mesh) -> None:
    """Checks that a recipe's batches, and its policy's tokens, can be shared out over a mesh, whose devices can do it.

    Args:
        recipe: What to learn, and how.
        mesh: Of all devices.

    Raises:
        InvalidInput: Rows are not shared out evenly, there are fewer tokens than devices to share them, or these cannot
            compute attention as the recipe says.
    """
    parts = batch_shares(mesh) * recipe.accumulate
    if recipe.batch_size % parts:
        raise InvalidInput(
            "share a batch",
            on=recipe.name,
            got=f"{recipe.batch_size} chunks for {parts} parts on {mesh.size} devices",
            wanted="a multiple",
            next_step="change batch_size, accumulate or mesh",
        )
    if recipe.mesh.sequence > recipe.policy.tokens:
        raise InvalidInput(
            "share tokens",
            on=recipe.name,
            got=f"{recipe.policy.tokens} in the longest stream for {recipe.mesh.sequence} devices",
            wanted="at least one for each",
            next_step="set mesh.sequence to 1, and give data or tensor its devices",
        )
    if not isinstance(recipe.policy, PolicyRecipe):
        platform = mesh.devices.flat[0].platform
        check_attention(recipe.policy.compute.attention, platform, sequence=recipe.mesh.sequence)


def programs(
    recipe: Recipe, signature: Signature, batch: Mapping[str, jax.Array], *, checked: bool
) -> tuple[Callable[[Sequence[jax.Device]], jax.stages.Lowered], ...]:
    """Returns what lowers the programs of a run for given devices: see `compile_ahead`.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        batch: A global batch.
        checked: Whether devices will check their neighbours.
    """
    lowers = (lowered_update, lowered_look) if checked else (lowered_update,)
    return tuple(partial(lower, recipe, signature, shapes_of(batch)) for lower in lowers)


def lowered_update(
    recipe: Recipe, signature: Signature, batch: Mapping[str, jax.ShapeDtypeStruct], devices: Sequence[jax.Device]
) -> jax.stages.Lowered:
    """Returns the program of one step on these devices, from shapes alone: nothing is put there.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        batch: What `shapes_of` gave of a global batch.
        devices: All that shall share it.

    Raises:
        InvalidInput: They cannot share it equally.
    """
    mesh = make_mesh(recipe.mesh, devices)
    check_shares(recipe, mesh)
    state, given = abstract_state(recipe, signature, mesh), before_shape(recipe, mesh)
    return make_update(recipe, mesh).lower(state, placed(batch, mesh), np.int32(0), *given)


def lowered_look(
    recipe: Recipe, signature: Signature, batch: Mapping[str, jax.ShapeDtypeStruct], devices: Sequence[jax.Device]
) -> jax.stages.Lowered:
    """Returns the program by which these devices check their neighbours; see `lowered_update`."""
    mesh = make_mesh(recipe.mesh, devices)
    check_shares(recipe, mesh)
    return Trials(recipe, mesh).lowered(abstract_state(recipe, signature, mesh), placed(batch, mesh))


def placed(batch: Mapping[str, jax.ShapeDtypeStruct], mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a global batch with their places on a mesh."""
    struct: Any = partial(jax.ShapeDtypeStruct, sharding=batch_sharding(mesh))
    return {name: struct(like.shape, like.dtype) for name, like in batch.items()}


def shapes_of(batch: Mapping[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and types of a global batch, without its places."""
    struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
    return {name: struct(array.shape, array.dtype) for name, array in batch.items()}
