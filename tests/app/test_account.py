"""Where jobs run under the server's account people are told so, and the server is reached from elsewhere by consent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.render.tables import ACCOUNT
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import Conflict, NotAllowed
from mainspring.domain.ids import TeamName
from tests.app.conftest import clusters

FAR = "https://lab.example.org"


def _ms(lab: Lab, *words: str) -> str:
    command = [sys.executable, "-c", "from mainspring.app.cli.main import main; main()", *words]
    environment = {**os.environ, "MAINSPRING_HOME": str(lab.home.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("field", ["host", "public_url"])
def test_a_server_whose_jobs_share_its_account_is_not_reached_from_elsewhere(tmp_path: Path, field: str) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), **{field: FAR if field == "public_url" else "192.0.2.1"}))  # type: ignore[arg-type]
    with pytest.raises(NotAllowed, match="--shared-account"):
        lab.up(port=0)
    assert lab.home.server() is None


@pytest.mark.slow
def test_whoever_says_that_the_account_is_shared_has_all_of_it_from_then_on(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), public_url=FAR))
    try:
        lab.up(port=0, shared_account=True)
        lab.down()
        assert ACCOUNT in _ms(lab, "up").replace("\n", " ")
        assert ACCOUNT in _ms(lab, "cluster", "check", "alpha").replace("\n", " ")
        for team in ("arms", "vision"):
            lab.set_team(team)
            lab.new_token(NewToken(holder="ada", team=TeamName(team)))
    finally:
        lab.down()


@pytest.mark.slow
def test_a_server_makes_no_tokens_for_two_teams_before_it_is_told_and_is_told_when_it_starts(lab: Lab) -> None:
    for team in ("arms", "vision"):
        lab.set_team(team)
    lab.new_token(NewToken(holder="ada", team=TeamName("arms")))
    with pytest.raises(Conflict, match="--shared-account"):
        lab.new_token(NewToken(holder="eve", team=TeamName("vision")))
    with pytest.raises(Conflict, match="ms down"):
        lab.up(shared_account=True)
