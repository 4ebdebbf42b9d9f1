"""Fleet changes during a replay: nodes that go and come back, prices, nodes ordered, data moved."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mainspring.domain.fleet import Offer, Replica
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.plan import Move, Plan, Provision
from mainspring.planner.facts.policy import Policy
from mainspring.simulator.inputs.fleet import Fleet, Outage, PriceChange
from mainspring.simulator.virtual.faults import Faults
from mainspring.simulator.virtual.job_lifecycle import JobLifecycle
from mainspring.simulator.virtual.timeline import Timeline

IDLE_S_MAX = 600.0  # Kubernetes' cluster-autoscaler gives a node back after as long (scale-down-unneeded-time).


@dataclass(slots=True)
class _Bought:
    offer: Offer
    idle_s: float | None = None  # Since when nobody uses it.


class Supply:
    """The fleet in time. What its description foretells takes place from the start on.

    Args:
        lives: Jobs and their attempts.
        policy: Says how fast links are, and what moving data costs.
    """

    def __init__(self, timeline: Timeline, lives: JobLifecycle, fleet: Fleet, policy: Policy, seed: int) -> None:
        self._timeline = timeline
        self._lives = lives
        self._machines = lives.machines
        self._record = lives.record
        self._policy = policy
        self._faults = Faults(fleet.inventories, lives.options, seed)
        self._replicas = list(fleet.replicas)
        self._bought: dict[tuple[ClusterName, NodeName], _Bought] = {}
        self._moving: set[tuple[str, ClusterName]] = set()  # Only asked, never iterated.
        self._link_free_s: dict[tuple[ClusterName, ClusterName], float] = {}
        self._announced = False
        lives.builder.set_replicas(self._replicas)
        for piece in self._machines.pieces():
            self._record.room(timeline.now_s, piece, 1)
        for outage in fleet.outages:
            self._foretell(outage, drawn=False)
        for change in fleet.prices:
            timeline.at(change.at_s, partial(self._reprice, change))
        for inventory in fleet.inventories:
            for node in inventory.nodes:
                self._draw(inventory.cluster, node.name)

    def must_answer(self) -> bool:
        """Returns, once, whether a plan should look at live attempts even when nothing waits."""
        announced, self._announced = self._announced, False
        return announced

    # ---------------------------------------------------------------- outages

    def _draw(self, cluster: ClusterName, node: NodeName) -> None:
        outage = self._faults.next(cluster, node, self._timeline.now_s)
        if outage is not None:
            self._foretell(outage, drawn=True)

    def _foretell(self, outage: Outage, *, drawn: bool) -> None:
        if outage.notice_s:
            notice_s = outage.from_s - outage.notice_s
            self._timeline.at(notice_s, partial(self._announce, outage), expected=not drawn)
        self._timeline.at(outage.from_s, partial(self._go, outage, drawn=drawn), expected=not drawn)

    def _announce(self, outage: Outage) -> None:
        self._machines.announce(outage.cluster, outage.nodes, outage.from_s)
        self._announced = True
        self._timeline.change()

    def _go(self, outage: Outage, *, drawn: bool) -> None:
        timeline = self._timeline
        for piece in self._machines.go(outage.cluster, outage.nodes, outage.from_s):
            self._record.room(timeline.now_s, piece, -1)
        self._record.tally.outages += 1
        gone = frozenset(outage.nodes)
        struck = [
            run
            for run in self._lives.runs.values()
            if any(grant.cluster == outage.cluster and not gone.isdisjoint(grant.nodes) for grant in run.grants)
        ]
        for run in struck:
            self._lives.lose(run, f"{outage.nodes[0] if len(gone) == 1 else f'{len(gone)} nodes'} {outage.reason}")
        timeline.at(outage.until_s, partial(self._come_back, outage, drawn=drawn), expected=not drawn)

    def _come_back(self, outage: Outage, *, drawn: bool) -> None:
        timeline = self._timeline
        for piece in self._machines.come_back(outage.cluster, outage.nodes):
            self._record.room(timeline.now_s, piece, 1)
        timeline.change()
        if drawn and self._machines.is_listed(outage.cluster, outage.nodes[0]):
            self._draw(outage.cluster, outage.nodes[0])

    # ---------------------------------------------------------------- prices

    def _reprice(self, change: PriceChange) -> None:
        timeline = self._timeline
        for run in self._lives.runs.values():
            self._record.pay(run, timeline.now_s)
        for piece in self._machines.set_price(change.cluster, change.chip, change.dollars_per_chip_hour):
            self._record.room(timeline.now_s, piece, 1)
        for run in self._lives.runs.values():
            run.dollars_per_hour = sum(map(self._machines.dollars_per_hour, run.grants))
        timeline.change()

    # ---------------------------------------------------------------- what plans order

    def carry_out(self, plan: Plan) -> bool:
        """Orders the nodes and moves of a plan; returns whether there was anything new to order."""
        provided = [self._provide(provision) for provision in plan.provisions]
        moved = [self._move(move) for move in plan.moves]
        return any(provided) or any(moved)

    def _provide(self, provision: Provision) -> bool:
        offer, names = self._machines.order(provision.cluster, provision.offer, provision.nodes)
        if names:
            self._timeline.at(
                self._timeline.now_s + offer.lead_time_s, partial(self._arrive, provision.cluster, offer, names)
            )
        return bool(names)

    def _arrive(self, cluster: ClusterName, offer: Offer, names: tuple[NodeName, ...]) -> None:
        timeline = self._timeline
        for piece in self._machines.come_back(cluster, names):
            self._record.room(timeline.now_s, piece, 1)
        for name in names:
            self._bought[cluster, name] = _Bought(offer)
            self._draw(cluster, name)
        self._record.tally.nodes_bought += len(names)
        timeline.change()
        timeline.at(timeline.now_s + IDLE_S_MAX, self._give_back_idle, expected=False)

    def _give_back_idle(self) -> None:
        timeline = self._timeline
        for (cluster, name), bought in list(self._bought.items()):
            if not self._machines.is_idle(cluster, name):
                bought.idle_s = None
            elif bought.idle_s is None:
                bought.idle_s = timeline.now_s
            elif timeline.now_s - bought.idle_s >= IDLE_S_MAX and self._machines.is_there(cluster, name):
                self._record.room(timeline.now_s, self._machines.give_back(cluster, bought.offer, name), -1)
                del self._bought[cluster, name]
        if self._bought:
            timeline.at(timeline.now_s + IDLE_S_MAX, self._give_back_idle, expected=False)

    def _move(self, move: Move) -> bool:
        key = move.what, move.target
        if key in self._moving:
            return False
        self._moving.add(key)
        timeline, policy = self._timeline, self._policy
        link = move.source, move.target
        free_s = max(timeline.now_s, self._link_free_s.get(link, timeline.now_s))
        self._link_free_s[link] = free_s + move.size_bytes / policy.link_bytes_per_s
        self._record.move(move, policy.dollars_per_gib_moved)
        timeline.at(self._link_free_s[link], partial(self._moved, move))
        return True

    def _moved(self, move: Move) -> None:
        self._moving.discard((move.what, move.target))
        sizes = [replica.size_bytes for replica in self._replicas if replica.name == move.what]
        self._replicas.append(Replica(name=move.what, cluster=move.target, size_bytes=max(sizes, default=0)))
        self._lives.builder.set_replicas(self._replicas)
        self._timeline.change()
