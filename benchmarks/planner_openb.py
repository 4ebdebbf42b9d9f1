"""How full a real cluster gets when jobs come one at a time: ours against fragmentation gradient descent (FGD).

Run as `python -m benchmarks.planner_openb [--quick] [--nodes CSV] [--pods CSV] [--seeds 42 43 ...]`. The protocol is
FGD's: nodes with chips only; pods shuffled once per seed, then drawn with replacement until the chips asked for are 130
% of capacity; one pod at a time, one try each, never reordered, moved, retried or deleted. The figure is chips
allocated over capacity, averaged over the arrivals at which demand rounds to 130 %. Both see the same orders and know
the same thing of what comes: the mix of the pods in the file. Ours is placed by the planner's own `FreeCapacity`, which
learns that mix from shapes as it would from history. With the default pods, FGD is checked against its published
values.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from benchmarks.fgd import Ask, Fgd

from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import ANY_CHIP, JobSpec, Option, Role
from mainspring.planner import PendingJob, Snapshot, SnapshotBuilder
from mainspring.planner.place.free_capacity import FreeCapacity, Picked, Pool

TRACE = Path("../shared/traces/openb")
PUBLISHED = "published_allocation_default.csv"
DEFAULT_PODS = "openb_pod_list_default.csv"
SEEDS = tuple(range(42, 52))
DEMAND = 1.3
PROCESSES = 2
# FGD's rounded scores tie often, and the first node wins. In name order it stays 0.1 points below its published values,
# in orders drawn at random it comes out up to 0.08 above; the peer gets the better one.
PEER_NODES_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node of the trace.

    Args:
        name: Its name.
        cpu_milli: Cores.
        memory_mib: Memory.
        chips: Chips.
        model: Type of chip.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    chips: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Allocation in % of capacity of one seed.

    Args:
        seed: The seed.
        ours: Of the planner.
        fgd: Of the peer.
        ours_s: How long the planner took.
    """

    seed: int
    ours: float
    fgd: float
    ours_s: float


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise SystemExit(f"there is no {path}: name the trace's files with --nodes and --pods")
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def machines_of(path: Path) -> list[Machine]:
    machines = [
        Machine(
            name=row["sn"],
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            chips=int(row["gpu"]),
            model=row["model"].lower(),
        )
        for row in rows_of(path)
    ]
    return sorted((machine for machine in machines if machine.chips), key=lambda machine: machine.name)


def pods_of(path: Path) -> list[Ask]:
    return [
        Ask(
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            chips=int(row["num_gpu"]),
            milli=int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            models=tuple(sorted(model for model in row["gpu_spec"].lower().split("|") if model)),
        )
        for row in sorted(rows_of(path), key=lambda row: row["name"])
    ]


def order_of(pods: list[Ask], seed: int, capacity: int) -> list[Ask]:
    """Returns the pods as they arrive."""
    dice = Random(seed)
    order = pods.copy()
    dice.shuffle(order)
    demand, wanted = sum(pod.chips * pod.milli for pod in order), DEMAND * capacity
    while demand > wanted:
        left_out = order.pop(dice.randrange(len(order)))
        demand -= left_out.chips * left_out.milli
    while True:
        pod = dice.choice(pods)
        demand += pod.chips * pod.milli
        if demand > wanted:
            return order
        order.append(pod)


def options_of(pod: Ask) -> tuple[Option, ...]:
    return tuple(
        Option(
            chip=ChipName(model),
            chips=pod.chips * pod.milli / 1_000,
            cpus=pod.cpu_milli / 1_000,
            memory_gib=pod.memory_mib / 1_024,
        )
        for model in pod.models or (ANY_CHIP,)
    )


def snapshot_of(machines: list[Machine], pods: list[Ask]) -> Snapshot:
    """Returns the idle cluster, and the pods as history that teaches the mix."""
    nodes = tuple(
        Node(
            name=NodeName(machine.name),
            chip=ChipName(machine.model),
            chips=machine.chips,
            cpus=machine.cpu_milli / 1_000,
            memory_gib=machine.memory_mib / 1_024,
        )
        for machine in machines
    )
    builder = SnapshotBuilder()
    builder.set_inventory(
        Inventory(cluster=ClusterName("openb"), engine="local", simulated=True, dollars_per_chip_hour={}, nodes=nodes),
        answering=True,
    )
    roles = {pod: (Role(command=("true",), options=options_of(pod)),) for pod in sorted(set(pods))}
    for index, pod in enumerate(pods):
        spec = JobSpec(name="pod", roles=roles[pod])
        builder.add_pending(PendingJob(job=JobId(f"job-{index:06}"), spec=spec, submitted_s=0.0))
    return builder.build()


class Ours:
    """The planner's placement, one pod at a time.

    Args:
        snapshot: The idle cluster and the mix.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._room = FreeCapacity(snapshot)
        self._pools: dict[Ask, list[Pool]] = {}

    def place(self, ask: Ask) -> int | None:
        """Takes room for a pod and returns its node's row; None when it fits nowhere.

        Args:
            ask: What the pod asks for.
        """
        room = self._room
        if ask not in self._pools:
            found = (room.pool(0, option) for option in options_of(ask))
            self._pools[ask] = [pool for pool in found if pool is not None]
        best: tuple[float, int, Pool, Picked] | None = None
        for pool in self._pools[ask]:
            picked = room.stand(pool, 1)
            if picked is not None:
                place = (room.cost(pool, picked), int(picked.rows[0]), pool, picked)
                best = place if best is None or place[:2] < best[:2] else best
        if best is None:
            return None
        room.take(best[2], best[3])
        return best[1]


def allocated(placer: Ours | Fgd, order: list[Ask], capacity: int) -> float:
    """Returns the figure of the protocol, and checks nothing but counts: placers keep their own books."""
    used = arrived = 0
    last: list[float] = []
    for pod in order:
        milli = pod.chips * pod.milli
        arrived += milli
        used += milli if placer.place(pod) is not None else 0
        if round(100 * arrived / capacity) == round(100 * DEMAND):
            last.append(100 * used / capacity)
    return statistics.fmean(last)


def check(machines: list[Machine], order: list[Ask], placer: Ours) -> None:
    """Places everything and checks that no node gives more than it has."""
    free = np.array([[node.cpu_milli, node.memory_mib, 1_000 * node.chips] for node in machines], dtype=np.int64)
    for pod in order:
        row = placer.place(pod)
        if row is not None:
            free[row] -= [pod.cpu_milli, pod.memory_mib, pod.chips * pod.milli]
            assert not pod.models or machines[row].model in pod.models
    assert free.min() >= 0


def run(asked: tuple[Path, Path, int]) -> Result:
    nodes, pods_path, seed = asked
    machines, pods = machines_of(nodes), pods_of(pods_path)
    capacity = 1_000 * sum(machine.chips for machine in machines)
    order = order_of(pods, seed, capacity)
    snapshot = snapshot_of(machines, pods)
    begun = time.perf_counter()
    ours = allocated(Ours(snapshot), order, capacity)
    ours_s = time.perf_counter() - begun
    dealt = Random(PEER_NODES_SEED).sample(machines, len(machines))
    peer = Fgd(
        [machine.cpu_milli for machine in dealt],
        [machine.memory_mib for machine in dealt],
        [machine.chips for machine in dealt],
        [machine.model for machine in dealt],
        pods,
    )
    return Result(seed=seed, ours=ours, fgd=allocated(peer, order, capacity), ours_s=ours_s)


def published(folder: Path) -> list[float]:
    path = folder / PUBLISHED
    rows = rows_of(path) if path.is_file() else []
    return [float(row[str(round(100 * DEMAND))]) for row in rows if row["sc_policy"].endswith("FGD")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two seeds only")
    parser.add_argument("--nodes", type=Path, default=TRACE / "openb_node_list_gpu_node.csv")
    parser.add_argument("--pods", type=Path, default=TRACE / DEFAULT_PODS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    arguments = parser.parse_args()
    seeds = arguments.seeds[:2] if arguments.quick else arguments.seeds
    machines, pods = machines_of(arguments.nodes), pods_of(arguments.pods)
    capacity = 1_000 * sum(machine.chips for machine in machines)
    print(f"{len(machines)} nodes, {capacity // 1_000} chips, {len(pods)} pods", flush=True)
    check(machines, order_of(pods, seeds[0], capacity), Ours(snapshot_of(machines, pods)))
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as workers:
        for result in workers.imap(run, [(arguments.nodes, arguments.pods, seed) for seed in seeds]):
            results.append(result)
            print(
                f"seed {result.seed}: ours {result.ours:.2f} % in {result.ours_s:.1f} s, FGD {result.fgd:.2f} %",
                flush=True,
            )
    peer = statistics.fmean(result.fgd for result in results)
    known = published(arguments.pods.parent) if arguments.pods.name == DEFAULT_PODS else []
    if known:
        print(f"FGD rebuilt {peer:.2f} %, published {statistics.fmean(known):.2f} %, deviation {np.std(known):.2f}")
    print(
        json.dumps(
            {
                "ours_pct": round(statistics.fmean(result.ours for result in results), 3),
                "fgd_pct": round(peer, 3),
                "wins": sum(result.ours > result.fgd for result in results),
                "per_seed": [
                    {"seed": result.seed, "ours_pct": round(result.ours, 3), "fgd_pct": round(result.fgd, 3)}
                    for result in results
                ],
                "lead_min_pct": round(min(result.ours - result.fgd for result in results), 3),
                "fgd_published_pct": round(statistics.fmean(known), 3) if known else None,
                "ours_s": round(statistics.median(result.ours_s for result in results), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
