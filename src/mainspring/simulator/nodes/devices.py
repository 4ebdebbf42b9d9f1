"""Devices of simulated nodes that compute wrongly, and the checks by which ranks find them; as `train.steps` for real.

The verdicts are the real ones (`train.steps.verdicts`); what a device makes of rows is a number that tells whether it
was sound. Where sums are added over all, one that is wrong makes every state wrong alike, so states tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, final

from mainspring.domain.ids import ClusterName, JobId, NodeName, RoleName
from mainspring.domain.wire import RankTried, StepTried
from mainspring.simulator.nodes.agenda import chance, pick, within
from mainspring.simulator.nodes.parts import Agent, Device, Rank, RunKey, new_devices
from mainspring.testing import SeededDice
from mainspring.train.steps.verdicts import THIRD, Look, NeighbourChecks, Sum, compared

if TYPE_CHECKING:
    from mainspring.simulator.nodes.attempt import SimulatedAttempt

NEVER = 0
_WRONG = 0.15  # Of all worlds, those in which devices are wrong at times.
_LIES_MIN, _LIES_MAX, _SLIPS_MAX = 0.03, 0.12, 0.05  # How often one begins to, of each attempt, each second.
_EVERY_MIN, _EVERY_MORE = 2, 5  # Steps between two checks: 250 for real, and runs here are short.
_UNSTEADY = 0.15  # Of jobs there, those whose programs never come to the same twice.
_FLICKERS = 0.5  # Of what slips, how often it does so again where the step is done again.

Gang: TypeAlias = Sequence[tuple[Agent, Rank]]


@final
class DeviceFaults:
    """Which devices of one world compute wrongly, and since when; by dice of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._luck = SeededDice(seed, "wrong devices")
        self.there = chance(self._luck, _WRONG)
        """Whether this is such a world."""
        self._lies, self._slips = within(self._luck, _LIES_MIN, _LIES_MAX), within(self._luck, 0.0, _SLIPS_MAX)
        self._devices: dict[tuple[ClusterName, NodeName], tuple[Device, ...]] = {}

    def of(self, cluster: ClusterName, node: NodeName) -> tuple[Device, ...]:
        """Returns a node's devices."""
        return self._devices.setdefault((cluster, node), new_devices())

    def check_every(self, job: JobId) -> int:
        """Returns how many steps lie between two checks of a job's devices, 0 for none."""
        if not self.there:
            return NEVER
        return _EVERY_MIN + pick(SeededDice(self._seed, f"checks of {job}"), _EVERY_MORE)

    def repeats(self, job: JobId) -> bool:
        """Returns whether a job's program comes to the same twice on sound devices."""
        return not chance(SeededDice(self._seed, f"repeats of {job}"), _UNSTEADY)

    def harm(self, attempt: SimulatedAttempt) -> None:
        """Lets a device of an attempt go wrong from now on, or once, at times."""
        ranks = attempt.ranks.living if self.there else ()
        if not ranks:
            return
        device = _device(ranks[pick(self._luck, len(ranks))])
        if chance(self._luck, self._lies):
            device.lies = device.faulty = True
        if chance(self._luck, self._slips):
            device.slips = True

    def mend(self) -> None:
        """Makes all of them sound."""
        for devices in self._devices.values():
            for device in devices:
                device.lies = device.slips = False


@final
class DeviceChecks:
    """What one attempt's ranks find out about their devices.

    Each role's ranks hold the whole state, a device each. The lowest of them tells the lead.
    """

    def __init__(self, attempt: SimulatedAttempt) -> None:
        self.every = NEVER
        """Steps between two checks, 0 for none."""
        self.repeats = True
        """Whether the program comes to the same twice on sound devices."""
        self._looks = 0
        self._attempt = attempt
        self._checks: dict[tuple[RunKey, RoleName], NeighbourChecks] = {}

    def before_step(self, run: RunKey, gang: Gang, branch: str) -> int | None:
        """Does what ranks do beside their next step; returns on which state all agree now, None where that is no news.

        Args:
            gang: All ranks of the generation, which are about to take it.
            branch: What they compute.
        """
        steps = sorted({rank.step for _, rank in gang})
        if not self.every or len(steps) > 1 or any(self._attempt.ranks.is_last(rank) for _, rank in gang):
            return None
        step = steps[0] + 1
        roles = sorted({rank.place.role for _, rank in gang})
        told = []
        for role in roles:
            peers = sorted((one for one in gang if one[1].place.role == role), key=lambda one: one[1].place.role_rank)
            checks = self._checks.setdefault((run, role), NeighbourChecks(len(peers)))
            if step % self.every == 0 and checks.able:
                told.append(self._check(checks, run, peers, step))
            self._do_again(run, peers, step)
        if not told or not all(told):
            return None
        self._attempt.store.courses.agreed(branch, step - 1)
        return step - 1

    def _check(self, checks: NeighbourChecks, run: RunKey, peers: Gang, step: int) -> bool:
        """Has devices do their neighbours' rows too; returns whether all came to the same.

        One that slips does so at the first look, and not in the step.
        """

        def look(distance: int) -> Sequence[Sum]:
            rows = [(at + distance) % len(peers) for at in range(len(peers))]
            wrong = [(at + 1) * (_device(one).lies or at in slipped) for at, one in enumerate(peers)]
            slipped.clear()
            self._looks += 1
            by_chance = [0 if self.repeats else self._looks * len(peers) + at for at in range(len(peers))]
            return [(step, *each) for each in zip(rows, wrong, by_chance, strict=True)]

        slipped = _slipped(peers)
        found = checks.check(look)
        if found is None:
            if checks.given_up:
                agreed_step = peers[0][1].state.agreed
                self._tell(run, peers, StepTried(step=step, equal=False, given_up=True, agreed_step=agreed_step))
            return False
        if found.equal:
            self._tell(run, peers, StepTried(step=step, equal=True, agreed_step=step - 1))
            return True
        devices = found.suspects
        assert not found.certain or len(peers) >= THIRD, f"of {len(peers)} devices {devices} are told to be wrong"
        told = StepTried(
            step=step,
            equal=False,
            again=devices == found.unsteady and not found.certain,
            ranks=devices,
            device=_names(devices),
            certain=found.certain,
            agreed_step=peers[0][1].state.agreed,
        )
        self._tell(run, peers, told)
        return False

    def _do_again(self, run: RunKey, peers: Gang, step: int) -> None:
        """Does a step again that came out wrong once, or does so now and then."""
        slipped = _slipped(peers)
        if not slipped:
            return
        flickers = slipped[0] if chance(self._attempt.luck, _FLICKERS) else -1
        sums = tuple((step, at, 0) for at in range(len(peers)))
        others = tuple((step, at, int(at == flickers)) for at in range(len(peers)))
        again = compared(Look(sums=sums, upset=0.0), Look(sums=others, upset=0.0))
        ranks = again.unsteady or (tuple(range(len(peers))) if len(peers) == 1 else ())
        told = StepTried(step=step, equal=False, again=True, ranks=ranks, device=_names(again.unsteady))
        self._tell(run, peers, told)

    def _tell(self, run: RunKey, peers: Gang, report: StepTried) -> None:
        agent, rank = peers[0]
        number = rank.place.rank
        told = RankTried(generation=run.generation, rank=number, report=report, sequence=self.sequence(agent, number))
        agent.tried.append(told)
        self._attempt.say(agent, told)

    def sequence(self, agent: Agent, rank: int) -> int:
        """Returns the number of the next thing that a place gives."""
        if not self.every:
            return 1
        agent.given[rank] = agent.given.get(rank, 0) + 1
        return agent.given[rank]


def _device(one: tuple[Agent, Rank]) -> Device:
    agent, rank = one
    return agent.device(rank.place.rank)


def _slipped(peers: Gang) -> list[int]:
    """Returns whose devices slip, who will not again."""
    slipped = [at for at, one in enumerate(peers) if _device(one).slips]
    for at in slipped:
        _device(peers[at]).slips = False
    return slipped


def _names(devices: Sequence[int]) -> str:
    return ", ".join(f"device 0 of rank {device} (sim)" for device in devices)
