"""The agent on a robot: what it installs, what it goes back from, and power lost at every write."""

from __future__ import annotations

import pytest

from mainspring.robots.edge.machine import TRIES_MAX, InstallOutcome, Phase
from tests.robots.edge_world import PowerLoss, Robot

ONE, TWO = (b"release one", b"base weights", b"adapter 1"), (b"release two", b"base weights", b"adapter 2")
BAD = (b"release bad", b"base weights", b"bad")


def robot(seed: int = 0) -> Robot:
    made = Robot(seed)
    made.shop.releases = {"one": ONE, "two": TWO, "bad": BAD}
    made.go("one")
    return made


def test_release_is_installed_proved_and_committed_and_the_server_is_told() -> None:
    found = robot()
    assert found.arm.contents() == ONE
    assert (found.agent.journal.slots[found.agent.journal.committed], found.agent.journal.told) == (
        "one",
        (InstallOutcome(action="1", committed=True),),
    )


def test_second_release_fetches_what_changed_alone() -> None:
    found = robot()
    found.shop.fetched = 0
    found.go("two")
    assert found.arm.contents() == TWO
    assert found.shop.fetched == len(TWO[0]) + len(TWO[2])


def test_release_that_is_not_healthy_is_gone_back_from_and_not_tried_again() -> None:
    found = robot()
    found.go("bad")
    assert found.arm.contents() == ONE
    assert (found.agent.journal.told[-1].action, found.agent.journal.told[-1].committed) == ("1", False)
    found.agent.ask("bad", action="1")
    assert found.agent.journal.phase is Phase.IDLE
    found.agent.ask("bad", action="2")
    assert found.agent.journal.phase is not Phase.IDLE


def test_rollback_by_hand_needs_no_network() -> None:
    found = robot()
    found.go("two")
    found.shop.away = True
    found.agent.roll_back()
    assert found.arm.contents() == ONE
    found.agent.ask("two", action="1")  # The server has not heard of it.
    assert found.agent.journal.phase is Phase.IDLE
    found.agent.roll_back()
    assert found.arm.contents() == TWO


def test_robot_that_moves_is_not_restarted_and_gives_up_in_time() -> None:
    found = robot()
    found.arm.busy = "it moves"
    found.go("two", steps=100)
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.WAITING, ONE)
    found.go(steps=300)
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.IDLE, ONE)


def test_network_that_is_away_or_lies_delays_and_harms_nothing() -> None:
    found = robot()
    found.shop.away = True
    found.go("two", steps=50)
    assert found.arm.contents() == ONE
    found.shop.away, found.shop.wrong = False, 3
    found.go()
    assert found.arm.contents() == TWO


def test_release_larger_than_a_slot_or_the_disk_is_refused() -> None:
    found = robot()
    found.agent._slot_bytes_max = 20
    found.go("two")
    assert (found.arm.contents(), found.agent.journal.told[-1].committed) == (ONE, False)
    found = robot()
    found.disk.free = 1_000
    found.go("two")
    assert found.arm.contents() == ONE


def test_disk_that_fills_up_while_a_release_comes_leaves_no_part_of_it_and_harms_nothing() -> None:
    found = robot()
    found.go("two", steps=3)
    assert any(name.startswith("part-") for name in found.disk.names())
    left, found.disk.free = found.disk.free, 0  # Somebody else took all of it.
    found.go(steps=5)
    assert (found.arm.contents(), found.agent.journal.phase) == (ONE, Phase.IDLE)
    assert not [name for name in found.disk.names() if name.startswith(("part-", "wanted"))]
    found.boot()
    assert found.arm.contents() == ONE
    found.disk.free = left
    found.agent.ask("two", action="2")
    found.go()
    assert found.arm.contents() == TWO


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.RESTARTING, Phase.PROVING])
@pytest.mark.parametrize("starts", [False, True])
def test_disk_without_room_for_the_journal_never_keeps_a_robot_from_running(phase: Phase, *, starts: bool) -> None:
    found = robot()
    found.go("two", steps=0)
    while found.agent.journal.phase is not phase:
        found.agent.step()
    left, found.disk.free = found.disk.free, 0
    if starts:
        found.boot()
    else:
        found.go(steps=30)
    assert found.arm.contents() in (ONE, TWO)
    assert found.agent.journal.slots[found.agent.journal.committed] == "one"  # Not committed where nothing is written.
    if found.agent.journal.phase is not Phase.IDLE:
        found.agent.roll_back()
    assert found.arm.contents() == ONE
    found.disk.free = left
    found.go(steps=30)
    found.agent.step()
    found.boot()  # What it came to is known once there is room again.
    assert (found.arm.contents(), found.agent.journal.phase) == (ONE, Phase.IDLE)


def test_giving_up_a_download_restarts_nothing() -> None:
    found = robot()
    found.arm.busy = "it moves"
    starts = found.arm.starts
    for action, give_up in {"2": found.agent.cancel, "3": found.agent.roll_back}.items():
        found.agent.ask("two", action=action)
        found.go(steps=3)
        assert found.agent.journal.phase is Phase.DOWNLOADING
        give_up()
        assert (found.agent.journal.phase, found.arm.contents(), found.arm.starts) == (Phase.IDLE, ONE, starts)
    found.agent.roll_back()  # There is nothing before.
    assert (found.arm.contents(), found.arm.starts) == (ONE, starts)


def test_trial_is_cancelled_once_a_restart_harms_nobody() -> None:
    found = robot()
    found.go("two", steps=0)
    while found.agent.journal.phase is not Phase.PROVING:
        found.agent.step()
    found.arm.busy, starts = "it moves", found.arm.starts
    found.agent.cancel()
    assert (found.agent.journal.phase, found.arm.contents(), found.arm.starts) == (Phase.PROVING, TWO, starts)
    found.arm.busy = ""
    found.agent.cancel()
    assert (found.agent.journal.phase, found.arm.contents(), found.arm.starts) == (Phase.IDLE, ONE, starts + 1)


@pytest.mark.parametrize("phase", [Phase.RESTARTING, Phase.PROVING])
def test_disk_that_is_full_while_a_trial_proves_itself_is_no_fault_of_the_release(phase: Phase) -> None:
    found = robot()
    found.go("two", steps=0)
    while found.agent.journal.phase is not phase:
        found.agent.step()
    left, found.disk.free = found.disk.free, 0
    starts = found.arm.starts
    found.go()
    ended = found.agent.journal.told[-1]
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.IDLE, ONE)
    assert (ended.committed, ended.unhealthy, "no room for the journal" in ended.why) == (False, False, True)
    assert found.arm.starts <= starts + 2  # Of the trial at most, and of what is gone back to.
    found.disk.free = left
    found.agent.ask("two", action="2")
    while found.agent.journal.phase is not phase:
        found.agent.step()
    found.disk.free = 0
    found.go(steps=10)
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.PROVING, TWO)
    found.disk.free = left
    found.go(steps=1)  # There is room in time.
    assert (found.agent.journal.phase, found.arm.contents(), found.agent.journal.told[-1].committed) == (
        Phase.IDLE,
        TWO,
        True,
    )


def test_server_that_does_not_start_leaves_an_agent_that_is_told_and_tries_again() -> None:
    found = robot()
    found.go("two")
    found.arm.refuses = True
    found.boot()
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.IDLE, ())
    found.agent.roll_back()
    assert found.agent.journal.slots[found.agent.journal.committed] == "one"
    found.agent.ask("two", action="2")
    found.go()
    assert (found.agent.journal.phase, found.agent.journal.told[-1].unhealthy) == (Phase.IDLE, True)


def test_trial_that_loses_power_again_and_again_is_gone_back_from() -> None:
    found = robot()
    found.go("two", steps=1)
    while found.agent.journal.phase is not Phase.PROVING:
        found.agent.step()
    for _ in range(TRIES_MAX - 1):
        found.boot()
        assert found.arm.contents() == TWO
        found.agent.step()
    found.boot()
    assert found.arm.contents() == ONE


def test_clock_that_goes_back_years_does_not_hold_an_installation_up() -> None:
    found = robot()
    found.agent.ask("two", action="1")
    found.clock.jump(-9e7)
    found.go()
    assert found.arm.contents() == TWO


def test_journal_that_cannot_be_read_leaves_a_slot_that_runs() -> None:
    found = robot()
    found.disk.files["journal.json"] = b"\xff{"
    found.boot()
    assert found.arm.contents() == ONE


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["two", "bad"])
@pytest.mark.parametrize("seed", [1, 2])
def test_power_lost_at_any_write_leaves_a_robot_that_runs_and_comes_through(wanted: str, seed: int) -> None:
    whole = robot()
    before = whole.disk.calls
    whole.go(wanted)
    for at in range(1, whole.disk.calls - before + 1):
        found = robot(seed * 1_000 + at)
        found.disk.lose_at = found.disk.calls + at
        with pytest.raises(PowerLoss):
            found.go(wanted)
        found.boot()
        assert found.arm.contents() in (ONE, TWO, BAD), f"bricked by a power loss at write {at}"
        found.go(wanted)
        assert found.arm.contents() == (TWO if wanted == "two" else ONE), f"after a power loss at write {at}"
