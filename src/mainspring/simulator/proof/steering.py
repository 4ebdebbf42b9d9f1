"""What people say of jobs, teams, clusters and nodes while everything fails; and that they let go of it all at last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import final

from mainspring.control import Control
from mainspring.control.service.steering.pausing import Pauses
from mainspring.domain.answers import HoldView, JobView, NewHold, NewPriority, NewSize, QueuePlace, Submit
from mainspring.domain.errors import Conflict, MainspringError
from mainspring.domain.ids import JobId, RoleName, TeamName
from mainspring.domain.job import LAB, MAIN, JobSpec, Option, Tier
from mainspring.domain.life import JobState
from mainspring.simulator.nodes.agenda import chance, pick
from mainspring.simulator.nodes.devices import DeviceFaults
from mainspring.simulator.proof.draws import role
from mainspring.simulator.proof.watching import NodeWatchers
from mainspring.testing import SeededDice
from mainspring.train.steps.verdicts import THIRD

_BREATHING, _BREATHES = 0.1, 0.4  # Of all worlds, those where jobs shrink and grow; and how often, each step.
_CHECKS = 0.05  # How often, each step, somebody submits a job of several devices where some are wrong.
_REPLICAS_MAX = 4  # As a job is drawn with.


def steer(control: Control, dice: SeededDice, jobs: Sequence[JobId], teams: Sequence[TeamName]) -> str:
    """Says something of a job, or holds or releases something of the fleet; returns what, in words.

    Args:
        control: Any that lives.
        jobs: Those that have not ended.
        teams: All there are.
    """
    try:
        if jobs and chance(dice, 0.7):
            return _steer_job(control, dice, jobs[pick(dice, len(jobs))])
        return _hold(control.pauses, control, dice, teams)
    except MainspringError as error:
        return f"steering is refused: {type(error).__name__}"


def _steer_job(control: Control, dice: SeededDice, job: JobId) -> str:
    verbs = control.steering
    match pick(dice, 5):
        case 0:
            return _said("pause", verbs.pause(job, NewHold()))
        case 1:
            return _said("resume", verbs.resume(job))
        case 2:
            return _said("requeue", verbs.requeue(job))
        case 3:
            place, tier = list(QueuePlace)[pick(dice, len(QueuePlace))], list(Tier)[pick(dice, len(Tier))]
            return _said(f"rank {place.value} {tier.value}", verbs.rank(job, NewPriority(place=place, tier=tier)))
        case _:
            most = 1 + pick(dice, _REPLICAS_MAX)
            size = NewSize(role=RoleName(MAIN), least=1 + pick(dice, most), most=most)
            return _said(f"resize to {size.least}..{size.most}", verbs.resize(job, size))


def _said(verb: str, view: JobView) -> str:
    return f"{verb} {view.id}: {view.state.value}"


def _hold(pauses: Pauses, control: Control, dice: SeededDice, teams: Sequence[TeamName]) -> str:
    held, asked = pauses.holds(), NewHold(drain=chance(dice, 0.5))
    if held and chance(dice, 0.6):
        return _release(pauses, held[pick(dice, len(held))])
    clusters = control.clusters()
    if not clusters or chance(dice, 0.4):
        return f"hold {pauses.pause_team(teams[pick(dice, len(teams))], asked).hold}"
    seen = clusters[pick(dice, len(clusters))].inventory
    if chance(dice, 0.5):
        return f"hold {pauses.pause_cluster(seen.cluster, asked).hold}"
    return f"hold {pauses.drain(seen.cluster, seen.nodes[pick(dice, len(seen.nodes))].name, asked).hold}"


def _release(pauses: Pauses, held: HoldView) -> str:
    hold = held.hold
    assert hold is not None
    if hold.team:
        pauses.resume_team(hold.team)
    elif hold.node:
        pauses.undrain(hold.cluster, hold.node)
    else:
        pauses.resume_cluster(hold.cluster)
    return f"release {hold.target}"


@final
class People:
    """Those who work in a world: their teams, and in some the wish that jobs change their size all the time.

    Args:
        limits: How many chips each team may hold.
    """

    def __init__(self, seed: int, limits: Mapping[TeamName, float]) -> None:
        self.limits = limits
        self.watching = NodeWatchers(seed)
        """Those of them who watch nodes."""
        self._dice = SeededDice(seed, "resizes")
        self._breathes = _BREATHES if chance(self._dice, _BREATHING) else 0.0
        self._checks = _CHECKS if DeviceFaults(seed).there else 0.0
        self._checked = SeededDice(seed, "checked jobs")

    def breathe(self) -> bool:
        """Returns whether they want the size of some job changed now."""
        return chance(self._dice, self._breathes)

    def elastic(self, number: int) -> Submit | None:
        """Returns a job that can change its size node by node, at times.

        Args:
            number: How many jobs there were before.
        """
        if chance(self._dice, 0.5):
            return None
        spec = JobSpec(
            name=f"job-{number}",
            team=list(self.limits)[pick(self._dice, len(self.limits))],
            tier=list(Tier)[pick(self._dice, len(Tier))],
            roles=(role(1.0, replicas=2 + pick(self._dice, 2), replicas_min=1),),
            duration_s=float(20 + pick(self._dice, 60)),
        )
        return Submit(spec=spec, key=f"key-{number}")

    def checked(self, number: int) -> Submit | None:
        """Returns a job whose devices can tell which of them is wrong, at times, where some are.

        Args:
            number: How many jobs there were before.
        """
        if not chance(self._checked, self._checks):
            return None
        replicas = THIRD + pick(self._checked, 2)
        spec = JobSpec(
            name=f"job-{number}",
            team=LAB,
            tier=Tier.CRITICAL,
            roles=(role(1.0, replicas=replicas, replicas_min=replicas, spares=pick(self._checked, 2)),),
            duration_s=60.0,
        )
        return Submit(spec=spec, key=f"key-{number}")

    def resize(self, control: Control, jobs: Sequence[JobId]) -> str:
        """Has some elastic job that runs do with its least, or have its most; returns what was said, in words.

        What it lets go of ends while it goes on.

        Args:
            control: Any that lives.
            jobs: Those that have not ended.
        """
        return _resize(control, self._dice, jobs)


def _resize(control: Control, dice: SeededDice, jobs: Sequence[JobId]) -> str:
    try:
        views = [view for view in map(control.job, jobs) if view.state is JobState.RUNNING]
        elastic = [(view.id, option) for view in views if _is_elastic(option := view.spec.roles[0].options[0])]
        if not elastic:
            return "nobody runs who can change its size"
        job, option = elastic[pick(dice, len(elastic))]
        most = (option.replicas_min, option.replicas)[pick(dice, 2)]
        size = NewSize(role=RoleName(MAIN), least=option.replicas_min, most=most)
        return _said(f"resize to {size.least}..{size.most}", control.steering.resize(job, size))
    except MainspringError as error:
        return f"a resize is refused: {type(error).__name__}"


def _is_elastic(option: Option) -> bool:
    return option.replicas_min < option.replicas and option.chips >= 1


def pause(control: Control, job: JobId) -> str:
    """Pauses a job; returns what was said of it, in words."""
    try:
        return _said("pause", control.steering.pause(job, NewHold()))
    except MainspringError as error:
        return f"pause {job}: {type(error).__name__}"


def let_go(control: Control, jobs: Sequence[JobId]) -> None:
    """Releases and resumes everything, at last, and takes back sizes over what specs say: they may fit nowhere.

    Args:
        control: The one that leads.
        jobs: Those that have not ended.
    """
    for held in control.pauses.holds():
        _release(control.pauses, held)
    for job in jobs:
        overrides = control.job(job).overrides
        if overrides is None:
            continue
        with suppress(Conflict):  # One that stops has no need of it.
            control.steering.resume(job)
            for size in overrides.sizes:
                if size.least > size.spec_least:
                    control.steering.resize(job, NewSize(role=size.role, least=size.spec_least, most=size.spec_most))
