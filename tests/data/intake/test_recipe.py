from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.data.intake.making import recipe

from mainspring.data.intake.logs.recipe import Align, Cut, CutBy, Fact, MappingRecipe, recipe_from_yaml
from mainspring.data.intake.proposals.propose import recipe_to_yaml
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound

TEXT = """
rate_hz: 30
columns:
  state:
  - {topic: /joint_states, field: position, names: [a, b], keys: name, tolerance_ms: 25, stamp: header.stamp}
  action:
  - {topic: /arm, field: "data[0:7]", tolerance_ms: 100, align: hold}
  - {topic: /gripper, field: data, tolerance_ms: 100, align: hold}
cameras:
  front: {topic: /front/compressed, tolerance_ms: 40}
cut: {by: gap, gap_s: 1.5}
task: {topic: /task}
success: {metadata: episode.success}
robot: {text: ur5}
metadata: {site: lab}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_recipe_is_read_as_it_is_written(tmp_path: Path) -> None:
    read = recipe_from_yaml(written(tmp_path, TEXT))
    assert isinstance(read, MappingRecipe)
    assert [part.topic for part in read.columns["action"]] == ["/arm", "/gripper"]
    assert read.columns["action"][0].align is Align.HOLD
    assert read.columns["state"][0].tolerance_ns == 25_000_000
    assert (read.cut.by, read.cut.gap_s, read.robot.text) == (CutBy.GAP, 1.5, "ur5")


@pytest.mark.parametrize(
    "made",
    [
        recipe(),
        recipe(camera="/camera/compressed", cut=Cut(by=CutBy.FLAG, topic="/recording"), task=Fact(topic="/task")),
        recipe(29.97, align=Align.INTERPOLATE, success=Fact(metadata="x")),
    ],
)
def test_recipe_written_as_yaml_is_read_back_the_same(tmp_path: Path, made: MappingRecipe) -> None:
    assert recipe_from_yaml(written(tmp_path, recipe_to_yaml(made, ["state: it could be another"]))) == made


def test_recipe_keeps_its_id_when_only_its_text_differs(tmp_path: Path) -> None:
    plain = yaml.safe_load(TEXT)
    turned = {**dict(reversed(plain.items())), "columns": dict(reversed(plain["columns"].items()))}
    first, second = recipe_from_yaml(written(tmp_path, TEXT)), recipe_from_yaml(written(tmp_path, yaml.dump(turned)))
    assert first.id == second.id
    changed = TEXT.replace("tolerance_ms: 25", "tolerance_ms: 26")
    assert recipe_from_yaml(written(tmp_path, changed)).id != first.id


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tolerance_ms: 25", "tolerence_ms: 25", "did you mean 'tolerance_ms'"),
        ("align: hold}\n  - {topic: /g", "align: held}\n  - {topic: /g", "did you mean 'hold'"),
        ("cameras:", "camera:", "did you mean 'cameras'"),
        ("rate_hz: 30", "rate_hz: 0", "rate_hz"),
        ("rate_hz: 30", "rate_hz: .nan", "finite"),
        ("tolerance_ms: 40", "tolerance_ms: -1", "tolerance_ms"),
        ("tolerance_ms: 40", "tolerance_ms: 40, align: interpolate", "no in-between"),
        ("by: gap, gap_s: 1.5", "by: gap", "gap_s over 0"),
        ("by: gap, gap_s: 1.5", "by: flag", "topic"),
        ("names: [a, b], ", "", "names to pick"),
        ("topic: /task", "topic: /task, text: pick", "one of them"),
        ("  action:", "  time_ns:", "another name"),
        ("  front:", "  'a:b':", "without a colon"),
        ("rate_hz: 30", "rate_hz: [", "YAML"),
        (TEXT, "7", "field"),
    ],
)
def test_wrong_recipe_is_refused_naming_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(InvalidSpec, match=message) as refused:
        recipe_from_yaml(written(tmp_path, TEXT.replace(old, new)))
    assert "recipe.yaml" in refused.value.on or refused.value.on


def test_recipe_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        recipe_from_yaml(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match="larger"):
        recipe_from_yaml(written(tmp_path, "#" * (1 << 20) + TEXT))
