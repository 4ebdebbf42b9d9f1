"""Goodput of a long run on many nodes that fail: generations that resume from memory, against cold restarts.

Run as `python -m benchmarks.runtime_goodput [--quick] [--seed N] [--<cost> VALUE ...]`. Virtual time; both sides live
through the same failures, drawn at the rates clusters have published. Ours: the lead's own `Pace` decides how often to
snapshot from what it has seen, a failure is noticed, ranks reconnect, state comes from memory, steps since the newest
whole snapshot are repeated. Cold: a checkpoint that blocks, at the interval that is best for the true failure rate; a
failure that shows only as silence is noticed by the collective's timeout; then the whole job starts again. Both sides'
time goes through the lead's own `TimeLedger`. Goodput is productive node-time over all node-time, spares included.

Costs are flags. `COSTS` gives each default and where it comes from; what was not measured at this size says so, and
`slow` shows ours with every one of our recovery costs ten times as high.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mainspring.domain.goodput import Goodput, TimeUse, total
from mainspring.node.lead.watch.ledger import TimeLedger
from mainspring.node.lead.watch.pace import DAY_S, Pace

NODES = 2_048
RANKS_A_NODE = 8
DAYS = 54.0  # Llama 3's: "The Llama 3 Herd of Models", 2024, section 3.3.4.
RATES = {  # Failures per 1,000 node-days of 8 GPUs.
    "base": 3.79,  # Llama 3, 16,384 H100 for 54 days: as above.
    "rsc1": 6.50,  # Meta's RSC-1: Kokolis et al., "Revisiting Reliability in Large-Scale ML Research Clusters", 2024.
}
TRANSIENT = 0.73  # Of failures: the node itself can go on. Kokolis et al.
REPAIR_MEDIAN_S, REPAIR_MEAN_S = 54 * 60.0, 355 * 60.0  # Lognormal. Kokolis et al.
REPORT_STEPS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One cost: its default, and where that comes from."""

    default: float
    source: str


COSTS: Mapping[str, Cost] = {
    "step_s": Cost(default=5.0, source="assumed; Llama 3 405B took about that a step on 16,384 GPUs"),
    "hang_share": Cost(default=0.10, source="assumed: failures that show only as silence, of all"),
    "spares": Cost(default=4.0, source="nodes under repair are 0.5 on average at the base rate; four is rarely short"),
    "startup_s": Cost(default=300.0, source="assumed, for both sides"),
    "snapshot_gb": Cost(default=2.0, source="assumed, a rank: 405 G parameters, fp32 with Adam, on 16,384 ranks, x 5"),
    "copy_gb_per_s": Cost(default=18.0, source="measured: 1 GB of state into a touched arena takes 55 ms"),
    "peer_gb_per_s": Cost(default=1.0, source="measured: loopback and disk; a data centre's network does better"),
    "death_s": Cost(default=0.3, source="measured: survivors fail within 40 ms; the lead waits up to a tick for blame"),
    "node_lost_s": Cost(default=23.5, source="one and a half leases of 15 s (control's default), and a heartbeat"),
    "hang_s": Cost(default=40.0, source="8 times the 99th percentile of gaps of one step of 5 s"),
    "reconnect_s": Cost(default=30.0, source="measured 0.45 s for a toy on 3 ranks; not measured at 16,384: assumed"),
    "cold_checkpoint_s": Cost(default=60.0, source="protocol: a checkpoint that blocks for a minute"),
    "cold_restart_s_min": Cost(default=200.0, source="cold restarts at 16 to 98 thousand GPUs: 200 to 900 s"),
    "cold_restart_s_max": Cost(default=900.0, source="as above"),
    "cold_death_s": Cost(default=10.0, source="host and GPU faults are detected in about 10 s where processes die"),
    "cold_timeout_s": Cost(default=600.0, source="NCCL's timeout in PyTorch: 10 minutes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure.

    Args:
        at_s: When.
        kind: "death" of a process, "node" lost, or "hang".
        repair_s: How long the node is away, for a lost one.
        luck: From 0 to 1: drawn once, so that both sides have the same.
    """

    at_s: float
    kind: str
    repair_s: float
    luck: float


def drawn(rate: float, days: float, hang_share: float, seed: int) -> list[Fault]:
    """Returns the failures of one run."""
    dice = np.random.default_rng(seed)
    sigma = math.sqrt(2.0 * math.log(REPAIR_MEAN_S / REPAIR_MEDIAN_S))
    found: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += float(dice.exponential(DAY_S * 1_000.0 / (rate * NODES)))
        kind = "death" if dice.random() < TRANSIENT else "node"
        kind = "hang" if dice.random() < hang_share else kind
        repair_s = REPAIR_MEDIAN_S * math.exp(sigma * float(dice.standard_normal()))
        luck = float(dice.random())
        if at_s >= days * DAY_S:
            return found
        found.append(Fault(at_s=at_s, kind=kind, repair_s=repair_s, luck=luck))


class Run:
    """One side's life: steps, snapshots or checkpoints, failures, in virtual time."""

    def __init__(self, costs: Mapping[str, float], end_s: float) -> None:
        self.costs = costs
        self.end_s = end_s
        self.nodes = NODES - int(costs["spares"])
        self.now_s = 0.0
        self.ledger = TimeLedger(nodes=self.nodes, now_s=0.0)
        self.pace = Pace(nodes=self.nodes, now_s=0.0)
        self.pace.begin(self.nodes * RANKS_A_NODE)
        self.step = self.furthest = 0
        self.saved: list[tuple[int, float]] = []  # (step, when its copies are with the peers)
        self.snapshots = 0
        self.away: list[float] = []  # When each node under repair is back.

    def goodput(self) -> Goodput:
        """Returns the books; spares' time is nobody's, so it counts as recovery."""
        seconds = {TimeUse(use): part for use, part in self.ledger.seconds(self.end_s).items()}
        idle_s = self.costs["spares"] * self.end_s
        seconds[TimeUse.RECOVERY] = seconds.get(TimeUse.RECOVERY, 0.0) + idle_s
        return Goodput(allocated_s=NODES * self.end_s, seconds=seconds)

    def steps(self, until_s: float, *, every: int | None, cost_s: float, settled_s: float) -> None:
        """Takes steps until the time comes; saves every so many, or at the pace found best."""
        step_s = self.costs["step_s"]
        while self.now_s + step_s <= until_s:
            interval = every or self.pace.every
            left = interval - self.step % interval
            count = min(left, REPORT_STEPS_MAX, int((until_s - self.now_s) / step_s))
            self.step += count
            blocked_s = cost_s if self.step % interval == 0 else 0.0
            if self.now_s + count * step_s + blocked_s > until_s:
                blocked_s = max(0.0, until_s - self.now_s - count * step_s)  # Cut off in the middle of it.
            elapsed_s = count * step_s + blocked_s
            self.now_s += elapsed_s
            if blocked_s == cost_s and self.step % interval == 0:
                self.saved = [*self.saved[-1:], (self.step, self.now_s + settled_s)]
                self.snapshots += 1
                self.pace.snapshot()
                self.pace.spent(settled_s)
                self.pace.whole(self.step, safe=True)
            self.pace.stepped(steps=count, elapsed_s=elapsed_s, blocked_s=blocked_s)
            self.ledger.stepped(self.step, {"snapshot": blocked_s}, self.now_s)
            if every is None:
                self.pace.move(self.now_s, known_from=self.step + 1)
        self.furthest = max(self.furthest, self.step)

    def fall_back(self, *, to_settled: bool) -> None:
        """Goes back to the newest save, or to the newest that had settled by now."""
        fit = [step for step, settled_s in self.saved if not to_settled or settled_s <= self.now_s]
        self.step = max(fit, default=0)
        self.saved = [(step, at_s) for step, at_s in self.saved if step <= self.step]

    def idle(self, seconds: float, use: TimeUse) -> None:
        """Lets time pass without steps."""
        self.ledger.enter(use, self.now_s)
        self.now_s = min(self.now_s + seconds, self.end_s)

    def begin(self) -> None:
        """Has ranks run."""
        self.ledger.run(self.step, self.furthest, self.now_s)

    def replaced_s(self, fault: Fault) -> float:
        """Returns how long a lost node's place stays empty: not at all while a spare is left; nobody shrinks here."""
        self.away = [back_s for back_s in self.away if back_s > self.now_s]
        wait_s = 0.0
        if len(self.away) >= int(self.costs["spares"]):
            wait_s = min(self.away) - self.now_s
        self.away.append(self.now_s + fault.repair_s)
        return wait_s


def ours(faults: list[Fault], costs: Mapping[str, float], end_s: float) -> Run:
    """Returns the run of generations that resume from memory."""
    run = Run(costs, end_s)
    cost_s = costs["snapshot_gb"] / costs["copy_gb_per_s"]
    settled_s = costs["snapshot_gb"] / costs["peer_gb_per_s"]
    noticed_s = {"death": costs["death_s"], "node": costs["node_lost_s"], "hang": costs["hang_s"]}
    run.idle(costs["startup_s"], TimeUse.STARTUP)
    run.begin()
    for fault in [*faults, Fault(at_s=end_s, kind="end", repair_s=0.0, luck=0.0)]:
        run.steps(fault.at_s, every=None, cost_s=cost_s, settled_s=settled_s)
        run.now_s = max(run.now_s, min(fault.at_s, end_s))
        if fault.kind == "end":
            break
        run.fall_back(to_settled=fault.kind == "node")
        run.idle(noticed_s[fault.kind], TimeUse.HANG if fault.kind == "hang" else TimeUse.RECOVERY)
        if fault.kind == "node":
            run.idle(run.replaced_s(fault), TimeUse.RECOVERY)
        run.idle(costs["reconnect_s"], TimeUse.RECOVERY)
        run.idle(settled_s if fault.kind == "node" else cost_s, TimeUse.RESTORE)
        run.pace.failed()
        run.pace.begin(run.nodes * RANKS_A_NODE)
        run.begin()
    return run


def cold(faults: list[Fault], costs: Mapping[str, float], end_s: float, rate: float) -> Run:
    """Returns the run that starts again as a whole, from its newest checkpoint."""
    run = Run(costs, end_s)
    cost_s = costs["cold_checkpoint_s"]
    best_s = math.sqrt(2.0 * cost_s * DAY_S * 1_000.0 / (rate * NODES))
    every = max(1, round(best_s / costs["step_s"]))
    span_s = costs["cold_restart_s_max"] - costs["cold_restart_s_min"]
    run.idle(costs["startup_s"], TimeUse.STARTUP)
    run.begin()
    for fault in [*faults, Fault(at_s=end_s, kind="end", repair_s=0.0, luck=0.0)]:
        run.steps(fault.at_s, every=every, cost_s=cost_s, settled_s=0.0)
        run.now_s = max(run.now_s, min(fault.at_s, end_s))
        if fault.kind == "end":
            break
        run.fall_back(to_settled=False)
        silent = fault.kind in ("hang", "node")
        run.idle(costs["cold_timeout_s"] if silent else costs["cold_death_s"], TimeUse.HANG)
        if fault.kind == "node":
            run.idle(run.replaced_s(fault), TimeUse.RECOVERY)
        run.idle(costs["cold_restart_s_min"] + fault.luck * span_s, TimeUse.RECOVERY)
        run.begin()
    return run


def compared(rate: float, costs: Mapping[str, float], days: float, seeds: range) -> dict[str, Goodput]:
    """Returns both sides' books over all runs, and ours with recovery ten times as dear."""
    dear = dict(costs) | {name: 10.0 * costs[name] for name in ("death_s", "node_lost_s", "hang_s", "reconnect_s")}
    books: dict[str, list[Goodput]] = {"ours": [], "cold": [], "slow": []}
    end_s = days * DAY_S
    for seed in seeds:
        faults = drawn(rate, days, costs["hang_share"], seed)
        runs = {
            "ours": ours(faults, costs, end_s),
            "cold": cold(faults, costs, end_s, rate),
            "slow": ours(faults, dear, end_s),
        }
        for name, run in runs.items():
            books[name].append(run.goodput())
        shown = "  ".join(f"{name} {book[-1].ratio or 0.0:.4f}" for name, book in books.items())
        every_s = runs["ours"].pace.every * costs["step_s"]
        print(f"  seed {seed}: {len(faults)} failures  {shown}  (ours saves every {every_s:.0f} s in the end)")
    for name, kept in books.items():
        spread = [book.ratio or 0.0 for book in kept]
        print(f"  {name}: median {statistics.median(spread):.4f}, {min(spread):.4f} to {max(spread):.4f}")
    return {name: total(tuple(kept)) for name, kept in books.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="6 days, 3 runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    for name, cost in COSTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=cost.default, help=cost.source)
    args = parser.parse_args()
    costs = {name: float(getattr(args, name)) for name in COSTS}
    days, runs = (6.0, 3) if args.quick else (DAYS, args.runs)
    for name, value in costs.items():
        print(f"{name:20} {value:8.2f}  {COSTS[name].source if value == COSTS[name].default else 'given'}")
    report: dict[str, object] = {}
    for label, rate in RATES.items():
        print(f"{label}: {rate} failures per 1,000 node-days, {NODES} nodes, {days:g} days")
        books = compared(rate, costs, days, range(args.seed, args.seed + runs))
        for name, book in books.items():
            key = name if label == "base" else f"{label}_{name}"
            report[key] = round(book.ratio or 0.0, 5)
            spent = {use.value: round(part / book.allocated_s, 5) for use, part in book.seconds.items() if part > 0}
            report[f"{key}_uses"] = dict(sorted(spent.items(), key=lambda item: -item[1]))
    report |= {"nodes": NODES, "days": days, "runs": runs, "costs": costs}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
