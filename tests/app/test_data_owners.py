"""`ms data team` on a real server, and homes that share its object store: what begins there has a team too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.app.base.home import Config, LoginRecord
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.team import TeamRole
from tests.app.test_cli_data import Shell
from tests.data.making import record_many

pytestmark = pytest.mark.slow


@pytest.fixture
def home_of(lab: Lab, tmp_path: Path) -> Callable[[str, TeamRole], Shell]:
    """Makes homes of people of the lab, which have its object store for theirs."""
    server = lab.home.server()
    assert server is not None
    for name, parent in (("lab", None), ("arms", "lab"), ("vision", "lab")):
        lab.set_team(name, parent=parent)

    def made(team: str, role: TeamRole) -> Shell:
        shell = Shell(tmp_path / f"{role.value}-of-{team}")
        token = lab.new_token(NewToken(holder=f"{role.value}-{team}", team=TeamName(team), role=role)).secret
        shell.lab.home.write_config(Config(objects=lab.home.objects_url(lab.home.config())))
        shell.lab.home.write_login(LoginRecord(url=server.url, token=token))
        return shell

    return made


def test_people_see_whose_a_dataset_is_and_give_it_away(
    lab: Lab, home_of: Callable[[str, TeamRole], Shell], tmp_path: Path
) -> None:
    bo, admin = home_of("arms", TeamRole.MEMBER), home_of("arms", TeamRole.ADMIN)
    carol, mine = home_of("vision", TeamRole.VIEWER), Shell(lab.home.path)
    source = record_many(tmp_path / "recordings", 2)
    with pytest.raises(NotFound):
        bo.data("team", "pick")
    bo.data("ingest", str(source), "--dataset", "pick")
    bo.data("select", "pick", "--where", "true", "--as", "pick-good")
    for dataset in ("pick", "pick-good"):
        assert f"{dataset} is of team arms, by member-arms." in bo.data("team", dataset)
    mine.data("ingest", str(source), "--dataset", "shared")
    assert "shared is everybody's." in carol.data("team", "shared")
    assert [one.name for one in carol.lab.list_datasets()] == ["shared"]
    assert [(one.name, one.team) for one in bo.lab.list_datasets()] == [
        ("pick", "arms"),
        ("pick-good", "arms"),
        ("shared", None),
    ]
    with pytest.raises(NotFound):
        carol.data("team", "pick")
    with pytest.raises(NotAllowed):
        bo.data("team", "pick", "--to-everybody")
    with pytest.raises(InvalidInput):
        admin.data("team", "pick", "--to", "arms", "--to-everybody")
    assert "pick is everybody's, by admin-arms." in admin.data("team", "pick", "--to-everybody")
    assert carol.json("team", "pick")["team"] is None
    assert mine.json("team", "pick", "--to", "vision")["team"] == "vision"
    with pytest.raises(NotFound):
        bo.data("team", "pick")
    with pytest.raises(NotFound):  # The name is taken, though they do not see by what.
        bo.data("ingest", str(source), "--dataset", "pick")
