"""Debian's `swupdate` (suricatta) as a robot: takes a signed image end to end, and fails on one that is not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from mainspring.domain.answers import ActionState, NewInstallation, NewRobot, RobotActionView
from mainspring.domain.answers.policies.releases import Embodiment, ReleaseFile, ReleaseLineage
from tests.robots.agents_world import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("swupdate") or not shutil.which("openssl"),
        reason="needs swupdate and openssl: apt-get install swupdate openssl",
    ),
]
WAIT_S = 180.0
MAKE_KEY = """openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 30 -subj /CN=images
  -addext extendedKeyUsage=emailProtection"""
SIGN = """openssl cms -sign -in sw-description -out sig -signer cert.pem -inkey key.pem -outform DER -nosmimecap
  -binary"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "server")
    yield made
    made.server.should_exit = True
    made.thread.join(10.0)
    made.socket.close()


def archive(files: dict[str, bytes]) -> bytes:
    """A cpio archive with checksums. Source: cpio(5), new portable format."""
    made = b""
    for name, data in (*files.items(), ("TRAILER!!!", b"")):
        called = name.encode() + b"\0"
        numbers = [1, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(called), sum(data) & 0xFFFFFFFF]
        head = b"070702" + b"".join(b"%08X" % number for number in numbers) + called
        head += b"\0" * (-len(head) % 4)
        made += head + data + b"\0" * (-len(data) % 4)
    return made + b"\0" * (-len(made) % 512)


class Panel:
    """A device with swupdate on it, and whoever signs its images."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.installed = folder, folder / "installed.txt"
        self.sockets = Path(tempfile.mkdtemp(prefix="sw-"))  # Names of sockets are short.
        folder.mkdir()
        subprocess.run(
            MAKE_KEY.split(),
            cwd=folder,
            check=True,
            capture_output=True,
        )

    def image(self, data: bytes, *, kept: bool = True) -> bytes:
        """An image that writes a file; where it is not kept, of other bytes than were signed."""
        sha256 = hashlib.sha256(data).hexdigest()
        words = f'filename = "file"; path = "{self.installed}"; sha256 = "{sha256}";'
        text = f'software = {{ version = "1"; hardware-compatibility: [ "1.0" ]; files: ( {{ {words} }} ); }}\n'
        (self.folder / "sw-description").write_text(text)
        subprocess.run(
            SIGN.split(),
            cwd=self.folder,
            check=True,
        )
        signed = (self.folder / "sig").read_bytes()
        return archive(
            {"sw-description": text.encode(), "sw-description.sig": signed, "file": data if kept else b"evil\n"}
        )

    def start(self, served: Served, name: str, token: str, *, says: str = "") -> subprocess.Popen[bytes]:
        asks = f"-t DEFAULT -u {served.url} -i {name} -k {token} -p 1 {says}"
        words = ["swupdate", "-H", "board:1.0", "-k", "cert.pem", "-u", asks]
        own = {**os.environ, "TMPDIR": str(self.sockets)}  # Where it would meet others of this machine.
        return subprocess.Popen(words, cwd=self.folder, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def publish(served: Served, image: bytes) -> None:
    """An image as a release of one file, whose name says to swupdate what it is."""
    file = ReleaseFile(path="image.swu", sha256=hashlib.sha256(image).hexdigest(), size_bytes=len(image))
    lineage = ReleaseLineage(checkpoint="")
    served.publish(image, name="image", files=(file,), image=True, gates=(), lineage=lineage, fits=Embodiment())


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[Panel]:
    made = Panel(tmp_path / "panel")
    yield made
    shutil.rmtree(made.sockets, ignore_errors=True)


def ended(device: subprocess.Popen[bytes]) -> None:
    device.terminate()
    with suppress(subprocess.TimeoutExpired):
        device.wait(30.0)
    device.kill()
    device.wait()


def until(true: Callable[[], bool], what: Callable[[], object]) -> None:
    """Waits for what a device does: it calls again after a minute."""
    last = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < last, what()
        Event().wait(0.1)


def test_swupdate_takes_an_image_end_to_end_and_fails_on_one_that_was_changed(served: Served, panel: Panel) -> None:
    token = served.control.robots.invite(NewRobot(name="panel", plain=True)).secret
    publish(served, panel.image(b"hello\n"))
    served.control.robots.install("panel", NewInstallation(release="image"))
    device = panel.start(served, "panel", token)

    def newest() -> RobotActionView:
        return served.control.robots.actions("panel", limit=1)[0]

    try:
        until(lambda: newest().words == "All Chunks Installed.", newest)
        assert newest().state is ActionState.OPEN  # Installed is nothing yet.
        ended(device)
        device = panel.start(served, "panel", token, says="-c 2")  # It starts anew, and says that it is well.
        served.wait("panel", ActionState.DONE, seconds=WAIT_S)
        assert panel.installed.read_bytes() == b"hello\n"
        publish(served, panel.image(b"later\n", kept=False))
        served.control.robots.install("panel", NewInstallation(release="image"))
        served.wait("panel", ActionState.FAILED, seconds=WAIT_S)
        assert panel.installed.read_bytes() == b"hello\n"
    finally:
        ended(device)


@pytest.mark.parametrize(
    "restarts", [pytest.param(True, id="restarted"), pytest.param(False, id="downloading", marks=pytest.mark.soak)]
)
def test_swupdate_gives_up_what_was_cancelled_and_takes_the_next_image(
    served: Served, panel: Panel, *, restarts: bool
) -> None:
    """It looks whether it is to give up when it starts, and once a minute while a thin line brings the image."""
    token = served.control.robots.invite(NewRobot(name="panel", plain=True)).secret
    publish(served, panel.image(b"unwanted" * 400_000))
    served.control.robots.install("panel", NewInstallation(release="image"))
    device = panel.start(served, "panel", token, says="-n 20k")

    def newest() -> RobotActionView:
        return served.control.robots.actions("panel", limit=1)[0]

    try:
        until(lambda: newest().seen and "Installing" in newest().words, newest)
        asked = served.control.robots.cancel("panel")
        assert asked.state is ActionState.CANCELLING
        if restarts:
            ended(device)
            device = panel.start(served, "panel", token, says="-n 20k")
        until(lambda: newest().state is ActionState.CANCELLED, newest)
        assert not panel.installed.exists()
        ended(device)
        publish(served, panel.image(b"wanted\n"))
        served.control.robots.install("panel", NewInstallation(release="image"))
        device = panel.start(served, "panel", token)
        until(lambda: newest().words == "All Chunks Installed.", newest)
        assert panel.installed.read_bytes() == b"wanted\n"
    finally:
        ended(device)
