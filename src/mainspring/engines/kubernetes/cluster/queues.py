"""Kueue's queues: which of them our jobs wait in, what of them may be had, and why they take nothing.

A LocalQueue is a namespace's door to a ClusterQueue, whose quota is told by flavor (a kind of node) and resource. What
a queue may have is its nominal quota and what it may borrow of the others of its cohort, as far as nobody has reserved
that. Of nested cohorts only the innermost is looked at: Kueue itself decides who is let in.
Source: kueue.sigs.k8s.io/docs, "Cluster Queue", "Local Queue", "Resource Flavor".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Any, final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.api.client import Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.amounts import number
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror

GROUP = "/apis/kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")  # Those we read, the newest first; what is read of them is alike.
Amounts = Mapping[tuple[str, str], float]  # By flavor and resource.


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A kind of node.

    Args:
        labels: What its nodes bear.
        tolerated: Keys of taints that Kueue has its pods tolerate.
        taints: Keys of taints that a job must tolerate to be let in.
        topology: Name of the Topology by which Kueue places pods, "" for none.
    """

    name: str
    labels: Mapping[str, str]
    tolerated: frozenset[str] = frozenset()
    taints: tuple[str, ...] = ()
    topology: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What one ClusterQueue may have.

    Args:
        cohort: Whose unused quota it may borrow, "" for nobody's.
        nominal: Its own.
        most: That, and what it may borrow at most.
        used: What its workloads have reserved.
        closed: Why it takes nothing; "" where it does.
    """

    name: str
    cohort: str
    nominal: Amounts
    most: Amounts
    used: Amounts
    closed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A LocalQueue of our namespace.

    Args:
        leads_to: Its ClusterQueue.
        closed: Why it takes nothing; "" where it does.
    """

    name: str
    leads_to: str
    closed: str


def version_of(api: Api) -> str:
    """Returns the newest version of Kueue's API that is served here and that we read.

    Raises:
        Unavailable: There is none, or the API does not answer.
    """
    attempted = "find Kueue"
    try:
        found = api.call("GET", GROUP, attempted=attempted)
    except ApiRefusal as error:
        raise Unavailable(attempted, got=f"none is installed: {error.got}", next_step="install Kueue") from error
    served = {one["version"] for one in found["versions"]}
    known = next((version for version in VERSIONS if version in served), None)
    if known is None:
        raise Unavailable(attempted, got=f"its versions {', '.join(sorted(served))}", wanted=" or ".join(VERSIONS))
    return known


@final
class QueueWatch:
    """Keeps up what is known of the queues of one cluster."""

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock) -> None:
        self._cluster = cluster
        self._api = api
        self._clock = clock
        lock = Lock()
        self._flavors, self._quotas, self._doors = Known[Flavor](lock), Known[Quota](lock), Known[Door](lock)
        self._mirrors: tuple[Mirror[Any], ...] = ()

    def check(self) -> None:
        """Returns when the copies are ones to go by.

        Raises:
            Unavailable: There is no Kueue, or the API does not answer.
        """
        if not self._mirrors:
            root = f"{GROUP}/{version_of(self._api)}"
            kinds = (
                ("resourceflavors", read_flavor, self._flavors),
                ("clusterqueues", read_quota, self._quotas),
                (f"namespaces/{self._cluster.namespace}/localqueues", read_door, self._doors),
            )
            self._mirrors = tuple(
                Mirror(self._api, self._clock, path=f"{root}/{path}", query={}, key="name", read=read, keeps=keeps)
                for path, read, keeps in kinds
            )
        for mirror in self._mirrors:
            mirror.begin()
        for mirror in self._mirrors:
            mirror.check(self._cluster.call_s_max)

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        for mirror in self._mirrors:
            mirror.close()

    def flavors(self) -> Mapping[str, Flavor]:
        """Returns every flavor, by name."""
        return dict(self._flavors.known)

    def doors(self) -> Mapping[str, Door]:
        """Returns every queue of our namespace, by name."""
        return dict(self._doors.known)

    def closed(self) -> str:
        """Returns why none of our queues takes anything; "" where one does."""
        quotas = dict(self._quotas.known)
        words = [self._shut(name, quotas) for name in self._cluster.every_queue]
        return "; ".join(dict.fromkeys(words)) if all(words) else ""

    def uncovered(self) -> str:
        """Returns which of our queues could never let in what pods ask for besides chips; "" for none."""
        quotas = dict(self._quotas.known)
        words = [self._lacks(quotas[door.leads_to]) for door in self._own_doors() if door.leads_to in quotas]
        return "; ".join(dict.fromkeys(filter(None, words)))

    def left(self) -> Amounts:
        """Returns what may be had now through the one of our queues that has most of it, of all that they ever give."""
        quotas, doors = dict(self._quotas.known), dict(self._doors.known)
        found: dict[tuple[str, str], float] = {}
        for name in self._cluster.every_queue:
            own = quotas.get(doors[name].leads_to) if name in doors else None
            if own is not None:
                left = left_of(own, quotas.values())
                shut = bool(self._shut(name, quotas))
                found |= {what: max(found.get(what, 0.0), 0.0 if shut else amount) for what, amount in left.items()}
        return found

    def _shut(self, name: str, quotas: Mapping[str, Quota]) -> str:
        door = self._doors.known.get(name)
        if door is None:
            return f"there is no LocalQueue {name!r} in {self._cluster.namespace}"
        if door.leads_to not in quotas:
            return f"LocalQueue {name!r} names no ClusterQueue that is there"
        quota = quotas[door.leads_to]
        return quota.closed or door.closed or self._lacks(quota)  # The cause first.

    def _own_doors(self) -> list[Door]:
        return [door for name in self._cluster.every_queue if (door := self._doors.known.get(name)) is not None]

    def _lacks(self, quota: Quota) -> str:
        """Returns that a ClusterQueue has no quota of something that pods ask for: it never lets such in."""
        lacking = sorted(self._cluster.pods.devices.keys() - {resource for _, resource in quota.nominal})
        return f"ClusterQueue {quota.name!r} covers no {', no '.join(lacking)} of pods.devices" if lacking else ""


def left_of(own: Quota, every: Iterable[Quota]) -> Amounts:
    """Returns what a queue may still have, by flavor and resource.

    Args:
        every: All queues, itself among them.
    """
    cohort = [one for one in every if own.cohort and one.cohort == own.cohort]
    found = {}
    for what, most in own.most.items():
        amount = most - own.used.get(what, 0.0)
        if cohort:
            unused = sum(one.nominal.get(what, 0.0) - one.used.get(what, 0.0) for one in cohort)
            amount = min(amount, unused)
        found[what] = max(0.0, amount)
    return found


def read_flavor(found: Mapping[str, Any]) -> Flavor:
    """Returns what a ResourceFlavor says.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    spec = found.get("spec") or {}
    return Flavor(
        name=found["metadata"]["name"],
        labels=dict(spec.get("nodeLabels") or {}),
        tolerated=frozenset(one["key"] for one in spec.get("tolerations") or () if one.get("key")),
        taints=tuple(sorted(one["key"] for one in spec.get("nodeTaints") or ())),
        topology=spec.get("topologyName") or "",
    )


def read_quota(found: Mapping[str, Any]) -> Quota:
    """Returns what a ClusterQueue says.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    spec, status = found["spec"], found.get("status") or {}
    cohort = spec.get("cohortName") or spec.get("cohort") or ""
    nominal: dict[tuple[str, str], float] = {}
    most: dict[tuple[str, str], float] = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for one in flavor["resources"]:
                what, limit = (flavor["name"], one["name"]), one.get("borrowingLimit")
                nominal[what] = number(str(one["nominalQuota"]))
                borrows = 0.0 if not cohort else inf if limit is None else number(str(limit))
                most[what] = nominal[what] + borrows
    used = {
        (flavor["name"], one["name"]): number(str(one.get("total") or 0))
        for flavor in status.get("flavorsReservation") or ()
        for one in flavor["resources"]
    }
    closed = _closed(found)
    return Quota(name=found["metadata"]["name"], cohort=cohort, nominal=nominal, most=most, used=used, closed=closed)


def read_door(found: Mapping[str, Any]) -> Door:
    """Returns what a LocalQueue says.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    return Door(name=found["metadata"]["name"], leads_to=found["spec"]["clusterQueue"], closed=_closed(found))


def _closed(found: Mapping[str, Any]) -> str:
    name, spec = found["metadata"]["name"], found["spec"]
    if (spec.get("stopPolicy") or "None") != "None":
        return f"queue {name!r} is stopped ({spec['stopPolicy']})"
    for one in (found.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Active" and one.get("status") == "False":
            return f"queue {name!r}: {one.get('message') or one.get('reason')}"
    return ""
