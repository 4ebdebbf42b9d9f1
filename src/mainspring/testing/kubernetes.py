"""A real Kubernetes control plane on one machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

For tests, demonstrations and benchmarks. The programs are Kubernetes' own, built by `make kubernetes`, so what they
admit, schedule, evict and refuse here they do on a cluster, but for what follows from there being no kubelets:

- A node is an object. Its status stands as it was given; it counts as lost when a test says so, or `node_grace_s` after
  it was made.
- A pod that is bound to a node stays Pending, and one that is deleted there stays, until a test says how it went on.
- etcd does not wait for the disk: a machine that loses power loses it, a killed process does not.

Everything is on the loopback interface. Waits are counted in looks, not in seconds of a clock: a bound of 10 s
stretches on a machine that is busy.
Source: kube-apiserver(8), kube-controller-manager(8), kube-scheduler(8) of Kubernetes 1.36; etcd 3.6.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.testing.daemons import Daemons, free_ports, last_words, start_up
from mainspring.testing.kubernetes_files import KubernetesNodes, KubernetesPlace

__all__ = ["KubernetesNodes", "KubernetesServer", "kubernetes_missing", "settings_on"]

BUILT = Path(__file__).parents[3] / "build" / "kubernetes"  # Where `make kubernetes` leaves them, in a checkout.
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
LOOK_S = 0.05
START_S = 60.0  # 4 s on two idle cores, 9 s for the first account; the rest is for busy ones.
CALL_S = 30.0
DAY_S = 86_400
NODE_GRACE_S = DAY_S  # No kubelet speaks for a node, and no test takes a day.


def kubernetes_missing() -> str:
    """Returns why no Kubernetes can be started here and what to do, or nothing when one can."""
    absent = [name for name in PROGRAMS if _find(name) is None]
    if not absent:
        return ""
    return f"Kubernetes is needed, not found: {', '.join(absent)}; make kubernetes (with Go 1.26 or newer, 15 minutes)"


class KubernetesServer:
    """A control plane; nothing of it outlives `stop`, the `with` block, or this process.

    Args:
        folder: Where logs are kept; made when absent.
        nodes: The nodes it has from the start.
        node_grace_s: How long a node may say nothing before it counts as lost.
        extra: Flags of a program besides the ones made here, which they win over.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[KubernetesNodes] = (),
        node_grace_s: int = NODE_GRACE_S,
        extra: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = folder
        self._nodes = tuple(nodes)
        self._node_grace_s = node_grace_s
        self._extra = dict(extra or {})
        self._place: KubernetesPlace | None = None
        self._daemons: Daemons | None = None
        self._client: httpx.Client | None = None

    @property
    def place(self) -> KubernetesPlace:
        """Returns where its API, its certificates and its administrator's kubeconfig are."""
        assert self._place is not None, "not started"
        return self._place

    def __enter__(self) -> KubernetesServer:
        """Starts it."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stops it."""
        self.stop()

    def start(self) -> None:
        """Starts every program, and returns once pods can be made and its nodes are there.

        Raises:
            Unavailable: Something is not built, or did not come up; quotes its last words.
        """
        missing = kubernetes_missing()
        if missing:
            raise Unavailable("start Kubernetes", got=missing)
        start_up(self._start, self.stop)

    def stop(self) -> None:
        """Kills every program and removes all that they kept but the logs; harmless when nothing runs."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._daemons is not None:
            self._daemons.stop()
            self._daemons = None
        if self._place is not None:  # Its keeper removed it already, unless it never got that far.
            shutil.rmtree(self._place.private, ignore_errors=True)
            self._place = None

    def kill(self, program: str) -> None:
        """Ends a program by SIGKILL.

        Args:
            program: One of `PROGRAMS`.
        """
        assert self._daemons is not None, "not started"
        assert self._daemons.kill(program, signal.SIGKILL), f"{program} was not running"

    def serve(self, program: str) -> None:
        """Starts a program, again after `kill`; the API server is waited for until it is ready.

        Raises:
            Unavailable: It did not come up.
        """
        assert self._daemons is not None, "not started"
        found = _find(program)
        assert found is not None, f"{program} was there a moment ago"
        words = self.place.words(program, node_grace_s=self._node_grace_s)
        if error := self._daemons.start(program, self._log(program), found, *words, *self._extra.get(program, ())):
            raise Unavailable("start Kubernetes", on=program, got=error)
        if program == "kube-apiserver":
            self.wait(lambda: self.there("/readyz"), program)

    def run(self, name: str, *words: str) -> None:
        """Starts one more program, which goes with the server.

        Args:
            words: Its command.

        Raises:
            Unavailable: It did not start.
        """
        assert self._daemons is not None, "not started"
        if error := self._daemons.start(name, self._log(name), *words):
            raise Unavailable(f"start {name}", got=error)

    def call(self, method: str, path: str, body: object = None, *, kind: str = "application/json") -> Any:
        """Returns what the API answers its administrator.

        Args:
            path: "/api/v1/nodes".
            body: What is sent, as JSON.
            kind: Media type of the body; of a patch, which sort it is.

        Raises:
            Unavailable: It refused; quotes it.
        """
        assert self._client is not None, "not started"
        answer = self._client.request(method, path, json=body, headers={"Content-Type": kind})
        if answer.is_error:
            raise Unavailable("ask Kubernetes", on=f"{method} {path}", got=answer.text)
        return answer.json()

    def there(self, path: str) -> bool:
        """Returns whether the API answers, and has what is asked for."""
        assert self._client is not None, "not started"
        try:
            return self._client.get(path).is_success
        except httpx.TransportError:
            return False

    def add(self, nodes: KubernetesNodes) -> None:
        """Makes nodes, and returns once the control plane lets pods on them.

        Raises:
            Unavailable: It does not.
        """
        for node in nodes.objects():
            self.call("POST", "/api/v1/nodes", node)
        wanted = len(nodes.taints)
        # Admission taints a new node until a controller has seen that it is ready.
        self.wait(
            lambda: all(
                len(self.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", ())) == wanted
                for name in nodes.names
            ),
            "kube-controller-manager",
        )

    def make_space(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Makes a namespace, unless it is there, and returns once pods are let into it.

        Raises:
            Unavailable: They are not.
        """
        path = f"/api/v1/namespaces/{name}"
        if not self.there(path):
            self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        # Without its account no pod is let into a namespace.
        self.wait(lambda: self.there(f"{path}/serviceaccounts/default"), "kube-controller-manager")

    def make_admin(self, space: str, account: str) -> None:
        """Makes an account, and its namespace, that may do anything but what policies refuse."""
        self.make_space(space)
        self.call("POST", f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": account}})
        bound = {
            "metadata": {"name": f"{space}-{account}"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": space}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        }
        self.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bound)

    def write_kubeconfig(self, path: Path, space: str, account: str) -> None:
        """Writes a kubeconfig of an account, whose token is good for a day.

        Args:
            space: The account's namespace.
        """
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": DAY_S}}
        answer = self.call("POST", f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token", asked)
        told = json.loads(self.place.kubeconfig.read_text())
        told["users"] = [{"name": told["users"][0]["name"], "user": {"token": answer["status"]["token"]}}]
        path.touch(mode=0o600)
        path.write_text(json.dumps(told))

    def wait(self, condition: Callable[[], bool], program: str) -> None:
        """Waits until a condition holds, within a bound.

        Args:
            program: Whose work that is.

        Raises:
            Unavailable: It never held, or that program has ended; quotes its last words.
        """
        assert self._daemons is not None, "not started"
        for _ in range(round(START_S / LOOK_S)):
            if condition():
                return
            if not self._daemons.runs(program):
                break
            select.select([], [], [], LOOK_S)
        raise Unavailable("wait for Kubernetes", on=program, got=last_words(self._log(program)))

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        port, etcd_port, peer_port = free_ports(3)
        self._place = place = KubernetesPlace(
            private=Path(tempfile.mkdtemp(prefix="kubernetes-")),  # Its owner's alone.
            token=os.urandom(16).hex(),
            scheduler_token=os.urandom(16).hex(),
            port=port,
            etcd_port=etcd_port,
            peer_port=peer_port,
        )
        place.write()
        self._daemons = Daemons(place.private, work=self.folder)
        self._client = httpx.Client(
            base_url=place.url,
            headers={"Authorization": f"Bearer {place.token}"},
            verify=ssl.create_default_context(cafile=str(place.authority)),
            timeout=CALL_S,
            trust_env=False,
        )
        for program in PROGRAMS:
            self.serve(program)
        self.make_space("default")
        for nodes in self._nodes:
            self.add(nodes)

    def _log(self, program: str) -> Path:
        return self.folder / f"{program}.log"


def settings_on(server: KubernetesServer, **settings: Any) -> KubernetesCluster:
    """Returns a cluster of pretended H100 on it, whose jobs run in this machine's own Python.

    Args:
        **settings: What else its operator says, or says otherwise.
    """
    usual = {
        "name": ClusterName("cloud"),
        "kubeconfig": str(server.place.kubeconfig),
        "image": "this-machine",
        "python": sys.executable,
        "dollars_per_chip_hour": {ChipName("h100"): 2.0},
        "simulated": True,
    }
    return KubernetesCluster(**{**usual, **settings})


def _find(program: str) -> str | None:
    return shutil.which(program, path=str(BUILT)) or shutil.which(program)
