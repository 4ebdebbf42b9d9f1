"""`ms demo --recipe vla_tiny`: a policy that goes where words say, trained through a killed rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from mainspring.robots.environments.metaworld import GOAL_RADIUS_M, PLACES
from mainspring.robots.evaluation.cells import cell_name

PROGRAM = str(Path(sys.executable).parent / "ms")


def shown(home: Path, *words: str, timeout_s: float) -> dict[str, Any]:
    command = [PROGRAM, "--home", str(home), "demo", "--recipe", "vla_tiny", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-4_000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def cells(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (told.name, wanted.name): float(report["result"][cell_name(told.name, wanted.name)])
        for told in PLACES
        for wanted in PLACES
    }


def test_places_are_apart_and_their_words_are_their_own() -> None:
    for one in PLACES:
        assert (len(one.wordings), len(one.unseen)) == (4, 2)
        for other in PLACES:
            if one is not other:
                off = sum((a - b) ** 2 for a, b in zip(one.goal_m, other.goal_m, strict=True)) ** 0.5
                assert off > 2 * GOAL_RADIUS_M
                assert not {*one.wordings, *one.unseen} & {*other.wordings, *other.unseen}
        assert not {*one.wordings} & {*one.unseen}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_show_in_small_form_goes_through_and_fills_every_cell(tmp_path: Path) -> None:
    report = shown(tmp_path / "demo", "--episodes", "6", "--steps", "30", "--starts", "1", timeout_s=580)
    assert (report["episodes"], report["steps"], report["generations"]) == (6, 30, 2)
    assert all(0.0 <= rate <= 1.0 for rate in cells(report).values())


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_policy_goes_where_words_that_it_never_read_say_and_nowhere_else(tmp_path: Path) -> None:
    report = shown(tmp_path / "demo", timeout_s=2_900)
    assert report["generations"] == 2
    for (told, wanted), rate in cells(report).items():
        assert rate >= 0.9 if told == wanted else rate <= 0.1, (told, wanted, rate)
