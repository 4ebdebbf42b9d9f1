"""Evaluation of a trained policy: chunks for given states, and its error on episodes it never saw."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from mainspring.data import View
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.wire import Detail
from mainspring.train.feed import shapes_fed
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.sources import GivenView, Sources, with_source
from mainspring.train.lora import merged_arrays
from mainspring.train.models.arrays import Arrays, Weights
from mainspring.train.models.attention import PLATFORMS
from mainspring.train.models.matching import Guidance
from mainspring.train.models.shapes import AttentionKind, LanguageRecipe, Policy, PolicyRecipe, Signature, VlaRecipe
from mainspring.train.policy import (
    Statistics,
    model_of,
    row_keys,
    sample_actions,
    signature_of,
    statistics_of_robot,
    unit_statistics,
)
from mainspring.train.prompts import Tokenizer
from mainspring.train.recipe import Recipe
from mainspring.train.robots import KnownRobot, known_robots

SAMPLES = 16  # Chunks averaged for one held-out state: the noise left adds 1/16 of a sample's variance to the error.
ROWS_A_CALL = 256
SEEDS = 2**31
IN_BLOCKS = re.compile(r"(language|expert|image)/blocks/(?!\w*norm).*")  # Norms alone are float32 there.
_PLAIN: Mapping[str, Any] = {"robot": np.int32(0), "image_valid": np.True_}
ROWS_MAX = 4_096  # Held-out states looked at, evenly spread: enough for an error good to a few percent.

Actor = Callable[[Arrays, int], NDArray[np.float32]]
Sampler = Callable[[Arrays, NDArray[np.uint32], Guidance | None], NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """A policy that can be used: its recipe, its weights, and the statistics of the data it learned from.

    Args:
        robots: The kinds of robots that it knows, in the recipe's order; () for those of its recipe, as wide as it is.
    """

    recipe: Recipe
    signature: Signature
    weights: Weights
    statistics: Statistics
    robots: tuple[KnownRobot, ...] = ()

    @property
    def known_robots(self) -> tuple[KnownRobot, ...]:
        """Returns the kinds of robots that it knows, one at least."""
        return self.robots or _robots_of(None, self.recipe, self.signature)

    def untrained(self) -> TrainedPolicy:
        """Returns a policy of this one's shape with fresh weights, whatever it began with, and the same statistics."""
        return TrainedPolicy(
            recipe=self.recipe,
            signature=self.signature,
            weights=model_of(self.recipe.policy).initial_weights(jax.random.key(self.recipe.seed), self.signature),
            statistics=self.statistics,
            robots=self.robots,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutError:
    """Root mean square errors over all actions of all chunks, in the actions' own units.

    Args:
        policy: Of the mean of `SAMPLES` sampled chunks.
        hold_last_state: Of keeping the current state for the whole chunk; None where states are no actions.
        states: Held-out states that chunks were predicted for.
        episodes: Held-out episodes they come from.
        tasks: The same of each task, in order of name; empty of a task.
    """

    policy: float
    hold_last_state: float | None
    states: int
    episodes: int
    tasks: Mapping[str, HeldOutError] = field(default_factory=dict)


def policy_from(state: Detail, arrays: Mapping[str, NDArray[Any]]) -> TrainedPolicy:
    """Returns the policy in a checkpoint of the trainer; of its mean weights, where its recipe has them; merged.

    Args:
        state: The checkpoint's facts.
        arrays: The checkpoint's arrays by tree path.

    Raises:
        DamagedData: The checkpoint was not made by the trainer.
        InvalidInput: Its arrays do not fit its recipe.
    """
    recipe_text, signature_text = state.get("recipe"), state.get("signature")
    if not isinstance(recipe_text, str) or not isinstance(signature_text, str):
        raise DamagedData(
            "load a policy", got=f"a checkpoint with facts {sorted(state)}", wanted="recipe and signature among them"
        )
    recipe, signature = decode(Recipe, recipe_text.encode()), decode(Signature, signature_text.encode())
    recipe = replace(recipe, policy=at_home(recipe.policy, jax.default_backend()))
    arrays = arrays if recipe.lora is None else merged_arrays(arrays, recipe.lora)
    weights = jax.eval_shape(lambda: model_of(recipe.policy).initial_weights(jax.random.key(0), signature))

    def found(key: Any, leaf: Any) -> jax.Array:
        path = jax.tree_util.keystr(key, simple=True, separator="/")
        array = arrays.get(path)
        if array is not None and _is_float(array.dtype) and _is_float(leaf.dtype):
            array = array.astype(leaf.dtype, copy=False)  # A release may hold them in fewer bits.
        if array is None or (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise InvalidInput(
                "load a policy",
                on=path,
                got="none" if array is None else f"{array.dtype} {array.shape}",
                wanted=f"{leaf.dtype} {leaf.shape}",
            )
        return jax.numpy.asarray(array)

    used = "weights" if recipe.ema_decay is None else "ema"
    like = {used: weights, "statistics": unit_statistics(recipe.policy, signature, recipe.data)}
    tree: dict[str, Any] = jax.tree_util.tree_map_with_path(found, like)
    robots = _robots_of(state.get("robots"), recipe, signature)
    return TrainedPolicy(
        recipe=recipe, signature=signature, weights=tree[used], statistics=tree["statistics"], robots=robots
    )


def _robots_of(told: object, recipe: Recipe, own: Signature) -> tuple[KnownRobot, ...]:
    """Returns the robots that a policy knows; see `known_robots`."""
    return known_robots(told, recipe.data, state_dim=own.state_dim, action_dim=own.action_dim, views=own.image_views)


def _is_float(dtype: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.floating))


def at_home(policy: Policy, platform: str) -> Policy:
    """Returns a policy's shape as it can be computed here: attention of another kind of device is XLA's.

    Args:
        policy: As it was trained.
        platform: Of the devices here, as JAX calls it.
    """
    if isinstance(policy, PolicyRecipe) or PLATFORMS.get(policy.compute.attention, platform) == platform:
        return policy
    return replace(policy, compute=replace(policy.compute, attention=AttentionKind.XLA))


def make_actor(policy: TrainedPolicy, *, seed: int) -> Actor:
    """Returns a function from what is seen and the number of the call to chunks of actions [B,T,A].

    Args:
        policy: Any that acts.
        seed: Of the noise that chunks start from.

    Raises:
        InvalidInput: It is a language model; or, of the function, what it is given is not what the policy sees.
    """
    sampler = make_sampler(policy)

    def act(seen: Arrays, call: int) -> NDArray[np.float32]:
        count = len(seen["state"])
        seeds = np.random.default_rng([seed, call]).integers(SEEDS, size=count)
        return sampler(seen, seeds.astype(np.uint32), None)

    return act


def tokenizer_of(policy: TrainedPolicy) -> Tokenizer | None:
    """Returns what makes prompts for a policy, None for one that is told nothing.

    Raises:
        InvalidInput: Its tokenizer's file is not here.
    """
    name, shape = policy.recipe.data.tokenizer, policy.recipe.policy
    return Tokenizer(Path(name), shape) if isinstance(shape, VlaRecipe) and name else None


def normalised_state(policy: TrainedPolicy, state_BS: NDArray[np.float32], *, robot: int = 0) -> NDArray[np.float32]:
    """Returns states as prompts tell them.

    Args:
        state_BS: In the robot's own width.
        robot: Whose they are, by its number in the recipe.
    """
    own, dims = statistics_of_robot(policy.statistics, robot), state_BS.shape[-1]
    middle, spread = (np.asarray(own[name])[:dims] for name in ("state_mean", "state_deviation"))
    normalised: NDArray[np.float32] = (state_BS - middle) / spread
    return normalised


def make_sampler(policy: TrainedPolicy) -> Sampler:
    """Returns a function from what is seen, a seed for each row and perhaps guidance to chunks of actions [B,T,A].

    A row's chunk follows from the weights, what is seen in it, its seed and its guidance. Compiled for every number of
    rows, with and without guidance, once for all policies of one recipe. Who does not say which robot it is, is the
    first of the recipe; who does not say which pictures are there, has all.

    Args:
        policy: Any that acts.

    Raises:
        InvalidInput: It is a language model; or, of the function, what it is given is not what the policy sees.
    """
    shape, signature = policy.recipe.policy, policy.signature
    _check_acts(shape)
    compiled = _compiled_by_seeds(policy.recipe)
    weights, statistics = jax.device_put((in_numbers_used(policy.weights, shape), policy.statistics))

    def sample(seen: Arrays, seed_B: NDArray[np.uint32], guidance: Guidance | None) -> NDArray[np.float32]:
        shapes = shapes_fed(shape, signature, len(seed_B), policy.recipe.data)
        given = {name: np.full(shapes[name].shape, plain) for name, plain in _PLAIN.items() if name in shapes}
        batch = {**given, **seen}
        check_seen(batch, shapes)
        return np.asarray(compiled(weights, statistics, batch, seed_B, guidance))

    return sample


def _check_acts(policy: Policy) -> None:
    if isinstance(policy, LanguageRecipe):
        raise InvalidInput("act", got="a language model", wanted="a policy: it has words and no actions")


@cache
def _compiled_by_seeds(recipe: Recipe) -> Callable[..., jax.Array]:
    def sample(
        weights: Weights, statistics: Statistics, batch: Arrays, seed_B: jax.Array, guidance: Guidance | None
    ) -> jax.Array:
        return sample_actions(weights, statistics, recipe.policy, batch, jax.vmap(jax.random.key)(seed_B), guidance)

    compiled: Callable[..., jax.Array] = jax.jit(sample)
    return compiled


def in_numbers_used(weights: Weights, policy: Policy) -> Weights:
    """Returns weights of which those that are only ever used in the numbers of activations are in these: the same bits
    come out, and half as many are read.

    Args:
        policy: Says how it is computed.
    """
    if not isinstance(policy, VlaRecipe):
        return weights

    def used(key: Any, array: jax.Array) -> jax.Array:
        path = jax.tree_util.keystr(key, simple=True, separator="/")
        return array.astype(policy.compute.numbers.value) if IN_BLOCKS.fullmatch(path) else array

    cast: Weights = jax.tree_util.tree_map_with_path(used, weights)
    return cast


def check_seen(seen: Arrays, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Checks that a batch has all that a policy sees, in its shape.

    Args:
        seen: By name.
        shapes: From `shapes_fed`.

    Raises:
        InvalidInput: Something is not there, or of another shape.
    """
    wanted = {name: like.shape for name, like in shapes.items() if name not in ("actions", "valid")}
    for name, shape in wanted.items():
        array = seen.get(name)
        if array is None or array.shape != shape:
            raise InvalidInput(
                "show a policy what it sees",
                on=name,
                got="nothing" if array is None else f"shape {array.shape}",
                wanted=f"{shape}, as in the data it learned from",
            )


def check_held_out(policy: TrainedPolicy, view: View, *, source: str = "") -> None:
    """Checks that a policy can be measured on held-out episodes, before it is: that it can read their tasks.

    Args:
        view: As for `held_out_error`.
        source: As there.

    Raises:
        NotFound: As there.
        InvalidInput: As there; or a task is longer than the policy's prompts.
    """
    _check_acts(policy.recipe.policy)
    Fitting(_side_of(policy, view, source)).check_tasks()


def _side_of(policy: TrainedPolicy, view: View, source: str) -> Sources:
    return Sources(with_source(policy.recipe, source), [GivenView(name=source, view=view)], policy.signature)


def held_out_error(policy: TrainedPolicy, view: View, *, seed: int, source: str = "") -> HeldOutError:
    """Returns a policy's error on held-out episodes, beside that of doing nothing; together, and by task.

    Args:
        view: The held-out side of the view it learned from.
        seed: Of the noise that chunks start from.
        source: Which of its recipe's sources the view is a side of.

    Raises:
        NotFound: The recipe has no such source.
        InvalidInput: The view does not fit the policy, or it is a language model.
    """
    _check_acts(policy.recipe.policy)
    sources = _side_of(policy, view, source)
    opened, fitting = sources.opened[0], Fitting(sources, jax.tree.map(np.asarray, policy.statistics))
    signature = signature_of(fitting.gathered(opened, view, np.arange(1)), policy.recipe.policy, policy.recipe.data)
    if signature != policy.signature:
        raise InvalidInput("measure an error on held-out episodes", got=str(signature), wanted=str(policy.signature))
    sampler = _sampler(policy)
    rows = np.unique(np.linspace(0, view.rows - 1, min(view.rows, ROWS_MAX)).astype(np.int64))
    comparable = signature.state_dim == signature.action_dim
    squares = []  # Of each row: the policy's, that of holding still, how many numbers.
    for first in range(0, len(rows), ROWS_A_CALL):
        wanted = rows[first : first + ROWS_A_CALL]
        padded = np.pad(wanted, (0, ROWS_A_CALL - len(wanted)), mode="edge")  # One shape: compiled once.
        batch = fitting.gathered(opened, view, padded)
        seen = {name: array for name, array in batch.items() if name not in ("actions", "valid")}
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), first), SAMPLES)
        predicted_BTA = np.asarray(sampler(seen, keys), np.float64).mean(axis=0)
        held_BTA = batch["state"][:, None] if comparable else np.zeros_like(batch["actions"])
        off = [np.square(each - batch["actions"]).sum(axis=-1) for each in (predicted_BTA, held_BTA)]
        counts = np.full_like(off[0], signature.action_dim)
        sums = [np.where(batch["valid"], each, 0.0).sum(axis=1) for each in (*off, counts)]
        squares.append(np.stack(sums)[:, : len(wanted)])
    by_row = np.concatenate(squares, axis=1)
    episodes = np.searchsorted(view.episode_ends, rows, side="right")
    task_of = np.asarray(view.episodes["task"].to_pylist(), dtype=object)[episodes]

    def error(which: NDArray[np.bool_], tasks: Mapping[str, HeldOutError]) -> HeldOutError:
        off, held, count = by_row[:, which].sum(axis=1)
        return HeldOutError(
            policy=float((off / count) ** 0.5),
            hold_last_state=float((held / count) ** 0.5) if comparable else None,
            states=int(which.sum()),
            episodes=len(np.unique(episodes[which])),
            tasks=tasks,
        )

    by_task = {name: error(task_of == name, {}) for name in sorted(set(task_of.tolist()))}
    return error(np.ones(len(rows), bool), by_task)


def _sampler(policy: TrainedPolicy) -> Callable[[Arrays, jax.Array], jax.Array]:
    """Returns the compiled sampler, from a batch and N keys to a chunk for each key and row, [N,B,T,A].

    What is seen is the same for all keys and is looked at once. The weights are arguments, so that two policies of one
    shape compile once.
    """
    sampler = _compiled(policy.recipe)
    return lambda batch, keys: sampler(policy.weights, policy.statistics, batch, keys)


@cache
def _compiled(recipe: Recipe) -> Callable[[Weights, Statistics, Arrays, jax.Array], jax.Array]:
    def sample(weights: Weights, statistics: Statistics, batch: Arrays, keys: jax.Array) -> jax.Array:
        rows_B = jax.numpy.arange(len(batch["state"]))
        return jax.vmap(lambda key: sample_actions(weights, statistics, recipe.policy, batch, row_keys(key, rows_B)))(
            keys
        )

    compiled: Callable[[Weights, Statistics, Arrays, jax.Array], jax.Array] = jax.jit(sample)
    return compiled
