"""The Kubernetes engine: an allocation is an Indexed Job of one pod a node, on nodes that we choose, or Kueue does.

All state is in the cluster's own objects (see `jobs.manifests`), so a new instance, here or on another machine, sees
everything. Pods wait behind a gate until all of an allocation are made; then threads let each through to its node.
What the API shows is read from copies that threads keep up: a look asks it for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any

from mainspring.domain.errors import Conflict, MainspringError, NotFound
from mainspring.domain.fleet import AllocationSeen, EndedBefore, Inventory, LaunchOrder, LogChunk
from mainspring.domain.ids import NO_JOB, AllocationId, NodeName
from mainspring.domain.plan import Provision
from mainspring.domain.ports import Clock
from mainspring.engines.common.records import Cordon
from mainspring.engines.common.work_folder import LOG_BYTES_MAX, check_piece
from mainspring.engines.kubernetes.api.client import MERGE, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import GROUP as DEVICES
from mainspring.engines.kubernetes.cluster.inventory import NodeStock
from mainspring.engines.kubernetes.cluster.machines import KubernetesMachine
from mainspring.engines.kubernetes.cluster.queues import GROUP, version_of
from mainspring.engines.kubernetes.cordons import change_cordon
from mainspring.engines.kubernetes.jobs import manifests, output
from mainspring.engines.kubernetes.jobs.manifests import Claimed
from mainspring.engines.kubernetes.jobs.ordering import NodeOrdering
from mainspring.engines.kubernetes.jobs.placing import Placing
from mainspring.engines.kubernetes.jobs.pod_template import CONTAINER
from mainspring.engines.kubernetes.jobs.seeing import (
    Outcome,
    ends_by_itself,
    is_fenced,
    outcome,
    outlives,
    places_due,
    slots_held,
    waits_in_queue,
)
from mainspring.engines.kubernetes.jobs.watch import (
    AllocationWatch,
    AskedToStop,
    EndedSeen,
    Found,
    read_claim,
)

ENDED_VISIBLE_S = 3_600.0  # The port's promise: a controller that was away learns how an allocation ended.
STUCK_S_MAX = 60.0  # Pods that nothing but a change lets start are given up then: a room that was promised is taken.
LAUNCH_S_MAX = 60.0  # Of a launch whose Job nobody has seen: over it, it was cut short.
CLAIMED_S = 86_400.0  # Past its end an id stays taken for so long: no controller launches what ended a day ago.
_LAUNCH = "launch"
_HOSTNAME = "kubernetes.io/hostname"
_LIVING = "status.phase!=Succeeded,status.phase!=Failed"
_GONE, _EXISTS = "NotFound", "AlreadyExists"


class KubernetesEngine:
    """The `Engine` port over one Kubernetes cluster. Several instances may share its namespace.

    Args:
        cluster: What the operator says of it.
        environment: Every variable that agents get beside those of their image.
    """

    def __init__(self, cluster: KubernetesCluster, api: Api, *, environment: Mapping[str, str], clock: Clock) -> None:
        self._cluster = cluster
        self._api = api
        self._environment = environment
        self._clock = clock
        self._stock = NodeStock(cluster, api, clock)
        self._core = f"/api/v1/namespaces/{cluster.namespace}"
        self._batch = f"/apis/batch/v1/namespaces/{cluster.namespace}"
        self._spaces = {
            "jobs": self._batch,
            "resourceclaimtemplates": f"{DEVICES}/namespaces/{cluster.namespace}",
        }
        self._placing = Placing(api, f"{self._core}/pods", self._due)
        self._watch = AllocationWatch(cluster, api, clock, self._placing.look)
        self._ordering = NodeOrdering(cluster, api, clock) if cluster.orders_nodes else None
        self._mutex = Lock()
        self._since_s: dict[tuple[AllocationId, str], float] = {}  # Since when something lasts, by the steady clock.

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        self._placing.close()
        self._watch.close()
        if self._ordering is not None:
            self._ordering.close()
        self._stock.close()

    def inventory(self) -> Inventory:
        """Returns every node, or slot; see `Engine.inventory`.

        Raises:
            Unavailable: The API does not answer, and has not for some while; or Kueue is needed, and not there.
        """
        if not self._cluster.delegated:
            found = self._stock.look()
            return found if self._ordering is None else self._ordering.shown(found, self._stock.known(), self._busy)
        self._watch.check()
        return self._stock.look([holding for found in self._watch.found() for holding in slots_held(found)])

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation, and does what follows from what became of them; see `Engine.observe`.

        Raises:
            Unavailable: The API does not answer, and has not for some while.
        """
        self._watch.check()
        self._begin()
        if self._ordering is not None:
            with suppress(MainspringError):  # The next look tries again.
                self._ordering.follow()
        now_s = self._clock.now_s()
        shown: list[AllocationSeen] = []
        lasting: set[tuple[AllocationId, str]] = set()
        for found in self._watch.found():
            if not found.claim.claimed.nodes:
                continue
            launching = self._lasts(found.allocation, _LAUNCH, lasting) < LAUNCH_S_MAX
            seen = outcome(found, launching=launching, now_s=now_s)
            with suppress(MainspringError):  # What the API refuses now is found again by the next look.
                self._follow(found, seen, now_s, lasting)
            ended = found.claim.ended or seen.ended
            if ended is None or now_s - ended.ended_s < ENDED_VISIBLE_S:
                shown.append(seen.seen)
        with self._mutex:
            self._since_s = {key: since_s for key, since_s in self._since_s.items() if key in lasting}
        return tuple(shown)

    def launch(self, order: LaunchOrder) -> None:
        """Makes the objects of an allocation; see `Engine.launch`. Its pods start as the cluster gets to it.

        Raises:
            NotFound: A node of the order does not exist here.
            Conflict: Chips of its nodes are counted in several ways, and pods of one Job ask in one.
            ApiRefusal: The API will not have it.
            Unavailable: The API does not answer; what was made starts once at most.
        """
        attempted, name = f"launch {order.allocation}", order.allocation
        machines = [self._stock.machine(node) for node in order.nodes]
        if len(kinds := {machine.counted_by for machine in machines}) > 1:
            raise Conflict(attempted, got=f"chips counted by {' and '.join(sorted(kinds))}", wanted="nodes of one kind")
        claimed = Claimed(
            nodes=order.nodes,
            theirs=() if self._cluster.delegated else tuple(machine.name for machine in machines),
            chip_milli=order.chip_milli,
            queue=self._cluster.queue_of(order.teams),
            job_id=order.job_id,
        )
        made = self._make("configmaps", manifests.claim(name, claimed, order.attestation), attempted)
        claim = made or self._api.call("GET", f"{self._core}/configmaps/{name}", attempted=attempted)
        seen = read_claim(claim)
        if made is None and (not seen.claimed.nodes or seen.stop is not None or seen.ended is not None):
            return
        self._watch.claimed(name, seen)
        self._make("secrets", manifests.orders(order, claim), attempted)
        if (devices := manifests.device_claims(order, machines, claim)) is not None:
            self._make("resourceclaimtemplates", devices, attempted)
        near = self._level_of(machines[0], attempted) if len(machines) > 1 else ""
        job = manifests.job(order, self._cluster, claim, machines=machines, environment=self._environment, near=near)
        self._make("jobs", job, attempted)
        self._begin()

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`. Those that run learn of it by a look some seconds on.

        Raises:
            Unavailable: The API does not answer.
        """
        self._stop(allocation, AskedToStop(at_s=self._clock.now_s(), grace_s=grace_s))

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output, at most a MiB, from the log of its agent's pod; see `Engine.logs`.

        Args:
            rank: The rank's number in its attempt.
            since: Byte to start from.
            limit: How many bytes at most.

        Raises:
            NotFound: No such allocation, or that rank wrote nothing yet.
            InvalidInput: `since` or `limit` is out of its range.
            Unavailable: The API does not answer.
        """
        check_piece(allocation, since=since, limit=limit)
        self._watch.check()
        found = next((one for one in self._watch.found() if one.allocation == allocation), None)
        for _, pod in sorted(found.pods.items()) if found is not None else ():
            if not pod.name or not pod.host:
                continue
            text = self._output(pod.name)
            chunk = output.chunk(output.pieces(text, rank), since=since, limit=min(limit, LOG_BYTES_MAX))
            if chunk is not None:
                return chunk
        raise NotFound("read a log", on=allocation, got=f"rank {rank}", wanted="a rank that has written something")

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`.

        Raises:
            NotFound: There is no such allocation, it is over, or nothing came with its order.
            Unavailable: The API does not answer.
        """
        attempted = "know an allocation again"
        claim = self._get("configmaps", allocation, attempted)
        if claim is None or _has_ended(claim) or not (text := claim["data"].get(manifests.ATTESTATION, "")):
            raise NotFound(attempted, on=allocation, got="none that runs and has an attestation")
        return str(text)

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes claims of allocations that ended before a time, and over an hour ago; see `Forgetting.forget_ended`.

        Each takes a kilobyte or so, and goes after a day anyway: they are held to no bound of bytes.

        Args:
            due: Which of them; by this machine's clock.

        Raises:
            Unavailable: The API does not answer.
        """
        self._watch.check()
        before_s = min(due.time_s, self._clock.now_s() - ENDED_VISIBLE_S)
        over = [
            found.allocation
            for found in self._watch.found()
            if found.allocation not in due.kept and _over_s(found) < before_s
        ]
        for name in over[: due.limit]:
            self._delete(f"{self._core}/configmaps/{name}", "forget an allocation")
        return len(over)

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new pods off a node, as `kubectl cordon` does, and writes there by whom and why; see `Engine.cordon`.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it, or the cluster is delegated.
            ApiRefusal: The API will not have it, as where our account may not change nodes.
            Unavailable: The API does not answer.
        """
        self._change_cordon(node, owner, Cordon(owner=owner, reason=reason))

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon, never one of the cluster's operators; see `Engine.uncordon`.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner, or the cluster is delegated.
            Unavailable: The API does not answer.
        """
        self._change_cordon(node, owner, None)

    def provision(self, order: Provision) -> None:
        """Has the cluster's autoscaler add nodes; see `Provisioning.provision`.

        Raises:
            NotFound: There is no such offer.
            Conflict: It is withheld, or has not as many nodes left.
            ApiRefusal: The API will not have it.
            Unavailable: The API does not answer.
        """
        if self._ordering is None:
            raise NotFound("order nodes", on=self._cluster.name, got=order.offer, wanted="a cluster with offers")
        self._ordering.provision(order, self.inventory())

    # ------------------------------------------------------------ what follows

    def _busy(self) -> set[NodeName]:
        return {
            node for found in self._watch.found() if found.claim.ended is None for node in found.claim.claimed.nodes
        }

    def _begin(self) -> None:
        self._watch.begin()
        self._placing.begin()

    def _due(self) -> Mapping[str, str]:
        return {name: node for found in self._watch.found() for name, node in places_due(found).items()}

    def _lasts(self, allocation: AllocationId, what: str, lasting: set[tuple[AllocationId, str]]) -> float:
        """Returns for how long something has lasted, from the first look that saw it."""
        key, now_s = (allocation, what), self._clock.monotonic_s()
        lasting.add(key)
        with self._mutex:
            return now_s - self._since_s.setdefault(key, now_s)

    def _follow(self, found: Found, seen: Outcome, now_s: float, lasting: set[tuple[AllocationId, str]]) -> None:
        """Writes down an end, gives up what cannot start, stops what came late, ends by force what no node tells of."""
        name, attempted, claim = found.allocation, "follow an allocation", found.claim
        if claim.ended is not None:
            if now_s - claim.ended.ended_s > CLAIMED_S:
                self._delete(f"{self._core}/configmaps/{name}", attempted)
            return
        if seen.ended is not None:
            self._end_job(name, attempted)  # Beside agents that are over, containers that others put in may run on.
            self._note(name, manifests.ENDED, seen.ended, attempted)
            self._delete(f"{self._core}/secrets/{name}", attempted)  # Nobody starts by that token any more.
            self._watch.claimed(name, replace(claim, stop=None, ended=seen.ended))
            return
        if claim.stop is not None and any(outlives(pod, claim.stop, now_s) for pod in found.living):
            self._stop(
                name, claim.stop
            )  # They do not end by themselves, or in time, or were made while it was stopped.
        if claim.stop is None and (words := self._given_back(found, now_s)):
            self._stop(name, AskedToStop(at_s=now_s, grace_s=self._cluster.grace_s, words=words, taken=True))
        if seen.stuck and self._lasts(name, "stuck", lasting) > STUCK_S_MAX:
            words = f"its pods cannot start: {seen.stuck}"
            self._stop(name, AskedToStop(at_s=now_s, grace_s=0.0, words=words, taken=seen.refused))
        for pod in found.living:
            if is_fenced(pod, claim.stop, now_s):
                self._delete(f"{self._core}/pods/{pod.name}", attempted, grace_s=0)

    def _given_back(self, found: Found, now_s: float) -> str:
        """Returns why an allocation goes back to our queue: Kueue has put it out, or lets it wait for too long."""
        if found.workload is not None and found.workload.put_out:
            return found.workload.put_out
        waited_s, most_s = now_s - found.claim.made_s, self._cluster.queue_wait_s_max
        if waits_in_queue(found) and waited_s > most_s:
            return f"withdrawn from queue {found.claim.claimed.queue} after {waited_s:.0f} s"
        return ""

    def _level_of(self, machine: KubernetesMachine, attempted: str) -> str:
        """Returns the label of the narrowest level that holds several nodes, where Kueue knows levels; "" elsewhere."""
        name = self._stock.topology_of(machine)
        if not name:
            return ""
        found = self._api.call("GET", f"{GROUP}/{version_of(self._api)}/topologies/{name}", attempted=attempted)
        labels = [str(level["nodeLabel"]) for level in found["spec"]["levels"]]
        return next((label for label in reversed(labels) if label != _HOSTNAME), "")

    def _stop(self, name: AllocationId, asked: AskedToStop) -> None:
        attempted = f"stop {name}"
        claim = self._get("configmaps", name, attempted)
        if claim is None:
            claimed = Claimed(nodes=(), job_id=NO_JOB)
            claim = self._make("configmaps", manifests.claim(name, claimed), attempted)
            claim = claim or self._api.call("GET", f"{self._core}/configmaps/{name}", attempted=attempted)
        seen = read_claim(claim)
        if not seen.claimed.nodes or seen.ended is not None:
            return
        before = seen.stop
        if before is None or asked.at_s + asked.grace_s < before.at_s + before.grace_s:
            self._note(name, manifests.STOP, asked, attempted)
            self._watch.claimed(name, replace(seen, stop=asked))
        else:
            asked = before
        now_s = self._clock.now_s()
        found = next((one for one in self._watch.found() if one.allocation == name), None)
        if found is not None and ends_by_itself(found, asked, now_s):
            return
        # Without any the API forgets a pod at once, whatever of it still runs. One longer than it has changes nothing.
        grace = {"gracePeriodSeconds": math.ceil(max(1.0, asked.at_s + asked.grace_s - now_s))}
        # What is over stays: with a pod, what its ranks have written goes.
        query = {"labelSelector": f"{ALLOCATION}={name}", "fieldSelector": _LIVING}
        self._api.call("DELETE", f"{self._core}/pods", attempted=attempted, body=grace, query=query)
        if seen.claimed.queue:
            self._delete(f"{self._batch}/jobs/{name}", attempted)  # One that waits would wait on.
            with self._mutex:
                self._since_s[name, _LAUNCH] = -math.inf
            return
        self._end_job(name, attempted)

    def _end_job(self, name: AllocationId, attempted: str) -> None:
        """Puts a Job past its time: it ends the pods that are not over, makes none any more, and goes by itself."""
        self._patch(f"{self._batch}/jobs/{name}", {"spec": {"activeDeadlineSeconds": 1}}, attempted)

    def _change_cordon(self, node: NodeName, owner: str, wanted: Cordon | None) -> None:
        attempted = "cordon a node" if wanted else "uncordon a node"
        machine = self._stock.machine(node)
        if self._cluster.delegated:
            raise Conflict(attempted, on=node, got="a slot, which is no node in particular", wanted="a node")
        self._stock.heard(change_cordon(self._api, self._cluster.namespace, machine, owner, wanted, attempted))

    # ------------------------------------------------------------ calls

    def _make(self, kind: str, body: Mapping[str, Any], attempted: str) -> dict[str, Any] | None:
        """Returns an object that was made now, None where there is one of its name."""
        path = f"{self._spaces.get(kind, self._core)}/{kind}"
        try:
            made: dict[str, Any] = self._api.call("POST", path, attempted=attempted, body=body)
        except ApiRefusal as error:
            if error.reason == _EXISTS:
                return None
            raise
        return made

    def _get(self, kind: str, name: str, attempted: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._api.call("GET", f"{self._core}/{kind}/{name}", attempted=attempted)
        except ApiRefusal as error:
            if error.reason == _GONE:
                return None
            raise
        return found

    def _note(self, name: AllocationId, what: str, value: AskedToStop | EndedSeen, attempted: str) -> None:
        self._patch(f"{self._core}/configmaps/{name}", manifests.annotation(what, value), attempted)

    def _patch(self, path: str, body: Mapping[str, Any], attempted: str) -> None:
        """Merges something into an object, unless that is gone."""
        try:
            self._api.call("PATCH", path, attempted=attempted, body=body, kind=MERGE)
        except ApiRefusal as error:
            if error.reason != _GONE:
                raise

    def _delete(self, path: str, attempted: str, *, grace_s: int | None = None) -> None:
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._api.call("DELETE", path, attempted=attempted, body=body)
        except ApiRefusal as error:
            if error.reason != _GONE:
                raise

    def _output(self, pod: str) -> bytes:
        """Returns what the kubelet kept of a pod's log, nothing where it kept none."""
        try:
            return self._api.text(
                f"{self._core}/pods/{pod}/log", attempted="read a log", query={"container": CONTAINER}
            )
        except ApiRefusal:
            return b""


def _over_s(found: Found) -> float:
    """Returns when an allocation ended, or was stopped before it was launched; without end while it has not."""
    if not found.claim.claimed.nodes:
        return found.claim.made_s
    return found.claim.ended.ended_s if found.claim.ended is not None else math.inf


def _has_ended(claim: Mapping[str, Any]) -> bool:
    return manifests.ENDED in (claim["metadata"].get("annotations") or {})
