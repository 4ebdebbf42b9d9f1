"""`ms recipe` as a user runs it: without a server, and by formulas without JAX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mainspring.app.cli.training.recipe import app
from mainspring.app.sdk.lab import Lab
from mainspring.app.sdk.recipes import signature_for, with_layout
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound
from mainspring.train.naming import find_recipe, with_setting
from mainspring.train.recipe import MeshRecipe, recipe_named

OWN = """
from dataclasses import replace
from mainspring.train.recipe import pi0_recipe

def wide_arms():
    return replace(pi0_recipe(), name="wide_arms", batch_size=128)

def broken():
    return 3
"""
PLAN = ("plan", "pi0", "--on", "v5p:4x4x4", "--analytic", "--batch-per-chip", "8")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "home")


def _run(lab: Lab, *words: str) -> Result:
    """Runs `ms recipe`; our own errors come out as `ms` gets them."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, words, obj=lab)
    if isinstance(done.exception, MainspringError):
        raise done.exception
    return done


def _json(lab: Lab, *words: str) -> Any:
    return json.loads(_run(lab, *words, "--json").stdout, parse_constant=pytest.fail)


def test_list_tells_the_parameters_of_every_recipe(lab: Lab) -> None:
    rows = {row["name"]: row for row in _json(lab, "ls")}
    assert rows["pi0"]["parameters"] == 3_238_048_528
    assert {*rows} == {"arm", "video", "act", "vla_tiny", "vla_small", "pi0", "pi0_lora", "pi05", "gemma_2b"}


def test_show_tells_every_field_with_what_was_set(lab: Lab) -> None:
    assert _json(lab, "show", "pi0", "--set", "policy.compute.remat=dots")["policy"]["compute"]["remat"] == "dots"
    assert "policy.compute.remat" in _run(lab, "show", "pi0").stdout


def test_diff_tells_only_fields_that_differ(lab: Lab) -> None:
    found = _json(lab, "diff", "pi0", "pi05")
    assert found.pop("name") == {"left": "pi0", "right": "pi05"}
    assert {*found} == {"policy.kind", "policy.prompt_length", "policy.quantiles"}
    assert found["policy.prompt_length"] == {"left": 48, "right": 200}


def test_plan_tells_machines_what_each_chip_holds(lab: Lab) -> None:
    (found,) = _json(lab, *PLAN, "--layout", "data=64", "--dollars-per-chip-hour", "3.6")
    (layout,) = found["layouts"]
    assert (found["target"], found["devices"], found["fits"]) == ("v5p:4x4x4", 64, True)
    assert layout["batch_size"] == 512
    assert layout["figures"]["said_by"] == "analytic"
    memory = layout["figures"]["memory"]
    # 3.24 G weights of 4 bytes on 64 chips, and the small arrays whole on each.
    assert 3_238_048_528 * 4 / 64 < memory["parameters"] < 3_238_048_528 * 4 / 64 * 1.15
    assert layout["dollars_per_1000_steps"] == pytest.approx(64 * 0.001 * layout["step_s"] * 1000)


def test_plan_that_does_not_fit_names_a_change_that_does(lab: Lab) -> None:
    words = ("plan", "pi0", "--on", "v6e:4x4", "--analytic")
    done = _run(lab, *words)
    assert done.exit_code == 1
    assert "it fits with --set mesh.replica=8 --set mesh.data=2" in done.stdout
    assert _run(lab, *words, "--set", "mesh.replica=8", "--set", "mesh.data=2").exit_code == 0


def test_plan_of_several_targets_tells_of_the_one_that_cannot_be(lab: Lab) -> None:
    found = _json(lab, "plan", "pi0", "--on", "v5p:4x4x4", "--on", "v5p:2x2x1", "--analytic")
    assert ["32 chunks for 64 parts" in each["error"] for each in found] == [True, False]


def test_plan_of_targets_that_all_cannot_be_shows_no_empty_tables(lab: Lab) -> None:
    shown = _run(lab, "plan", "pi0", "--on", "v5p:4x4x4", "--on", "v5p:4x4x8", "--analytic").stdout
    assert "32 chunks for 128 parts" in shown
    assert "TEMPORARY" not in shown
    assert "BEST STEP" not in shown


def test_plan_of_several_slices_counts_them_all(lab: Lab) -> None:
    (found,) = _json(lab, *PLAN, "--slices", "2", "--layout", "replica=2,data=64")
    assert (found["slices"], found["devices"]) == (2, 128)


def test_plan_chooses_layouts_and_draws_them(lab: Lab) -> None:
    assert "memory of a chip by step time" in _run(lab, *PLAN, "--layout", "auto").stdout
    (found,) = _json(lab, *PLAN, "--layout", "auto")
    assert len(found["layouts"]) > 1


def test_plan_takes_prices_of_configured_clusters(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    cluster = "kind: local, name: pods, chip: v5p, chips_per_node: 4, nodes: 16, dollars_per_chip_hour: 3.6"
    (tmp_path / "home" / "config.yaml").write_text(f"clusters:\n  - {{{cluster}}}\n")
    (found,) = _json(lab, *PLAN, "--layout", "data=64")
    layout = found["layouts"][0]
    assert layout["dollars_per_1000_steps"] == pytest.approx(64 * 0.001 * layout["step_s"] * 1000)


def test_plan_without_a_price_tells_no_dollars(lab: Lab) -> None:
    assert _json(lab, *PLAN, "--layout", "data=64")[0]["layouts"][0]["dollars_per_1000_steps"] is None


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (("plan", "pi", "--on", "v5p:4x4x4"), NotFound, "did you mean 'pi0'"),
        (("plan", "pi0", "--on", "v5q:4x4x4"), NotFound, "did you mean 'v5p'"),
        (("plan", "pi0", "--on", "v5p:3x3x3"), InvalidInput, "multiples of 4"),
        (("plan", "pi0", "--on", "v5p:4x4x4", "--layout", "date=64"), NotFound, "did you mean 'data'"),
        (("plan", "pi0", "--on", "v5p:4x4x4", "--layout", "data=48"), InvalidInput, "64 devices"),
        (("plan", "pi0", "--on", "v5p:4x4x4", "--set", "policy.compute.remt=full"), NotFound, "did you mean 'remat'"),
        (("plan", "pi0", "--on", "v5p:4x4x4", "--set", "batch_size=many"), InvalidInput, "a whole number"),
        (("plan", "pi0", "--on", "v5p:4x4x4", "--signature", "eyes=3"), NotFound, "no 'eyes'"),
        (("plan", "pi0", "--on", "v5e:1x1", "--layout", "auto"), InvalidInput, "none fits"),
    ],
)
def test_plan_of_what_cannot_be_is_refused_with_what_is_nearest(
    lab: Lab, words: tuple[str, ...], kind: type[MainspringError], told: str
) -> None:
    with pytest.raises(kind) as caught:
        _run(lab, *words, "--analytic")
    assert told in str(caught.value)


def test_recipe_of_a_users_file_is_found_by_its_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    assert find_recipe(f"{file}:wide_arms", ["seed=4"]).batch_size == 128
    for name, told in ((f"{file}:wide_arm", "did you mean 'wide_arms'"), (f"{file}:broken", "got int")):
        with pytest.raises(MainspringError) as caught:
            find_recipe(name)
        assert told in str(caught.value)
    with pytest.raises(NotFound):
        find_recipe(f"{tmp_path}/none.py:wide_arms")
    file.write_text("1 / 0")
    with pytest.raises(InvalidInput, match="ZeroDivisionError"):
        find_recipe(f"{file}:wide_arms")


def test_setting_of_a_field_leaves_all_others() -> None:
    pi0 = recipe_named("pi0")
    found = with_setting(pi0, "policy.language.depth=6")
    assert find_recipe("pi0", ["policy.language.depth=6"]) == found != pi0
    assert with_setting(found, "policy.language.depth=18") == pi0


def test_layout_leaves_the_rest_of_devices_to_replicas() -> None:
    assert with_layout(recipe_named("pi0"), "data=8, tensor=2").mesh == MeshRecipe(replica=0, data=8, tensor=2)


def test_layout_of_no_data_devices_gives_data_the_rest() -> None:
    assert with_layout(recipe_named("pi0"), "data=0,tensor=2").mesh == MeshRecipe(replica=1, data=0, tensor=2)


def test_signature_takes_its_dimensions_from_a_policy_that_has_its_own() -> None:
    found = signature_for(recipe_named("pi0"), "views=2,image=480x640")
    assert (found.state_dim, found.image_views, found.image_height, found.image_width) == (32, 2, 480, 640)
    assert signature_for(recipe_named("arm")).image_views == 0


@pytest.mark.slow
def test_plan_by_formulas_loads_no_jax(tmp_path: Path) -> None:
    show = (
        "import sys\nfrom mainspring.app.cli.main import main\ntry: main()\nfinally: print('\\n'+' '.join(sys.modules))"
    )
    words = [sys.executable, "-c", show, "--home", str(tmp_path), "recipe", *PLAN, "--layout", "auto"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "mainspring.train.plan.choice" in loaded
    assert not loaded & {"jax", "optax", "mainspring.control", "mainspring.data"}
