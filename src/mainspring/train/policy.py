"""A policy in the robot's own units: statistics of its data around a model that knows normalised numbers alone.

Which models there are is in `model_of`; what a model must do for that is in `models/model.py`.

Legend of shape suffixes:
    B batch   T step in the chunk   S state   A action   K what the policy sees of the state
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.layouts.statistics import GivenStatistics
from mainspring.train.models.act import act_model
from mainspring.train.models.arrays import Arrays, Weights
from mainspring.train.models.flow import flow_model
from mainspring.train.models.gemma import language_model
from mainspring.train.models.matching import Guidance
from mainspring.train.models.model import Model
from mainspring.train.models.shapes import ActRecipe, LanguageRecipe, Policy, PolicyRecipe, Signature, VlaRecipe
from mainspring.train.models.vla import check_prompt, vla_model
from mainspring.train.robots import ONE_ROBOT, DataRecipe, RobotRecipe

Statistics = dict[str, Any]
"""By name; `RELATIVE` among them where some actions are learned as they are. Of several robots, an axis more before."""

RELATIVE = "relative"
GIVEN_LEAST = 1e-6  # What openpi adds to a deviation, and to what lies between two quantiles.
DEVIATION_MIN = 1e-3  # A dimension that hardly moves must not turn its noise into signal.
NORMALISED_MAX = 10.0  # Inputs beyond ten deviations are clipped: one broken sensor must not blow up the trunk.
QUANTILES = (0.01, 0.99)  # Source: openpi, `normalize.py`: what lies between becomes -1 to 1.


def model_of(policy: Policy) -> Model:
    """Returns the model that a policy's shape is the shape of.

    Args:
        policy: The policy's shape.
    """
    match policy:
        case PolicyRecipe():
            return flow_model(policy)
        case VlaRecipe():
            return vla_model(policy)
        case ActRecipe():
            return act_model(policy)
        case LanguageRecipe():
            return language_model(policy)


def signature_of(batch: Arrays, policy: Policy, data: DataRecipe = ONE_ROBOT) -> Signature:
    """Returns the signature of the data a batch was drawn from.

    Args:
        batch: From `fitted`: `state` [B,S], `actions` [B,T,A]; `images` [B,V,H,W,3], `prompt` [B,P] and `prompt_valid`
            [B,P] where the data has them. Of a language model, anything.
        policy: The policy that is to learn from it.
        data: Says which actions are absolute.

    Raises:
        InvalidInput: The policy wants images, prompts or relative actions that this data cannot give.
    """
    if isinstance(policy, LanguageRecipe):
        return Signature(state_dim=0, action_dim=0)
    if isinstance(policy, VlaRecipe):
        check_prompt(policy, batch)
    state_dim, action_dim = batch["state"].shape[-1], batch["actions"].shape[-1]
    if policy.relative_actions:
        for robot in data.robots:
            check_relative(robot, state_dim, action_dim)
    if policy.image is None:
        return Signature(state_dim=state_dim, action_dim=action_dim)
    if "images" not in batch:
        raise InvalidInput(
            "learn from images", got="a view without images", next_step="use a recipe without policy.image"
        )
    _, views, height, width, _ = batch["images"].shape
    return Signature(
        state_dim=state_dim, action_dim=action_dim, image_views=views, image_height=height, image_width=width
    )


def check_relative(robot: RobotRecipe, state_dim: int, action_dim: int) -> None:
    """Checks that a robot's actions can be learned as differences from its states.

    Args:
        robot: Says which are not.
        state_dim: Dimensions of its state.
        action_dim: Dimensions of its action.

    Raises:
        InvalidInput: An action has no state to be relative to.
    """
    without = [dim for dim in range(state_dim, action_dim) if dim not in robot.absolute]
    if without or (state_dim != action_dim and not robot.absolute):
        raise InvalidInput(
            "learn relative actions",
            on=robot.name,
            got=f"{state_dim} state and {action_dim} action dimensions",
            wanted="equal dimensions",
            next_step="set policy.relative_actions to false, or name those that are not relative in "
            "data.robots[].absolute",
        )


def relative_A(robot: RobotRecipe, dims: int) -> NDArray[np.float32]:
    """Returns 1 for each dimension of a robot's actions that is relative to its state, 0 for others.

    Args:
        robot: Says which are not.
        dims: How many there are.
    """
    return (~np.isin(np.arange(dims), robot.absolute)).astype(np.float32)


def measure_statistics(
    batches: Iterable[Arrays], policy: Policy, relative: NDArray[np.float32] | None = None
) -> Statistics:
    """Returns the middle and the spread of what the policy sees and of what it learns, in the data's own units.

    They are called mean and deviation; a policy of quantiles has the middle between two of them, and half of what lies
    between. A language model has none.

    Args:
        batches: Some batches of numpy arrays; the same ones on every rank.
        policy: Says what the policy sees, and whether actions are learned relative to the state.
        relative: From `relative_A`, where some are not; kept with the statistics.
    """
    if isinstance(policy, LanguageRecipe):
        return {}
    kept: Statistics = {} if relative is None else {RELATIVE: relative}
    seen, targets, valids = [], [], []
    for batch in batches:
        seen.append(np.asarray(_state_BK(batch, policy), np.float64))
        targets.append(np.asarray(batch["actions"] - _origin_BTA(batch, policy, kept), np.float64))
        valids.append(np.asarray(batch["valid"], bool))
    seen_BK, target_BTA, valid_BT = np.concatenate(seen), np.concatenate(targets), np.concatenate(valids)
    measure = _between_quantiles if policy.quantiles else _mean_and_deviation
    state = measure(seen_BK[:, None], np.ones((len(seen_BK), 1), bool))[:, 0]
    target = measure(target_BTA, valid_BT)
    return {
        **kept,
        "state_mean": np.float32(state[0]),
        "state_deviation": np.float32(np.maximum(state[1], DEVIATION_MIN)),
        "target_mean": np.float32(target[0]),
        "target_deviation": np.float32(np.maximum(target[1], DEVIATION_MIN)),
    }


def _mean_and_deviation(number_BTK: NDArray[np.float64], valid_BT: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns both, [2,T,K], of the valid rows at each step."""
    valid_BT1 = valid_BT[..., None]
    count_T1 = np.maximum(valid_BT1.sum(axis=0), 1.0)
    mean_TK = (number_BTK * valid_BT1).sum(axis=0) / count_T1
    return np.stack([mean_TK, np.sqrt((((number_BTK - mean_TK) ** 2) * valid_BT1).sum(axis=0) / count_T1)])


def _between_quantiles(number_BTK: NDArray[np.float64], valid_BT: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the middle between two quantiles and half their distance, [2,T,K], of the valid rows at each step."""
    steps = []
    for step, valid_B in enumerate(valid_BT.T):
        rows_BK = number_BTK[valid_B, step] if valid_B.any() else np.zeros((1, number_BTK.shape[-1]))
        low_K, high_K = np.quantile(rows_BK, QUANTILES, axis=0)
        steps.append([(low_K + high_K) / 2, (high_K - low_K) / 2])
    return np.stack(steps, axis=1)


def statistics_from(given: GivenStatistics, policy: Policy, signature: Signature) -> Statistics:
    """Returns the statistics that others normalised by: all steps of a chunk have the same.

    Args:
        given: From `read_statistics`; of actions relative to the state, where the policy learns these.
        policy: Says what it sees, and whether quantiles are wanted.
        signature: The data's dimensions. Others pad theirs with dimensions that are always zero, which are left out.

    Raises:
        InvalidInput: They are of other dimensions, or are not those that the policy wants.
    """
    if policy.motion or isinstance(policy, LanguageRecipe):
        words = isinstance(policy, LanguageRecipe)
        raise InvalidInput(
            "normalise as others did",
            on=given.path,
            got="a language model" if words else "a policy that sees motion",
            wanted="one that sees states alone",
            next_step=f"{'' if words else 'set policy.motion to false, or '}leave init.statistics out",
        )
    state, target = (
        _given(numbers, dims, f"{what} of {given.path}", quantiles=policy.quantiles)
        for what, numbers, dims in (
            ("state", given.state, signature.state_dim),
            ("actions", given.actions, signature.action_dim),
        )
    )
    steps = (policy.horizon, 1)
    return {
        "state_mean": state[0],
        "state_deviation": state[1],
        "target_mean": np.tile(target[0], steps),
        "target_deviation": np.tile(target[1], steps),
    }


def _given(numbers: Mapping[str, NDArray[np.float64]], dims: int, on: str, *, quantiles: bool) -> NDArray[np.float32]:
    """Returns middle and spread of each dimension, [2,dims]. Source: openpi, `transforms.py`, its 1e-6 too."""
    names = ("q01", "q99") if quantiles else ("mean", "std")
    for name in names:
        if name not in numbers:
            raise InvalidInput(
                "normalise as others did",
                on=on,
                got=", ".join(numbers),
                wanted=" and ".join(names),
                next_step=f"set policy.quantiles to {str(not quantiles).lower()}, or measure them",
            )
        found = numbers[name]
        if len(found) < dims or found[dims:].any():
            raise InvalidInput(
                "normalise as others did",
                on=f"{name} of {on}",
                got=f"{len(found)} dimensions",
                wanted=f"{dims}, as the data has",
                next_step="name the statistics of this robot, or leave init.statistics out",
            )
    first, second = (numbers[name][:dims] for name in names)
    spread = (second - first + GIVEN_LEAST) / 2 if quantiles else second + GIVEN_LEAST
    middle = first + spread if quantiles else first
    return np.stack([middle, np.maximum(spread, DEVIATION_MIN)]).astype(np.float32)


def unit_statistics(policy: Policy, signature: Signature, data: DataRecipe = ONE_ROBOT) -> Statistics:
    """Returns statistics that change nothing: means of zero and deviations of one.

    Args:
        policy: The policy's shape.
        signature: The data's dimensions.
        data: Of which robots they are.
    """
    if isinstance(policy, LanguageRecipe):
        return {}
    chunk = (policy.horizon, signature.action_dim)
    seen = signature.state_dim * (2 if policy.motion else 1)
    unit = {
        "state_mean": np.zeros(seen, np.float32),
        "state_deviation": np.ones(seen, np.float32),
        "target_mean": np.zeros(chunk, np.float32),
        "target_deviation": np.ones(chunk, np.float32),
    }
    if policy.relative_actions and data.partly_absolute:
        unit[RELATIVE] = np.ones(signature.action_dim, np.float32)
    return of_all_robots([unit] * len(data.robots))


def of_all_robots(statistics: Sequence[Statistics]) -> Statistics:
    """Returns the statistics of several robots as a batch is normalised by them: each row by those of its `robot`.

    Args:
        statistics: Of each, in one width; of a single robot they stay as they are.
    """
    if len(statistics) == 1:
        return dict(statistics[0])
    return {name: np.stack([one[name] for one in statistics]) for name in statistics[0]}


def statistics_of_robot(statistics: Statistics, robot: int) -> Statistics:
    """Returns the statistics of one robot: a policy with them takes batches of it that do not say so.

    Args:
        statistics: From `of_all_robots`.
        robot: Its number.
    """
    if not statistics or np.ndim(statistics["state_mean"]) == 1:
        return statistics
    return {name: numbers[robot] for name, numbers in statistics.items()}


def _of_rows(statistics: Statistics, batch: Arrays) -> Statistics:
    """Returns the statistics of each row's robot."""
    if not statistics or np.ndim(statistics["state_mean"]) == 1:
        return statistics
    return {name: numbers[batch["robot"]] for name, numbers in statistics.items()}


def _origin_BTA(batch: Arrays, policy: Policy, statistics: Statistics) -> Any:
    """Returns what the chunk is measured from: the state it starts at, or zero."""
    if not policy.relative_actions:
        return np.float32(0.0)
    state_BS, relative = batch["state"], statistics.get(RELATIVE)
    if relative is None:
        return state_BS[:, None, :]
    numbers, dims = np if isinstance(state_BS, np.ndarray) else jnp, relative.shape[-1]
    state_BA = numbers.pad(state_BS[:, :dims], [(0, 0), (0, max(0, dims - state_BS.shape[-1]))])
    return (state_BA * relative)[:, None, :]


def _state_BK(batch: Arrays, policy: Policy) -> Any:
    """Returns the state, and side by side with it its change since the step before where the policy sees that."""
    if not policy.motion:
        return batch["state"]
    numbers = np if isinstance(batch["state"], np.ndarray) else jnp
    return numbers.concatenate([batch["state"], batch["state"] - batch["before"]], axis=-1)


def _seen(batch: Arrays, statistics: Statistics, policy: Policy) -> dict[str, Any]:
    """Returns the batch with what the policy sees of its state, normalised."""
    if isinstance(policy, LanguageRecipe):
        return {**batch}
    state_BK = (_state_BK(batch, policy) - statistics["state_mean"]) / statistics["state_deviation"]
    return {**batch, "state": jnp.clip(state_BK, -NORMALISED_MAX, NORMALISED_MAX)}


def policy_loss(weights: Weights, statistics: Statistics, policy: Policy, batch: Arrays, key: jax.Array) -> jax.Array:
    """Returns the mean loss over the valid steps of a batch; zero where there are none.

    Args:
        weights: As for `summed_loss`.
        statistics: As there.
        policy: As there.
        batch: As there.
        key: Random key of all that a loss draws.
    """
    keys_B = row_keys(key, jnp.arange(len(batch["valid"])))
    return summed_loss(weights, statistics, policy, batch, keys_B) / jnp.maximum(batch["valid"].sum(), 1)


def row_keys(key: jax.Array, row_B: jax.Array) -> jax.Array:
    """Returns the random key of each row, [B].

    Args:
        key: Of the whole batch.
        row_B: Which rows of it.
    """
    return jax.vmap(jax.random.fold_in, (None, 0))(key, row_B)


def summed_loss(
    weights: Weights, statistics: Statistics, policy: Policy, batch: Arrays, keys_B: jax.Array
) -> jax.Array:
    """Returns the loss summed over the valid steps of a batch, or of a part of one: parts add up to the whole.

    Args:
        weights: The policy's weights.
        statistics: From `measure_statistics`.
        policy: The policy's shape.
        batch: `state` [B,S]; `before` [B,S] if the policy sees motion; `images` [B,V,H,W,3] if it reads them;
            `prompt` [B,P] and `prompt_valid` [B,P] if it reads others than the recipe's; `image_valid` [B,V] where
            views are missing; `robot` [B] where statistics are of several; `actions` [B,T,A], `valid` [B,T]. Of a
            language model `tokens` [B,T] and `valid` [B,T].
        keys_B: From `row_keys`.
    """
    if isinstance(policy, LanguageRecipe):
        return model_of(policy).loss(weights, batch, keys_B)
    statistics = _of_rows(statistics, batch)
    target_BTA = batch["actions"] - _origin_BTA(batch, policy, statistics)
    target_BTA = (target_BTA - statistics["target_mean"]) / statistics["target_deviation"]
    return model_of(policy).loss(weights, {**_seen(batch, statistics, policy), "actions": target_BTA}, keys_B)


def sample_actions(
    weights: Weights,
    statistics: Statistics,
    policy: Policy,
    batch: Arrays,
    keys_B: jax.Array,
    guidance: Guidance | None = None,
) -> jax.Array:
    """Returns one chunk of actions for each observation, [B,T,A] in the robot's own units.

    Args:
        weights: The policy's weights.
        statistics: From `measure_statistics`.
        policy: The policy's shape.
        batch: As for `policy_loss`, without actions.
        keys_B: From `row_keys`: a row draws by its own alone.
        guidance: What the chunks are to go on from, in the robot's own units; ignored by models that do not flow.

    Raises:
        InvalidInput: It is a language model.
    """
    statistics = _of_rows(statistics, batch)
    if guidance is not None:
        ahead_BTA = guidance.chunk_BTA - _origin_BTA(batch, policy, statistics) - statistics["target_mean"]
        guidance = guidance._replace(chunk_BTA=ahead_BTA / statistics["target_deviation"])
    chunk_BTA = model_of(policy).sample(weights, _seen(batch, statistics, policy), keys_B, guidance)
    chunk_BTA = chunk_BTA[..., : statistics["target_mean"].shape[-1]]  # A model may have more than the robot.
    target_BTA = chunk_BTA * statistics["target_deviation"] + statistics["target_mean"]
    action_BTA: jax.Array = target_BTA + _origin_BTA(batch, policy, statistics)
    return action_BTA
