"""Specs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.app.sdk import job
from mainspring.app.specs import read_spec, spec_from
from mainspring.domain.errors import InvalidSpec, MainspringError, NotFound
from mainspring.domain.job import Tier

SIMPLE = """
name: pick-place
tier: critical
command: python train.py --name "two words"
options:
  - {chip: h100, chips: 8, replicas: 4}
  - {chip: v5e, chips: 0.5, speed: 0.4, replicas: 2}
"""


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_read_spec_of_a_simple_job_makes_one_role(tmp_path: Path) -> None:
    spec = read_spec(_written(tmp_path, SIMPLE))
    assert spec.tier is Tier.CRITICAL
    (role,) = spec.roles
    assert role.name == "main"
    assert role.command == ("python", "train.py", "--name", "two words")
    assert [option.chip_milli for option in role.options] == [8_000, 500]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SIMPLE.replace("command:", "comand:"), "field 'comand'.*did you mean 'command'"),
        (SIMPLE.replace("chips: 8", "chip_count: 8"), r"options\[0\]\.chip_count.*did you mean 'chip"),
        (SIMPLE.replace("critical", "urgent"), "field 'tier'.*one of critical"),
        (SIMPLE.replace("replicas: 4", "replicas: four"), r"options\[0\]\.replicas.*a whole number"),
        (SIMPLE + "roles: []\n", "one or the other"),
        (SIMPLE + "code: {tree: x}\n", "field 'code'"),
        (SIMPLE.replace("critical", "urgent"), r"job\.yaml"),
        ("- a list", "a mapping"),
        ("name: [unclosed", "wanted YAML"),
        ("command: python 'unbalanced\nname: x", "balanced quotes"),
        ("name: x\ncommand: python\n", "options"),
        ("", "a mapping"),
    ],
)
def test_read_spec_of_a_wrong_file_names_the_field_and_what_was_wanted(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        read_spec(_written(tmp_path, text))


def test_read_spec_of_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.yaml"):
        read_spec(tmp_path / "nowhere.yaml")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_spec_from_any_document_returns_or_raises_a_named_error(document: object) -> None:
    with pytest.raises(MainspringError):
        spec_from(document)


@pytest.mark.parametrize("option", ["h100:x", "h100@fast", ":1", "h100:0", "H100"])
def test_job_with_a_wrong_option_is_refused(option: str) -> None:
    with pytest.raises(MainspringError):
        job("a", ["true"], on=[option])


def test_job_of_one_line_and_one_chip_reads_them_as_a_spec_does() -> None:
    assert job("a", "echo 'two words'", on="h100:8") == job("a", ["echo", "two words"], on=["h100:8"])
    assert job("a", ["true"], options=[{"chip": "v5e"}]) == job("a", ["true"], on=["v5e"])
