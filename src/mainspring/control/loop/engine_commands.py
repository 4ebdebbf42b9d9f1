"""Engine commands: launches and stops that the store says are due, nodes that plans want, and what the answers mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TypeVar, final

import sqlalchemy as sa

from mainspring.control.loop.fold import Loss
from mainspring.control.loop.losses import Lasting, lose
from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.holdings import AllocationRecord, allocation_by_id, ranks_per_replica
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.restores.attestations import attest
from mainspring.control.store.settings import Settings
from mainspring.control.store.tokens import TokenRecord, attempt_secret, save_token
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder, Offer
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.life import AllocationState
from mainspring.domain.plan import Plan, Provision
from mainspring.domain.ports import Backoff, Clock, Engine, Provisioning
from mainspring.domain.team import TeamRole
from mainspring.domain.wire.events.jobs import NodesOrderedEvent, NodesRefusedEvent

SHOWN_S = 60.0  # An order that was taken is in the inventory by then; a plan that wants it after that wants it anew.
REFUSED = Backoff(first_s=60.0, cap_s=3_600.0)  # Before an offer is asked for again whose cluster said no.
NO_ALLOCATION = AllocationId("")
Seen = Mapping[ClusterName, Mapping[AllocationId, AllocationSeen]]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A cordon to place, or to take back.

    Args:
        closure: The number of what it is for.
        lift: Whether to take it back.
    """

    closure: int
    node: NodeName
    owner: str
    reason: str
    lift: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing to tell an engine: a launch, nodes to order, or a cordon, if it has one; else a stop with a grace."""

    cluster: ClusterName
    allocation: AllocationId = NO_ALLOCATION
    order: LaunchOrder | None = None
    nodes: Provision | None = None
    cordon: Cordon | None = None
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What an engine answered: `refused` says why it will never do it, "" when it took it."""

    act: Act
    refused: str = ""


def tell(engine: Engine, act: Act) -> CommandResult | None:
    """Tells an engine one thing; None when it did not answer, and is to be asked again, or cannot order nodes.

    Args:
        engine: Of the act's cluster.
        act: What to tell it.
    """
    try:
        if act.nodes is not None:
            if not isinstance(engine, Provisioning):
                return None
            engine.provision(act.nodes)
        elif act.cordon is not None:
            cordon = act.cordon
            if cordon.lift:
                engine.uncordon(cordon.node, owner=cordon.owner)
            else:
                engine.cordon(cordon.node, owner=cordon.owner, reason=cordon.reason)
        elif act.order is None:
            engine.stop(act.allocation, grace_s=act.grace_s)
        else:
            engine.launch(act.order)
    except Unavailable:
        return None
    except MainspringError as error:
        return CommandResult(act=act, refused=str(error))
    return CommandResult(act=act)


@final
class EngineCommands:
    """Finds what is to be told, and writes what was answered.

    Args:
        mirror: What has not ended.
        lasting: How long ago stops were sent.
        key: What the tokens of attempts are made from.
    """

    def __init__(
        self, mirror: ActiveState, lasting: Lasting, settings: Settings, key: str, controller_urls: tuple[str, ...]
    ) -> None:
        self._mirror = mirror
        self._lasting = lasting
        self._settings = settings
        self._key = key
        self._controller_urls = controller_urls
        self._secrets: dict[AttemptId, str] = {}

    def acts(self, connection: sa.Connection, seen: Seen, now_s: float) -> Sequence[Act]:
        """Returns what the engines should be told now, and stores the tokens that launches carry.

        Args:
            connection: From `Store.write`.
            seen: What the engines that answer see.
        """
        mirror, settings = self._mirror, self._settings
        self._secrets = {attempt: secret for attempt, secret in self._secrets.items() if attempt in mirror.attempts}
        due: dict[ClusterName, list[Act | AllocationRecord]] = {cluster: [] for cluster in seen}  # What to stop first.
        launches: dict[ClusterName, list[AllocationRecord]] = {cluster: [] for cluster in seen}
        known: set[AllocationId] = set()
        for allocation in mirror.allocations:
            known.add(allocation.id)
            if allocation.cluster not in seen:
                continue
            if allocation.state is AllocationState.STOPPING:
                sent_s, again_s = allocation.stopped_s, settings.grace_s + settings.stop_again_s
                if sent_s is None or self._lasting.seconds("stops", allocation.id, sent_s) > again_s:
                    due[allocation.cluster].append(
                        Act(cluster=allocation.cluster, allocation=allocation.id, grace_s=self._grace_s(allocation))
                    )
            elif allocation.state is AllocationState.GRANTED:
                launches[allocation.cluster].append(allocation)
        for cluster, found in seen.items():
            for allocation_id, phase in ((one.allocation, one.phase) for one in found.values()):
                # What the store knows to be over, a launch that came late, would hold nodes that plans believe to be
                # free. What it does not know at all is held until an operator has it ended.
                runs = phase in (AllocationPhase.PENDING, AllocationPhase.RUNNING)
                held = mirror.held.get(allocation_id)
                over = allocation_id not in known and (held is None or held.settled_by)
                if runs and over:
                    due[cluster].append(Act(cluster=cluster, allocation=allocation_id, grace_s=settings.grace_s))
            due[cluster] += launches[cluster]
        chosen = _in_turn(due.values(), settings.acts_max)
        granted = [one for one in chosen if not isinstance(one, Act)]
        attested = attest(connection, [one.id for one in granted], self._key)
        return [
            *(one for one in chosen if isinstance(one, Act)),
            *(
                Act(
                    cluster=one.cluster,
                    allocation=one.id,
                    order=self._order(connection, one, now_s, attested.get(one.id, "")),
                )
                for one in granted
            ),
        ]

    def record(self, connection: sa.Connection, told: Sequence[CommandResult], now_s: float) -> None:
        """Writes what the engines answered, unless the allocation has moved on meanwhile.

        Args:
            connection: From `Store.write`.
        """
        ledger = StateWriter(connection, now_s)
        states = {allocation.id: allocation for allocation in self._mirror.allocations}
        for answer in told:
            known = states.get(answer.act.allocation)
            if known is None:
                continue
            self._mirror.touch(known.attempt)
            current = allocation_by_id(connection, known.id)
            assert current is not None
            if answer.act.order is None:
                if not answer.refused:
                    ledger.stop_taken(current.id)
            elif answer.refused:
                lose(ledger, self._mirror, known.attempt, {current.id: Loss(reason=answer.refused)})
            elif current.state is AllocationState.GRANTED:
                ledger.move_allocation(current, AllocationState.LAUNCHED)

    def _grace_s(self, allocation: AllocationRecord) -> float:
        attempt = self._mirror.attempts.get(allocation.attempt)
        lost = attempt is None or attempt.stop_cause == StopCause.LOST
        return self._settings.lost_grace_s if lost else self._settings.grace_s

    def _order(
        self, connection: sa.Connection, allocation: AllocationRecord, now_s: float, attestation: str
    ) -> LaunchOrder:
        attempt = self._mirror.attempts[allocation.attempt]
        part, spec = self._mirror.parts[allocation.id], self._mirror.specs[attempt.job]
        option = next(role for role in spec.roles if role.name == part.role).options[part.option]
        each = ranks_per_replica(part, option)  # Cores and memory are spread like the chips.
        if attempt.id not in self._secrets:
            # Agents of one attempt know each other by it, so a controller that starts anew must give the same.
            self._secrets[attempt.id] = attempt_secret(self._key, attempt.id)
            token = TokenRecord(
                id=attempt.id,
                holder="",
                team=spec.team,
                role=TeamRole.ATTEMPT,
                attempt=attempt.id,
                maker="",
                made_s=now_s,
            )
            save_token(connection, self._secrets[attempt.id], token)
        return LaunchOrder(
            allocation=allocation.id,
            attempt=attempt.id,
            role=part.role,
            nodes=part.nodes,
            chip_milli=part.chip_milli,
            cpu_milli=tuple(round(option.cpu_milli * ranks / each) for ranks in part.ranks),
            memory_mib=tuple(round(option.memory_mib * ranks / each) for ranks in part.ranks),
            controller=self._controller_urls[0],
            controllers_beside=self._controller_urls[1:],
            token=self._secrets[attempt.id],
            job=self._mirror.jobs[attempt.job].name,
            job_id=attempt.job,
            teams=self._mirror.with_those_above(spec.team),
            tier=spec.tier,
            duration_s=spec.duration_s or None,
            attestation=attestation,
            log_form=self._settings.log_form,
        )


def _in_turn(queues: Iterable[Sequence[Item]], most: int) -> list[Item]:
    """Returns the first of several queues, then the second of each, and so on: a long one keeps no other waiting."""
    in_turn = (one for each in zip_longest(*queues) for one in each if one is not None)
    return list(islice(in_turn, most))


@final
class NodeOrders:
    """Finds which nodes that plans want are to be ordered now, and writes what became of orders, for their jobs.

    Nothing of it is stored: another controller may say again what is under way, which changes nothing. What an engine
    took is not said again until its cluster had time to show it, what one refused not before a while.

    Args:
        mirror: What has not ended.
        fleet: What the engines said.
    """

    def __init__(self, mirror: ActiveState, fleet: FleetView, clock: Clock) -> None:
        self._mirror = mirror
        self._fleet = fleet
        self._clock = clock
        self._wanted: dict[tuple[ClusterName, str, JobId], Provision] = {}
        self._under_way: dict[tuple[ClusterName, str, JobId], int] = {}
        self._taken_s: dict[tuple[ClusterName, str, JobId], float] = {}
        self._refused: dict[tuple[ClusterName, str], tuple[int, float]] = {}  # How often in a row, and until when.

    def acts(self, connection: sa.Connection, decided: Plan | None, seen: Seen, now_s: float) -> Sequence[Act]:
        """Returns the orders that engines should be told now; writes which are over without their nodes.

        Args:
            connection: From `Store.write`.
            decided: A new plan; None while the last one stands.
            seen: What the engines that answer see.
        """
        inventories = [one.inventory for name, one in self._fleet.seen().items() if name in seen]
        offers = {(one.cluster, offer.name): offer for one in inventories for offer in one.offers}
        under_way = {(one.cluster, one.offer, one.job): one.nodes for each in inventories for one in each.orders}
        ledger = StateWriter(connection, now_s)
        for key, nodes in self._under_way.items():
            offer = offers.get(key[:2])
            if key not in under_way and offer is not None and offer.withheld:
                self._refuse(ledger, key, nodes, offer.withheld)
        silent = {key: nodes for key, nodes in self._under_way.items() if key[0] not in seen}
        self._under_way = silent | under_way
        if decided is not None:
            self._wanted = {(one.cluster, one.offer, one.for_job): one for one in decided.provisions}
        at_s = self._clock.monotonic_s()
        self._taken_s = {key: taken_s for key, taken_s in self._taken_s.items() if at_s - taken_s < SHOWN_S}
        return [
            Act(cluster=key[0], nodes=wanted)
            for key, wanted in self._wanted.items()
            if key[:2] in offers and key not in under_way and key not in self._taken_s and self._may_ask(key, at_s)
        ]

    def record(self, connection: sa.Connection, told: Sequence[CommandResult], now_s: float) -> None:
        """Writes what engines answered to orders.

        Args:
            connection: From `Store.write`.
        """
        ledger = StateWriter(connection, now_s)
        for answer in told:
            wanted = answer.act.nodes
            if wanted is None:
                continue
            key = (wanted.cluster, wanted.offer, wanted.for_job)
            self._wanted.pop(key, None)
            if answer.refused:
                self._refuse(ledger, key, wanted.nodes, answer.refused)
                continue
            self._refused.pop(key[:2], None)
            self._taken_s[key] = self._clock.monotonic_s()
            if wanted.for_job in self._mirror.jobs:
                event = NodesOrderedEvent(
                    cluster=wanted.cluster,
                    offer=wanted.offer,
                    nodes=wanted.nodes,
                    lead_time_s=self._offer(wanted).lead_time_s,
                )
                ledger.event(event, job=wanted.for_job)

    def _may_ask(self, key: tuple[ClusterName, str, JobId], at_s: float) -> bool:
        return at_s >= self._refused.get(key[:2], (0, at_s))[1]

    def _offer(self, wanted: Provision) -> Offer:
        offers = self._fleet.seen()[wanted.cluster].inventory.offers
        return next(offer for offer in offers if offer.name == wanted.offer)

    def _refuse(self, ledger: StateWriter, key: tuple[ClusterName, str, JobId], nodes: int, words: str) -> None:
        cluster, offer, job = key
        tries = self._refused.get((cluster, offer), (0, 0.0))[0] + 1
        self._refused[cluster, offer] = (tries, self._clock.monotonic_s() + REFUSED.wait_s(tries))
        if job in self._mirror.jobs:
            ledger.event(NodesRefusedEvent(cluster=cluster, offer=offer, nodes=nodes, reason=words), job=job)
