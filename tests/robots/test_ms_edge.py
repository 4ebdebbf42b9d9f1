"""`ms-edge` as a process against a server on a socket; what it imports and weighs; plain clients of DDI over HTTP."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from mainspring.domain.answers import ActionState, NewInstallation, NewRobot
from mainspring.domain.release import RELEASE
from tests.robots.agents_world import Served
from tests.robots.fleet_world import HAND

SRC = Path(__file__).parents[2] / "src"
BROUGHT = (
    "tuf",
    "securesystemslib",
    "cryptography",
    "cffi",
    "pycparser",
    "urllib3",
)  # All that `mainspring-edge` needs.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "server")
    yield made
    made.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a robot has installed: nothing but `BROUGHT`, and the files of ours that are imported."""
    folder = tmp_path_factory.mktemp("site")
    for name in BROUGHT:
        for file in distribution(name).files or ():
            if file.suffix != ".pyc" and ".." not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), folder / file)
    for stray in [str(path) for path in Path(str(distribution("cffi").locate_file(""))).glob("_cffi_backend*")]:
        shutil.copy(stray, folder)
    return folder


def edge(site: Path, folder: Path, *words: str) -> list[str]:
    code = f"import sys; sys.path[:0] = [{str(site)!r}, {str(SRC)!r}]; from mainspring.app.edge.main import main"
    return [sys.executable, "-I", "-S", "-c", f"{code}; sys.exit(main())", "--folder", str(folder), *words]


def run(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(edge(site, folder, *words), capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_agent_is_enrolled_installs_is_killed_and_goes_back_by_hand_without_network(
    served: Served, site: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "robot"
    token = served.control.robots.invite(NewRobot(name="arm-1")).secret
    assert "This is robot arm-1" in run(site, folder, "enrol", served.url, token).stdout
    assert run(site, folder, "enrol", served.url, "nonsense").returncode == 5
    assert "no file" in run(site, folder, "run").stderr
    plain = {"action": [{"name": "hand", "unit": "m"}]}
    config = {"command": ["/bin/sleep", "600"], "limits": {"healthy_s": 0.5}, "fits": plain}
    (folder / "edge.json").write_text(json.dumps(config))

    def install(release: str, *, kill: bool) -> None:
        served.control.robots.install("arm-1", NewInstallation(release=release))
        agent = subprocess.Popen(edge(site, folder, "run"), stderr=subprocess.PIPE, text=True)
        assert agent.stderr is not None
        if kill:  # At every phase in turn, as it is told.
            for line in agent.stderr:
                if " releases/" in line:
                    agent.kill()
                    agent.wait(120)
                    with suppress(AssertionError):
                        served.wait("arm-1", ActionState.DONE, seconds=0.0)
                        return
                    return install_on()
        served.wait("arm-1", ActionState.DONE)
        agent.terminate()
        agent.communicate(timeout=120)

    def install_on() -> None:
        agent = subprocess.Popen(edge(site, folder, "run"), stderr=subprocess.DEVNULL)
        served.wait("arm-1", ActionState.DONE)
        agent.terminate()
        agent.wait(120)

    first = subprocess.Popen(edge(site, folder, "run"), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120.0
    while served.control.robots.show("arm-1").report is None:
        assert time.monotonic() < until
        Event().wait(0.1)
    first.terminate()
    first.wait(120)
    served.publish(b"one" * 1_000_000)
    install("arm@1", kill=False)
    assert served.control.robots.show("arm-1").report.fits == HAND  # type: ignore[union-attr]
    served.publish(b"two", b"more")
    install("arm@2", kill=True)
    told = json.loads(run(site, folder, "status").stdout)
    assert (told["runs"], told["before"]) == ("releases/arm.2.json", "releases/arm.1.json")
    assert (folder / "slots" / "b" / "weights" / "1").read_bytes() == b"more"
    run(site, folder, "tally", "--success", "yes")
    run(site, folder, "tally", "--success", "no", "--safety-stops", "1")
    served.server.should_exit = True
    assert "Next to run: releases/arm.1.json" in run(site, folder, "back").stdout
    told = json.loads(run(site, folder, "status").stdout)
    counted = told["counted"][0]
    assert (told["runs"], counted["episodes"], counted["safety_stops"]) == ("releases/arm.1.json", 2, 1)


@pytest.mark.slow
def test_agent_needs_few_modules_and_sixty_megabytes(site: Path) -> None:
    path = f"import sys; sys.path[:0] = [{str(site)!r}, {str(SRC)!r}]; import json, mainspring.app.edge.main"
    names = "[name.split('.')[0] for name in sys.modules]"
    files = "[str(module.__file__) for name, module in sys.modules.items() if name.startswith('mainspring')]"
    code = f"{path}; print(json.dumps({names} + {files}))"
    seen = json.loads(subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True).stdout)
    assert not {"numpy", "sqlalchemy", "fastapi", "pydantic", "av", "typer", "rich", "httpx"} & set(seen)
    listed = tomllib.loads((SRC.parent / "edge" / "pyproject.toml").read_text())
    held = listed["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].values()
    assert sorted(held) == sorted({path.removeprefix(f"{SRC}/") for path in seen if path.startswith(str(SRC))})
    assert listed["project"]["version"] == RELEASE
    own = sum(Path(path).stat().st_size for path in {path for path in seen if path.startswith(str(SRC))})
    brought = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert own + brought <= 60e6, f"{(own + brought) / 1e6:.1f} MB"


# ---------------------------------------------------------------- plain clients of DDI


class Plain:
    """A plain client of DDI, written from hawkBit's specification."""

    def __init__(self, served: Served, name: str = "panel") -> None:
        self.token = served.control.robots.invite(NewRobot(name=name, plain=True)).secret
        headers = {"Authorization": f"TargetToken {self.token}"}
        self.http = httpx.Client(trust_env=False, headers=headers)
        self.base = f"{served.url}/DEFAULT/controller/v1/{name}"

    def get(self, url: str = "", **words: Any) -> Any:
        answer = self.http.get(url or self.base, **words)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, url: str, execution: str, finished: str = "none") -> int:
        status = {"execution": execution, "result": {"finished": finished}, "details": ["a word"]}
        return self.http.post(f"{url}/feedback", json={"status": status}).status_code


@pytest.mark.slow
def test_plain_client_of_ddi_installs_confirms_and_cancels_as_hawkbit_has_it(served: Served) -> None:
    client = Plain(served)
    served.publish(b"image" * 1_000)
    assert set(client.get()["_links"]) == {"configData"}
    told = client.http.put(f"{client.base}/configData", json={"mode": "merge", "data": {"hwRevision": "2"}})
    assert (told.status_code, served.control.robots.show("panel").attributes) == (200, {"hwRevision": "2"})
    served.control.robots.install("panel", NewInstallation(release="arm", confirm=True))
    waits = client.get()["_links"]["confirmationBase"]["href"]
    assert client.get(waits)["confirmation"]["chunks"][0]["name"] == "arm"
    assert client.http.post(f"{waits}/feedback", json={"confirmation": "confirmed"}).status_code == 200
    href = client.get()["_links"]["deploymentBase"]["href"]
    deployment = client.get(href)["deployment"]
    (artifact,) = deployment["chunks"][0]["artifacts"]
    link, image = artifact["_links"]["download-http"]["href"], b"image" * 1_000
    assert artifact["hashes"]["sha1"] == hashlib.sha1(image, usedforsecurity=False).hexdigest()
    part = client.http.get(link, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, b"image", "bytes 5-9/5000")
    assert client.http.get(link, headers={"Range": "bytes=9000-"}).status_code == 416
    assert client.http.get(link).content == image
    md5 = hashlib.md5(image, usedforsecurity=False).hexdigest()
    assert client.http.get(artifact["_links"]["md5sum-http"]["href"]).text.split() == [md5, artifact["filename"]]
    assert client.say(href, "proceeding") == 200
    assert client.say(href, "closed", "success") == 200
    assert client.say(href, "closed", "success") == 410
    assert "installedBase" in client.get()["_links"]
    served.control.robots.install("panel", NewInstallation(release="arm"))
    again = client.get()["_links"]["deploymentBase"]["href"]
    client.get(again)
    served.control.robots.cancel("panel")
    stop = client.get()["_links"]["cancelAction"]["href"]
    assert client.get(stop)["cancelAction"]["stopId"] == again.rpartition("/")[2]
    assert client.say(stop, "closed", "success") == 200
    assert served.control.robots.actions("panel")[0].state is ActionState.CANCELLED


@pytest.mark.slow
def test_strangers_are_told_nothing_and_gateways_enter_plain_clients(served: Served) -> None:
    client = Plain(served)
    for wrong in ("", "TargetToken x", "GatewayToken x", f"Bearer {client.token}", f"GatewayToken {client.token}"):
        assert httpx.get(client.base, headers={"Authorization": wrong}, trust_env=False).status_code == 401
    gateway = {"Authorization": f"GatewayToken {served.control.robots.gateway().secret}"}
    other = client.base.replace("panel", "stranger")
    assert httpx.get(other, headers=gateway, trust_env=False).status_code == 200
    assert served.control.robots.show("stranger").maker == "a gateway"
    served.robot("arm-1")  # One that has a key of its own is not entered for by a gateway.
    assert httpx.get(client.base.replace("panel", "arm-1"), headers=gateway, trust_env=False).status_code == 401
    for body in (b"", b"[]", b"{}", b'{"status": {}}', b'{"status": {"execution": "closed"}}', b"\xff"):
        answer = client.http.post(f"{client.base}/deploymentBase/1/feedback", content=body)
        assert answer.status_code in (400, 404)
    assert client.http.get(f"{client.base}/deploymentBase/99999999999999999999").status_code == 404
