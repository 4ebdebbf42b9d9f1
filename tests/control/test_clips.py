"""Who may tell of whose clips: a robot of its own, by its own token; those who manage robots of its team of any."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.conftest import World

from mainspring.domain.answers import ClipCatalog, ClipEntry, NewRobot
from mainspring.domain.errors import NotAllowed
from mainspring.domain.ids import TeamName
from mainspring.domain.job import Tier
from mainspring.domain.team import Team, TeamRole


def clips(*robots: str) -> ClipCatalog:
    told: Any = {"size_bytes": 9, "begun_ns": 1, "ended_ns": 2, "triggers": ("failed",), "priority": Tier.CRITICAL}
    made = (
        ClipEntry(id=f"{number}" * 64, name=f"{number}.mcap", robot=robot, send=True, **told)
        for number, robot in enumerate(robots)
    )
    return ClipCatalog(clips=tuple(made))


def tell(world: World, catalog: ClipCatalog, holder: str, team: str = "lab", role: TeamRole = TeamRole.MEMBER) -> None:
    caller = world.control.people.caller(world.token(role, team=team, holder=holder))
    world.control.clips.tell("pick", catalog, caller)


def known(world: World) -> list[str]:
    return sorted(view.clip.robot for view in world.control.clips.every())


@pytest.fixture
def fleet(world: World) -> World:
    for team, parent in (("lab", None), ("arms", "lab"), ("legs", "lab")):
        world.control.people.set_team(Team(name=TeamName(team), parent=TeamName(parent) if parent else None))
    for robot in ("arm-1", "arm-2"):
        world.control.robots.invite(NewRobot(name=robot, team=TeamName("arms"), plain=True))
    return world


def test_robot_tells_of_its_own_clips_alone_and_nothing_of_a_mixed_catalog_is_kept(fleet: World) -> None:
    tell(fleet, clips("arm-1"), "arm-1", "arms")
    with pytest.raises(NotAllowed, match=r"robot arm-2.*a token of arm-1.*ms token new arm-2 --team arms"):
        tell(fleet, clips("arm-1", "arm-2"), "arm-1", "arms")
    assert known(fleet) == ["arm-1"]


def test_token_of_a_robots_name_in_another_team_is_not_its_own(fleet: World) -> None:
    with pytest.raises(NotAllowed, match="a token of its name in team legs"):
        tell(fleet, clips("arm-1"), "arm-1", "legs")
    with pytest.raises(NotAllowed, match="a token of bo"):
        tell(fleet, clips("arm-1"), "bo", "legs", TeamRole.ADMIN)
    tell(fleet, clips("arm-1"), "arm-1")  # A team above covers it.
    assert known(fleet) == ["arm-1"]


def test_who_manages_robots_of_a_team_tells_of_any_of_them(fleet: World) -> None:
    tell(fleet, clips("arm-1", "arm-2"), "ada", "arms", TeamRole.ADMIN)
    assert known(fleet) == ["arm-1", "arm-2"]


def test_robot_that_nobody_enrolled_tells_by_its_name_and_one_that_is_revoked_not_at_all(fleet: World) -> None:
    tell(fleet, clips("lone-1"), "lone-1", "legs")
    with pytest.raises(NotAllowed, match="a token of ada"):
        tell(fleet, clips("lone-1"), "ada")
    fleet.control.robots.revoke("arm-1")
    for holder, role in (("arm-1", TeamRole.MEMBER), ("ada", TeamRole.ADMIN)):
        with pytest.raises(NotAllowed, match="revoked"):
            tell(fleet, clips("arm-1"), holder, "arms", role)
    assert known(fleet) == ["lone-1"]
