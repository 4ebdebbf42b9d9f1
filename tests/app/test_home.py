"""The home folder: what it keeps for its owner alone."""

from __future__ import annotations

from pathlib import Path

from mainspring.app.base.home import Home
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
