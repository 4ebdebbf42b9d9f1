"""What a run or an evaluation could not do is told before its first step: where it is asked for."""

from __future__ import annotations

from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from mainspring.app.cli.main import app
from mainspring.app.sdk.lab import Lab
from mainspring.app.sdk.policies.evaluations import EvaluationVerbs
from mainspring.checkpoint.exchange import import_source
from mainspring.checkpoint.interop import FACTS_KEY, Facts
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.data import ViewRecipe, build_view, ingest, open_view
from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput, NotAllowed
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore
from mainspring.robots.evaluation.report import EvaluationReport
from mainspring.robots.evaluation.run import EvaluationRequest, evaluate
from mainspring.testing.time_and_chance import FakeClock
from mainspring.train.models.shapes import Signature
from mainspring.train.policy import model_of, unit_statistics
from mainspring.train.recipe import Recipe, changed, recipe_named
from mainspring.train.robots import RobotRecipe, SourceRecipe
from tests.data.making import record

pytestmark = pytest.mark.slow
OWN = """
from mainspring.train.recipe import changed, vla_tiny_recipe

def own():
    policy = {{"image": None, "horizon": 4, "prompt_length": {length}, "action_dim": 8, "relative_actions": False}}
    return changed(vla_tiny_recipe(), {{"name": "own", "steps": 2, "policy": policy, "data": {{"tokenizer": "bytes"}}}})
"""
WORLD = """
from mainspring.robots.environments.port import EnvironmentFacts

class World:
    def facts(self):
        names = {"state_names": tuple("abcde"), "action_names": tuple("xyz")}
        return EnvironmentFacts(name="world", rate_hz=10.0, steps_max=4, **names)

    def reset(self, start):
        raise AssertionError("an episode began")

    def step(self, action): ...

    def draw(self): ...
"""


MOMENT = "return self.step(None)"
STEPS = """
import numpy as np
from mainspring.robots.environments.port import Moment

def step(self, action):
    return Moment(state=np.ones(5, np.float32), solved=False, task="go")

World.step = step
World.draw = lambda self: np.zeros((2, 2, 3), np.uint8)
"""


class Barred:
    """A store of which a session may read checkpoints, and no view."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        if key.startswith("views/"):
            raise NotAllowed("read an object", on=key, got="no session for it")
        return self._store.get(key)


@dataclass(frozen=True, kw_only=True)
class Told:
    """A view whose longest task is held out.

    Args:
        length: Of a prompt, in bytes, that all tasks but the longest fit into.
    """

    store: ObjectStore
    view: str
    longest: str
    length: int


def told_view(lab: Lab, folder: Path) -> Told:
    store, recipe = lab.objects(), ViewRecipe(holdout_fraction=0.5, holdout_group="task")

    def view_of(tasks: list[str], name: str) -> str:
        for seed, task in enumerate(tasks):
            record(folder / name / f"{seed}.mcap", seed=seed, task=task, steps=12)
        version = ingest(folder / name, store, name, clock=FakeClock()).version
        assert version is not None
        return build_view(store, version, recipe, scratch_dir=folder / "scratch").id

    def tasks_of(view: str, side: Any) -> set[str]:
        return set(open_view(store, view, lab.home.cache / "views", side).episodes["task"].to_pylist())

    first = view_of(["go " + "o" * count for count in range(8)], "all")  # The side of a task is that of its words.
    longest = max(tasks_of(first, "holdout"), key=len)
    shorter = [task for task in tasks_of(first, "train") if len(task) < len(longest)]
    view = view_of([*sorted(shorter), longest], "some")
    assert tasks_of(view, "holdout") == {longest}
    assert tasks_of(view, "train") == set(shorter)
    return Told(store=store, view=view, longest=longest, length=len(longest) + 1)  # Begin and line end are 2.


def refused(*words: str, home: Path) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--home", str(home), *words])
    assert isinstance(done.exception, InvalidInput), (done.exception, done.output)
    return str(done.exception)


def test_held_out_task_longer_than_prompts_is_refused_before_a_job_is_made(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    told = told_view(lab, tmp_path)
    (tmp_path / "own.py").write_text(OWN.format(length=told.length))
    words = ("train", f"{tmp_path}/own.py:own", "--view", told.view, "--set", 'held_out={"every": 1}')
    said = refused(*words, home=lab.home.path)
    assert repr(told.longest) in said
    assert f"at most {told.length}" in said


def asked_of(name: str, recipe: Recipe, told: Told, folder: Path) -> EvaluationRequest:
    """Keeps a fresh policy of a recipe as a checkpoint, and returns a question about it."""
    signature = Signature(state_dim=5, action_dim=3)
    weights = jax.jit(lambda: model_of(recipe.policy).initial_weights(jax.random.key(0), signature))()
    tree = {"weights": weights, "statistics": unit_statistics(recipe.policy, signature)}
    arrays = {
        jax.tree_util.keystr(key, simple=True, separator="/"): np.asarray(leaf)
        for key, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    facts = Facts(state={"recipe": encode(recipe).decode(), "signature": encode(signature).decode(), "view": told.view})
    path = folder / f"{name}.safetensors"
    save_file(arrays, path, metadata={FACTS_KEY: encode(facts).decode()})
    import_source(told.store, SafetensorsSource(path), job=name, step=1, now_s=0.0)
    return EvaluationRequest(job=JobId(name), step=1, environment=f"{folder}/world.py:World", starts=1)


def test_held_out_task_longer_than_prompts_is_refused_before_an_episode_is_played(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    told = told_view(lab, tmp_path)
    policy = {"image": None, "horizon": 4, "prompt_length": told.length, "relative_actions": False}
    recipe = changed(recipe_named("vla_tiny"), {"policy": policy, "data": {"tokenizer": "bytes"}})
    (tmp_path / "world.py").write_text(WORLD)
    asked = asked_of("short", recipe, told, tmp_path)
    with pytest.raises(InvalidInput, match=rf"{told.longest}.*at most {told.length}"):
        evaluate(told.store, asked, cache=lab.home.cache / "views", now_s=0.0, progress=lambda done: None)
    longer = changed(recipe, {"policy": {"prompt_length": told.length + 1}})
    asked = asked_of("long", longer, told, tmp_path)
    with pytest.raises(AssertionError, match="an episode began"):
        evaluate(told.store, asked, cache=lab.home.cache / "views", now_s=0.0, progress=lambda done: None)


def test_view_that_may_not_be_read_is_told_as_that(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    told = told_view(lab, tmp_path)
    policy = {"image": None, "horizon": 4, "prompt_length": told.length + 1, "relative_actions": False}
    recipe = changed(recipe_named("vla_tiny"), {"policy": policy, "data": {"tokenizer": "bytes"}})
    data = replace(recipe.data, robots=(RobotRecipe(name="hand"),), sources=(SourceRecipe(robot="hand"),))
    asked = asked_of("barred", replace(recipe, data=data), told, tmp_path)

    def evaluated(asked: EvaluationRequest) -> EvaluationReport:
        store = cast(ObjectStore, Barred(told.store))
        cache = tmp_path / "elsewhere"
        return evaluate(store, asked, cache=cache, now_s=0.0, progress=lambda done: None).report

    with pytest.raises(InvalidInput, match=r"got no environment, and a view that may not be read: .*no session"):
        evaluated(replace(asked, environment=""))
    (tmp_path / "world.py").write_text(WORLD.replace('raise AssertionError("an episode began")', MOMENT) + STEPS)
    report = evaluated(asked)
    assert "no session" in report.left_out
    assert (report.robot, report.held_out, report.episodes[0].steps) == ("hand", (), 4)


def test_file_that_no_code_would_leave_behind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.format(length=48))
    (tmp_path / "words.model").write_bytes(b"words")
    with chdir(tmp_path):
        said = refused("train", "own.py:own", "--view", "v", "--no-code", home=tmp_path / "home")
        assert "--no-code, which would leave own.py behind" in said
        words = ("train", "vla_tiny", "--view", "v", "--no-code", "--set", "data.tokenizer=words.model")
        assert "leave words.model behind" in refused(*words, home=tmp_path / "home")
    done = CliRunner().invoke(
        app, ["--home", str(tmp_path / "home"), "train", f"{tmp_path}/own.py:own", "--view", "v", "--no-code"]
    )
    assert "behind" not in str(done.exception)  # It has a whole path; that there is no such view is told.


def test_environment_of_a_file_that_no_code_brings_along_is_refused(tmp_path: Path) -> None:
    verbs = EvaluationVerbs(Lab(tmp_path / "home"))
    for ask in (
        lambda: verbs.run_on("job", "cpu", environment="world.py:World"),
        lambda: verbs.rule("nightly", "job", environment="world.py:World"),
    ):
        with pytest.raises(InvalidInput, match=r"leave world\.py behind.*--code"):
            ask()
