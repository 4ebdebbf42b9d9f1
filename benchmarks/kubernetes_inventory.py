"""Kubernetes: a look at 5,000 nodes and 50,000 pods of others, and how soon it shows what changes among them.

Run as `python -m benchmarks.kubernetes_inventory [--quick]`; needs what `make kubernetes` builds. The API server and
its store are real; no controller runs, so that nobody but the API server takes part. Nodes have eight chips, fifty
images and ten pods each, two of which hold a chip; they are written into the store as the API server had written the
first of them. A process holds a `KubernetesEngine` of a pinned cluster and nothing else, and looks as often as the host
of an engine does (`kind.LOOK_S`). `sync_s`: from its first look until one returns with all nodes. Then 100 changes a
second for 120 s: on every other node a pod of others that holds a chip is made, bound, and deleted when its turn comes
again; the rest are cordoned by their operator, and freed again. `lag_p99_s`, `lag_median_s`: from the API server's
answer to a change until the look that shows its node as it is from then on has returned. `rss_mib`: the most memory
that the process ever held. `cpu`: processor seconds a second of it, while changes come. `loop_s` is the time of
6,000,000 turns of `total += i * i % 7`, by which bounds but that of memory scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import base64
import copy
import http.client
import json
import os
import resource
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.control_submit import loop_s
from benchmarks.running import run

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import MILLI
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import MERGE, Api
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.engine import KubernetesEngine
from mainspring.engines.kubernetes.kind import LOOK_S
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_files import HOST

NODES, QUICK_NODES, PODS_EACH = 5_000, 500, 10
CHIPS, HOLDERS, GPU = 8, 2, "nvidia.com/gpu"
CHANGES_S, QUICK_CHANGES_S, RATE = 120, 20, 100
WRITERS = 8
PUTS = 100  # Of one transaction; etcd takes 128.
SPACE = "default"
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/zone": "a"}
IMAGES = [
    {"names": [f"registry.example.org/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 9_876_543_210} for n in range(50)
]
SETTLE_S = 3.0


# ---------------------------------------------------------------- the cluster


def fill(server: KubernetesServer, count: int) -> None:
    """Makes nodes and pods out of the first of each, by copies in the store itself."""
    status = {"images": IMAGES, "nodeInfo": {}}
    server.call("PATCH", "/api/v1/nodes/n1/status", {"status": status}, kind=MERGE)
    node = server.call("GET", "/api/v1/nodes/n1")
    pods = [pod_of(server, chips) for chips in (0, 1)]

    def objects() -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number in range(1, count + 1):
            name = f"n{number}"
            if number > 1:
                yield f"/registry/minions/{name}", renamed(node, name, number)
            for index in range(PODS_EACH):
                made = renamed(pods[index < HOLDERS], f"p{number}-{index}", count + number * PODS_EACH + index)
                made["spec"]["nodeName"] = name
                yield f"/registry/pods/{SPACE}/{made['metadata']['name']}", made

    store = http.client.HTTPConnection(HOST, server.place.etcd_port, timeout=60)
    puts: list[dict[str, Any]] = []
    for key, found in objects():
        puts.append({"requestPut": {"key": in_base64(key), "value": in_base64(json.dumps(found))}})
        if len(puts) == PUTS:
            put(store, puts)
            puts.clear()
    put(store, puts)


def pod_of(server: KubernetesServer, chips: int) -> dict[str, Any]:
    """Returns a pod of others that runs, as the API server has it, and leaves none."""
    path = f"/api/v1/namespaces/{SPACE}/pods"
    server.call("POST", path, pod(f"first-{chips}", "n1", chips))
    ready = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]
    ran = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "theirs",
        "imageID": "theirs",
        "state": {"running": {}},
    }
    status = {"phase": "Running", "conditions": ready, "containerStatuses": [ran]}
    found = server.call("PATCH", f"{path}/first-{chips}/status", {"status": status}, kind=MERGE)
    server.call("DELETE", f"{path}/first-{chips}", {"gracePeriodSeconds": 0})
    return {"apiVersion": "v1", "kind": "Pod", **found}


def pod(name: str, node: str, chips: int) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "8Gi", **({GPU: str(chips)} if chips else {})}
    environment = [{"name": f"VARIABLE_{number}", "value": "of somebody else"} for number in range(10)]
    container = {
        "name": "main",
        "image": "theirs",
        "env": environment,
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"nodeName": node, "containers": [container], "automountServiceAccountToken": False}
    return {"metadata": {"name": name, "labels": {"app": "theirs", "team": "others"}}, "spec": spec}


def renamed(found: Mapping[str, Any], name: str, number: int) -> dict[str, Any]:
    made = copy.deepcopy(dict(found))
    made["metadata"] |= {"name": name, "uid": f"00000000-0000-4000-8000-{number:012x}"}
    del made["metadata"]["resourceVersion"]
    if "kubernetes.io/hostname" in made["metadata"].get("labels", {}):
        made["metadata"]["labels"]["kubernetes.io/hostname"] = name
    return made


def put(store: http.client.HTTPConnection, puts: list[dict[str, Any]]) -> None:
    store.request("POST", "/v3/kv/txn", body=json.dumps({"success": puts}))
    answer = store.getresponse()
    told = answer.read()
    assert answer.status == 200, told[:500]


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# ---------------------------------------------------------------- changes


def changed_node(number: int, nodes: int) -> tuple[int, bool]:
    """Returns the node of a change, and whether it is done there, or undone."""
    return number % nodes + 1, number // nodes % 2 == 0


def make_changes(url: str, token: str, authority: str, nodes: int, seconds: int) -> None:
    """Makes them, in a process of their own; prints when each was answered."""
    trust = ssl.create_default_context(cafile=authority)
    begun_s = time.monotonic()
    host = url.removeprefix("https://")

    def write(writer: int) -> list[tuple[int, float]]:
        connection = http.client.HTTPSConnection(host, context=trust, timeout=30)
        answered = []
        for number in range(writer, seconds * RATE, WRITERS):
            time.sleep(max(0.0, begun_s + number / RATE - time.monotonic()))
            method, path, body = change(number, nodes)
            kind = MERGE if method == "PATCH" else "application/json"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
            connection.request(method, path, body=json.dumps(body), headers=headers)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status in (200, 201), told[:500]
            answered.append((number, time.monotonic()))
        return answered

    with ThreadPoolExecutor(WRITERS) as pool:
        print(json.dumps([one for some in pool.map(write, range(WRITERS)) for one in some]))


def change(number: int, nodes: int) -> tuple[str, str, dict[str, Any]]:
    node, done = changed_node(number, nodes)
    if node % 2:
        return "PATCH", f"/api/v1/nodes/n{node}", {"spec": {"unschedulable": done}}
    path, name = f"/api/v1/namespaces/{SPACE}/pods", f"more-{node}"
    if done:
        return "POST", path, pod(name, f"n{node}", 1)
    return "DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0}


# ---------------------------------------------------------------- looks


def look(kubeconfig: str, nodes: int) -> None:
    """Holds an engine and looks, until its input ends; says when all nodes are there, and what it saw at its end."""
    access = read_kubeconfig(Path(kubeconfig), "", environment=os.environ, clock=SystemClock())
    cluster = KubernetesCluster(name=ClusterName("cloud"), image="none", simulated=True)
    engine = KubernetesEngine(cluster, Api("cloud", lambda: access), environment={}, clock=SystemClock())
    begun_s = time.monotonic()
    shown: dict[str, object] = {}
    while len(shown) < nodes:
        with suppress(Unavailable):
            shown = {node.name: node for node in engine.inventory().nodes}
    print(json.dumps(time.monotonic() - begun_s), flush=True)
    sys.stdin.readline()
    begun_s, spent_s = time.monotonic(), time.process_time()
    seen: list[tuple[int, bool, float]] = []
    ended: list[bool] = []
    waiting = ThreadPoolExecutor(1).submit(sys.stdin.readline)
    waiting.add_done_callback(lambda _: ended.append(True))
    next_s = begun_s
    while not ended:
        found = engine.inventory()
        at_s = time.monotonic()
        for node in found.nodes:
            if shown[node.name] is not node:
                shown[node.name] = node
                held = node.foreign_chip_milli > HOLDERS * MILLI
                seen.append((int(node.name[1:]), held or node.condition is NodeCondition.CORDONED, at_s))
        next_s = max(next_s + LOOK_S, at_s)
        time.sleep(next_s - at_s)
    cpu = (time.process_time() - spent_s) / (time.monotonic() - begun_s)
    print(json.dumps({"seen": seen, "cpu": cpu, "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024}))


def lags(answered: list[tuple[int, float]], seen: list[tuple[int, bool, float]], nodes: int) -> list[float]:
    """Returns how long each change took to be shown: 0 where it was before its writer had the answer."""
    by_node: dict[int, list[tuple[bool, float]]] = {}
    for node, done, at_s in seen:
        by_node.setdefault(node, []).append((done, at_s))
    found = []
    for number, answered_s in sorted(answered):
        node, done = changed_node(number, nodes)
        shown = by_node.get(node, [])
        while shown and shown[0][0] is not done:
            shown.pop(0)
        assert shown, f"change {number} of node n{node} was never shown"
        found.append(max(0.0, shown[0][1] - answered_s))
    return found


def measure(folder: Path, nodes: int, seconds: int) -> dict[str, float]:
    first = KubernetesNodes(count=1, chips=CHIPS, labels=LABELS)
    with KubernetesServer(folder / "server", nodes=[first]) as server:
        for program in ("kube-scheduler", "kube-controller-manager"):
            server.kill(program)
        begun_s = time.monotonic()
        fill(server, nodes)
        print(f"{nodes} nodes, {nodes * PODS_EACH} pods: {time.monotonic() - begun_s:.0f} s", flush=True)
        time.sleep(SETTLE_S)
        loops = [loop_s()]
        looker = spawn("--look", str(server.place.kubeconfig), str(nodes))
        assert looker.stdin is not None
        assert looker.stdout is not None
        try:
            figures = {"sync_s": float(looker.stdout.readline())}
            print(f"all nodes shown: {figures['sync_s']:.1f} s", flush=True)
            time.sleep(SETTLE_S)
            looker.stdin.write("begin\n")
            looker.stdin.flush()
            place = server.place
            writer = spawn("--write", place.url, place.token, str(place.authority), str(nodes), str(seconds))
            answered = json.loads(writer.communicate()[0])
            time.sleep(SETTLE_S)
            told = json.loads(looker.communicate("end\n")[0])
        finally:
            looker.kill()
        loops.append(loop_s())
    taken = sorted(lags(answered, told["seen"], nodes))
    rate = len(answered) / (max(at_s for _, at_s in answered) - min(at_s for _, at_s in answered))
    return figures | {
        "lag_median_s": statistics.median(taken),
        "lag_p99_s": taken[int(0.99 * (len(taken) - 1))],
        "rss_mib": told["rss_mib"],
        "cpu": told["cpu"],
        "changes_per_s": rate,
        "loop_s": statistics.median(loops),
    }


def spawn(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.kubernetes_inventory", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_NODES} nodes, {QUICK_CHANGES_S} s of changes")
    parser.add_argument("--look", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        return look(given.look[0], int(given.look[1]))
    if given.write:
        return make_changes(*given.write[:3], *map(int, given.write[3:]))
    nodes, seconds = (QUICK_NODES, QUICK_CHANGES_S) if given.quick else (NODES, CHANGES_S)
    run("kubernetes-inventory", kubernetes_missing(), lambda folder: measure(folder, nodes, seconds))
    return None


if __name__ == "__main__":
    main()
