"""Looks at a cluster's set-up step by step: whether we may do what we must, and whether a pod can reach us.

Decides what must hold before jobs are sent there. Every step gives exactly one finding, in the order of `STEPS`; one
whose ground is missing is skipped. Nothing is changed but for one short pod, which is gone afterwards.
Source: kubernetes.io/docs, "Checking API Access" (SelfSubjectAccessReview).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from mainspring.domain.errors import InvalidSpec, MainspringError, Unavailable
from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE, Skew, skew
from mainspring.engines.common.clocks import clock_finding, outside_s
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.common.steps import walk
from mainspring.engines.kubernetes.api.client import Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.inventory import NodeStock
from mainspring.engines.kubernetes.cluster.queues import GROUP, QueueWatch, version_of
from mainspring.engines.kubernetes.jobs.pod_template import probe_pod
from mainspring.engines.kubernetes.jobs.pods import PodStage, stage_of
from mainspring.engines.kubernetes.setup import probe
from mainspring.engines.kubernetes.setup.account import AccountWanted, rights
from mainspring.engines.kubernetes.setup.findings import STEPS

VERSION_MIN = (1, 33)  # From there on a failed index of a Job is neither made again nor ends the others, for everybody.
PROBE = Path(probe.__file__)
BUNDLE_FIX = f"make the bundle's image anew, by python -m mainspring bundle of {RELEASE}"
POD_S_MAX = 180.0  # An image of some gigabytes is pulled meanwhile.
LOOK_S = 0.5
_FIXES = {
    "API": "see that kubectl reaches it with the same kubeconfig and context",
    "rights": "ms cluster manifests kubernetes --help: what it prints gives them",
    "namespace": "kubectl create namespace",
    "queues": "see that kubectl get localqueues shows them, and what their ClusterQueues say",
    "nodes": "see that nodes bear the labels of --nodes, and that their device plugin runs",
    "prices": "ms cluster add ... --price CHIP=DOLLARS",
    "claims and accounts": "make them in the namespace: docs/engines/kubernetes.md has examples",
    "volumes": "let the number of the user that jobs run as (user) have them, or its group, which is the same",
    "image": "name one that the cluster can pull, and that may run there",
    "Mainspring in a pod": f"install mainspring=={RELEASE} in the image, and name its interpreter with --python",
    "clocks": "run NTP on the nodes and here",
    "server from a pod": "give the server a public_url that pods reach",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrialPod:
    """A pod that ran, and when, by our clock.

    Args:
        node: Where.
        created_s: When it was made, by the clock of the API.
        begun_s: Before it was made.
        made_s: After that.
        over_s: When its end was seen.
        said: Its answer; see `probe`.
    """

    node: str
    created_s: float
    begun_s: float
    made_s: float
    over_s: float
    said: Mapping[str, Any]


class ClusterSetUp:
    """The set-up of one cluster.

    Args:
        cluster: As its operator describes it.
        api: Opens its API.
        environment: Variables that agents get.
        controller: Where agents will call; "" to call nobody.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        api: Callable[[], Api],
        *,
        environment: Mapping[str, str],
        controller: str,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._open = api
        self._environment = environment
        self._controller = controller
        self._clock = clock
        self._pause = Event()
        self._api: Api | None = None
        self._inventory: Inventory | None = None
        self._trial: _TrialPod | None = None

    def findings(self) -> Iterator[Finding]:
        """Yields what each step found, as soon as it has; one for each of `STEPS`, in their order."""
        steps: tuple[tuple[Callable[[], Finding], tuple[str, ...]], ...] = (
            (self._api_answers, ()),
            (self._rights_are_given, ("API",)),
            (self._namespace_is_there, ("API",)),
            (self._queues_are_open, ("rights",)),
            (self._nodes_are_known, ("queues",)),
            (self._chips_have_prices, ("nodes",)),
            (self._claims_and_accounts_are_there, ("rights", "namespace")),
            (self._pod_runs, ("rights", "namespace", "nodes", "claims and accounts")),
            (self._agent_can_start, ("image",)),
            (self._clocks_agree, ("Mainspring in a pod",)),
            (self._volumes_are_open, ("image",)),
            (self._server_answers, ("Mainspring in a pod",)),
        )
        try:
            yield from walk([(name, *step) for name, step in zip(STEPS, steps, strict=True)], _FIXES)
        finally:
            if self._api is not None:
                self._api.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        assert self._api is not None
        return self._api.call(method, path, attempted="look at a cluster's set-up", body=body, query=query)

    # ------------------------------------------------------------ steps

    def _api_answers(self) -> Finding:
        self._api = self._open()
        version = self._call("GET", "/version")
        said = str(version.get("gitVersion", ""))
        found = tuple(int("".join(filter(str.isdigit, str(version.get(part)))) or 0) for part in ("major", "minor"))
        if found < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise InvalidSpec(
                "use this cluster", got=f"Kubernetes {said}", next_step=f"have Kubernetes {wanted} or newer"
            )
        return _ok("API", f"Kubernetes {said}")

    def _rights_are_given(self) -> Finding:
        missing = []
        cluster = self._cluster
        account = AccountWanted(namespace=cluster.namespace, kueue=cluster.delegated, offers=cluster.orders_nodes)
        wanted = list(rights(account))
        for right in wanted:
            where = "" if right.everywhere else self._cluster.namespace
            what, _, part = right.resource.partition("/")
            asked = {
                "verb": right.verb,
                "group": right.group,
                "resource": what,
                "subresource": part,
                "namespace": where,
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
            }
            answer = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            if not answer["status"].get("allowed"):
                missing.append(f"{right.verb} {right.resource}{' everywhere' if right.everywhere else ''}")
        if missing:
            raise InvalidSpec("use this cluster", got=f"no right to {', '.join(missing)}")
        return _ok("rights", f"all {len(wanted)} that are needed")

    def _namespace_is_there(self) -> Finding:
        name = self._cluster.namespace
        try:
            self._call("GET", f"/api/v1/namespaces/{name}/configmaps", limit="1")
            self._call("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")
        except ApiRefusal as error:
            if error.reason == "NotFound":
                fix = f"kubectl create namespace {name}"
                raise InvalidSpec("use this cluster", got=f"no namespace {name!r}", next_step=fix) from error
        claim = {"metadata": {"generateName": "mainspring-check-", "labels": {ALLOCATION: "check"}}}
        try:  # Policies, webhooks and quotas have their say; nothing is made.
            self._call("POST", f"/api/v1/namespaces/{name}/configmaps", claim, dryRun="All")
        except ApiRefusal as error:
            fix = "let this account make it; ms cluster manifests kubernetes --account USER is for another than its own"
            raise InvalidSpec("make an object there", got=error.got, next_step=fix) from error
        return _ok("namespace", name)

    def _queues_are_open(self) -> Finding:
        cluster = self._cluster
        if not cluster.delegated:
            return _ok("queues", "none: nodes are chosen here")
        assert self._api is not None
        queues = QueueWatch(cluster, self._api, self._clock)
        try:
            queues.check()
            known, closed, uncovered = queues.doors(), queues.closed(), queues.uncovered()
        finally:
            queues.close()
        missing = [name for name in cluster.every_queue if name not in known]
        if missing:
            got = f"no LocalQueue {', '.join(missing)} in {cluster.namespace}"
            raise InvalidSpec("use this cluster", got=got, wanted=f"one of {', '.join(sorted(known)) or 'some'}")
        if uncovered:
            fix = "give it quota of that, or leave that out of pods.devices"
            raise InvalidSpec("use this cluster", got=uncovered, wanted="queues that cover it", next_step=fix)
        version = version_of(self._api)
        for name in cluster.priorities.values():
            try:
                self._call("GET", f"{GROUP}/{version}/workloadpriorityclasses/{name}")
            except ApiRefusal as error:
                raise InvalidSpec("use this cluster", got=f"no WorkloadPriorityClass {name}") from error
        if closed:
            return Finding(name="queues", standing=CheckResult.WARNING, found=closed, fix=_FIXES["queues"])
        return _ok("queues", f"{', '.join(cluster.every_queue)} of Kueue ({version})")

    def _nodes_are_known(self) -> Finding:
        assert self._api is not None
        stock = NodeStock(self._cluster, self._api, self._clock)
        try:
            self._inventory = found = stock.look()
        finally:
            stock.close()
        ready = [node for node in found.nodes if node.condition is NodeCondition.READY]
        chips: Counter[str] = Counter()
        for node in ready:
            chips[node.chip] += node.chips
        if not ready:
            got = f"{len(found.nodes)} nodes, none of them ready" if found.nodes else "no nodes"
            raise InvalidSpec("use this cluster", got=got)
        shown = ", ".join(f"{count} {chip}" for chip, count in sorted(chips.items()))
        return _ok("nodes", f"{len(ready)} of {len(found.nodes)} ready, with {shown}")

    def _chips_have_prices(self) -> Finding:
        assert self._inventory is not None
        priced = self._cluster.dollars_per_chip_hour
        bare = sorted({node.chip for node in self._inventory.nodes} - priced.keys())
        if bare:
            found = f"none for {', '.join(bare)}: its jobs count as free"
            return Finding(name="prices", standing=CheckResult.WARNING, found=found, fix=_FIXES["prices"])
        return _ok("prices", ", ".join(f"{chip} ${price:g} an hour" for chip, price in sorted(priced.items())))

    def _claims_and_accounts_are_there(self) -> Finding:
        """Looks for what pods name; that a claim can be in several pods at once is seen too."""
        pods, space = self._cluster.pods, f"/api/v1/namespaces/{self._cluster.namespace}"
        missing, narrow = [], []
        for name, volume in pods.claims.items():
            try:
                spec = self._call("GET", f"{space}/persistentvolumeclaims/{name}")["spec"]
            except ApiRefusal as error:
                missing.append(_absent("PersistentVolumeClaim", name, error))
                continue
            shared = {"ReadWriteMany", *(("ReadOnlyMany",) if volume.read_only else ())}
            narrow += [] if shared & {*spec["accessModes"]} else [f"{name} ({', '.join(spec['accessModes'])})"]
        for name in sorted({*pods.accounts.values()}):
            try:
                self._call("GET", f"{space}/serviceaccounts/{name}")
            except ApiRefusal as error:
                missing.append(_absent("ServiceAccount", name, error))
        if missing:
            raise InvalidSpec("use this cluster", got=f"no {', no '.join(missing)} in {self._cluster.namespace}")
        if narrow:
            found = f"only one node at a time can have claim {', '.join(narrow)}"
            fix = "make claims that are ReadWriteMany, or ReadOnlyMany where read_only is said"
            return Finding(name="claims and accounts", standing=CheckResult.WARNING, found=found, fix=fix)
        return _ok("claims and accounts", ", ".join([*pods.claims, *sorted({*pods.accounts.values()})]) or "none named")

    def _pod_runs(self) -> Finding:
        """Runs one short pod as agents would run, and keeps what it says."""
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods"
        pod = probe_pod(self._cluster, self._environment, PROBE.read_text(), self._controller)
        begun_s = self._clock.now_s()
        made = self._call("POST", path, pod)
        made_s, name = self._clock.now_s(), made["metadata"]["name"]
        try:
            found = self._end_of(f"{path}/{name}")
        finally:
            with suppress(MainspringError):
                self._call("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})
        stage = stage_of(found)
        said: Mapping[str, Any] = {}
        with suppress(ValueError):
            said = json.loads(stage.message)
        if not said and stage.exit_code is None:
            raise Unavailable("run a pod", got=stage.words)
        self._trial = _TrialPod(
            node=found["spec"].get("nodeName", "a node"),
            created_s=datetime.fromisoformat(made["metadata"]["creationTimestamp"]).timestamp(),
            begun_s=begun_s,
            made_s=made_s,
            over_s=self._clock.now_s(),
            said=said or {"agent_error": stage.words},
        )
        return _ok("image", f"{self._cluster.image} runs on {self._trial.node}")

    def _end_of(self, path: str) -> Mapping[str, Any]:
        """Waits for a pod's end; returns it as it is then."""
        end_s = self._clock.monotonic_s() + POD_S_MAX
        while True:
            found = self._call("GET", path)
            stage = stage_of(found)
            if stage.stage is PodStage.OVER:
                return dict(found)
            if stage.stuck or self._clock.monotonic_s() > end_s:
                got = stage.words if stage.stuck else f"no end within {POD_S_MAX:g} s: {stage.words or 'it runs'}"
                raise Unavailable("run a pod", got=got)
            self._pause.wait(LOOK_S)

    def _agent_can_start(self) -> Finding:
        said = self._ran().said
        version, error = str(said.get("version", "")), str(said.get("agent_error", ""))
        fix = BUNDLE_FIX if self._cluster.bundle else ""
        if error or not version:
            raise InvalidSpec("use this image", got=error or "no Mainspring", next_step=fix)
        if skew(RELEASE, version) is Skew.BEYOND:
            raise InvalidSpec("use this image", got=f"Mainspring {version}; here {RELEASE}", next_step=fix)
        return _ok("Mainspring in a pod", f"Mainspring {version}, Python {said.get('python', '')}")

    def _clocks_agree(self) -> Finding:
        """Compares the pod's clock with the server's, or else with ours; and the API's, which dates objects."""
        trial = self._ran()
        # It dates in whole seconds, cut off: half of one is added back.
        api_s = outside_s(trial.created_s + 0.5, begun_s=trial.begun_s, over_s=trial.made_s)
        api = clock_finding("clocks", "the API server", api_s)
        if api.standing is CheckResult.FAILED:
            return api
        ahead_s = trial.said.get("server_ahead_s")
        if ahead_s is not None:
            return clock_finding("clocks", trial.node, -ahead_s)
        at_s = outside_s(trial.said["time_s"], begun_s=trial.begun_s, over_s=trial.over_s)
        return clock_finding("clocks", trial.node, at_s)

    def _volumes_are_open(self) -> Finding:
        volumes = self._cluster.pods.volumes
        if shut := str(self._ran().said.get("closed", "")):
            raise InvalidSpec("use its volumes", got=f"user {self._cluster.user} cannot use {shut}")
        return _ok("volumes", ", ".join(volume.path for volume in volumes.values()) or "none named")

    def _server_answers(self) -> Finding:
        name, url = "server from a pod", self._controller
        if not url:
            return Finding(name=name, standing=CheckResult.SKIPPED, found="no server runs: ms up")
        said = self._ran().said
        if urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") and not said.get("server_status"):
            raise InvalidSpec("reach the server", got=f"{url}, which is this machine alone")
        status, error = said.get("server_status"), said.get("server_error")
        if status != 200:
            raise InvalidSpec("reach the server", on=url, got=str(error or f"HTTP {status}"))
        return _ok(name, url)

    def _ran(self) -> _TrialPod:
        assert self._trial is not None, "the steps before have seen to it"
        return self._trial


def _absent(kind: str, name: str, error: ApiRefusal) -> str:
    """Returns what is not there.

    Raises:
        ApiRefusal: The API has another reason not to show it.
    """
    if error.reason != "NotFound":
        raise error
    return f"{kind} {name}"


def _ok(name: str, found: str) -> Finding:
    return Finding(name=name, standing=CheckResult.OK, found=found)
