"""Debian's `swupdate` (suricatta) as a robot: takes a signed image end to end, and fails on one that is not."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from mainspring.domain.answers import ActionState, NewInstallation, NewRobot
from mainspring.domain.answers.policies.releases import ReleaseFile
from tests.robots.test_ms_edge import Served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("swupdate") or not shutil.which("openssl"),
        reason="needs swupdate and openssl: apt-get install swupdate openssl",
    ),
]
MAKE_KEY = """openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 30 -subj /CN=images
  -addext extendedKeyUsage=emailProtection"""
SIGN = """openssl cms -sign -in sw-description -out sig -signer cert.pem -inkey key.pem -outform DER -nosmimecap
  -binary"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "server")
    yield made
    made.server.should_exit = True
    made.thread.join(120)
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

    def start(self, served: Served, name: str, token: str, *, confirms: str = "") -> subprocess.Popen[bytes]:
        asks = f"-t DEFAULT -u {served.url} -i {name} -k {token} -p 1 {confirms}"
        words = ["swupdate", "-H", "board:1.0", "-k", "cert.pem", "-u", asks]
        return subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def publish(served: Served, image: bytes) -> None:
    """An image as a release of one file, whose name says to swupdate what it is."""
    file = ReleaseFile(path="image.swu", sha256=hashlib.sha256(image).hexdigest(), size_bytes=len(image))
    served.publish(image, name="image", files=(file,))


def test_swupdate_takes_an_image_end_to_end_and_fails_on_one_that_was_changed(served: Served, tmp_path: Path) -> None:
    panel = Panel(tmp_path / "panel")
    token = served.control.robots.invite(NewRobot(name="panel", plain=True)).secret
    publish(served, panel.image(b"hello\n"))
    served.control.robots.install("panel", NewInstallation(release="image"))
    device = panel.start(served, "panel", token)
    try:
        until = time.monotonic() + 180.0
        while served.control.robots.actions("panel", limit=1)[0].words != "All Chunks Installed.":
            assert time.monotonic() < until, served.control.robots.actions("panel", limit=1)
            Event().wait(0.1)
        assert served.control.robots.actions("panel", limit=1)[0].state is ActionState.OPEN  # Installed is nothing yet.
        device.terminate()
        device.wait(120)
        device = panel.start(served, "panel", token, confirms="-c 2")  # It starts anew, and says that it is well.
        served.wait("panel", ActionState.DONE, seconds=60.0)
        assert panel.installed.read_bytes() == b"hello\n"
        publish(served, panel.image(b"later\n", kept=False))
        served.control.robots.install("panel", NewInstallation(release="image"))
        served.wait("panel", ActionState.FAILED, seconds=90.0)
        assert panel.installed.read_bytes() == b"hello\n"
    finally:
        device.terminate()
        device.wait(120)
