"""A policy of several robots, and robots that lack a camera, as actors of environments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.robots.environments.port import EnvironmentFacts, EpisodeStart, FloatArray, Moment, Pixels
from mainspring.robots.evaluation.acting import actor_of, chosen_robot
from mainspring.robots.evaluation.playing import LANES, Observations, play
from mainspring.train.evaluate import TrainedPolicy, make_actor, tokenizer_of
from mainspring.train.models.shapes import ImageRecipe, Policy, PolicyRecipe, Signature, VlaKind, VlaRecipe
from mainspring.train.policy import model_of, statistics_of_robot, unit_statistics
from mainspring.train.recipe import recipe_named
from mainspring.train.robots import DataRecipe, KnownRobot, RobotRecipe, SourceRecipe
from tests.robots.serving.trained_policies import VLA

EDGE = 16
BLIND = PolicyRecipe(width=16, blocks=1, horizon=4, flow_steps=2)
SEEING = replace(BLIND, image=ImageRecipe(channels=(4,), features=4))
ARM = KnownRobot(name="arm", number=0, state_dim=5, action_dim=3)
HAND = KnownRobot(name="hand", number=1, state_dim=2, action_dim=2)
FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def policy_of(shape: Policy, robots: tuple[KnownRobot, ...], *, tokenizer: str = "") -> TrainedPolicy:
    """Returns a policy of 5 dimensions of state and 3 of action; each robot is normalised by numbers of its own."""
    data = DataRecipe(
        robots=tuple(RobotRecipe(name=each.name, cameras=each.cameras) for each in robots),
        sources=tuple(SourceRecipe(name=each.name, robot=each.name) for each in robots),
        tokenizer=tokenizer,
    )
    views = max((len(each.cameras or ()) for each in robots), default=0) or 1
    pictured = {"image_views": views, "image_height": EDGE, "image_width": EDGE} if shape.image else {}
    signature, dice = Signature(state_dim=5, action_dim=3, **pictured), np.random.default_rng(2)
    fresh = jax.jit(lambda: model_of(shape).initial_weights(jax.random.key(0), signature))()
    unit = unit_statistics(shape, signature, data)
    return TrainedPolicy(
        recipe=replace(recipe_named("arm"), policy=shape, data=data),
        signature=signature,
        weights=jax.tree.map(lambda leaf: leaf + dice.normal(scale=0.1, size=leaf.shape).astype(leaf.dtype), fresh),
        statistics={name: np.float32(dice.uniform(0.5, 2.0, array.shape)) for name, array in unit.items()},
        robots=robots,
    )


def facts_of(state: int, action: int, *cameras: str) -> EnvironmentFacts:
    return EnvironmentFacts(
        name="world",
        state_names=tuple(f"s{number}" for number in range(state)),
        action_names=tuple(f"a{number}" for number in range(action)),
        cameras=cameras,
        rate_hz=10.0,
        steps_max=4,
    )


def seen_by(facts: EnvironmentFacts, *, edge: int = EDGE) -> Observations:
    dice, cameras = np.random.default_rng(7), len(facts.cameras)
    state, before = dice.normal(size=(2, LANES, len(facts.state_names))).astype(np.float32)
    images = dice.integers(0, 256, (LANES, cameras, edge, edge, 3), np.uint8) if cameras else None
    return Observations(state=state, before=before, tasks=("wave",) * LANES, images=images)


class World:
    """Four steps of pictures, and nothing to be solved."""

    def facts(self) -> EnvironmentFacts:
        return facts_of(2, 2, "wrist")

    def reset(self, start: EpisodeStart) -> Moment:
        return self.step(np.zeros(2, np.float32))

    def step(self, action: FloatArray) -> Moment:
        assert action.shape == (2,)
        return Moment(state=np.ones(2, np.float32), solved=False, images=(np.full((8, 8, 3), 9, np.uint8),))

    def draw(self) -> Pixels:
        return np.zeros((2, 2, 3), np.uint8)


@pytest.mark.slow
def test_policy_of_several_robots_acts_as_the_first_that_fits_by_that_ones_numbers() -> None:
    policy = policy_of(BLIND, (ARM, HAND))
    assert chosen_robot(policy, facts_of(5, 3)).robot == ARM
    facts = facts_of(2, 2)
    seen = seen_by(facts)
    done = actor_of(policy, facts, seed=4)(seen, 3)
    state = np.pad(seen.state, [(0, 0), (0, 3)])
    batch = {"state": state, "robot": np.full(LANES, 1, np.int32)}
    assert done.shape == (LANES, 4, 2)
    assert np.array_equal(done, make_actor(policy, seed=4)(batch, 3)[..., :2])
    as_arm = make_actor(policy, seed=4)({"state": state, "robot": np.zeros(LANES, np.int32)}, 3)
    assert not np.allclose(done, as_arm[..., :2])
    twin = replace(HAND, name="twin", number=2)
    assert chosen_robot(policy_of(BLIND, (ARM, HAND, twin)), facts).robot == HAND


@pytest.mark.slow
def test_camera_that_the_robot_lacks_is_black_and_masked_as_in_training() -> None:
    lame = replace(HAND, cameras=("", WRIST))
    policy = policy_of(SEEING, (replace(ARM, cameras=(FRONT, WRIST)), lame))
    facts = facts_of(2, 2, "side", "wrist")
    seen = seen_by(facts)
    assert seen.images is not None
    done = actor_of(policy, facts, seed=4)(seen, 0)
    images = np.stack([np.zeros_like(seen.images[:, 0]), seen.images[:, 1]], axis=1)
    batch = {
        "state": np.pad(seen.state, [(0, 0), (0, 3)]),
        "robot": np.full(LANES, 1, np.int32),
        "images": images,
        "image_valid": np.tile([False, True], (LANES, 1)),
    }
    assert np.array_equal(done, make_actor(policy, seed=4)(batch, 0)[..., :2])
    assert not np.allclose(
        done, make_actor(policy, seed=4)({**batch, "image_valid": np.ones((LANES, 2), bool)}, 0)[..., :2]
    )
    side = replace(seen, images=np.stack([255 - seen.images[:, 0], seen.images[:, 1]], axis=1))
    assert np.array_equal(done, actor_of(policy, facts, seed=4)(side, 0))  # Nobody looks at a camera it never had.
    starts = [EpisodeStart(seed=0, index=0)]
    (played,) = play(World, actor_of(policy, World().facts(), seed=4), starts, progress=lambda finished: None)
    assert played.steps == 4


@pytest.mark.slow
def test_prompt_that_tells_the_state_tells_that_of_the_robot_alone() -> None:
    assert isinstance(VLA, VlaRecipe)
    shape = replace(VLA, kind=VlaKind.PI05, image=None, prompt_length=64, relative_actions=False, horizon=4)
    policy, facts = policy_of(shape, (ARM, HAND), tokenizer="bytes"), facts_of(2, 2)
    seen, own = seen_by(facts), statistics_of_robot(policy.statistics, 1)
    done = actor_of(policy, facts, seed=4)(seen, 0)
    tokenizer = tokenizer_of(policy)
    assert tokenizer is not None
    prompt = tokenizer.prompts(seen.tasks, (seen.state - own["state_mean"][:2]) / own["state_deviation"][:2])
    batch: dict[str, Any] = {"prompt": prompt.tokens, "prompt_valid": prompt.valid}
    batch |= {"state": np.pad(seen.state, [(0, 0), (0, 3)]), "robot": np.full(LANES, 1, np.int32)}
    assert np.array_equal(done, make_actor(policy, seed=4)(batch, 0)[..., :2])


def test_environment_that_no_robot_fits_is_refused_with_what_was_asked_and_got() -> None:
    eyed = (replace(ARM, cameras=(FRONT, WRIST)), replace(HAND, cameras=("", WRIST)))
    policy = policy_of(SEEING, eyed)
    with pytest.raises(InvalidInput) as refused:
        actor_of(policy, facts_of(2, 2, "front"), seed=0)
    said = str(refused.value)
    assert "2 numbers of state (s0, s1), 2 numbers of action (a0, a1), cameras front" in said
    assert f"'arm': 5 of state, 3 of action, cameras {FRONT}, {WRIST}" in said
    assert f"'hand': 2 of state, 2 of action, cameras {WRIST}" in said
    for facts in (facts_of(2, 3, "front", "wrist"), facts_of(5, 2, "front", "wrist"), facts_of(5, 3, "front")):
        with pytest.raises(InvalidInput, match="as it was trained"):
            chosen_robot(policy, facts)


def test_cameras_are_found_by_name_or_its_last_part_and_in_order_where_none_is_named() -> None:
    named = policy_of(SEEING, (replace(ARM, cameras=(FRONT, WRIST)),))
    assert chosen_robot(named, facts_of(5, 3, "wrist", "front")).shown == (1, 0)
    assert chosen_robot(named, facts_of(5, 3, WRIST, FRONT, "front")).shown == (1, 0)
    with pytest.raises(InvalidInput, match="as it was trained"):  # Which of both is meant?
        chosen_robot(named, facts_of(5, 3, "left/front", "right/front", "wrist"))
    twins = policy_of(SEEING, (replace(ARM, cameras=("left.top", "right.top")),))
    with pytest.raises(InvalidInput, match="as it was trained"):  # It is not shown one camera twice.
        chosen_robot(twins, facts_of(5, 3, "top", "front"))
    unnamed = policy_of(SEEING, (ARM,))
    assert chosen_robot(unnamed, facts_of(5, 3, "whatever", "more")).shown == (0,)
    with pytest.raises(InvalidInput, match=r"no camera.*1 cameras"):
        chosen_robot(unnamed, facts_of(5, 3))
