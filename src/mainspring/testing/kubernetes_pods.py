"""A kubelet for tests: runs pods that are bound to nodes as processes of this machine, and tells the truth of them.

A container's command runs in a mount namespace of its own, where its volumes are. Its image is a folder that the test
names, or this machine. Init containers run one after the other before it, and share its volumes but those of memory;
one that fails ends the pod. What ends by a signal ends by 128 and its number, what ends while nobody looked is told as
it ended. Its log is served to the API server, as a kubelet does. No probes, no limits, no network of its own, no
sidecars. A pod one of whose volumes no driver here mounts waits. Root is needed, for the namespace.
Source: kubernetes.io/docs, "Pod Lifecycle", "Init Containers"; kubelet's `/containerLogs`.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.api.client import STRATEGIC
from mainspring.testing.kubernetes import KubernetesServer
from mainspring.testing.kubernetes_containers import UNSHARE, Container, Mount, PodImage, start_container

__all__ = ["PodImage", "PodRunner", "pods_missing"]

LOOK_S = 0.05
NO_IMAGE = "no-such-image"  # What begins so cannot be pulled.
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_INDEX = "batch.kubernetes.io/job-completion-index"
_TRY_S = 20.0


@cache
def pods_missing() -> str:
    """Returns why no pods can be run here and what to do, or nothing when they can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "root is needed, and unshare, to run pods: sudo, apt-get install util-linux"
    with TemporaryDirectory() as folder:
        words = [*UNSHARE, "mount", "--bind", folder, "/srv"]
        tried = subprocess.run(words, capture_output=True, text=True, timeout=_TRY_S, check=False)
    said = tried.stderr.strip()
    return (
        f"a mount namespace is needed to run pods: {said}; a container needs --privileged" if tried.returncode else ""
    )


@dataclass(slots=True, kw_only=True)
class _Pod:
    """One that runs here.

    Args:
        told: Its object, as it was when it came.
        begun: Containers that were started, those that run before the others first.
        kills_s: When it is ended by force, on the clock that never jumps; None while nobody ends it.
        said: Its status, as it was told last.
        evicted: For want of what its kubelet has ended it.
    """

    told: Mapping[str, Any]
    root: Path
    begun: list[Container] = field(default_factory=list)
    kills_s: float | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    evicted: str = ""

    @property
    def meta(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.told["metadata"]
        return found

    @property
    def first(self) -> list[Mapping[str, Any]]:
        """Returns the containers that run before the other one, in their order."""
        return list(self.told["spec"].get("initContainers") or ())

    @property
    def next(self) -> Mapping[str, Any] | None:
        """Returns the container to start now, None where one runs, failed, or was the last."""
        every = [*self.first, *self.told["spec"]["containers"]]
        due = len(self.begun) < len(every) and all(one.code == 0 for one in self.begun)
        return every[len(self.begun)] if due else None

    @property
    def main(self) -> Container | None:
        """Returns the one that the pod is for, once it is started."""
        return self.begun[-1] if len(self.begun) > len(self.first) else None

    @property
    def living(self) -> Container | None:
        """Returns the container that runs."""
        return self.begun[-1] if self.begun and self.begun[-1].code is None else None


@final
class PodRunner:
    """Runs the pods of one control plane, of nodes that it is told of, until it is closed.

    Args:
        folder: Where their files are.
        space: Only pods of this namespace.
        environment: Variables that every container of this machine's image has besides its own.
        images: Those of their own, by name; all others are this machine.
        clock: That of this machine.
    """

    def __init__(
        self,
        server: KubernetesServer,
        folder: Path,
        *,
        space: str,
        environment: Mapping[str, str],
        images: Mapping[str, PodImage] | None = None,
        clock: Clock,
    ) -> None:
        self._server = server
        self._clock = clock
        self._space = space
        self._folder = folder
        self._environment = dict(environment)
        self._images = dict(images or {})
        self._pods: dict[str, _Pod] = {}
        self._silent: set[str] = set()
        self._ended = Event()
        self._logs = ThreadingHTTPServer(("127.0.0.1", 0), _serve_logs(folder))
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(server.place.private / "server.pem", server.place.private / "server.key")
        self._logs.socket = trust.wrap_socket(self._logs.socket, server_side=True)
        self._threads = (Thread(target=self._run, daemon=True), Thread(target=self._logs.serve_forever, daemon=True))
        for thread in self._threads:
            thread.start()

    def serve(self, *nodes: str) -> None:
        """Tells the API server where the logs of these nodes are."""
        for node in nodes:
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.server_port}},
            }
            self._server.call("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, kind=STRATEGIC)

    def die(self, node: str) -> None:
        """Lets a node's kubelet say nothing any more, and hear nothing; what runs there goes on."""
        self._silent.add(node)

    def pid(self, job: str, index: int) -> int:
        """Returns the process of a pod's container, of an Indexed Job."""
        return next(one.process.pid for name, one in self._mains(job) if name.startswith(f"{job}-{index}-"))

    def evict(self, job: str, index: int, words: str) -> None:
        """Has a pod's kubelet end it at once, as one does that is short of something.

        Args:
            words: Of what.
        """
        pod = next(one for one in self._pods.values() if one.meta["name"].startswith(f"{job}-{index}-"))
        pod.evicted = words
        assert pod.living is not None, "a pod whose containers have ended is not evicted"
        pod.living.kill()

    def said(self, job: str) -> list[bytes]:
        """Returns what the containers of a Job's pods have written so far."""
        return [one.log.read_bytes() for _, one in self._mains(job)]

    def names(self, job: str, *, living: bool = False) -> list[str]:
        """Returns the pods of a Job whose container was ever started, or those where it lives."""
        return [name for name, one in self._mains(job) if not living or one.code is None]

    def last_words(self, job: str) -> list[str]:
        """Returns what containers of a Job's pods left as their last words."""
        return [one.message for _, one in self._mains(job)]

    def _mains(self, job: str) -> list[tuple[str, Container]]:
        found = [(str(pod.meta["name"]), pod.main) for pod in list(self._pods.values())]
        return [(name, one) for name, one in found if one is not None and name.startswith(f"{job}-")]

    def close(self) -> None:
        """Ends all that runs."""
        self._ended.set()
        self._logs.shutdown()
        for thread in self._threads:
            thread.join()
        self._logs.server_close()
        for pod in self._pods.values():
            for container in pod.begun:
                container.kill()

    # ------------------------------------------------------------ a kubelet's round

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                path = f"/api/v1/namespaces/{self._space}/pods?fieldSelector=spec.nodeName!="
                found = self._server.call("GET", path)["items"]
            except Exception:  # noqa: BLE001  (the API server is down: a kubelet waits for it)
                continue
            for pod in found:
                try:
                    self._follow(pod)
                except Unavailable:
                    continue  # It has changed, or the server is gone: the next round sees.

    def _follow(self, found: Mapping[str, Any]) -> None:
        meta, node = found["metadata"], found["spec"]["nodeName"]
        if node in self._silent:
            return
        going = "deletionTimestamp" in meta
        known = self._pods.get(meta["uid"])
        if known is None:
            if (found.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                return
            if going:  # It never began.
                self._remove(found)
                return
            self._pods[meta["uid"]] = known = _Pod(told=found, root=self._folder / meta["uid"])
        if going:
            self._end(known, float(meta.get("deletionGracePeriodSeconds") or 0))
        waits = "" if going or known.next is None else self._start(known, known.next)
        if known.living is None and known.begun and not known.begun[-1].ended:
            known.begun[-1].kill()  # What is left of its session.
            known.begun[-1].ended = self._now()
        self._tell(known, waits, going=going)
        if going and known.living is None:
            self._remove(found)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_s(), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _end(self, pod: _Pod, grace_s: float) -> None:
        """Asks a pod to end, and ends it once its grace is over."""
        now_s = self._clock.monotonic_s()
        if pod.kills_s is None and pod.living is not None:
            os.kill(pod.living.process.pid, signal.SIGTERM)
        pod.kills_s = now_s + grace_s if pod.kills_s is None else min(pod.kills_s, now_s + grace_s)
        if pod.living is not None and now_s >= pod.kills_s:
            pod.living.kill()

    def _start(self, pod: _Pod, told: Mapping[str, Any]) -> str:
        """Starts a pod's next container; returns why that waits, as a kubelet says it, or ""."""
        if told["image"].startswith(NO_IMAGE):
            return "ImagePullBackOff"
        pod.root.mkdir(parents=True, exist_ok=True)
        (pod.root / "name").write_text(pod.meta["name"])
        volumes = {one["name"]: one for one in pod.told["spec"].get("volumes") or ()}
        mounts = []
        for said in told.get("volumeMounts") or ():
            mount = self._mount(pod, volumes[said["name"]], said)
            if mount is None:
                return "ContainerCreating"
            mounts.append(mount)
        index = (pod.meta.get("annotations") or {}).get(_INDEX)
        variables = {one["name"]: one.get("value", "") for one in told.get("env") or ()}
        if index is not None:
            variables["JOB_COMPLETION_INDEX"] = index
        image = self._images.get(told["image"])
        started = start_container(
            told,
            pod.root / told["name"],
            mounts=mounts,
            environment={**({} if image is not None else self._environment), **variables},
            image=image,
            user=int((pod.told["spec"].get("securityContext") or {}).get("runAsUser") or 0),
            command=[_VARIABLE.sub(lambda one: variables.get(one[1], one[0]), word) for word in told["command"]],
        )
        started.began = self._now()
        pod.begun.append(started)
        return ""

    def _mount(self, pod: _Pod, volume: Mapping[str, Any], said: Mapping[str, Any]) -> Mount | None:
        """Returns a volume as a container has it; None where nothing here mounts such."""
        path, read_only = said["mountPath"], bool(said.get("readOnly"))
        if (empty := volume.get("emptyDir")) is not None and empty.get("medium") == "Memory":
            size = str(empty.get("sizeLimit") or "").removesuffix("i").lower()
            return Mount(path=path, memory=size, read_only=read_only)
        place = self._place(pod, volume)
        return None if place is None else Mount(path=path, source=place, read_only=read_only)

    def _place(self, pod: _Pod, volume: Mapping[str, Any]) -> Path | None:
        """Returns where the files of a volume are, None where nothing here mounts such."""
        space = f"/api/v1/namespaces/{pod.meta['namespace']}"
        if host := volume.get("hostPath"):
            return Path(str(host["path"])) if Path(host["path"]).is_dir() else None
        if claim := volume.get("persistentVolumeClaim"):
            bound = self._server.call("GET", f"{space}/persistentvolumeclaims/{claim['claimName']}")["spec"]
            found = self._server.call("GET", f"/api/v1/persistentvolumes/{bound['volumeName']}")["spec"]
            host = found.get("hostPath")
            return Path(str(host["path"])) if host else None
        place: Path = pod.root / "volumes" / volume["name"]
        if place.exists():
            return place
        files: dict[str, bytes] = {}
        if secret := volume.get("secret"):
            data = self._server.call("GET", f"{space}/secrets/{secret['secretName']}").get("data") or {}
            files = {name: base64.b64decode(text) for name, text in data.items()}
        elif told := volume.get("configMap"):
            data = self._server.call("GET", f"{space}/configmaps/{told['name']}").get("data") or {}
            files = {name: text.encode() for name, text in data.items()}
        elif "emptyDir" not in volume:
            return None
        place.mkdir(parents=True)
        place.chmod(0o777)
        for name, text in files.items():
            (place / name).write_bytes(text)
        return place

    def _tell(self, pod: _Pod, waits: str, *, going: bool) -> None:
        """Tells how a pod stands, where that has changed.

        Args:
            waits: Why its next container is not started.
        """
        first = [self._container(pod, index, waits) for index in range(len(pod.first))]
        main = self._container(pod, len(first), waits)
        failed = any(one.code for one in pod.begun) or (going and pod.living is None)
        ended = pod.main is not None and pod.main.code == 0
        phase = "Succeeded" if ended else "Failed" if failed else "Running" if pod.main is not None else "Pending"
        status = {"phase": phase, "containerStatuses": [main], **({"initContainerStatuses": first} if first else {})}
        if pod.evicted and failed:
            mark = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
            status |= {"reason": "Evicted", "message": pod.evicted, "conditions": [mark | {"message": pod.evicted}]}
        if status == pod.said:
            return
        path = f"/api/v1/namespaces/{pod.meta['namespace']}/pods/{pod.meta['name']}/status"
        self._server.call("PATCH", path, {"metadata": {"uid": pod.meta["uid"]}, "status": status}, kind=STRATEGIC)
        pod.said = status

    def _container(self, pod: _Pod, index: int, waits: str) -> dict[str, Any]:
        """Returns how a container of a pod stands."""
        told = [*pod.first, *pod.told["spec"]["containers"]][index]
        code = None
        if index < len(pod.begun):
            one = pod.begun[index]
            code = one.code
            reason = "Completed" if code == 0 else "Error"
            times = {"startedAt": one.began, "finishedAt": one.ended or None}
            over = {"exitCode": code, "reason": reason, "message": one.message, **times}
            runs = {"running": {"startedAt": one.began}}
            state = runs if code is None else {"terminated": over, "running": None}
        else:
            words = "Back-off pulling image" if waits == "ImagePullBackOff" else ""
            coming = "PodInitializing" if pod.first else "ContainerCreating"
            reason = waits if index == len(pod.begun) and waits else coming
            state = {"waiting": {"reason": reason, "message": words if reason == waits else ""}}
        return {
            "name": told["name"],
            "state": state,
            "ready": code == 0 if index < len(pod.first) else pod.main is not None and pod.main.code is None,
            "restartCount": 0,
            "image": told["image"],
            "imageID": "",
        }

    def _remove(self, found: Mapping[str, Any]) -> None:
        meta = found["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._server.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})


def _serve_logs(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Logs(BaseHTTPRequestHandler):
        """Answers as a kubelet does that is asked for a container's log."""

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].split("/")
            found = list(folder.glob("*/name")) if len(parts) == 5 and parts[1] == "containerLogs" else []
            logs = [one.parent / parts[4] / "log" for one in found if one.read_text() == parts[3]]
            path = next((one for one in logs if one.exists()), None)
            data = path.read_bytes() if path is not None else b""
            self.send_response(200 if path is not None else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Logs
