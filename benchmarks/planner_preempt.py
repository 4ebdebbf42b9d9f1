"""What a gang that must displace hundreds of attempts costs: the time of the plan, and the price of its victims.

Run as `python -m benchmarks.planner_preempt [--quick]`. The fleet is full of opportunistic jobs of 1 to 32 chips, some
on several nodes, with checkpoints of every age up to two hours; a critical gang asks for whole nodes. The peer takes
random minimal sets: attempts are spared in random order as long as the gang still stands. What stands is judged here
by itself, from nothing but whole chips by node.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import AttemptId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import MAIN, MILLI, JobSpec, Option, Role, Tier
from mainspring.domain.plan import Grant, Plan
from mainspring.planner import Budget, LiveAttempt, PendingJob, Policy, Snapshot, SnapshotBuilder
from mainspring.planner.cycle import plan

CHIP = ChipName("h100")
CLUSTER = ClusterName("alpha")
CHIPS = 8
NOW_S = 1_000_000.0
CHECKPOINT_AGE_S_MAX = 7_200.0
# Sizes and how often they come: small jobs by number, large ones by chips, as in the public traces.
SIZES = {1: 40, 2: 20, 4: 20, 8: 14, 16: 4, 32: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An attempt of the filled fleet: chips by node, and what ending it costs."""

    nodes: dict[int, int]
    price: float


def option(chips: int) -> Option:
    """How a job of this many chips runs: on one node, or on whole ones."""
    return Option(chip=CHIP, chips=min(chips, CHIPS), replicas=max(1, chips // CHIPS))


def specs(tier: Tier, chips: int) -> JobSpec:
    return JobSpec(name="benchmark", tier=tier, roles=(Role(command=("true",), options=(option(chips),)),))


def fill(node_count: int, seed: int, policy: Policy) -> tuple[SnapshotBuilder, dict[str, Held]]:
    """Returns a full fleet, and who holds what there."""
    dice = random.Random(seed)
    builder = SnapshotBuilder()
    names = [NodeName(f"n{row:05}") for row in range(node_count)]
    nodes = tuple(
        Node(name=name, chip=CHIP, chips=CHIPS, domains=(("block", f"b{row // 256}"), ("rack", f"r{row // 16}")))
        for row, name in enumerate(names)
    )
    builder.set_inventory(Inventory(cluster=CLUSTER, engine="local", simulated=True, nodes=nodes), answering=True)
    free = [CHIPS] * node_count
    lower = {chips: specs(Tier.OPPORTUNISTIC, chips) for chips in SIZES}
    held: dict[str, Held] = {}
    while any(free):
        chips = dice.choices(list(SIZES), weights=list(SIZES.values()))[0]
        each = min(chips, CHIPS)
        rows = [row for row in range(node_count) if free[row] >= each]
        if len(rows) < chips // each:
            continue
        # Half of them pack, half lie where they fell: fleets are neither.
        found = rows[: chips // each] if dice.random() < 0.5 else dice.sample(rows, chips // each)
        for row in found:
            free[row] -= each
        name, age_s = f"a{len(held):06}", dice.uniform(0.0, CHECKPOINT_AGE_S_MAX)
        held[name] = Held(nodes=dict.fromkeys(found, each), price=chips * (age_s + policy.restart_s))
        grant = Grant(
            role=MAIN,
            option=0,
            cluster=CLUSTER,
            nodes=tuple(names[row] for row in sorted(found)),
            chip_milli=(each * MILLI,) * len(found),
            ranks=(1,) * len(found),
        )
        builder.add_live(
            LiveAttempt(
                attempt=AttemptId(name),
                job=JobId(f"job-{name}"),
                spec=lower[chips],
                grants=(grant,),
                submitted_s=0.0,
                granted_s=NOW_S - 86_400.0,
                durable_s=NOW_S - age_s,
            )
        )
    return builder, held


class Fleet:
    """Whole chips by node, and how many whole nodes a set of attempts leaves."""

    def __init__(self, held: dict[str, Held], ended: list[str], node_count: int) -> None:
        self._held = held
        self._free = [0] * node_count
        for name in ended:
            for row, chips in held[name].nodes.items():
                self._free[row] += chips
        self.whole = sum(free == CHIPS for free in self._free)

    def spare(self, name: str, needed: int) -> bool:
        """Takes an attempt off the list if the gang still stands without it."""
        nodes = self._held[name].nodes
        lost = sum(self._free[row] == CHIPS for row in nodes)
        if self.whole - lost < needed:
            return False
        for row, chips in nodes.items():
            self._free[row] -= chips
        self.whole -= lost
        return True


def random_minimal(held: dict[str, Held], needed: int, node_count: int, dice: random.Random) -> float:
    """Returns the price of a random minimal set."""
    names = list(held)
    fleet = Fleet(held, names, node_count)
    dice.shuffle(names)
    return sum(held[name].price for name in names if not fleet.spare(name, needed))


def timed_plan(snapshot: Snapshot, policy: Policy) -> tuple[float, Plan]:
    begun_s = time.perf_counter()
    made = plan(snapshot, policy, NOW_S, Budget())
    return time.perf_counter() - begun_s, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fleet a tenth as large, one repetition")
    parser.add_argument("--nodes", type=int, default=2_000)
    parser.add_argument("--gang", type=int, default=450, help="whole nodes the gang asks for")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    node_count, needed = (args.nodes // 10, args.gang // 10) if args.quick else (args.nodes, args.gang)
    policy = Policy()
    builder, held = fill(node_count, args.seed, policy)
    print(f"{node_count} nodes hold {len(held)} attempts; the gang asks for {needed} nodes", flush=True)
    gang = Option(chip=CHIP, chips=CHIPS, replicas=needed)
    spec = JobSpec(name="gang", tier=Tier.CRITICAL, roles=(Role(command=("true",), options=(gang,)),))
    builder.add_pending(PendingJob(job=JobId("gang"), spec=spec, submitted_s=NOW_S - 1.0))
    snapshot = builder.build(now_s=NOW_S)
    dice = random.Random(args.seed)
    times, rivals = [], []
    made = Plan(number=0)
    for repetition in range(1 if args.quick else 5):
        seconds, made = timed_plan(snapshot, policy)
        times.append(seconds)
        rivals += [random_minimal(held, needed, node_count, dice) for _ in range(4 if not args.quick else 20)]
        print(f"{repetition}: plan {seconds:.3f} s, {len(made.evicts)} victims", flush=True)
    ended = [str(evict.attempt) for evict in made.evicts]
    fleet = Fleet(held, ended, node_count)
    assert fleet.whole >= needed, "the gang does not stand once its victims are gone"
    price = sum(held[name].price for name in ended)
    needless = sum(Fleet(held, ended, node_count).spare(name, needed) for name in ended)
    figures = {
        "plan_s": round(statistics.median(times), 4),
        "needless": needless,
        "price_ratio": round(price / min(rivals), 4),
        "victims": len(ended),
        "random_victims_price": round(min(rivals)),
        "price_chip_s": round(price),
        "nodes": node_count,
        "attempts": len(held),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
