"""Cordons on Kubernetes: how soon many nodes that failed are unschedulable for everybody, with owner and reason.

Run as `python -m benchmarks.health_cordon [--quick]`; needs what `make kubernetes` builds. One real control plane of
1,500 nodes is two clusters of one lab: one reaches its API at once, the other through a proxy that lets each byte wait
for 50 ms on its way there and as long on its way back. For each in turn 750 fatal events, of a node of its own each,
are told over HTTP, where rule `fatal` acts and the breaker lets all of them through. `per_s` is 750 over the time from
the first call that tells until another client's watch of the API has shown all 750 nodes unschedulable with owner and
reason; `slow_per_s` the same through the proxy. NVSentinel cordons 2.5 nodes a second (its own load test, 2025).
`loop_s` is the time of 6,000,000 turns of `total += i * i % 7`, by which bounds scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import final

from benchmarks.control_submit import loop_s
from benchmarks.running import run
from tests.faults.slurm_rig import until

from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab
from mainspring.control.health.quarantines import OWNER
from mainspring.domain.answers import Reason
from mainspring.domain.hardware.care import BreakerLimits, CareRules
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.wire import HEALTH_BATCH_MAX, HealthBatch
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import CORDONED_BY, CORDONED_FOR
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing, settings_on

NODES, QUICK_NODES = 1_500, 150
NEAR, FAR = ClusterName("near"), ClusterName("far")  # Their namespaces, too.
ONE_WAY_S = 0.05
LIMIT_S = 600.0
NODES_PATH = "/api/v1/nodes"


@final
class SlowWay:
    """A proxy on the loopback interface; what goes through it arrives `ONE_WAY_S` later, as much at once as before."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._up = Event()
        self.port = 0
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        self._up.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._joined, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        self._loop.run_forever()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                self._loop.call_later(ONE_WAY_S, writer.write, piece)
        self._loop.call_later(ONE_WAY_S, writer.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The control plane, a lab on it, and the names of its nodes."""

    server: KubernetesServer
    lab: Lab
    nodes: tuple[str, ...]


@contextmanager
def rig_of(folder: Path, count: int) -> Iterator[Rig]:
    """Gives one whose nodes are all there for both clusters; stops all of it whatever happens."""
    nodes = KubernetesNodes(count=count, chips=8, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    lab = Lab(folder / "home")
    with KubernetesServer(folder / "server", nodes=[nodes]) as server:
        slow = SlowWay(server.place.port)
        far = json.loads(server.place.kubeconfig.read_text())
        far["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{slow.port}"
        (folder / "far").touch(mode=0o600)
        (folder / "far").write_text(json.dumps(far))
        for space in (NEAR, FAR):
            server.make_space(space)
        clusters = (
            settings_on(server, name=NEAR, namespace=NEAR),
            settings_on(server, name=FAR, namespace=FAR, kubeconfig=str(folder / "far")),
        )
        most = BreakerLimits(percent=100.0, leaf_percent=100.0)
        care = CareRules(breakers={NEAR: most, FAR: most})
        lab.home.write_config(replace(lab.home.config(), clusters=clusters, health=care))
        lab.up(port=0)
        try:
            shown = [count] * len(clusters)
            until(lambda: [len(view.inventory.nodes) for view in lab.fleet()] == shown, "the nodes", wait_s=LIMIT_S)
            lab.promote_rule("fatal", Reason(reason="to be measured"))
            yield Rig(server=server, lab=lab, nodes=nodes.names)
        finally:
            lab.down()
            slow.close()


def failed(cluster: ClusterName, node: str, number: int) -> HealthEvent:
    return HealthEvent(
        source=HealthSource(name="watcher", session=cluster, sequence=number),
        at_s=time.time(),
        scope=Scope(kind=ScopeKind.DEVICE, cluster=cluster, node=NodeName(node), part="GPU-0"),
        check="xid",
        codes=("79",),
        fatal=True,
        message="GPU has fallen off the bus",
        repair=Repair.RESTART_NODE,
        strategy=Strategy.ACT,
    )


def cordoned_s(rig: Rig, cluster: ClusterName, nodes: Sequence[str]) -> float:
    """Tells something fatal of each node; returns how long it takes until all of them are seen to be closed."""
    access = read_kubeconfig(rig.server.place.kubeconfig, "", environment=os.environ, clock=SystemClock())
    api, left = Api("watched", lambda: access), set(nodes)
    *_, page = api.pages(NODES_PATH, attempted="list nodes", query={})
    watching, done, at_s = Event(), Event(), [0.0]

    def watch() -> None:
        version = page.version
        while left:  # The API server ends the watch of who reads too slowly for a moment.
            for change in api.watch(NODES_PATH, version, attempted="watch nodes", query={}):
                watching.set()
                version = change.version
                if change.object and closed_by(change.object) == f"{cluster}/{OWNER}":
                    left.discard(change.object["metadata"]["name"])
                if not left:
                    break
        at_s[0] = time.monotonic()
        done.set()

    Thread(target=watch, daemon=True).start()
    assert watching.wait(LIMIT_S)
    events = [failed(cluster, node, number) for number, node in enumerate(nodes)]
    begun_s = time.monotonic()
    for first in range(0, len(events), HEALTH_BATCH_MAX):
        rig.lab.tell_health(HealthBatch(events=tuple(events[first : first + HEALTH_BATCH_MAX])))
    told_s = time.monotonic() - begun_s
    if not done.wait(LIMIT_S):
        raise AssertionError(f"{len(left)} of {len(nodes)} nodes of {cluster} are open still: {sorted(left)[:5]}")
    taken_s = at_s[0] - begun_s
    print(f"{cluster}: {len(nodes)} nodes closed in {taken_s:.2f} s, told in {told_s:.2f} s", flush=True)
    return taken_s


def closed_by(node: dict[str, object]) -> str:
    """Returns who has made a node unschedulable and said why, "" for nobody."""
    spec, meta = node["spec"], node["metadata"]
    assert isinstance(spec, dict)
    assert isinstance(meta, dict)
    notes = meta.get("annotations") or {}
    said = spec.get("unschedulable") and "fallen off the bus" in notes.get(CORDONED_FOR, "")
    return str(notes.get(CORDONED_BY, "")) if said else ""


def measure(folder: Path, count: int) -> dict[str, float]:
    with rig_of(folder, count) as rig:
        half = count // 2
        near_s = cordoned_s(rig, NEAR, rig.nodes[:half])
        far_s = cordoned_s(rig, FAR, rig.nodes[half : 2 * half])
    return {"per_s": half / near_s, "slow_per_s": half / far_s, "near_s": near_s, "far_s": far_s, "loop_s": loop_s()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_NODES} nodes in place of {NODES:,}")
    count = QUICK_NODES if parser.parse_args().quick else NODES
    run("health-cordon", kubernetes_missing(), lambda folder: measure(folder, count))


if __name__ == "__main__":
    main()
