"""What a seed draws: fault rates, clusters, jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mainspring.domain.answers import Submit
from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, MAIN, JobSpec, Option, Role, Tier
from mainspring.simulator.nodes.agenda import chance, pick
from mainspring.simulator.proof.cluster import CallFaults
from mainspring.simulator.proof.gangs import GangFaults
from mainspring.simulator.proof.store_faults import StoreRates
from mainspring.testing import SeededDice

CHIP = ChipName("sim")
_LITTLE = 0.5  # Chips of a replica; four of these and a helper are within every limit.
_ARRAY_MAX = 9
_LEISURELY = 4  # So many jobs are of any tier.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often each thing goes wrong in one run, each step; drawn from its seed.

    Args:
        calls: Calls of engines.
        gangs: Agents, leads and their calls.
        store: The controllers' store.
        crash: The controller dies between two steps.
        slow: Making a plan takes many seconds; meanwhile the world goes on.
        stale: A controller that died was only thought dead, and acts on.
        cluster_silent: A cluster stops answering.
        cut_off: When it does, its leads are not heard of either.
        engine_restarts: An engine loses what waits in its queue.
        taken: A cluster takes back something that was granted, waiting or running.
        strangers: Something runs on a cluster that no store knows of.
        starts: A cluster with a queue of its own lets something start.
        submit: Somebody submits a job, or a few.
        cancel: Somebody cancels a job.
        steer: Somebody pauses, resumes, requeues, ranks or resizes a job, or holds or releases a team, cluster or node.
        clock_jump: The machine's clock is set back or forward.
        clock_leap: The same, past every bound there is.
        pace: How much longer than most a step lasts: some worlds are seen over a longer time.
    """

    calls: CallFaults = field(default_factory=CallFaults)
    gangs: GangFaults = field(default_factory=GangFaults)
    store: StoreRates = field(default_factory=StoreRates)
    crash: float = 0.0
    slow: float = 0.0
    stale: float = 0.0
    cluster_silent: float = 0.0
    cut_off: float = 0.0
    engine_restarts: float = 0.0
    node_down: float = 0.0
    taken: float = 0.0
    strangers: float = 0.0
    starts: float = 1.0
    submit: float = 0.0
    cancel: float = 0.0
    steer: float = 0.0
    clock_jump: float = 0.0
    clock_leap: float = 0.0
    pace: float = 1.0


def draw_rates(dice: SeededDice) -> Rates:
    """Returns one run's rates. A third of all faults are off, so that the others are seen alone too."""

    def rate(most: float) -> float:
        return 0.0 if chance(dice, 0.33) else most * pick(dice, 1_000) / 1_000

    return Rates(
        calls=CallFaults(
            lost=rate(0.2),
            reply_lost=rate(0.3),
            late=rate(0.1),
            stale=rate(0.5),
            hidden=rate(0.3),
        ),
        gangs=GangFaults(
            skewed=rate(1.0),
            boot_hangs=rate(0.1),
            agent_dies=rate(0.03),
            rank_dies=rate(0.1),
            rank_hangs=rate(0.03),
            program_fails=rate(0.005),
            line_breaks=rate(0.05),
            agent_cut=rate(0.25),
            store_away=rate(0.02),
            memory_damaged=rate(0.05),
            store_damaged=rate(0.05),
            call_lost=rate(0.3),
            reply_lost=rate(0.3),
            held_back=rate(0.1),
            answers_late=rate(0.3),
            repeats=rate(0.3),
        ),
        store=StoreRates(broken=rate(0.003), full=rate(0.04), unanswered=rate(0.04)),
        crash=rate(0.05),
        slow=rate(0.3),
        stale=rate(1.0),
        cluster_silent=rate(0.03),
        cut_off=rate(1.0),
        engine_restarts=rate(0.03),
        node_down=rate(0.02),
        taken=rate(0.03),
        strangers=rate(0.01),
        starts=0.02 + rate(0.3),
        submit=0.05 + rate(0.3),
        cancel=rate(0.02),
        clock_jump=rate(0.02),
        clock_leap=rate(0.005),
        pace=4.0 if chance(dice, 0.3) else 1.0,
        steer=rate(0.1),
    )


def draw_inventories(dice: SeededDice) -> dict[ClusterName, Inventory]:
    """Returns one run's clusters."""
    inventories, most = {}, (3, 6)[pick(dice, 2)]  # Nodes are short, or limits are.
    for index in range(1 + pick(dice, 4)):
        name = ClusterName(f"cluster-{index}")
        chips = 1 + pick(dice, 4)
        inventories[name] = Inventory(
            cluster=name,
            engine="fake",
            simulated=True,
            nodes=tuple(Node(name=NodeName(f"n{n}"), chip=CHIP, chips=chips) for n in range(1 + pick(dice, most))),
            dollars_per_chip_hour={CHIP: 1.0 + pick(dice, 100) / 10},
            delegated=chance(dice, 0.3),
        )
    return inventories


def draw_limits(dice: SeededDice) -> dict[TeamName, float]:
    """Returns how many chips each team may hold, often fewer than its jobs want together."""
    limits = {LAB: 6.0 + pick(dice, 8) if chance(dice, 0.5) else 40.0}
    return limits | {TeamName(name): 4.0 + pick(dice, 9) for name in ("vision", "control")}


def draw_submit(dice: SeededDice, number: int, before: list[JobId], limits: Mapping[TeamName, float]) -> Submit:
    """Returns a job, or an array of little ones.

    Args:
        number: How many there were before.
        before: Jobs it may come after.
        limits: Of teams, which no job alone is over.
    """
    count = 2 + pick(dice, _ARRAY_MAX - 1) if chance(dice, 0.2) else 1
    spec = JobSpec(
        name=f"job-{number}",
        team=list(limits)[pick(dice, len(limits))],
        # Who comes later is often in a hurry: plans have to evict.
        tier=Tier.CRITICAL if number > _LEISURELY and chance(dice, 0.5) else list(Tier)[pick(dice, len(Tier))],
        roles=_draw_roles(dice, min(limits.values())) if count == 1 else (role(_LITTLE),),
        after=(before[pick(dice, len(before))],) if before and chance(dice, 0.2) else (),
        duration_s=float(pick(dice, 60)),
        attempts_max=1 + pick(dice, 4),
    )
    return Submit(spec=spec, key=f"key-{number}", count=count)


def _draw_roles(dice: SeededDice, most: float) -> tuple[Role, ...]:
    replicas = 1 + pick(dice, 4)
    least = 1 + pick(dice, replicas) if chance(dice, 0.6) else replicas
    spares = pick(dice, least) if chance(dice, 0.3) else 0
    chips = (0.5, 1.0, 2.0)[pick(dice, 3)]
    if (replicas + spares + 1) * chips > most:
        chips = _LITTLE
    roles = [role(chips, replicas=replicas, replicas_min=least, spares=spares)]
    if chance(dice, 0.3):
        roles.append(role(chips, name="helper"))
    return tuple(roles)


def role(chips: float, *, name: str = MAIN, replicas: int = 1, replicas_min: int = 1, spares: int = 0) -> Role:
    """Returns a role of one option."""
    option = Option(chip=CHIP, replicas=replicas, replicas_min=replicas_min, chips=chips)
    return Role(name=RoleName(name), command=(name,), options=(option,), spares=spares)
