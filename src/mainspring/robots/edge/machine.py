"""What the agent does next: a pure function of what its journal says, what it sees, and what it is asked.

A phase is written to the journal before it is entered, so whatever a power loss interrupts is known afterwards, and
begun again or gone back from. Two slots hold releases. The committed one runs unless a trial does; a trial that is not
proved healthy in time, or was begun too often, is gone back from, without network and without asking.

    idle -> downloading -> verifying -> installing -> waiting -> restarting -> proving -> idle (committed)
                 ^___________/ once, where what a slot held is damaged
                 \\______________ any failure, time-out, or word by hand ______________/ -> idle (as before)

Nothing is read, written, fetched or started here: `agent.py` does what this says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from mainspring.robots.edge.trust import TrustFloor

SLOTS = ("a", "b")
TRIES_MAX = 3  # Restarts of one trial: a robot that loses power twice while it proves itself need not go back.
WHY_LENGTH_MAX = 500  # Of a sentence for people.
CLOSED_KEPT = 20  # Actions that ended: a server has one open for a robot.


class Phase(str, Enum):
    """Where an installation stands."""

    IDLE = "idle"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    INSTALLING = "installing"
    WAITING = "waiting"  # For a state in which a restart harms nobody.
    RESTARTING = "restarting"
    PROVING = "proving"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """How long each phase may take, in seconds.

    Args:
        download_s: A robot on the move is out of reach for days.
        wait_s: For a safe state: a shift.
        prove_s: From restart to healthy: loading the largest policies takes minutes.
        healthy_s: How long it must be healthy without a break.
    """

    download_s: float = 7 * 86_400.0
    wait_s: float = 12 * 3_600.0
    prove_s: float = 600.0
    healthy_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOutcome:
    """How an installation that the server asked for ended, and why it failed.

    Args:
        unhealthy: Whether the release did not start, or did not prove healthy.
        cancelled: Whether it was given up because the server said so.
    """

    action: str
    committed: bool
    why: str = ""
    unhealthy: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """All that an agent must not forget.

    Args:
        slots: What each slot holds whole: the target of a release, "" for nothing.
        committed: The slot that is known to be healthy, "" before the first.
        unproved: The target that the spare slot holds and that is not known to be healthy, "" for none.
        trial: The slot that is being tried, "" for none.
        wanted: The target that is being installed, "" for none.
        action: What the server calls this installation, "" where nobody asked.
        since_s: When the phase was entered, by the robot's clock as it is set now.
        healthy_s: Since when the trial has been healthy, None while it is not.
        tries: How often the trial was started.
        closed: Actions that ended, well or not, each with its target, newest last: no action is done twice.
        told: What the server is to be told once it can be reached.
    """

    phase: Phase = Phase.IDLE
    slots: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(SLOTS, ""))
    committed: str = ""
    unproved: str = ""
    trial: str = ""
    wanted: str = ""
    action: str = ""
    since_s: float = 0.0
    healthy_s: float | None = None
    tries: int = 0
    closed: tuple[str, ...] = ()
    told: tuple[InstallOutcome, ...] = ()
    floor: TrustFloor = field(default_factory=TrustFloor)

    @property
    def runs(self) -> str:
        """Returns the slot that is to run, "" for none."""
        return self.trial or self.committed

    @property
    def spare(self) -> str:
        """Returns the slot that may be written to: never the committed one."""
        return SLOTS[1] if self.committed == SLOTS[0] else SLOTS[0]


class PhaseOutcome(str, Enum):
    """What came of a phase, or of a look."""

    DONE = "done"
    NOT_YET = "not yet"
    FAILED = "failed"


def asked(journal: Journal, target: str, *, action: str, now_s: float) -> Journal:
    """Returns what follows when a release is asked for: nothing where it runs, something is being installed, or
    this action has ended.

    Args:
        target: Of the release.
        action: What the server calls it; another action tries again what failed.
    """
    if journal.phase is not Phase.IDLE or journal.slots.get(journal.committed) == target:
        return journal
    if f"{action} {target}" in journal.closed:
        return journal
    if journal.slots[journal.spare] == target:  # It is still whole there: what is gone back to moves no byte.
        return replace(journal, phase=Phase.VERIFYING, wanted=target, action=action, since_s=now_s)
    return replace(journal, phase=Phase.DOWNLOADING, wanted=target, action=action, since_s=now_s)


def next_of(journal: Journal, seen: PhaseOutcome, now_s: float, limits: EdgeLimits, why: str = "") -> Journal:
    """Returns the journal after one look at what a phase did.

    Args:
        seen: What came of the phase: of `WAITING` whether it is safe, of `PROVING` whether it is healthy.
        now_s: By the robot's clock; where that went back, a phase begins anew.
        why: Of what failed, or could not be written.
    """
    if now_s < journal.since_s:
        journal = replace(journal, since_s=now_s, healthy_s=None)
    late = _late(journal, now_s, limits)
    match journal.phase:
        case Phase.IDLE:
            return journal
        case Phase.PROVING if seen is PhaseOutcome.DONE:
            since_s = now_s if journal.healthy_s is None else min(journal.healthy_s, now_s)
            if now_s - since_s >= limits.healthy_s:  # A commit that cannot be written is no fault of the release.
                return gone_back(journal, why) if late and why else _committed(journal)
            late_words = "not healthy in time"
            return gone_back(journal, late_words, unhealthy=True) if late else replace(journal, healthy_s=since_s)
        case _ if seen is PhaseOutcome.FAILED:
            sick = journal.phase is Phase.RESTARTING
            return gone_back(journal, why or f"failed while {journal.phase.value}", unhealthy=sick)
        case _ if late:
            sick = journal.phase in (Phase.RESTARTING, Phase.PROVING)
            return gone_back(journal, f"took too long while {journal.phase.value}", unhealthy=sick)
        case Phase.PROVING:
            return replace(journal, healthy_s=None)
        case _ if seen is PhaseOutcome.NOT_YET:
            return journal
        case Phase.DOWNLOADING:
            return _entered(journal, Phase.VERIFYING, now_s)
        case Phase.VERIFYING:
            # What the slot held is given up before any of it is overwritten.
            unproved = journal.unproved if journal.slots[journal.spare] == journal.wanted else journal.wanted
            emptied = {**journal.slots, journal.spare: ""}
            return replace(_entered(journal, Phase.INSTALLING, now_s), slots=emptied, unproved=unproved)
        case Phase.INSTALLING:
            filled = {**journal.slots, journal.spare: journal.wanted}
            return replace(_entered(journal, Phase.WAITING, now_s), slots=filled)
        case Phase.WAITING:
            return replace(_entered(journal, Phase.RESTARTING, now_s), trial=journal.spare, tries=1)
        case Phase.RESTARTING:
            return replace(_entered(journal, Phase.PROVING, now_s), healthy_s=None)


def booted(journal: Journal, now_s: float) -> Journal:
    """Returns the journal after a power loss, or a start of the agent: a trial is started once more, or given up."""
    if journal.phase not in (Phase.RESTARTING, Phase.PROVING):
        return journal
    if journal.tries >= TRIES_MAX:
        return gone_back(journal, f"lost power, or the agent, {TRIES_MAX} times while it was tried")
    # Its time begins anew: how long a robot was without power says nothing of the release, and the tries are counted.
    return replace(journal, phase=Phase.RESTARTING, tries=journal.tries + 1, healthy_s=None, since_s=now_s)


def clock_set(journal: Journal, by_s: float) -> Journal:
    """Returns the journal once the robot's clock was set: no phase took longer, or less, by that."""
    if journal.phase is Phase.IDLE:
        return journal
    healthy_s = None if journal.healthy_s is None else journal.healthy_s + by_s
    return replace(journal, since_s=journal.since_s + by_s, healthy_s=healthy_s)


def damaged(journal: Journal, now_s: float) -> Journal:
    """Returns the journal once a file that was to be there is not what it was: it is fetched again, and what the spare
    slot held is whole no more.
    """
    emptied = {**journal.slots, journal.spare: ""}
    return replace(_entered(journal, Phase.DOWNLOADING, now_s), slots=emptied)


def gone_back(journal: Journal, why: str, *, unhealthy: bool = False) -> Journal:
    """Returns the journal once an installation is given up: what was committed runs, as before.

    Args:
        unhealthy: Whether the release did not start, or did not prove healthy.
    """
    if journal.phase is Phase.IDLE:
        return journal
    unproved = journal.wanted if unhealthy else journal.unproved
    return _ended(replace(journal, unproved=unproved), why, unhealthy=unhealthy)


def cancelled(journal: Journal) -> Journal:
    """Returns the journal once the server wants what is being installed to be given up."""
    return journal if journal.phase is Phase.IDLE else _ended(journal, "cancelled by the server", cancelled=True)


def by_hand(journal: Journal, now_s: float) -> Journal:
    """Returns the journal once somebody at the robot wants the release before: a trial ends, or slots change places.

    A robot that has nothing to go back to stays as it is; so does one whose other slot holds what was not proved.
    """
    if journal.phase is not Phase.IDLE:
        return gone_back(journal, "by hand on the robot")
    other = journal.spare
    if not journal.committed or journal.slots[other] in ("", journal.unproved):
        return journal
    return replace(journal, committed=other, since_s=now_s)


def _late(journal: Journal, now_s: float, limits: EdgeLimits) -> bool:
    most = {
        Phase.DOWNLOADING: limits.download_s,
        Phase.VERIFYING: limits.download_s,
        Phase.WAITING: limits.wait_s,
        Phase.RESTARTING: limits.prove_s,
        Phase.PROVING: limits.prove_s + limits.healthy_s,
    }.get(journal.phase)
    return most is not None and now_s - journal.since_s > most


def _entered(journal: Journal, phase: Phase, now_s: float) -> Journal:
    return replace(journal, phase=phase, since_s=now_s)


def _committed(journal: Journal) -> Journal:
    return _ended(replace(journal, committed=journal.trial, unproved=""))


def _ended(journal: Journal, why: str = "", *, unhealthy: bool = False, cancelled: bool = False) -> Journal:
    told, closed = journal.told, journal.closed
    if journal.action:
        closed = (*closed, f"{journal.action} {journal.wanted}")[-CLOSED_KEPT:]
        outcome = InstallOutcome(
            action=journal.action,
            committed=not why,
            why=why[:WHY_LENGTH_MAX],
            unhealthy=unhealthy,
            cancelled=cancelled,
        )
        told = (*told, outcome)[-CLOSED_KEPT:]
    ended = replace(journal, phase=Phase.IDLE, trial="", wanted="", action="", healthy_s=None, tries=0)
    return replace(ended, told=told, closed=closed)
