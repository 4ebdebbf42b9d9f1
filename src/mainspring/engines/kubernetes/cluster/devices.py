"""Chips that a driver publishes (dynamic resource allocation), in place of an extended resource that counts them.

A ResourceSlice lists devices of one node, a ResourceClaim names those that were given to its pods. Whole chips alone
are counted: a part of one (MIG, a partition) is no chip, and while others hold parts of one, the scheduler alone knows.
Devices that no one node has are not counted.
Source: kubernetes.io/docs, "Dynamic Resource Allocation"; attributes of NVIDIA's and AMD's drivers.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Event, Lock
from typing import Any, final

from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.api.client import Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.amounts import MIB, number
from mainspring.engines.kubernetes.cluster.chips import AMD, NVIDIA
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror

GROUP = "/apis/resource.k8s.io/v1"
# Drivers of whole chips, each with a DeviceClass of its name, by the extended resource that stands for the same.
DRIVERS = {"gpu.nvidia.com": NVIDIA, "gpu.amd.com": AMD}
WHOLE = ("gpu", "amdgpu")  # What NVIDIA's and AMD's call a whole chip; others need not tell a type.
HARD = frozenset({"NoSchedule", "NoExecute"})  # Effects of taints, of devices and of nodes, that keep pods away.
Device = tuple[str, str, str]  # Driver, pool, name.


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSeen:
    """A ResourceSlice: some or all of the devices that a driver has on one node.

    Args:
        generation: Of the pool; slices of an older one are over.
        parts: How many slices that generation has.
        devices: Name, product and memory (MiB) of each whole chip; "" and 0 where nobody tells them.
    """

    node: str
    driver: str
    pool: str
    generation: int
    parts: int
    devices: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Chips of one node, as its driver publishes them.

    Args:
        product: The driver's name of their type; "" where it tells none.
        held: How many of them others hold.
        words: Why there are none, where there are none.
        memory_mib: The least that one of them has; 0 where the driver does not tell.
    """

    driver: str
    product: str
    count: int
    held: int = 0
    words: str = ""
    memory_mib: int = 0


@final
class DeviceWatch:
    """Keeps up what drivers publish on the nodes of one cluster, and what of that others hold."""

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock) -> None:
        self._cluster = cluster
        self._api = api
        self._clock = clock
        self._lock = Lock()
        self._new_slices, self._new_claims = Event(), Event()
        self._slices = Known[SliceSeen](
            self._lock, lambda one: self._new_slices.set(), lambda one: self._new_slices.set()
        )
        self._claims = Known[tuple[Device, ...]](
            self._lock, lambda one: self._new_claims.set(), lambda one: self._new_claims.set()
        )
        self._mirrors: tuple[Mirror[Any], ...] | None = None
        self._published: dict[str, Published] = {}
        self._node_of: dict[Device, str] = {}

    def check(self) -> None:
        """Returns when the copies are ones to go by. What is not served when it first looks is not looked for again.

        Raises:
            Unavailable: The API does not answer, and has not for some while.
        """
        if self._mirrors is None:
            self._mirrors = self._made() if self._is_served() else ()
        for mirror in self._mirrors:
            mirror.begin()
        for mirror in self._mirrors:
            mirror.check(self._cluster.call_s_max)

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        for mirror in self._mirrors or ():
            mirror.close()

    def by_node(self, there: Container[str]) -> Mapping[str, Published]:
        """Returns the chips of each node that a driver is on: those of the product that it has most of.

        A node whose driver has not published all yet, or has taken back what it had, is no node without chips: it has
        none of them now. Not to be called by several threads at once.

        Args:
            there: Names of all nodes; others are forgotten.
        """
        slices_changed, claims_changed = self._new_slices.is_set(), self._new_claims.is_set()
        if slices_changed:
            self._new_slices.clear()
            with self._lock:
                slices = list(self._slices.known.values())
            self._published, self._node_of = _counted(slices, self._published, there)
        if slices_changed or claims_changed:
            self._new_claims.clear()
            with self._lock:
                claims = list(self._claims.known.values())
            devices = {device for claim in claims for device in claim}  # Several claims may share one.
            held = Counter(map(self._node_of.get, devices))
            self._published = {
                node: found if found.held == held[node] else replace(found, held=held[node])
                for node, found in self._published.items()
            }
        return self._published

    def _is_served(self) -> bool:
        try:
            self._api.call("GET", GROUP, attempted="find dynamic resource allocation")
        except ApiRefusal:  # Before Kubernetes 1.34.
            return False
        return True

    def _made(self) -> tuple[Mirror[Any], ...]:
        cluster = self._cluster
        drivers = frozenset((*DRIVERS, *cluster.chips))
        return (
            Mirror(
                self._api,
                self._clock,
                path=f"{GROUP}/resourceslices",
                query={},
                key="name",
                read=lambda found: read_slice(found, drivers),
                keeps=self._slices,
            ),
            Mirror(
                self._api,
                self._clock,
                path=f"{GROUP}/resourceclaims",
                query={},
                key="uid",
                read=lambda found: read_claim(found, drivers, cluster.namespace),
                keeps=self._claims,
            ),
        )


def read_slice(found: Mapping[str, Any], drivers: frozenset[str]) -> SliceSeen | None:
    """Returns a slice of one node's devices; None for any other.

    Args:
        drivers: Those whose devices are chips.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    spec = found["spec"]
    if not spec.get("nodeName") or spec["driver"] not in drivers:
        return None
    devices = tuple(
        (
            sys.intern(one["name"]),
            sys.intern(_attribute(one, spec["driver"], "productName")),
            _memory_mib(one, spec["driver"]),
        )
        for one in spec.get("devices") or ()
        if _attribute(one, spec["driver"], "type") in ("", *WHOLE)
        and not any(taint.get("effect") in HARD for taint in one.get("taints") or ())
    )
    return SliceSeen(
        node=sys.intern(spec["nodeName"]),
        driver=sys.intern(spec["driver"]),
        pool=sys.intern(spec["pool"]["name"]),
        generation=int(spec["pool"]["generation"]),
        parts=int(spec["pool"]["resourceSliceCount"]),
        devices=_same(devices),
    )


def read_claim(found: Mapping[str, Any], drivers: frozenset[str], space: str) -> tuple[Device, ...] | None:
    """Returns the devices that a claim of others holds; None where it holds none, or is ours.

    Args:
        drivers: Those whose devices are chips.
        space: Our namespace.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    meta, allocation = found["metadata"], (found.get("status") or {}).get("allocation") or {}
    if meta["namespace"] == space and ALLOCATION in (meta.get("labels") or {}):
        return None
    results = (allocation.get("devices") or {}).get("results") or ()
    return (
        tuple(
            (sys.intern(one["driver"]), sys.intern(one["pool"]), sys.intern(one["device"]))
            for one in results
            if one["driver"] in drivers and not one.get("adminAccess")
        )
        or None
    )


def _attribute(device: Mapping[str, Any], driver: str, name: str) -> str:
    """Returns a text that a driver says of a device, "" for none."""
    said = device.get("attributes") or {}
    return str((said.get(name) or said.get(f"{driver}/{name}") or {}).get("string") or "")


def _memory_mib(device: Mapping[str, Any], driver: str) -> int:
    """Returns the memory that a driver says a device has, 0 for none; what is no amount tells nothing."""
    said = device.get("capacity") or {}
    amount = (said.get("memory") or said.get(f"{driver}/memory") or {}).get("value")
    try:
        return round(number(str(amount or 0)) / MIB)
    except ValueError:
        return 0


def _counted(
    slices: Iterable[SliceSeen], before: Mapping[str, Published], there: Container[str]
) -> tuple[dict[str, Published], dict[Device, str]]:
    """Returns what is published by node, and the node of each chip that counts.

    Args:
        before: What was published.
        there: Names of all nodes.
    """
    current = _newest(slices)
    published, node_of = dict[str, Published](), dict[Device, str]()
    for node, known in before.items():
        if node not in current and node in there:
            published[node] = replace(known, count=0, words=f"{known.driver} has taken back what it published")
    for node, own in current.items():
        whole = [one for one, is_whole in own if is_whole]
        driver, product = _most(whole) or _expected(own, before.get(node))
        found = [
            ((driver, one.pool, name), memory_mib)
            for one in whole
            for name, of, memory_mib in one.devices
            if (one.driver, of) == (driver, product)
        ]
        devices = [device for device, _ in found]
        words = "" if devices else f"{driver} publishes no whole chip that can be had"
        if len(whole) < len(own) and not devices:
            words = f"{driver} has not published all of its chips yet"
        memory_mib = min((memory_mib for _, memory_mib in found), default=0)
        published[node] = Published(
            driver=driver, product=product, count=len(devices), words=words, memory_mib=memory_mib
        )
        node_of.update(dict.fromkeys(devices, node))
    return published, node_of


def _newest(slices: Iterable[SliceSeen]) -> Mapping[str, list[tuple[SliceSeen, bool]]]:
    """Returns the slices of each pool's newest generation by node, and whether all of that are there."""
    pools: dict[tuple[str, str], list[SliceSeen]] = defaultdict(list)
    for one in slices:
        pools[one.driver, one.pool].append(one)
    found: dict[str, list[tuple[SliceSeen, bool]]] = defaultdict(list)
    for own in pools.values():
        generation = max(one.generation for one in own)
        current = [one for one in own if one.generation == generation]
        for one in current:
            found[one.node].append((one, len(current) >= one.parts))
    return found


def _expected(own: Sequence[tuple[SliceSeen, bool]], before: Published | None) -> tuple[str, str]:
    """Returns the driver and product of a node that has no chips now: as it had, or as parts of what it has say."""
    if before is not None:
        return before.driver, before.product
    return _most(one for one, _ in own) or (own[0][0].driver, "")


def _most(own: Iterable[SliceSeen]) -> tuple[str, str] | None:
    """Returns the driver and product that a node has most of, None where it has no chips."""
    counts = Counter((one.driver, product) for one in own for _, product, _ in one.devices)
    return max(sorted(counts), key=lambda kind: counts[kind], default=None)


@lru_cache(maxsize=8_192)
def _same(devices: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """Returns one value for all that are equal: most nodes of a cluster are alike."""
    return devices
