"""The home folder: what it keeps for its owner alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.app.base.home import Config, Home
from mainspring.domain.errors import InvalidSpec
from mainspring.testing import SeededDice


def test_key_of_attempts_secrets_is_drawn_once_is_not_the_admins_token_and_is_its_owners_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.write_token("the admin's token")  # A home from before there was a key.
    dice = SeededDice(1)
    key = home.key(dice)
    assert len(key) > 60
    assert key != home.token()
    assert home.key(dice) == Home(tmp_path / "home").key(dice) == key
    assert home.path.joinpath("key").stat().st_mode & 0o777 == 0o600
    assert home.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("poll_s", [0.5, 90_000.0, float("nan")])
def test_robots_that_would_call_too_often_or_hardly_ever_are_no_configuration(poll_s: float) -> None:
    with pytest.raises(InvalidSpec, match=r"robot_poll_s.*1 to 43200 s"):
        Config(robot_poll_s=poll_s)


def test_how_often_robots_call_is_kept_in_the_configuration(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.write_config(Config(robot_poll_s=5.0))
    assert home.config().robot_poll_s == 5.0
