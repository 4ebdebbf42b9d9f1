"""What is under way of nodes that the cluster may add: asked for, shown, and ended when they have come or will not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, final

from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable, nearest
from mainspring.domain.fleet import Inventory, Node, NodeCondition, Offer
from mainspring.domain.ids import NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.api.client import MERGE, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import ORDER, KubernetesCluster
from mainspring.engines.kubernetes.cluster.machines import KubernetesMachine
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror
from mainspring.engines.kubernetes.cluster.offers import (
    NODE_POOL,
    NodeOffer,
    NodePool,
    PooledOffer,
    every_offer,
    read_pool,
)
from mainspring.engines.kubernetes.jobs.orders import (
    ENDED,
    PROVISIONING,
    WORDS_MAX,
    HolderSeen,
    OrderSeen,
    late_s,
    order_job,
    order_name,
    priority_of,
    read_holder,
    read_order,
    read_request,
    request_objects,
)

_ATTEMPTED = "order nodes"
_POOLS = "/apis/karpenter.sh/v1/nodepools"


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnderWay:
    """An order that is not over, and its pods."""

    order: OrderSeen
    holders: tuple[HolderSeen, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({holder.host for holder in self.holders if holder.host}))


@final
class NodeOrdering:
    """Orders nodes of one cluster, by its API alone: another instance sees all that is under way.

    Args:
        cluster: Its settings, with offers.
    """

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock) -> None:
        self._cluster = cluster
        self._api = api
        self._clock = clock
        self._core = f"/api/v1/namespaces/{cluster.namespace}"
        self._jobs_path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
        self._requests_path = f"{PROVISIONING}/namespaces/{cluster.namespace}/provisioningrequests"
        self._lock = Lock()
        self._orders = Known[OrderSeen](self._lock)
        self._holders = Known[HolderSeen](self._lock)
        self._requests = Known[str](self._lock)
        self._pools = Known[NodePool](self._lock)
        self._mirrors = tuple(self._copies())
        self._wait_s = cluster.call_s_max  # For the first look; later ones wait for nothing.

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        for mirror in self._mirrors:
            mirror.close()

    def shown(
        self, inventory: Inventory, machines: Mapping[NodeName, KubernetesMachine], busy: Callable[[], set[NodeName]]
    ) -> Inventory:
        """Returns an inventory with offers, what is under way of them, and nodes that are held for it as coming.

        Args:
            machines: What stands behind its nodes.
            busy: Returns the nodes that our allocations have.
        """
        trouble = self._trouble()
        under_way, offers = self._under_way(), self._offers()
        nodes = {node.name: node for node in inventory.nodes}
        if under_way:
            nodes = _with_coming(nodes, machines, under_way, busy(), {one.name: one.offer for one in offers})
        there = Counter(machine.offer for machine in machines.values() if machine.offer)
        return replace(
            inventory,
            nodes=tuple(nodes[name] for name in sorted(nodes)),
            offers=tuple(self._offer(one, there[one.name], under_way, trouble) for one in offers),
            orders=tuple(one.order.told(self._cluster) for one in under_way),
        )

    def provision(self, wanted: Provision, inventory: Inventory) -> None:
        """Makes the objects of an order; see `Provisioning.provision`. What is there of them is left as it is.

        Args:
            inventory: As `shown`.

        Raises:
            NotFound: There is no such offer.
            Conflict: It is withheld, or has not as many nodes left.
            ApiRefusal: The API will not have it.
            Unavailable: The API does not answer.
        """
        shown = {offer.name: offer for offer in inventory.offers}
        offers = {one.name: one.offer for one in self._offers()}
        if wanted.offer not in shown or wanted.offer not in offers:
            got, on = wanted.offer, self._cluster.name
            raise NotFound(_ATTEMPTED, on=on, got=got, wanted=nearest(got, shown))
        if (wanted.offer, wanted.for_job) not in {(one.offer, one.job) for one in inventory.orders}:
            offer = shown[wanted.offer]
            if offer.withheld or wanted.nodes > offer.nodes_max:
                got = offer.withheld or f"{wanted.nodes} nodes, of which it has {offer.nodes_max}"
                raise Conflict(_ATTEMPTED, on=wanted.offer, got=got, wanted="an offer that has as many")
        self._make(wanted, offers[wanted.offer])

    def follow(self) -> None:
        """Ends what has come, what the cluster refuses, and what is too late.

        Raises:
            ApiRefusal: The API will not have it.
            Unavailable: The API does not answer.
        """
        if self._trouble():
            return
        now_s, offers = self._clock.now_s(), {one.name: one.offer for one in self._offers()}
        with self._lock:
            refused = dict(self._requests.known)
        for one in self._under_way():
            order = one.order
            if len(one.hosts) >= order.nodes:
                self._delete(order)
            elif words := refused.get(order.name, ""):
                self._end(order, words)
            elif now_s - order.made_s > late_s(offers.get(order.offer)):
                waits = next((holder.words for holder in one.holders if holder.words), "")
                came = f"{len(one.hosts)} of {order.nodes} nodes came within {now_s - order.made_s:.0f} s"
                self._end(order, f"{came}: {waits}" if waits else came)

    # ------------------------------------------------------------ what is known

    def _copies(self) -> Iterator[Mirror[Any]]:
        query = {"labelSelector": ORDER}
        api, clock = self._api, self._clock
        yield Mirror(api, clock, path=self._jobs_path, query=query, key="name", read=read_order, keeps=self._orders)
        yield Mirror(
            api, clock, path=f"{self._core}/pods", query=query, key="uid", read=read_holder, keeps=self._holders
        )
        if self._cluster.provisioning_class:
            yield Mirror(
                api, clock, path=self._requests_path, query=query, key="name", read=read_request, keeps=self._requests
            )
        if self._cluster.karpenter or any(NODE_POOL in offer.labels for offer in self._cluster.offers.values()):
            yield Mirror(
                api,
                clock,
                path=_POOLS,
                query={},
                key="name",
                read=lambda found: read_pool(found, self._cluster),
                keeps=self._pools,
            )

    def _trouble(self) -> str:
        """Returns why nothing can be ordered for now: of what runs and is free in the cluster that says nothing."""
        for mirror in self._mirrors:
            mirror.begin()
        wait_s, self._wait_s = self._wait_s, 0.0
        for mirror in self._mirrors:
            try:
                mirror.check(wait_s)
            except MainspringError as error:
                return f"{error.attempted}: {error.got}"
        return ""

    def _offers(self) -> list[PooledOffer]:
        with self._lock:
            pools = dict(self._pools.known)
        return list(every_offer(self._cluster, pools))

    def _under_way(self) -> list[_UnderWay]:
        with self._lock:
            orders = [order for order in self._orders.known.values() if not order.ended]
            holders = list(self._holders.known.values())
        return [
            _UnderWay(order=order, holders=tuple(one for one in holders if one.order == order.name))
            for order in sorted(orders, key=lambda order: order.name)
        ]

    def _offer(self, one: PooledOffer, there: int, under_way: list[_UnderWay], trouble: str) -> Offer:
        offer, pool = one.offer, one.pool
        awaited = sum(each.order.nodes - len(each.hosts) for each in under_way if each.order.offer == one.name)
        left = min(offer.nodes_max - there, pool.nodes_left(offer) if pool else offer.nodes_max)
        price = offer.dollars_per_chip_hour
        with self._lock:
            over = [order for order in self._orders.known.values() if order.ended and order.offer == one.name]
        last = max(over, key=lambda order: order.made_s, default=None)
        return Offer(
            name=one.name,
            chip=offer.chip,
            chips=offer.chips,
            nodes_max=max(0, left - awaited),
            lead_time_s=offer.lead_time_s,
            dollars_per_chip_hour=self._cluster.dollars_per_chip_hour.get(offer.chip, 0.0) if price is None else price,
            spot=offer.spot or (pool is not None and pool.spot),
            chip_memory_gib=self._chip_memory_gib(offer),
            withheld=trouble or (pool.shut if pool else "") or (last.ended if last else ""),
        )

    def _chip_memory_gib(self, offer: NodeOffer) -> float | None:
        stated = self._cluster.chip_memory_gib.get(offer.chip)
        return stated if offer.chip_memory_gib is None else offer.chip_memory_gib

    # ------------------------------------------------------------ calls

    def _make(self, wanted: Provision, offer: NodeOffer) -> None:
        name = order_name(wanted.offer, wanted.for_job)
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{priority_of(self._cluster)}"
        try:
            self._call("GET", path)
            job = self._post(self._jobs_path, order_job(wanted, offer, self._cluster, self._clock.now_s()))
            job = job or self._call("GET", f"{self._jobs_path}/{name}")
        except ApiRefusal as error:
            if error.reason not in ("NotFound", "Forbidden"):
                raise
            fix = f"ms cluster manifests kubernetes --namespace {self._cluster.namespace} --offers | kubectl apply -f -"
            raise ApiRefusal(error.attempted, on=error.on, got=error.got, reason=error.reason, next_step=fix) from error
        order = read_order(job)
        if order is None:
            raise Unavailable(_ATTEMPTED, on=name, got="one that is on its way out", next_step="ask again")
        self._orders.put(name, order)
        if self._cluster.provisioning_class:
            try:
                for path, body in zip(
                    (f"{self._core}/podtemplates", self._requests_path),
                    request_objects(job, offer, self._cluster),
                    strict=True,
                ):
                    self._post(path, body)
            except ApiRefusal as error:
                self._end(order, error.got)
                raise

    def _end(self, order: OrderSeen, words: str) -> None:
        """Ends an order that is not met: its pods go at once, the Job after a while."""
        said = {"annotations": {ENDED: words[:WORDS_MAX]}}
        body = {"metadata": said, "spec": {"activeDeadlineSeconds": 1}}
        path = f"{self._jobs_path}/{order.name}"
        self._api.call("PATCH", path, attempted=_ATTEMPTED, body=body, kind=MERGE)
        self._orders.put(order.name, replace(order, ended=words[:WORDS_MAX]))

    def _delete(self, order: OrderSeen) -> None:
        """Ends an order whose nodes are there: with its pods they are free."""
        try:
            self._call("DELETE", f"{self._jobs_path}/{order.name}", {"propagationPolicy": "Background"})
        except ApiRefusal as error:
            if error.reason != "NotFound":
                raise
        self._orders.drop(order.name)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns an object that was made now, None where there is one of its name."""
        try:
            made: dict[str, Any] = self._call("POST", path, body)
        except ApiRefusal as error:
            if error.reason == "AlreadyExists":
                return None
            raise
        return made

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._api.call(method, path, attempted=_ATTEMPTED, body=body)


def _with_coming(
    nodes: Mapping[NodeName, Node],
    machines: Mapping[NodeName, KubernetesMachine],
    under_way: Sequence[_UnderWay],
    busy: set[NodeName],
    offers: Mapping[str, NodeOffer],
) -> dict[NodeName, Node]:
    """Returns nodes with as many coming as were ordered: those that are held, idle ones that are about to be, and ones
    that are not there yet.
    """
    shown = dict(nodes)
    ours = {machine.name: name for name, machine in machines.items() if name in nodes}
    taken = busy | {ours[host] for one in under_way for host in one.hosts if host in ours}
    idle: dict[str, list[NodeName]] = {}
    for name, machine in machines.items():
        node = nodes.get(name)
        free = node is not None and node.condition is NodeCondition.READY and not node.foreign_chip_milli
        if free and machine.offer and not machine.taints and name not in taken:
            idle.setdefault(machine.offer, []).append(name)
    for one in under_way:
        held = [ours[host] for host in one.hosts if host in ours]
        due = idle.get(one.order.offer, [])
        while due and len(held) < one.order.nodes:
            held.append(due.pop())
        for name in held:
            shown[name] = _coming(nodes[name], one.order)
        if (offer := offers.get(one.order.offer)) is None:
            continue
        for index in range(one.order.nodes - len(held)):
            bare = Node(
                name=NodeName(f"{one.order.name}-{index}"),
                chip=offer.chip,
                chips=offer.chips,
                chip_memory_gib=offer.chip_memory_gib,
            )
            shown[bare.name] = _coming(bare, one.order)
    return shown


def _coming(node: Node, order: OrderSeen) -> Node:
    words = f"ordered of {order.offer} for {order.job}"
    return replace(node, condition=NodeCondition.COMING, condition_owner="", condition_reason=words)
