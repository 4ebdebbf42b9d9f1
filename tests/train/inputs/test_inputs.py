"""What a policy gets of its data, and what is refused before the first step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.data import View, gather
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.measured import statistics_of
from mainspring.train.inputs.sources import GivenView, Sources
from mainspring.train.models.shapes import Signature
from mainspring.train.policy import sample_actions, signature_of, statistics_of_robot, unit_statistics
from mainspring.train.recipe import Recipe, changed, recipe_named
from mainspring.train.robots import DataRecipe, KnownRobot, RobotRecipe, SourceRecipe, known_robots
from mainspring.train.trainer import described
from tests.train.making import fresh_weights, small_recipe

pytestmark = pytest.mark.slow
CAMERA = "observation.images.front"
TWO = DataRecipe(
    sources=(SourceRecipe(name="a", weight=3.0, robot="arm"), SourceRecipe(name="b", robot="hand")),
    robots=(RobotRecipe(name="arm", absolute=(2,)), RobotRecipe(name="hand")),
)


def plain(**changes: Any) -> Recipe:
    return changed(small_recipe(steps=4), {"policy": {"motion": False, "relative_actions": False}, **changes})


def tiny(**policy: Any) -> Recipe:
    wanted = {"horizon": 4, "prompt_length": 24, "relative_actions": False, "image": None, **policy}
    return changed(recipe_named("vla_tiny"), {"batch_size": 16, "policy": wanted, "data": {"tokenizer": "bytes"}})


def batch_of(sources: Sources, step: int, **shares: int) -> dict[str, Any]:
    fitting = Fitting(sources, statistics_of(sources))
    return sources.loader(**{"rank": 0, "world_size": 1, **shares}, fit=fitting).batch(step)


def both(arm: View, hand: View) -> list[GivenView]:
    return [GivenView(name="a", view=arm), GivenView(name="b", view=hand)]


def test_mixture_of_robots_comes_in_one_width_by_weight_and_says_which_is_which(arm: View, hand: View) -> None:
    sources = Sources(replace(plain(policy={"relative_actions": True, "motion": False}), data=TWO), both(arm, hand))
    assert sources.signature == Signature(state_dim=5, action_dim=3)
    loader = sources.loader(rank=0, world_size=1, fit=Fitting(sources))
    for step in range(2):
        batch = loader.batch(step)
        assert (batch["state"].shape, batch["actions"].shape) == ((16, 5), (16, 4, 3))
        of_hand = batch["robot"] == 1
        assert (batch["robot"] == loader.samples(step).component).all()
        assert not batch["state"][of_hand, 2:].any()
        assert not batch["actions"][of_hand, :, 2:].any()
        assert batch["state"][~of_hand, 2:].any(axis=1).all()
    robots = np.concatenate([loader.samples(step).component for step in range(40)])
    assert np.mean(robots) == pytest.approx(0.25, abs=0.08)


def test_each_robot_is_normalised_by_its_own_numbers_which_are_kept_with_the_weights(arm: View, hand: View) -> None:
    recipe = replace(plain(policy={"relative_actions": True, "motion": False}), data=TWO)
    sources = Sources(recipe, both(arm, hand))
    found = statistics_of(sources)
    like = unit_statistics(recipe.policy, sources.signature, recipe.data)
    assert {name: array.shape for name, array in found.items()} == {name: array.shape for name, array in like.items()}
    of_hand = statistics_of_robot(found, 1)
    alone = replace(recipe, data=DataRecipe(robots=(RobotRecipe(name="hand"),), sources=(SourceRecipe(robot="hand"),)))
    own = statistics_of(Sources(alone, hand))
    assert np.allclose(of_hand["state_mean"][:2], own["state_mean"], atol=0.15)  # Of another draw of its rows.
    assert (of_hand["state_mean"][2:] == 0).all()
    assert (of_hand["state_deviation"][2:] == 1).all()
    assert found["relative"].tolist() == [[1, 1, 0], [1, 1, 0]]  # What a robot lacks is zero either way.


def test_checkpoint_tells_the_robots_that_its_policy_knows_in_their_own_width(arm: View, hand: View) -> None:
    recipe = replace(plain(), data=TWO)
    told = described(recipe, Sources(recipe, both(arm, hand)))["robots"]
    assert known_robots(told, TWO, state_dim=5, action_dim=3, views=0) == (
        KnownRobot(name="arm", number=0, state_dim=5, action_dim=3),
        KnownRobot(name="hand", number=1, state_dim=2, action_dim=2),
    )
    untold = known_robots(None, TWO, state_dim=5, action_dim=3, views=0)
    assert [(robot.name, robot.state_dim) for robot in untold] == [("arm", 5), ("hand", 5)]


@pytest.mark.parametrize(
    "told",
    [
        "[1]",
        '{"arm": {"state": 6, "action": 3}}',
        '{"arm": {"state": 5, "action": 4}}',
        '{"hand": {"state": 0, "action": 2}}',
        '{"hand": {"state": Infinity, "action": 2}}',
        '{"arm": {"state": 5, "action": 3, "cameras": ["top"]}}',
    ],
)
def test_robots_that_do_not_fit_the_policy_that_knows_them_are_refused(told: str) -> None:
    seeing = replace(TWO, robots=(RobotRecipe(name="arm", cameras=("top", "side")), RobotRecipe(name="hand")))
    with pytest.raises(DamagedData, match="which robots a policy knows"):
        known_robots(told, seeing, state_dim=5, action_dim=3, views=2)
    told = '{"arm": {"state": 5, "action": 3, "cameras": ["top", ""]}, "hand": {"state": 1, "action": 1}}'
    assert known_robots(told, seeing, state_dim=5, action_dim=3, views=2)[0].cameras == ("top", "")


def test_chunk_of_partly_absolute_actions_is_measured_from_the_state_but_for_those(arm: View) -> None:
    data = DataRecipe(robots=(RobotRecipe(absolute=(2,)),))
    recipe = replace(plain(policy={"relative_actions": True, "motion": False}), data=data)
    sources = Sources(recipe, arm)
    rows = np.arange(arm.rows)
    batch = gather(arm, rows, horizon=4)
    found = statistics_of(sources)
    state, actions = batch["state"], batch["actions"]
    wanted = actions[:, 0] - state[:, :3] * np.asarray([1, 1, 0])
    assert found["target_mean"][0] == pytest.approx(wanted.mean(axis=0), abs=0.2)
    weights = fresh_weights(recipe.policy, sources.signature)
    seen = {"state": np.full((1, 5), 7.0, np.float32)}
    chunk = np.asarray(sample_actions(weights, found, recipe.policy, seen, jax.random.key(0)[None]))
    assert (chunk[0, :, :2] > 3).all()
    assert (abs(chunk[0, :, 2]) < 6).all()


def test_relative_actions_without_a_state_to_be_relative_to_are_refused(hand: View, arm: View) -> None:
    recipe = plain(policy={"relative_actions": True, "motion": False})
    with pytest.raises(InvalidInput, match=r"relative actions.*5 state and 3 action"):
        Sources(recipe, arm)
    with pytest.raises(InvalidInput, match=r"absolute \[7\] of 2"):
        Sources(replace(recipe, data=DataRecipe(robots=(RobotRecipe(absolute=(7,)),))), hand)


def test_prompts_are_the_tasks_of_rows_and_tell_pi05_its_normalised_state(arm: View) -> None:
    sources = Sources(tiny(), arm)
    batch, rows = batch_of(sources, 3), sources.loader(rank=0, world_size=1).rows(3)
    tasks = arm.episodes["task"].to_pylist()
    for row, tokens, valid in zip(rows, batch["prompt"], batch["prompt_valid"], strict=True):
        assert bytes(tokens[1 : valid.sum()].tolist()).decode() == f"{tasks[int(arm.episode_of(row))]}\n"
    sources = Sources(tiny(kind="pi05", prompt_length=80), arm)
    told = batch_of(sources, 0)
    text = bytes(told["prompt"][0][1 : told["prompt_valid"][0].sum()].tolist()).decode()
    bins = [int(word) for word in text.partition("State: ")[2].partition(";")[0].split()]
    statistics = statistics_of(sources)
    state = (told["state"][0] - statistics["state_mean"]) / statistics["state_deviation"]
    assert np.allclose(np.clip(state, -1, 1), np.asarray(bins) / 128 - 1, atol=0.02)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_with_words_resume_at_every_step_in_any_world(arm: View, hand: View, world_size: int) -> None:
    data = replace(TWO, tokenizer="bytes", robots=(RobotRecipe(name="arm"), RobotRecipe(name="hand")))
    sources = Sources(replace(tiny(), data=data), both(arm, hand))
    fitting = Fitting(sources, statistics_of(sources))
    whole = sources.loader(rank=0, world_size=1, fit=fitting)
    for rank in range(world_size):
        with sources.loader(rank=rank, world_size=world_size, fit=fitting).stream(0) as stream:
            for step in range(4):
                batch, wanted = next(stream), whole.batch(step)
                assert {"prompt", "prompt_valid", "robot", "state"} < set(batch)
                for name, array in batch.items():
                    assert np.array_equal(array, wanted[name][rank::world_size]), name


def test_missing_camera_is_masked_and_black(seeing: View) -> None:
    policy = {"relative_actions": False, "prompt_length": 24}
    recipe = changed(recipe_named("vla_tiny"), {"batch_size": 16, "policy": policy})
    recipe = replace(recipe, data=DataRecipe(robots=(RobotRecipe(cameras=("", CAMERA)),), tokenizer="bytes"))
    batch = batch_of(Sources(recipe, seeing), 0)
    assert batch["image_valid"].tolist() == [[False, True]] * 16
    assert not batch["images"][:, 0].any()
    assert batch["images"][:, 1].any()
    assert signature_of(batch, recipe.policy).image_views == 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a camera it lacks": ({"robots": [{"cameras": ["wrist"]}]}, "no camera wrist; the robot has observation.*data.rob"),
    "no camera at all": ({"robots": [{"cameras": [""]}]}, "one at least"),
    "a tokenizer that is not there": ({"tokenizer": "nowhere.model"}, "open a tokenizer"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_policy_that_needs_what_a_robot_lacks_is_refused_by_name(what: str, seeing: View) -> None:
    changes, said = REFUSED[what]
    recipe = changed(recipe_named("vla_tiny"), {"policy": {"relative_actions": False}, "data": changes})
    with pytest.raises(InvalidInput, match=said):
        Fitting(Sources(recipe, seeing)).check_tasks()


def test_task_longer_than_prompts_is_refused_before_the_first_step(arm: View) -> None:
    with pytest.raises(InvalidInput, match=r"'(pick|push) it'.*9 tokens.*at most 8"):
        Fitting(Sources(tiny(prompt_length=8), arm)).check_tasks()
    with pytest.raises(InvalidInput, match="at most 40"):
        Fitting(Sources(tiny(kind="pi05", prompt_length=40), arm)).check_tasks()
    Fitting(Sources(tiny(prompt_length=9), arm)).check_tasks()


def test_held_out_task_longer_than_prompts_is_refused_before_the_first_step(arm: View, hand: View) -> None:
    sides = [GivenView(view=hand, held_out=arm)]  # "wave" fits.
    with pytest.raises(InvalidInput, match=r"'(pick|push) it'.*9 tokens.*at most 8"):
        Fitting(Sources(tiny(prompt_length=8), sides)).check_tasks()
    Fitting(Sources(tiny(prompt_length=9), sides)).check_tasks()


def test_words_for_a_policy_that_reads_none_and_none_for_one_that_must_are_refused(arm: View) -> None:
    with pytest.raises(InvalidInput, match="reads no words"):
        Fitting(Sources(plain(data={"tokenizer": "bytes"}), arm))
    with pytest.raises(InvalidInput, match=r"set data\.tokenizer"):
        Fitting(Sources(replace(tiny(kind="pi05"), data=DataRecipe()), arm))


def test_robot_wider_than_the_policy_is_refused(arm: View) -> None:
    with pytest.raises(InvalidInput, match=r"set policy\.action_dim to 5"):
        Sources(tiny(action_dim=4), arm)


def test_sources_that_are_not_those_of_the_recipe_are_refused(arm: View, hand: View) -> None:
    mixed = replace(plain(), data=TWO)
    with pytest.raises(NotFound, match="--view b=ID"):
        Sources(mixed, [GivenView(name="a", view=arm)])
    with pytest.raises(InvalidInput, match="a source 'c'"):
        Sources(mixed, [*both(arm, hand), GivenView(name="c", view=hand)])
    named = (SourceRecipe(name="a", robot="hand"), SourceRecipe(name="b", robot="hand"))
    one = replace(TWO, sources=named, robots=TWO.robots[1:])
    with pytest.raises(InvalidInput, match=r"2 dimensions of state.*a robot of its own"):
        Sources(replace(mixed, data=one), both(arm, hand))


def test_values_that_are_no_numbers_are_refused_by_their_dimension(arm: View) -> None:
    state = arm.manifest.state
    odd = replace(state, mean=(*state.mean[:4], float("nan")))
    manifest = replace(arm.manifest, statistics={**arm.manifest.statistics, "state": odd})
    damaged = View(manifest, "train", arm._files, arm._ranges, arm.episodes)
    with pytest.raises(InvalidInput, match=r"state of source.*dimensions \[4\]"):
        Sources(plain(), damaged)


def test_recipe_of_sources_and_robots_that_do_not_fit_is_refused() -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"sources": [{"robot": "none"}]},
        {"sources": []},
        {"robots": [{}, {}]},
        {"robots": [{"cameras": ["a", "a"]}]},
        {"robots": [{"name": "", "cameras": ["a"]}, {"name": "b", "cameras": ["a", "b"]}]},
        {"robots": [{"absolute": [-1]}]},
    )
    for broken in wrong:
        with pytest.raises(InvalidInput):
            plain(data=broken)
