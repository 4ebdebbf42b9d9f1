"""What a submit says of a recipe on the chips that a job accepts; without a server, and by formulas without JAX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.app.sdk.plans import PlannedSpec, planned, recipe_in, target_of
from mainspring.app.sdk.recipes import signature_for
from mainspring.domain.errors import InvalidInput, InvalidSpec, MainspringError
from mainspring.domain.ids import ChipName
from mainspring.domain.job import JobSpec, Option
from mainspring.train.plan.compiled import compiled_figures
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import changed, recipe_named

SHARED = {"mesh": {"replica": 1, "data": 0}}
needs_compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason="no compiler for TPUs")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "home")


def training(recipe: str, *on: str, changes: Any = SHARED, **more: Any) -> JobSpec:
    words = ["python", "-m", "mainspring", "train", "--view", "v", "--recipe", recipe, "--changes", json.dumps(changes)]
    return job("train", words, on=on, **more)


def test_command_of_our_program_names_its_recipe_and_other_commands_none() -> None:
    spec = training("pi0", "h100:8", changes={"batch_size": 64})
    found = recipe_in([*spec.roles[0].command, "--steps", "7"])
    assert found == changed(recipe_named("pi0"), {"batch_size": 64, "steps": 7})
    assert recipe_in(["mainspring", "train", "--recipe=arm"]) == recipe_named("arm")
    for other in (["python", "train.py", "--recipe", "pi0"], ["mainspring", "train"], [], ["mainspring"]):
        assert recipe_in(other) is None


@pytest.mark.parametrize(
    ("option", "name", "slices"),
    [
        (Option(chip=ChipName("h100"), chips=8, replicas=4), "h100:32", 1),
        (Option(chip=ChipName("v5p"), chips=4, replicas=16), "v5p:4x4x4", 1),
        (Option(chip=ChipName("v5p"), chips=4, replicas=32, slice="4x4x4"), "v5p:4x4x4", 2),
        (Option(chip=ChipName("v5e"), chips=4, replicas=8), "v5e:4x8", 1),
        (Option(chip=ChipName("v7x"), chips=4), "tpu7x:2x2x1", 1),
        (Option(chip=ChipName("a100-40gb"), chips=8), "a100:8", 1),
    ],
)
def test_option_is_the_chips_that_it_asks_for(option: Option, name: str, slices: int) -> None:
    found = target_of(option, 0)
    assert found is not None
    assert (found.name, found.slices) == (name, slices)


@pytest.mark.parametrize(
    ("option", "spares"),
    [
        (Option(chip=ChipName("cpu"), chips=4), 0),
        (Option(chip=ChipName("any"), chips=8), 0),
        (Option(chip=ChipName("h100"), chips=0.5, replicas=16), 0),
        (Option(chip=ChipName("h100"), chips=3), 0),
        (Option(chip=ChipName("v5p"), chips=4, replicas=3), 0),
        (Option(chip=ChipName("v5p"), chips=4, replicas=17, slice="4x4x4"), 0),
        (Option(chip=ChipName("v5p"), chips=4, replicas=16, slice="1x2x3x4"), 0),
        (Option(chip=ChipName("v5p"), chips=4, replicas=16, slice="0x4"), 0),
        (Option(chip=ChipName("v5p"), chips=4, replicas=16, slice="four"), 0),
        (Option(chip=ChipName("h100"), chips=8, replicas=2), 2),
    ],
)
def test_option_of_chips_that_nobody_plans_for_is_left_alone(option: Option, spares: int) -> None:
    assert target_of(option, spares) is None


def test_spares_do_not_count() -> None:
    found = target_of(Option(chip=ChipName("h100"), chips=8, replicas=3), 1)
    assert found is not None
    assert found.name == "h100:16"


def test_options_have_the_memory_and_the_speed_of_their_plans_and_are_told_by_whom(lab: Lab) -> None:
    made = planned(training("pi0", "h100:8", "h200:8"), lab.home)
    first, second = made.spec.roles[0].options
    assert 5 < first.chip_memory_gib == second.chip_memory_gib < 10  # A weight and two moments of 3.2e9, by eight: 4.5.
    assert first.speed < second.speed == 1.0  # Whose memory is faster.
    assert [line.partition(":8: ")[0] for line in made.told] == ["pi0 on h100", "pi0 on h200"]
    assert all("by formulas, of data as state=14" in line for line in made.told)
    assert not made.doubts


def test_what_somebody_asked_for_stays(lab: Lab) -> None:
    spec = training("pi0", "h100:8@0.5", "h200:8", each={"chip_memory_gib": 30.0})
    assert planned(spec, lab.home).spec == spec


def test_formulas_that_doubt_refuse_nothing_and_ask_for_no_memory(lab: Lab) -> None:
    made = planned(training("pi0", "h100:8", changes={}), lab.home)
    assert made.spec.roles[0].options[0].chip_memory_gib == 0.0
    (doubt,) = made.doubts
    assert doubt.startswith("pi0 on h100:8 may be short by ")
    assert doubt.endswith("it fits with mesh.replica=4 mesh.data=2")


@pytest.mark.parametrize(
    ("recipe", "changes", "said"),
    [
        ("pi1", {}, "main was not planned: could not find a recipe"),
        ("pi0", {"bath_size": 3}, "batch_size"),
        ("pi0", [3], "--changes of no fields"),
        ("pi0", {"batch_size": 30}, "pi0 on h100:8 cannot run as it is: .*30 chunks for 8 parts"),
        ("pi0", {"mesh": {"data": 3}}, "cannot run as it is: .*lay out a mesh"),
    ],
)
def test_recipe_that_cannot_be_planned_is_told_and_submitted(lab: Lab, recipe: str, changes: Any, said: str) -> None:
    spec = training(recipe, "h100:8", changes=changes)
    made = planned(spec, lab.home)
    assert made.spec == spec
    (doubt,) = made.doubts
    assert re.search(said, doubt)


def test_submit_plans_where_the_recipe_is_unless_told_not_to(lab: Lab) -> None:
    heard: list[PlannedSpec] = []
    for plan in (True, False):
        with pytest.raises(MainspringError):  # There is no server.
            lab.run(training("pi0", "h100:8"), plan=plan, on_plan=heard.append)
    with pytest.raises(MainspringError):
        lab.run(job("other", ["python", "train.py"], on="h100:8"), on_plan=heard.append)
    assert len(heard) == 1


def test_plans_of_a_submit_need_no_jax(lab: Lab) -> None:
    code = "import sys; from mainspring.app.sdk import plans; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@needs_compiler
@pytest.mark.soak
def test_what_the_compiler_refused_once_is_refused_and_what_it_took_is_told(lab: Lab) -> None:
    cache = lab.home.cache / "plans"
    fits, large = (changed(recipe_named("vla_tiny"), {"batch_size": size}) for size in (8, 1 << 20))
    compiled_figures(fits, signature_for(fits), parsed_target("v6e:1x1"), cache=cache)
    with pytest.raises(InvalidInput, match="memory needed at once"):
        compiled_figures(large, signature_for(large), parsed_target("v6e:1x1"), cache=cache)
    (told,) = planned(training("vla_tiny", "v6e:1", changes={"batch_size": 8}), lab.home).told
    assert "by the compiler" in told
    refused = r"vla_tiny on v6e:1x1; got .*memory needed at once, by the compiler.*fits with .*--no-plan"
    with pytest.raises(InvalidSpec, match=refused):
        planned(training("vla_tiny", "v6e:1", changes={"batch_size": 1 << 20}), lab.home)
