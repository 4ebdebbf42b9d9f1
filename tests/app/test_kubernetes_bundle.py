"""Jobs in images that have nothing of ours: no Python, no C library, variables that are for other programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.life import JobState
from mainspring.engines.kubernetes.cluster.pods import BUNDLE, PodSettings, PodVolume
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_pods import PodImage, PodRunner, pods_missing
from tests.app.conftest import until
from tests.data.catalog.s3 import moto

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.skipif(bool(MISSING), reason=MISSING)]
SPACE = "lab"
CLAIMS = f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims"
USER = 1_234
# A program of a job, by the one interpreter that there is. Variables of its image reach it, and do not reach the agent.
PROGRAM = """
import os, threading
told = [os.getuid(), os.environ["PYTHONPATH"], sorted(os.listdir("/")), os.statvfs("/dev/shm").f_blocks > 0]
print("told", told, flush=True)
with open(f"/data/rank-{os.environ['RANK']}", "w") as file:
    file.write("was here")
while not os.path.exists("/data/go"):
    threading.Event().wait(0.1)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PodImage]:
    """A bundle's image, and one in which all that a Python looks for is a trap."""
    root = tmp_path_factory.mktemp("images")
    made = root / "bundle" / BUNDLE.lstrip("/")
    made.parent.mkdir(parents=True)
    words = [sys.executable, "-m", "mainspring", "bundle", str(made), "--with"]
    unknown = subprocess.run([*words, "no-such-thing"], capture_output=True, text=True, timeout=60, check=False)
    assert (unknown.returncode, "no such distribution" in unknown.stderr, made.exists()) == (1, True, False)
    words.append("pytest")  # Which ours does not require, nor what it requires in turn.
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode != 0, "never over another"
    packages = made / "lib" / f"python3.{sys.version_info.minor}"
    assert [name for name in ("pytest", "pluggy", "iniconfig") if not (packages / name).is_dir()] == []
    trap = root / "bare" / "app"
    trap.mkdir(parents=True)
    for name in ("json.py", "httpx.py", "libc.so.6"):
        (trap / name).write_text("raise SystemExit('a trap')")
    variables = {"PYTHONPATH": "/app", "PYTHONHOME": "/app", "LD_LIBRARY_PATH": "/app", "PATH": "/app"}
    return {"bundle": PodImage(root=root / "bundle"), "bare": PodImage(root=root / "bare", environment=variables)}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that a PersistentVolume stands for."""
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The variables by which the server, whose shell has them, and agents, whose image has, reach an S3 store."""
    (tmp_path / "s3").mkdir()
    with moto(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield dict(server.environment)


@pytest.fixture
def server(
    tmp_path: Path, disk: Path, images: dict[str, PodImage], store: dict[str, str]
) -> Iterator[KubernetesServer]:
    nodes = KubernetesNodes(count=2, chips=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    bare = images["bare"]
    given = {**images, "bare": replace(bare, environment={**bare.environment, **store})}
    with KubernetesServer(tmp_path / "kubernetes", nodes=[nodes]) as started:
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        started.make_space(SPACE, enforced)
        shared = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {"metadata": {"name": "disk"}, "spec": {**shared, "hostPath": {"path": str(disk)}}}
        started.call("POST", "/api/v1/persistentvolumes", volume)
        runner = PodRunner(started, tmp_path / "pods", space=SPACE, environment={}, images=given, clock=SystemClock())
        runner.serve("n1", "n2")
        yield started
        runner.close()


def claim_disk(server: KubernetesServer, mode: str) -> None:
    """Makes the claim that jobs have as /data."""
    wanted = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": [mode], "storageClassName": ""}
    server.call("POST", CLAIMS, {"metadata": {"name": "robot-data"}, "spec": wanted})
    server.wait(
        lambda: server.call("GET", f"{CLAIMS}/robot-data")["status"].get("phase") == "Bound", "kube-controller-manager"
    )


def lab_of(server: KubernetesServer, folder: Path, *, bundle: str = "bundle") -> Lab:
    """Returns a lab of one cluster, whose jobs have nothing but a trap, and a volume."""
    made = Lab(folder / "home")
    cluster = settings_on(
        server,
        namespace=SPACE,
        image="bare",
        bundle=bundle,
        user=USER,
        pods=PodSettings(volumes={"data": PodVolume(path="/data", claim="robot-data")}),
    )
    made.home.write_config(Config(clusters=(cluster,), objects="s3://lab/objects"))
    made.up(port=0)
    return made


def checked(lab: Lab) -> dict[str, dict[str, str]]:
    """Returns what a look at the cluster's set-up finds, by step."""
    program = str(Path(sys.executable).with_name("ms"))
    words = [program, "--home", str(lab.home.path), "cluster", "check", "cloud", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return {one["name"]: one for one in json.loads(done.stdout)}


def test_job_runs_in_an_image_of_nothing_by_a_bundle_with_its_user_and_its_volume(
    server: KubernetesServer, disk: Path, tmp_path: Path
) -> None:
    claim_disk(server, "ReadWriteMany")
    disk.chmod(0o777)
    lab = lab_of(server, tmp_path)
    try:
        found = checked(lab)
        assert {one["standing"] for one in found.values()} == {"ok"}, json.dumps(found)
        assert found["claims and accounts"]["found"] == "robot-data"
        assert found["volumes"]["found"] == "/data"
        words = [f"{BUNDLE}/bin/python3", "-I", "-c", PROGRAM]
        view = lab.run(job("hello", words, on=["h100"], replicas=2))
        said = f"told [{USER}, '/app', ['app', 'data', 'dev', 'etc', 'proc', 'srv'], True]"
        until(lambda: said in b"".join(lab.logs(view.id)).decode(), "a rank to tell", wait_s=120)
        (disk / "go").touch()
        done = lab.wait(view.id, timeout_s=60)
        assert done.state is JobState.SUCCEEDED, done.reason
        assert [path.stat().st_uid for path in sorted(disk.glob("rank-*"))] == [USER, USER]
    finally:
        lab.down()


def test_look_at_a_set_up_tells_what_pods_lack(server: KubernetesServer, disk: Path, tmp_path: Path) -> None:
    lab = lab_of(server, tmp_path)
    try:
        found = checked(lab)
        assert "no PersistentVolumeClaim robot-data in lab" in found["claims and accounts"]["found"]
        assert found["image"]["standing"] == "skipped"
        claim_disk(server, "ReadWriteMany")
        disk.chmod(0o700)
        found = checked(lab)
        assert found["claims and accounts"]["standing"] == found["Mainspring in a pod"]["standing"] == "ok"
        assert found["volumes"]["standing"] == "failed"
        assert f"user {USER} cannot use /data" in found["volumes"]["found"]
    finally:
        lab.down()
    without = lab_of(server, tmp_path / "without", bundle="bare")
    try:
        found = checked(without)
        assert "its container bundle failed" in found["image"]["found"]
        assert "No such file or directory" in found["image"]["found"]
    finally:
        without.down()
