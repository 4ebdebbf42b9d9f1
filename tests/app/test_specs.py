"""Specs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.app.base.specs import (
    chips_from,
    duration_from,
    limit_from,
    read_policy,
    read_spec,
    spec_from,
    time_from,
)
from mainspring.app.sdk.lab import job
from mainspring.domain.errors import InvalidSpec, MainspringError, NotFound
from mainspring.domain.job import Tier
from mainspring.planner import Policy

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


def test_read_spec_names_secrets_as_variables_and_files(tmp_path: Path) -> None:
    (role,) = read_spec(_written(tmp_path, SIMPLE + "secrets: [HF_TOKEN]\nsecret_files: [GCS_KEY, HF_TOKEN]\n")).roles
    assert (role.secrets, role.secret_files) == (("HF_TOKEN",), ("GCS_KEY", "HF_TOKEN"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SIMPLE.replace("command:", "comand:"), "field 'comand'.*did you mean 'command'"),
        (SIMPLE.replace("chips: 8", "chip_count: 8"), r"options\[0\]\.chip_count.*did you mean 'chip"),
        (SIMPLE.replace("critical", "urgent"), "field 'tier'.*one of critical"),
        (SIMPLE.replace("replicas: 4", "replicas: four"), r"options\[0\]\.replicas.*a whole number"),
        (SIMPLE + "roles: []\n", "one or the other"),
        (SIMPLE + "code: {tree: x}\n", "field 'code'"),
        (SIMPLE + "begins_from: base@last\n", "'last'.*NAME@STEP"),
        (SIMPLE + "begins_from: Base@1\n", "got 'Base'"),
        (SIMPLE.replace("critical", "urgent"), r"job\.yaml"),
        (SIMPLE + "secrets: [HF-TOKEN]\n", "'HF-TOKEN'.*A-Z"),
        (SIMPLE + "secrets: [A]\nenvironment: {A: b}\n", r"field 'secrets'.*\['A'\]"),
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


def test_read_spec_of_every_field_an_option_has(tmp_path: Path) -> None:
    text = """
name: wide
command: train
after: [job-1]
duration_s: 7200
options:
  - {chip: v5p, chips: 4, replicas: 16, slice: 4x4x4}
  - {chip: h100, chips: 8, cpus: 64, memory_gib: 512, chip_memory_gib: 79.5, replicas: 8, replicas_min: 4, prefer: rack,
     within: block, group: 2, group_within: rack, tolerates: [spot]}
"""
    spec = read_spec(_written(tmp_path, text))
    tpu, gpu = spec.roles[0].options
    assert (spec.after, spec.duration_s, tpu.slice) == (("job-1",), 7_200.0, "4x4x4")
    assert (gpu.cpus, gpu.memory_gib, gpu.chip_memory_gib) == (64.0, 512.0, 79.5)
    assert (gpu.prefer, gpu.within) == ("rack", "block")
    assert (gpu.group, gpu.group_within, gpu.tolerates, gpu.replicas_min) == (2, "rack", ("spot",), 4)


def test_spares_of_a_job_are_some_of_its_replicas(tmp_path: Path) -> None:
    text = "name: a\ncommand: x\nspares: {}\noptions:\n  - {{chip: h100, replicas: 4, replicas_min: 2}}\n"
    assert read_spec(_written(tmp_path, text.format(1))).roles[0].spares == 1
    assert job("a", ["x"], replicas=3, spares=2).roles[0].spares == 2
    with pytest.raises(InvalidSpec, match="fewer than the 2 replicas"):
        read_spec(_written(tmp_path, text.format(2)))
    with pytest.raises(InvalidSpec, match="spares"):
        job("a", ["x"], replicas=2, spares=2)


def test_job_says_the_same_of_each_of_its_options() -> None:
    spec = job("x", "true", on=["h100", "v5e@0.5"], each={"cpus": 4.0, "prefer": "rack"}, duration_s=60.0)
    assert [(option.cpus, option.prefer) for option in spec.roles[0].options] == [(4.0, "rack")] * 2
    with pytest.raises(InvalidSpec, match="cpuz"):
        job("x", "true", each={"cpuz": 4.0})


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("30m", 1_800.0), ("2h", 7_200.0), ("1.5d", 129_600.0)]
)
def test_durations_read_as_people_write_them(text: str, seconds: float) -> None:
    assert duration_from(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "two hours", "2w", "nan", "inf", "1e308d"])
def test_durations_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="90m"):
        duration_from(text)


def test_chip_counts_and_limits_read_as_people_write_them() -> None:
    assert chips_from(["h100=64", "v5e=0.5"]) == {"h100": 64.0, "v5e": 0.5}
    assert chips_from(["none"]) == {}
    assert (limit_from("8"), limit_from("none")) == (8.0, None)
    for text in ("h100", "=3", "h100=many"):
        with pytest.raises(InvalidSpec, match="h100=64"):
            chips_from([text])
    with pytest.raises(InvalidSpec, match="none"):
        limit_from("few")


def test_time_from_reads_a_date_or_how_long_ago() -> None:
    assert time_from("2026-11-25T12:00:00+02:00", now_s=0.0) == 1_795_600_800.0
    assert time_from("2026-11-25T10:00:00Z", now_s=0.0) == 1_795_600_800.0
    assert (time_from("2h", now_s=10_000.0), time_from("2h", now_s=10.0)) == (2_800.0, 0.0)
    for text in ("yesterday", "2026-13-01", ""):
        with pytest.raises(InvalidSpec, match="how long ago"):
            time_from(text, now_s=0.0)


def test_read_policy_keeps_the_defaults_of_what_it_leaves_out(tmp_path: Path) -> None:
    policy = read_policy(_written(tmp_path, "preempt: false\nattained_levels_chip_s: [60, 600]\n"))
    assert (policy.preempt, policy.attained_levels_chip_s) == (False, (60.0, 600.0))
    assert policy.runtime_min_s == Policy().runtime_min_s
    assert read_policy(_written(tmp_path, "")) == Policy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("premept: true", "did you mean 'preempt'"),
        ("runtime_min_s: soon", "runtime_min_s.*a number"),
        ("attained_levels_chip_s: [600, 60]", "rising levels"),
        ("- a list", "the fields of Policy"),
    ],
)
def test_read_policy_with_a_mistake_names_it_and_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as told:
        read_policy(_written(tmp_path, text))
    assert "job.yaml" in str(told.value)
