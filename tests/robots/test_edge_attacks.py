"""The agent between a server of ours and somebody who lies about what it says; and a robot whose clock is years off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, TargetFile

from mainspring.robots.edge.machine import Phase
from tests.robots.edge_world import LIMITS
from tests.robots.test_edge_signed import Fleet

WEEK_S, YEAR_S, YEARS_10_S = 7 * 86_400.0, 365.0 * 86_400.0, 3_652.5 * 86_400.0
Lie = Callable[[str, bytes], bytes]
pytestmark = pytest.mark.slow


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "server").mkdir()
    return Fleet(tmp_path)


def seen(fleet: Fleet) -> dict[str, bytes]:
    """All metadata that the server tells now."""
    trust, names = fleet.world.control.releases, ["timestamp.json"]
    versions = trust.trust().versions
    names += [f"{versions[role]}.{role}.json" for role in ("snapshot", "targets")]
    return {name: trust.metadata(name) for name in names}


def forged(fleet: Fleet, before: dict[str, bytes]) -> Lie:
    """Targets with a release more, under the signatures of those without it."""

    def lie(name: str, told: bytes) -> bytes:
        if not name.endswith(".targets.json"):
            return told
        found = Metadata.from_bytes(told)
        evil = TargetFile.from_data("releases/evil.1.json", b"{}", ["sha256"])
        found.signed.targets["releases/evil.1.json"] = evil  # type: ignore[attr-defined]
        return found.to_bytes()

    return lie


def replayed(fleet: Fleet, before: dict[str, bytes]) -> Lie:
    """All that was true a while ago: rightly signed, and not yet ended."""
    old = {name.partition(".")[2] if name[0].isdigit() else name: data for name, data in before.items()}
    return lambda name, told: old.get(name.partition(".")[2] if name[0].isdigit() else name, told)


def mixed(fleet: Fleet, before: dict[str, bytes]) -> Lie:
    """Today's timestamp and snapshot, with targets of a while ago."""
    old = next(data for name, data in before.items() if name.endswith(".targets.json"))
    return lambda name, told: old if name.endswith(".targets.json") else told


def changed(fleet: Fleet, before: dict[str, bytes]) -> Lie:
    """What is signed is right; the bytes that come are others."""
    return lambda name, told: told[::-1] if name.startswith("artifacts/") else told


def goes_on(fleet: Fleet, target: str) -> None:
    """The robot tries for a while, installs nothing, gives up in time, and runs all that time what it ran."""
    fleet.agent.ask(target, action=f"9 at {fleet.clock.now_s()}")
    for _ in range(8):
        fleet.agent.step()
        fleet.pass_s(1.0)
        assert fleet.held() == [b"one"]
    assert fleet.agent.journal.phase is Phase.DOWNLOADING
    fleet.pass_s(LIMITS.download_s + 1.0)
    fleet.agent.step()
    journal = fleet.agent.journal
    assert (journal.phase, journal.told[-1].committed) == (Phase.IDLE, False)
    assert (fleet.held(), journal.slots[journal.committed]) == ([b"one"], "releases/arm.1.json")


@pytest.mark.parametrize("made", [forged, replayed, mixed, changed])
def test_what_is_forged_replayed_mixed_or_changed_is_not_installed_and_harms_nothing(
    made: Callable[[Fleet, dict[str, bytes]], Lie], fleet: Fleet
) -> None:
    fleet.go(fleet.publish(b"one"))
    before = seen(fleet)
    fleet.go(fleet.publish(b"one", b"between"), action="2")  # So that the robot has seen more than what is replayed.
    fleet.agent.roll_back()
    second = fleet.publish(b"three")
    fleet.lie = made(fleet, before)
    goes_on(fleet, second)
    fleet.lie = lambda name, told: told
    fleet.go(second, action="10")
    assert fleet.held() == [b"three"]


def test_metadata_that_somebody_holds_back_until_it_ended_installs_nothing(fleet: Fleet) -> None:
    fleet.go(fleet.publish(b"one"))
    second = fleet.publish(b"two")
    kept = seen(fleet)
    fleet.lie = kept.get
    fleet.pass_s(2 * WEEK_S)
    goes_on(fleet, second)
    fleet.lie = lambda name, told: told
    fleet.go(second, action="10")
    assert fleet.held() == [b"two"]


def test_robot_whose_clock_is_ten_years_ahead_installs_nothing_until_it_is_right(fleet: Fleet) -> None:
    fleet.go(fleet.publish(b"one"))
    fleet.clock.jump(YEARS_10_S)
    second = fleet.publish(b"two")
    goes_on(fleet, second)
    fleet.clock.jump(-YEARS_10_S)  # Nothing of what it believed then is kept.
    fleet.go(second, action="10")
    assert fleet.held() == [b"two"]


def test_robot_whose_clock_is_ten_years_behind_takes_the_time_from_what_is_signed(fleet: Fleet) -> None:
    fleet.go(fleet.publish(b"one"))
    fleet.clock.jump(-YEARS_10_S)
    fleet.go(fleet.publish(b"one", b"more"), action="2")
    assert fleet.held() == [b"one", b"more"]
    fleet.agent.roll_back()
    third = fleet.publish(b"three")
    fleet.world.clock.advance(YEAR_S + WEEK_S)  # What people signed has ended; the server's timestamp is of today.
    goes_on(fleet, third)
    fleet.clock.jump(YEARS_10_S)
    goes_on(fleet, third)
