"""The Kubernetes engine under test: a real control plane, whose pods run as processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import AllocationId, ChipName, ClusterName
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.engine import KubernetesEngine
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer
from mainspring.testing.kubernetes_kueue import make_queues
from mainspring.testing.kubernetes_pods import PodRunner

# An agent that says hello as its rank, and ends well when asked to.
AGENT = """
import json, os, signal, sys
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
index = int(told["--index"])
with open(told["--places"]) as file:
    node = json.load(file)["nodes"][index]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(os.environ["STARTS"], "a") as file:
    file.write(node + "\\n")
os.write(1, b"%d@0~hello from rank %d\\n" % (index, index))
signal.sigwait([signal.SIGTERM])
with open(told["--last-words"], "w") as file:
    json.dump({"exit_code": 0, "reason": "stopped"}, file)
"""
CALL_S_MAX = 60.0  # A machine that runs all tests at once is slow.


@contextmanager
def kubernetes_of(
    folder: Path, count: int, *, extra: Mapping[str, Sequence[str]] | None = None
) -> Iterator[KubernetesServer]:
    """Gives a cluster of nodes named "alpha-1" and so on, of eight H100 each.

    Args:
        extra: Flags by program.
    """
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    nodes = KubernetesNodes(count=count, prefix="alpha-", labels=labels)
    with KubernetesServer(folder, nodes=[nodes], extra=extra) as server:
        yield server


class KubernetesHarness:
    """Several tests share the cluster, each in a namespace of its own."""

    def __init__(
        self,
        root: Path,
        server: KubernetesServer,
        nodes: Sequence[str],
        *,
        space: str = "",
        kubeconfig: Path | None = None,
        queues: Mapping[str, int] | None = None,
    ) -> None:
        self.clock = FakeClock(SystemClock().now_s())  # The API server's own times are those of this machine.
        self.nodes = tuple(nodes)
        self.queue = next(iter(queues), "") if queues else ""
        self.space = space or f"lab-{os.urandom(4).hex()}"
        self._kubeconfig = kubeconfig or server.place.kubeconfig
        self._server = server
        self._starts = root / "starts"
        (root / "agent.py").write_text(AGENT)
        self._python = root / "python"
        # Past "-m mainspring agent"; "--echo", which has no value, is its last word.
        self._python.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -S -E {root}/agent.py "$@"\n')
        self._python.chmod(0o755)
        server.make_space(self.space)
        if queues:  # Of whose machines we know no name: each has a slot.
            self.nodes = tuple(f"gpus-h100x8-{index + 1:04}" for index in range(len(nodes)))
            quota = {name: {"gpus": chips} for name, chips in queues.items()}
            make_queues(server, self.space, flavors={"gpus": {}}, queues=quota, priorities={"now": 1_000})
        self._made: list[KubernetesEngine] = []
        self.pods = PodRunner(
            server,
            root / "pods",
            space=self.space,
            environment={**os.environ, "STARTS": str(self._starts)},
            clock=SystemClock(),
        )
        self.pods.serve(*nodes)

    def close(self) -> None:
        """Ends the threads of its engines, and all pods."""
        for engine in self._made:
            engine.close()
        self.pods.close()

    def engine(self, *, image: str = "this-machine", **settings: Any) -> KubernetesEngine:
        """Returns a new adapter to the same cluster, as after a restart of the controller.

        Args:
            **settings: More that its operator says.
        """
        cluster = KubernetesCluster(
            name=ClusterName("alpha"),
            namespace=self.space,
            image=image,
            python=str(self._python),
            dollars_per_chip_hour={ChipName("h100"): 2.0},
            simulated=True,
            call_s_max=CALL_S_MAX,
            **{"queue": self.queue, "queued_nodes_max": 0, **settings},
        )
        api = Api(
            "alpha",
            lambda: read_kubeconfig(self._kubeconfig, "", environment=os.environ, clock=self.clock),
            call_s=CALL_S_MAX,
        )
        self._made.append(KubernetesEngine(cluster, api, environment={}, clock=self.clock))
        return self._made[-1]

    def starts(self) -> int:
        """Returns how many agents have ever been started."""
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def speak(self, allocation: AllocationId, ranks: int) -> None:
        """Waits until the ranks have said hello."""
        self.until(lambda: len([one for one in self.pods.said(allocation) if b"hello" in one]) == ranks)

    def end_agent(self, allocation: AllocationId, index: int, *, well: bool) -> None:
        """Ends one agent, well or by force."""
        os.kill(self.pods.pid(allocation, index), signal.SIGTERM if well else signal.SIGKILL)

    def over(self, allocation: AllocationId) -> list[str]:
        """Returns the last words of agents that have ended."""
        return self.pods.last_words(allocation)

    def living(self, allocation: AllocationId) -> list[str]:
        """Returns the pods whose agents live."""
        return self.pods.names(allocation, living=True)

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds, never more slowly than for the API server, which dates pods' ends.

        Raises:
            Unavailable: It never held; says how the allocations stand.
        """

        def holds() -> bool:
            self.clock.advance(max(0.05, SystemClock().now_s() - self.clock.now_s()))
            try:
                return condition()
            except Unavailable as silent:  # A cluster that does not answer may do so at the next look.
                told.append(str(silent))
                return False

        told: list[str] = []
        try:
            self._server.wait(holds, "etcd")
        except Unavailable as never:
            raise Unavailable("see it hold", on=self.space, got="\n".join([*told[-1:], *self._standing()])) from never

    def _standing(self) -> Iterator[str]:
        """Yields how the pods and allocations stand, for whoever waited in vain."""
        yield f"now: {self.clock.now_s()}"
        for one in self._server.call("GET", f"/api/v1/namespaces/{self.space}/pods")["items"]:
            yield f"{one['metadata']} {one['spec'].get('nodeName')} {one.get('status')}"
        for engine in self._made[-1:]:
            with suppress(Unavailable):
                yield from map(str, engine.observe())
