"""The proxy of services beside its server, under one address for as long as the home has a server, whatever dies."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Event, Thread
from typing import final

from mainspring.app.base.home import Config, Home, ServerRecord, url_of
from mainspring.app.server.daemon import running
from mainspring.app.server.output import turn_over
from mainspring.domain.errors import MainspringError
from mainspring.domain.ports import Backoff, Clock
from mainspring.domain.wire.trust import is_loopback

PROGRAM = "proxy"
LOOK_S = 1.0
STOP_S = 5.0  # It hangs up on robots within one.
AGAIN = Backoff(first_s=0.5, cap_s=30.0)  # One that ends at once would be started for ever.
STEADY_S = 60.0  # One that ran for so long has not ended at once.
BACKLOG = 1_024  # Robots that call while it is started anew: half of those that it takes.
_log = logging.getLogger(__name__)


@final
class ProxyKeeper:
    """Runs the proxy as a process of its own once somebody calls, and again when it dies.

    Its socket is opened before: robots that call while there is no process wait, and are not refused. A proxy that
    outlived the server before this one is kept, and its robots with it.

    Args:
        server: This server's own address.
    """

    def __init__(self, home: Home, config: Config, server: str, clock: Clock) -> None:
        self._home, self._config, self._server = home, config, server
        self._log = home.path / "proxy.log"
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_s = 0.0
        self._failed = 0
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="mainspring-proxy", daemon=True)
        before = home.server(PROGRAM)
        self._adopted = before if before is not None and running(before, home, PROGRAM) else None
        self._listening = None if self._adopted else self._opened(before)
        assert self._adopted or self._listening
        self.url = self._adopted.url if self._adopted else self._named(self._listening)
        """Where robots call it: the address of a service is this and its path."""

    def start(self) -> None:
        """Looks after it from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it: robots that it spoke with are hung up on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        pid = self._process.pid if self._process is not None else self._adopted.pid if self._adopted else 0
        if pid:
            _end(pid)
        if self._listening is not None:
            self._listening.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except (OSError, MainspringError) as error:
                _log.warning("the proxy of services waits: %s", error)
                self._stopping.wait(AGAIN.cap_s)

    def _look(self) -> None:
        """Waits for a moment, or for somebody who calls while there is no proxy."""
        if self._alive():
            self._stopping.wait(LOOK_S)
            return
        self._listening = self._listening or self._opened(self._adopted)
        self._adopted = None
        if self._failed:
            self._stopping.wait(AGAIN.wait_s(self._failed))
        calls, _, _ = select.select([self._listening], [], [], LOOK_S)
        if calls and not self._stopping.is_set():
            self._begin()

    def _alive(self) -> bool:
        if self._process is None:
            return self._adopted is not None and running(self._adopted, self._home, PROGRAM)
        ended = self._process.poll()
        if ended is None:
            return True
        lasted = self._clock.monotonic_s() - self._begun_s > STEADY_S
        self._failed = 0 if lasted else self._failed + 1
        _log.warning("the proxy of services ended with %d; see %s", ended, self._log)
        self._process = None
        return False

    def _begin(self) -> None:
        listening = self._listening
        assert listening is not None
        turn_over(self._log)
        words = ["--home", str(self._home.path), "--socket", str(listening.fileno()), "--servers", self._server]
        self._begun_s = self._clock.monotonic_s()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mainspring", PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(listening.fileno(),),
            )
        self._home.write_server(ServerRecord(url=self.url, pid=self._process.pid), PROGRAM)

    def _opened(self, before: ServerRecord | None) -> socket.socket:
        """Returns a socket at the address that it had, else at the configured port, else at any that is free."""
        host = self._config.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ports = [int(before.url.rpartition(":")[2])] if before is not None and not self._fronted else []
        for port in (*ports, self._config.proxy_port):
            with suppress(OSError):
                return socket.create_server((host, port), family=family, backlog=BACKLOG)
        return socket.create_server((host, 0), family=family, backlog=BACKLOG)

    def _named(self, listening: socket.socket | None) -> str:
        assert listening is not None
        near = self._config.public_urls[0] if self._fronted else url_of(listening, self._config)
        return near.replace("http", "ws", 1)

    @property
    def _fronted(self) -> bool:
        """Returns whether a proxy of the site is in front, under whose address robots call."""
        urls = self._config.public_urls
        return bool(urls) and not self._config.certificate and not is_loopback(urls[0].split("//")[1].split(":")[0])


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGTERM)
            if not select.select([process], [], [], STOP_S)[0]:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(process)
