"""Recorder of a replay while it runs; `Outcome` is what it comes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mainspring.control.state.accounting import dollars
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import TeamName
from mainspring.domain.plan import Limit, Move, Plan
from mainspring.domain.team import Team
from mainspring.planner.facts.policy import Policy
from mainspring.simulator.inputs.workload import Workload
from mainspring.simulator.virtual.attempts import TOLD_APART, AttemptRun, JobRun
from mainspring.simulator.virtual.machines import MachinePool, MachineShare
from mainspring.simulator.virtual.outcome import Changes, Counts, Outcome, job_columns

GIB = 1 << 30
DAY_S = 86_400.0


@dataclass(slots=True)
class Tally:
    """How often things happened."""

    ended: int = 0
    refused: int = 0
    resizes: int = 0
    outages: int = 0
    nodes_bought: int = 0
    plans: int = 0
    plans_incomplete: int = 0
    moves: int = 0
    moved_bytes: int = 0
    moved_dollars: float = 0.0
    evicts: dict[Limit, int] = field(default_factory=lambda: dict.fromkeys(Limit, 0))


class Budgets:
    """What teams with budgets spent in their windows.

    Args:
        teams: Every team that has jobs, or is in the tree.
    """

    def __init__(self, tree: tuple[Team, ...], teams: Iterable[TeamName]) -> None:
        self.windows_s = {team.name: team.budget_days * DAY_S for team in tree if team.dollars_max is not None}
        self._paid: dict[TeamName, deque[tuple[float, float]]] = {name: deque() for name in self.windows_s}
        self._sums = dict.fromkeys(self.windows_s, 0.0)
        parents = {team.name: team.parent for team in tree}
        self._charged = {name: tuple(_budgets_above(name, parents, self.windows_s)) for name in teams}

    def charge(self, team: TeamName, now_s: float, cost: float) -> None:
        """Charges a team, and those above it."""
        for name in self._charged[team]:
            self._paid[name].append((now_s, cost))
            self._sums[name] += cost

    def spent(self, now_s: float, runs: Iterable[AttemptRun]) -> dict[TeamName, float]:
        """Returns what each team with a budget spent in its window, live attempts until now included."""
        for name, paid in self._paid.items():
            while paid and paid[0][0] < now_s - self.windows_s[name]:
                self._sums[name] -= paid.popleft()[1]
        spent = dict(self._sums)
        for run in runs:
            for name in self._charged[run.job.trace.spec.team]:
                spent[name] += dollars(dollars_per_hour=run.dollars_per_hour, granted_s=run.paid_s, ended_s=now_s)
        return spent


class Record:
    """Everything measured while a replay runs.

    Args:
        fleet: The fleet's name.
        policy: What the lab decides about planning.
        start_s: When the replay begins.
    """

    def __init__(self, workload: Workload, fleet: str, tree: tuple[Team, ...], policy: Policy, start_s: float) -> None:
        self.tree = tree
        self.tally = Tally()
        self._workload = workload
        self._fleet = fleet
        self._policy = policy
        self._start_s = start_s
        self._teams = tuple(sorted({*(team.name for team in tree), *(job.spec.team for job in workload.jobs)}))
        self.budgets = Budgets(tree, self._teams)
        self._chips = tuple(sorted({job.spec.roles[0].options[0].chip for job in workload.jobs}))
        self._unit = "chip" if any(job.chips for job in workload.jobs) else "core"
        self._room: list[tuple[float, int, float, float]] = []
        self._use: list[tuple[float, int, int, float]] = []
        self._want: list[tuple[float, int, int, float, int]] = []
        self._spent_s = dict.fromkeys(TOLD_APART, 0.0)

    def job_runs(self) -> list[JobRun]:
        """Returns the jobs of the workload, none submitted yet."""
        in_chips = self._unit == "chip"
        teams = {name: row for row, name in enumerate(self._teams)}
        chips = {chip: row for row, chip in enumerate(self._chips)}
        return [
            JobRun(
                trace=job,
                row=row,
                team=teams[job.spec.team],
                chip=chips[job.spec.roles[0].options[0].chip],
                size=job.chips if in_chips else job.cores,
            )
            for row, job in enumerate(self._workload.jobs)
        ]

    def room(self, now_s: float, piece: MachineShare, sign: int) -> None:
        """Notes that a pool has more or less room.

        Args:
            piece: What comes or goes.
            sign: 1 or -1.
        """
        self._room.append((now_s, piece.pool, sign * piece.amount, sign * piece.dollars_per_hour))

    def use(self, now_s: float, run: AttemptRun, sign: int) -> None:
        """Notes that an attempt holds, or no longer holds, what it uses.

        Args:
            sign: 1 or -1.
        """
        self._use += [(now_s, pool, run.job.team, sign * amount) for pool, amount in run.uses]

    def want(self, now_s: float, job: JobRun, sign: int) -> None:
        """Notes that a job waits, or no longer waits.

        Args:
            sign: 1 or -1.
        """
        if (sign > 0) != job.wanted:
            job.wanted = sign > 0
            self._want.append((now_s, job.team, job.chip, job.size, sign))

    def spend(self, use: TimeUse, seconds: float, run: AttemptRun) -> None:
        """Counts allocated time.

        Args:
            run: The attempt that held what was allocated.
        """
        self._spent_s[use] += seconds * run.amount

    def pay(self, run: AttemptRun, now_s: float) -> None:
        """Charges an attempt for the time since it was charged last."""
        cost = dollars(dollars_per_hour=run.dollars_per_hour, granted_s=run.paid_s, ended_s=now_s)
        run.paid_s = now_s
        run.job.dollars += cost
        self.budgets.charge(run.job.trace.spec.team, now_s, cost)

    def move(self, move: Move, dollars_per_gib: float) -> None:
        """Counts a move of data.

        Args:
            move: What the plan said.
        """
        self.tally.moves += 1
        self.tally.moved_bytes += move.size_bytes
        self.tally.moved_dollars += dollars_per_gib * move.size_bytes / GIB

    def planned(self, plan: Plan) -> None:
        """Counts a plan."""
        self.tally.plans += 1
        self.tally.plans_incomplete += not plan.complete

    def outcome(self, jobs: Sequence[JobRun], pools: Sequence[MachinePool], now_s: float) -> Outcome:
        """Returns what the replay came to."""
        tally = self.tally
        return Outcome(
            workload=self._workload,
            fleet=self._fleet,
            policy=self._policy,
            unit=self._unit,
            tree=self.tree,
            teams=self._teams,
            chips=self._chips,
            pools=tuple(pools),
            start_s=self._start_s,
            end_s=now_s,
            jobs=job_columns(jobs),
            room=Changes.of(self._room, "time_s", "pool", "amount", "dollars_per_hour"),
            use=Changes.of(self._use, "time_s", "pool", "team", "amount"),
            want=Changes.of(self._want, "time_s", "team", "chip", "size", "count"),
            spent_s=dict(self._spent_s),
            counts=Counts(
                plans=tally.plans,
                plans_incomplete=tally.plans_incomplete,
                evicts={limit.value: count for limit, count in tally.evicts.items() if count},
                lost=sum(job.lost for job in jobs),
                outages=tally.outages,
                resizes=tally.resizes,
                refused=tally.refused,
                moves=tally.moves,
                moved_gib=tally.moved_bytes / GIB,
                moved_dollars=tally.moved_dollars,
                nodes_bought=tally.nodes_bought,
            ),
        )


def _budgets_above(
    name: TeamName, parents: dict[TeamName, TeamName | None], budgets: dict[TeamName, float]
) -> Iterable[TeamName]:
    at: TeamName | None = name
    while at is not None:
        if at in budgets:
            yield at
        at = parents.get(at)
