"""A kubelet for tests: runs pods that are bound to nodes as processes of this machine, and tells the truth of them.

A container's command runs in a mount namespace of its own, where its volumes are; its image is this machine. What
ends by a signal ends by 128 and its number, what ends while nobody looked is told as it ended. Its log is served to the
API server, as a kubelet does. No probes, no limits, no network of its own. Root is needed, for the namespace.
Source: kubernetes.io/docs, "Pod Lifecycle"; kubelet's `/containerLogs`.
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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.jobs.manifests import CONTAINER
from mainspring.testing.kubernetes import KubernetesServer

LOOK_S = 0.05
NO_IMAGE = "no-such-image"  # What begins so cannot be pulled.
_MERGE = "application/strategic-merge-patch+json"
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_INDEX = "batch.kubernetes.io/job-completion-index"
# Volumes are below one folder, which is bound over the one that they name.
_UNSHARE = ("unshare", "--mount", "--propagation", "private")
_TRY_S = 20.0
_SCRIPT = 'mount --bind "$0" "$1" && shift && exec "$@"'


@cache
def pods_missing() -> str:
    """Returns why no pods can be run here and what to do, or nothing when they can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "root is needed, and unshare, to run pods: sudo, apt-get install util-linux"
    with TemporaryDirectory() as folder:
        words = [*_UNSHARE, "sh", "-c", _SCRIPT, folder, "/srv", "true"]
        tried = subprocess.run(words, capture_output=True, text=True, timeout=_TRY_S, check=False)
    said = tried.stderr.strip()
    return (
        f"a mount namespace is needed to run pods: {said}; a container needs --privileged" if tried.returncode else ""
    )


@dataclass(slots=True, kw_only=True)
class _Pod:
    """One that runs here.

    Args:
        meta: Of its object.
        kills_s: When it is ended by force, on the clock that never jumps; None while nobody ends it.
        evicted: For want of what its kubelet has ended it.
    """

    meta: Mapping[str, Any]
    root: Path
    words: Path | None
    process: subprocess.Popen[bytes]
    kills_s: float | None = None
    told: bool = False
    evicted: str = ""


@final
class PodRunner:
    """Runs the pods of one control plane, of nodes that it is told of, until it is closed.

    Args:
        folder: Where their files are.
        space: Only pods of this namespace.
        environment: Variables that every container has besides its own.
        clock: That of this machine.
    """

    def __init__(
        self, server: KubernetesServer, folder: Path, *, space: str, environment: Mapping[str, str], clock: Clock
    ) -> None:
        self._server = server
        self._clock = clock
        self._space = space
        self._folder = folder
        self._environment = dict(environment)
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
            self._server.call("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, kind=_MERGE)

    def die(self, node: str) -> None:
        """Lets a node's kubelet say nothing any more, and hear nothing; what runs there goes on."""
        self._silent.add(node)

    def pid(self, job: str, index: int) -> int:
        """Returns the process of a pod's container, of an Indexed Job."""
        return next(one.process.pid for one in self._pods.values() if one.meta["name"].startswith(f"{job}-{index}-"))

    def evict(self, job: str, index: int, words: str) -> None:
        """Has a pod's kubelet end it at once, as one does that is short of something.

        Args:
            words: Of what.
        """
        pod = next(one for one in self._pods.values() if one.meta["name"].startswith(f"{job}-{index}-"))
        pod.evicted = words
        _kill(pod)

    def said(self, job: str) -> list[bytes]:
        """Returns what the containers of a Job's pods have written so far."""
        return [
            (one.root / "log").read_bytes()
            for one in list(self._pods.values())
            if one.meta["name"].startswith(f"{job}-")
        ]

    def names(self, job: str, *, living: bool = False) -> list[str]:
        """Returns the pods of a Job that ever ran, or those whose container lives."""
        own = [one for one in list(self._pods.values()) if one.meta["name"].startswith(f"{job}-")]
        return [one.meta["name"] for one in own if not living or one.process.poll() is None]

    def last_words(self, job: str) -> list[str]:
        """Returns what containers of a Job's pods left as their last words."""
        own = [one for one in list(self._pods.values()) if one.meta["name"].startswith(f"{job}-")]
        return [one.words.read_text() for one in own if one.words is not None]

    def close(self) -> None:
        """Ends all that runs."""
        self._ended.set()
        self._logs.shutdown()
        for thread in self._threads:
            thread.join()
        self._logs.server_close()
        for pod in self._pods.values():
            _kill(pod)

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
        known = self._pods.get(meta["uid"])
        if known is None:
            if (found.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                return
            if "deletionTimestamp" in meta:  # It never began.
                self._remove(found)
                return
            if found["spec"]["containers"][0]["image"].startswith(NO_IMAGE):
                waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
                self._tell(meta, {"waiting": waiting}, "Pending")
                return
            self._pods[meta["uid"]] = known = self._start(found)
            self._tell(meta, {"running": {"startedAt": self._now()}}, "Running")
            return
        if "deletionTimestamp" in meta:
            grace_s = float(meta.get("deletionGracePeriodSeconds") or 0)
            if known.kills_s is None and known.process.poll() is None:
                os.kill(known.process.pid, signal.SIGTERM)
            kills_s = self._clock.monotonic_s() + grace_s
            known.kills_s = kills_s if known.kills_s is None else min(known.kills_s, kills_s)
        if known.process.poll() is None and known.kills_s is not None and self._clock.monotonic_s() >= known.kills_s:
            _kill(known)
        if known.process.poll() is not None:
            if not known.told:
                _kill(known)
                self._tell_end(known)
            if "deletionTimestamp" in meta:
                self._remove(found)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_s(), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _start(self, found: Mapping[str, Any]) -> _Pod:
        meta, (container,) = found["metadata"], found["spec"]["containers"]
        root = self._folder / meta["uid"]
        root.mkdir(parents=True)
        (root / "name").write_text(meta["name"])
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container.get("volumeMounts") or ()}
        top = Path("/", *next(iter(mounts.values())).parts[1:2]) if mounts else Path("/srv")
        for volume in found["spec"].get("volumes") or ():
            if volume["name"] in mounts:
                self._fill(root / mounts[volume["name"]].relative_to(top), volume, meta["namespace"])
        words = container.get("terminationMessagePath", "")
        told = root / Path(words).relative_to(top) if words.startswith(f"{top}/") else None
        if told is not None:
            told.touch()
        index = (meta.get("annotations") or {}).get(_INDEX)
        variables = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        if index is not None:
            variables["JOB_COMPLETION_INDEX"] = index
        command = [_VARIABLE.sub(lambda one: variables.get(one[1], one[0]), word) for word in container["command"]]
        with (root / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_UNSHARE, "sh", "-c", _SCRIPT, str(root), str(top), *command],
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Pod(
            meta=meta,
            root=root,
            words=told,
            process=process,
        )

    def _fill(self, place: Path, volume: Mapping[str, Any], space: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if said := volume.get("secret"):
            found = self._server.call("GET", f"/api/v1/namespaces/{space}/secrets/{said['secretName']}")
            for name, text in (found.get("data") or {}).items():
                (place / name).write_bytes(base64.b64decode(text))
        elif said := volume.get("configMap"):
            found = self._server.call("GET", f"/api/v1/namespaces/{space}/configmaps/{said['name']}")
            for name, text in (found.get("data") or {}).items():
                (place / name).write_text(text)

    def _tell_end(self, pod: _Pod) -> None:
        code = pod.process.returncode
        code = code if code >= 0 else 128 - code
        words = pod.words.read_text()[:4_096] if pod.words is not None else ""
        over = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "message": words,
            "finishedAt": self._now(),
        }
        more: dict[str, Any] = {}
        if pod.evicted:
            mark = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
            mark["message"] = pod.evicted
            more = {"reason": "Evicted", "message": pod.evicted, "conditions": [mark]}
        self._tell(pod.meta, {"terminated": over, "running": None}, "Succeeded" if code == 0 else "Failed", **more)
        pod.told = True

    def _tell(self, meta: Mapping[str, Any], state: Mapping[str, Any], phase: str, **more: Any) -> None:
        status = {
            **more,
            "phase": phase,
            "containerStatuses": [
                {
                    "name": CONTAINER,
                    "state": state,
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "image": "this machine",
                    "imageID": "",
                }
            ],
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self._server.call("PATCH", path, {"metadata": {"uid": meta["uid"]}, "status": status}, kind=_MERGE)

    def _remove(self, found: Mapping[str, Any]) -> None:
        meta = found["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._server.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})


def _kill(pod: _Pod) -> None:
    """Ends what is left of a container: all of its session."""
    with suppress(ProcessLookupError):
        os.killpg(pod.process.pid, signal.SIGKILL)
    pod.process.wait()


def _serve_logs(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Logs(BaseHTTPRequestHandler):
        """Answers as a kubelet does that is asked for a container's log."""

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].split("/")
            found = list(folder.glob("*/log")) if len(parts) == 5 and parts[1] == "containerLogs" else []
            path = next((one for one in found if (one.parent / "name").read_text() == parts[3]), None)
            data = path.read_bytes() if path is not None else b""
            self.send_response(200 if path is not None else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Logs
