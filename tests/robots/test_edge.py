"""The agent on a robot: what it installs, what it goes back from, and power lost at every write."""

from __future__ import annotations

import json

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


def test_clock_that_is_set_forward_makes_no_phase_late_and_no_trial_proved() -> None:
    found = robot()
    found.agent.ask("two", action="1")
    for _ in range(20):
        found.clock.jump(9e7 if found.agent.journal.phase is not Phase.PROVING else 0.0)
        found.agent.step()
        if found.agent.journal.phase is Phase.DOWNLOADING:
            found.boot()  # The journal on the disk was set as well.
    found.clock.jump(9e7)
    found.agent.step()
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.PROVING, TWO)
    found.go()
    assert found.agent.journal.told[-1].committed


@pytest.mark.parametrize("jump_s", [9e7, -9e7])
def test_clock_that_is_set_while_a_trial_proves_itself_leaves_it_its_time(jump_s: float) -> None:
    found = robot()
    found.arm.broken = True
    found.go("two", steps=0)
    while found.agent.journal.phase is not Phase.PROVING:
        found.agent.step()
    found.go(steps=15)
    found.clock.jump(jump_s)
    found.go(steps=5)
    assert found.agent.journal.phase is Phase.PROVING
    found.go(steps=10)
    assert (found.agent.journal.phase, found.agent.journal.told[-1].unhealthy) == (Phase.IDLE, True)


@pytest.mark.parametrize("wanted", ["bad", "two"])
def test_release_that_was_not_proved_is_nothing_to_go_back_to(wanted: str) -> None:
    found = robot()
    if wanted == "two":
        found.arm.busy = "it moves"  # Never tried.
    found.go(wanted, steps=400)
    assert found.agent.journal.slots[found.agent.journal.spare] == wanted
    starts = found.arm.starts
    for _ in range(2):
        found.agent.roll_back()
        assert (found.arm.contents(), found.arm.starts) == (ONE, starts)
        found.boot()
        starts = found.arm.starts
    found.arm.busy = ""
    found.agent.ask("two", action="2")
    found.go()
    found.agent.roll_back()
    assert found.arm.contents() == ONE


def test_release_that_was_proved_once_is_gone_back_to_until_it_fails() -> None:
    found = robot()
    found.go("two")
    found.arm.busy = "it moves"
    found.agent.ask("one", action="2")
    found.go(steps=400)
    assert (found.agent.journal.told[-1].committed, found.arm.contents()) == (False, TWO)
    found.agent.roll_back()
    assert found.arm.contents() == ONE
    found.arm.busy, found.arm.broken = "", True
    found.agent.ask("two", action="3")
    found.go()
    assert found.agent.journal.told[-1].unhealthy
    found.agent.roll_back()
    assert found.arm.contents() == ONE


def test_journal_of_an_earlier_release_is_read() -> None:
    found = robot()
    found.go("two")
    written = json.loads(found.disk.files["journal.json"])
    assert written.pop("unproved") == ""
    found.disk.files["journal.json"] = json.dumps(written).encode()
    before = found.agent.journal
    found.boot()
    assert found.agent.journal == before
    found.agent.roll_back()
    assert found.arm.contents() == ONE


def damaged() -> Robot:
    """Returns a robot that is to go back to a release of which the disk did not keep a file."""
    found = robot()
    found.go("two")
    found.shop.fetched = 0
    damage(found)
    found.agent.ask("one", action="2")
    assert found.agent.journal.phase is Phase.VERIFYING
    return found


def damage(found: Robot) -> None:
    (name,) = (name for name, data in found.disk.files.items() if data == ONE[2] and name.startswith("file-"))
    found.disk.files[name] = b"adapter ?"


def test_kept_release_of_which_a_file_is_damaged_is_made_whole() -> None:
    found = damaged()
    found.go()
    assert (found.arm.contents(), found.agent.journal.told[-1].committed) == (ONE, True)
    assert found.shop.fetched == len(ONE[2])


def test_kept_release_that_is_damaged_again_is_given_up_and_not_gone_back_to() -> None:
    found = damaged()
    found.agent.step()
    while found.agent.journal.phase is not Phase.VERIFYING:
        found.agent.step()
    damage(found)
    found.go()
    assert (found.arm.contents(), "did not keep" in found.agent.journal.told[-1].why) == (TWO, True)
    found.agent.roll_back()
    assert found.arm.contents() == TWO
    found.agent.ask("one", action="3")
    found.go()
    assert found.arm.contents() == ONE


def test_kept_release_that_is_damaged_on_a_full_disk_is_not_gone_back_to() -> None:
    found = damaged()
    found.disk.free = len(found.disk.files["slot-a.json"]) + 1  # For what is verified, not for the journal.
    found.go()
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.IDLE, TWO)
    found.agent.roll_back()
    assert found.arm.contents() == TWO


def test_looking_whether_a_kept_release_is_still_signed_ends_in_time() -> None:
    found = robot()
    found.go("two")
    found.shop.away = True
    found.agent.ask("one", action="2")
    found.go(steps=400)
    assert found.agent.journal.phase is Phase.VERIFYING
    found.go()
    assert (found.agent.journal.phase, found.arm.contents()) == (Phase.IDLE, TWO)
    assert found.agent.journal.told[-1].why == "took too long while verifying"


@pytest.mark.slow
def test_power_lost_at_any_write_while_a_kept_release_is_made_whole_harms_nothing() -> None:
    whole = damaged()
    before = whole.disk.calls
    whole.go()
    for at in range(1, whole.disk.calls - before + 1):
        found = damaged()
        found.disk.lose_at = found.disk.calls + at
        with pytest.raises(PowerLoss):
            found.go()
        found.boot()
        assert found.arm.contents() in (ONE, TWO), f"bricked by a power loss at write {at}"
        found.go("one")
        assert found.arm.contents() == ONE, f"after a power loss at write {at}"


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
