"""A large gang on a crowded fleet: how long until it is placed, and how long until it is proven that it cannot be.

Run as `python -m benchmarks.planner_gang [--quick] [--seed N]`. 20,000 nodes of 8 chips in 1,250 racks of 16, in 5
blocks; the gang wants 512 whole nodes, 32 whole racks of them, inside one block. Placing: 30 % of the racks, drawn at
random, are partly busy. Refusing: nearly all chips are free, but so many racks have one busy node that each block is
one to three whole racks short. Each time is one whole `plan` from a snapshot, nothing kept from the run before. No
peer runs beside it: no scheduler that can be installed here takes such an ask.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.plan import Limit, Plan
from mainspring.planner import Budget, PendingJob, Policy, Snapshot, SnapshotBuilder, plan

H100 = ChipName("h100")
CHIPS_PER_NODE = 8
NODES_PER_RACK = 16
BLOCKS = 5
RACKS_WANTED = 32
PARTLY_BUSY = 0.3  # Of the racks.
SHORT_MAX = 3  # Racks a block lacks when the gang is refused.
NOW_S = 1_700_000_000.0
RUNS = 7


def busy_chips(racks: list[int], dice: np.random.Generator, *, racks_per_block: int, short: bool) -> dict[int, int]:
    """Returns chips in use by node: 1 to 8 on some nodes of each rack drawn, on one where the gang is to fall short."""
    if short:
        drawn: list[int] = []
        for block in range(BLOCKS):
            whole = RACKS_WANTED - 1 - int(dice.integers(0, SHORT_MAX))
            own = dice.permutation([rack for rack in racks if rack // racks_per_block == block])
            drawn += own[whole:].tolist()
    else:
        drawn = dice.permutation(racks)[: round(PARTLY_BUSY * len(racks))].tolist()
    busy: dict[int, int] = {}
    for rack in sorted(drawn):
        nodes_busy = 1 if short else int(dice.integers(1, NODES_PER_RACK))
        for node in dice.permutation(NODES_PER_RACK)[:nodes_busy].tolist():
            busy[rack * NODES_PER_RACK + node] = int(dice.integers(1, CHIPS_PER_NODE + 1))
    return busy


def snapshot_of(busy: dict[int, int], *, racks_per_block: int) -> Snapshot:
    nodes = tuple(
        Node(
            name=NodeName(f"node-{index:05}"),
            chip=H100,
            chips=CHIPS_PER_NODE,
            domains=(
                ("block", f"b{index // NODES_PER_RACK // racks_per_block}"),
                ("rack", f"r{index // NODES_PER_RACK}"),
            ),
            foreign_chip_milli=1_000 * busy.get(index, 0),
        )
        for index in range(BLOCKS * racks_per_block * NODES_PER_RACK)
    )
    builder = SnapshotBuilder()
    builder.set_inventory(
        Inventory(
            cluster=ClusterName("alpha"),
            engine="local",
            simulated=True,
            dollars_per_chip_hour={H100: 2.0},
            nodes=nodes,
        ),
        answering=True,
    )
    gang = Option(
        chip=H100,
        chips=CHIPS_PER_NODE,
        replicas=RACKS_WANTED * NODES_PER_RACK,
        within="block",
        group=NODES_PER_RACK,
        group_within="rack",
    )
    spec = JobSpec(name="gang", roles=(Role(command=("true",), options=(gang,)),))
    builder.add_pending(PendingJob(job=JobId("job-gang"), spec=spec, submitted_s=NOW_S))
    return builder.build(now_s=NOW_S)


def check_placed(made: Plan, *, racks_per_block: int) -> None:
    nodes = [int(name.removeprefix("node-")) for name in made.starts[0].grants[0].nodes]
    racks = [node // NODES_PER_RACK for node in nodes]
    assert len(set(nodes)) == RACKS_WANTED * NODES_PER_RACK
    assert len(set(racks)) == RACKS_WANTED
    assert len({rack // racks_per_block for rack in racks}) == 1


def check_refused(made: Plan) -> str:
    assert not made.starts
    wait = made.waits[0]
    assert wait.limit is Limit.TOPOLOGY
    assert made.complete
    return wait.reason


def timed(snapshot: Snapshot) -> tuple[float, Plan]:
    begun = time.perf_counter()
    made = plan(snapshot, Policy(), NOW_S, Budget())
    return time.perf_counter() - begun, made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    racks_per_block = 50 if arguments.quick else 250
    racks = list(range(BLOCKS * racks_per_block))
    dice = np.random.default_rng(arguments.seed)
    roomy, crowded = (
        snapshot_of(
            busy_chips(racks, dice, racks_per_block=racks_per_block, short=short), racks_per_block=racks_per_block
        )
        for short in (False, True)
    )
    place_s, refuse_s = [], []
    reason = ""
    for run in range(RUNS):
        seconds, made = timed(roomy)
        check_placed(made, racks_per_block=racks_per_block)
        place_s.append(seconds)
        seconds, made = timed(crowded)
        reason = check_refused(made)
        refuse_s.append(seconds)
        print(f"run {run}: placed in {1e3 * place_s[-1]:.1f} ms, refused in {1e3 * refuse_s[-1]:.1f} ms")
    print(f"refused because {reason}")
    figures = {
        "place_ms": round(1e3 * statistics.median(place_s), 2),
        "refuse_ms": round(1e3 * statistics.median(refuse_s), 2),
        "nodes": len(racks) * NODES_PER_RACK,
        "free_chips_refused": int(crowded.nodes.whole.sum()),
        "reason": reason,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
