"""Damage to a recording of any kind is refused, marked with what is gone, or changes nothing; never is it silent."""

from __future__ import annotations

import pytest
from tests.data.damage.sources import REAL, SOURCES
from tests.data.damage.trial import TRIALS, Outcome, trial, trials

BAD = (Outcome.SILENT, Outcome.FAULT)
FEW = 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_damage_is_refused_or_marked_or_harmless_and_never_silent(part: int) -> None:
    found = list(trials(part * FEW // 4, FEW // 4))
    assert [str(one) for one in found if one.outcome in BAD] == []


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_many_damages_are_refused_or_marked_or_harmless_and_never_silent() -> None:
    found = list(trials(FEW, TRIALS - FEW))
    assert [str(one) for one in found if one.outcome in BAD] == []


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not REAL, reason="the shared robot recordings are not here")
def test_damage_to_real_recordings_is_never_silent() -> None:
    found = [trial(number, name) for name in sorted(REAL) for number in range(10)]
    assert [str(one) for one in found if one.outcome in BAD] == []


def test_every_kind_of_source_is_among_the_few() -> None:
    assert len(SOURCES) <= FEW


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (87, "ROS 2 bag of MCAP"),  # The metadata was no YAML any more.
        (250, "ROS 2 bag of SQLite"),  # A message ended elsewhere than its type.
        (366, "MCAP uncompressed, no checksums"),  # A joint's name was no text any more.
        (1324, "LeRobot v3 h264"),  # Two frames stood at one time.
        (2255, "MCAP unchunked"),  # The index was elsewhere, and the checksum was not looked for.
        (5810, "LeRobot v2.1 av1"),  # A packet gave two frames.
    ],
)
def test_damage_that_once_was_silent_is_refused_or_marked(number: int, name: str) -> None:
    assert trial(number, name).outcome in (Outcome.REFUSED, Outcome.MARKED)
