"""A real sshd on loopback, with keys, port and configuration of its own."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mainspring.testing.keeper import descendants

START_S = 10.0
SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sshd:
    """One server; `client` is the path of a configuration with which `ssh login` gets in."""

    def __init__(self, folder: Path, *, greeting: str, exports: Mapping[str, str] | None = None) -> None:
        if SSHD is None or shutil.which("ssh") is None:
            pytest.skip("needs an sshd: apt-get install openssh-server openssh-client")
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(folder / key)]
            subprocess.run(words, check=True, timeout=120)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "banner").write_text("Unauthorised use is prohibited.\n")
        # What a login shell prints comes before the command's own output, whatever the user's files say.
        profile = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in (exports or {}).items())
        (folder / "command").write_text(f'#!/bin/sh\n{profile}echo "{greeting}"\neval "$SSH_ORIGINAL_COMMAND"\n')
        (folder / "command").chmod(0o700)
        self._configuration = folder / "sshd_config"
        self._configuration.write_text(
            f"ListenAddress 127.0.0.1:{self._port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin prohibit-password\nBanner {folder}/banner\nForceCommand {folder}/command\n"
            "MaxStartups 100\n"
        )
        known = (folder / "host.pub").read_text().split()
        (folder / "known").write_text(f"[127.0.0.1]:{self._port} {known[0]} {known[1]}\n")
        self.client = folder / "client"
        self.client.write_text(
            f"Host login\n  HostName 127.0.0.1\n  Port {self._port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
            "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        )
        self.start()

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # An sshd of root wants it, and never writes there.
        assert SSHD is not None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self._configuration)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            except OSError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < deadline, "sshd does not listen"
                threading.Event().wait(0.02)
            else:
                return

    def processes(self) -> list[int]:
        """Returns the server and its sessions, without what runs in them."""
        assert self._process is not None
        found = [self._process.pid, *descendants(self._process.pid)]
        return [pid for pid in found if _name(pid).startswith("sshd")]

    def signal(self, number: signal.Signals) -> None:
        for pid in self.processes():
            os.kill(pid, number)

    def kill(self) -> None:
        """Ends the server and every session, as a machine that loses its power."""
        if self._process is not None:
            found = [self._process.pid, *descendants(self._process.pid)]
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait(START_S)
            self._process = None

    def lock_out(self) -> None:
        (self._folder / "authorized").write_text("")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except FileNotFoundError:
        return ""
