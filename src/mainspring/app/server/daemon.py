"""Starting and stopping the server that belongs to a home folder, or becoming it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config, Home, ServerRecord, url_of
from mainspring.app.base.specs import read_policy
from mainspring.app.server.output import turn_over
from mainspring.app.server.store_grants import grants_of
from mainspring.app.server.telemetry.logs import last_words
from mainspring.app.server.users import require_users
from mainspring.domain.errors import Conflict, MainspringError, NotAllowed, Unavailable
from mainspring.domain.wire.telemetry import LogForm
from mainspring.domain.wire.trust import is_loopback
from mainspring.objects import check_grants, open_store

START_S_MAX = 60.0
STOP_S_MAX = 30.0
RELEASE_S_MAX = 1.0
_POLL_S = 0.05


def up(
    home: Home,
    *,
    port: int | None = None,
    policy: Path | None = None,
    shared_account: bool = False,
    backup: bool = True,
    log_format: LogForm | None = None,
) -> ServerRecord:
    """Returns where the home's server listens, starting it when it is not running.

    Args:
        port: Port to listen on; 0 picks a free one, or takes a running server's; None takes the last one used, else
            the configured one.
        policy: A planning policy to keep and start with; None leaves it as it was.
        shared_account: Whether to write to the configuration that jobs of all teams may share the server's account.
        backup: Whether the server copies its store before it changes the tables.
        log_format: How it is to say what it has to say, None for what the configuration says.

    Raises:
        Conflict: Another program holds the port, or the server is running and is to have another port, or something
            else that it reads when it starts.
        NotAllowed: It would listen beyond this machine, and nobody said that jobs may share its account; or it cannot
            run jobs as the users it is to, or the object store does not limit what agents may do.
        InvalidSpec: The configuration or the policy is wrong.
        Unavailable: The server did not start.
    """
    with home.lock():
        config = _prepared(home, policy, shared_account=shared_account)
        record = home.server()
        if record is not None and running(record, home):
            if port and port != _port_of(record):
                raise Conflict(
                    "start the Mainspring server",
                    on=f"port {port}",
                    got=f"this home's server, which is up at {record.url} (process {record.pid}, home {home.path})",
                    wanted="none that runs, for a server keeps its port until it ends",
                    next_step=f"ms down && ms up --port {port}; or use the one that runs",
                )
            return record
        return _up(home, config, port, _words(backup=backup, log_format=log_format))


def become(
    home: Home,
    *,
    port: int | None = None,
    policy: Path | None = None,
    shared_account: bool = False,
    backup: bool = True,
    log_format: LogForm | None = None,
) -> NoReturn:
    """Makes this process the home's server, for what starts and watches programs; as `up` otherwise.

    Raises:
        Conflict: The server is running already.
    """
    with home.lock():
        config = _prepared(home, policy, shared_account=shared_account)
        _require_down(home, "become the server", str(home.path))
        with _opened(home, config, port) as listener:
            listener.set_inheritable(True)
            home.write_server(ServerRecord(url=url_of(listener, config), pid=os.getpid()))
            command = [*_command(home, listener), *_words(backup=backup, log_format=log_format)]
            os.execv(command[0], command)  # What is locked here is free from then on.


def _prepared(home: Home, policy: Path | None, *, shared_account: bool) -> Config:
    """Returns the configuration, with what a start is to write to the home."""
    config = home.config()
    open_store(home.objects_url(config))  # A wrong URL is told now, and not by the first job.
    if config.traces.endpoint:
        from mainspring.app.server.telemetry.traces import require_exporter  # With all that serves.

        require_exporter(config.traces)
    if not home.config_file.exists():
        home.write_config(config)
    if policy is not None and read_policy(policy) != home.policy():
        _require_down(home, "take a planning policy", str(policy))
        home.keep_policy(policy)
    if shared_account and not config.shared_account:
        _require_down(home, "let jobs of all teams share an account", "--shared-account")
        config = replace(config, shared_account=True)
        home.write_config(config)
    home.policy()
    return config


def _words(*, backup: bool, log_format: LogForm | None) -> list[str]:
    said = ["--log-format", log_format.value] if log_format is not None else []
    return [*said] if backup else ["--no-backup", *said]


def _command(home: Home, listener: socket.socket) -> list[str]:
    fd = str(listener.fileno())
    return [sys.executable, "-m", "mainspring", "server", "--home", str(home.path), "--socket", fd]


def _require_down(home: Home, attempted: str, on: str) -> None:
    record = home.server()
    if record is not None and running(record, home):
        raise Conflict(attempted, on=on, got="a server that is running", next_step="ms down, then again")


def _require_near(config: Config) -> None:
    """Raises where people elsewhere would reach a server whose tokens any job could read."""
    hosts = [config.host, *filter(None, [urlsplit(url).hostname for url in config.public_urls])]
    far = [host for host in hosts if not is_loopback(host)]
    if far and not config.shared_account and not config.run_as:
        raise NotAllowed(
            "listen beyond this machine",
            on=far[0],
            got="jobs that run under the server's account: they can do whatever it can",
            wanted="a loopback address, or your word that whoever submits jobs may have all of that",
            next_step="ms up --shared-account, or run_as in config.yaml",
        )


def _opened(home: Home, config: Config, port: int | None) -> socket.socket:
    """Returns the socket that the server is to listen on, once all is there that it needs."""
    record = home.server()
    if port is None:
        port = _port_of(record) if record is not None else config.port
    home.certificate(config)
    _require_near(config)
    if config.run_as:
        require_users(home, config)
    grants = grants_of(config, os.environ)
    if grants is not None:
        with suppress(Unavailable):  # A store that is away is waited for by those who need it.
            check_grants(home.objects_url(config), grants)
    return _listen(config, port)


def _up(home: Home, config: Config, port: int | None, words: list[str]) -> ServerRecord:
    certificate = home.certificate(config)
    turn_over(home.log)
    with _opened(home, config, port) as listener, home.log.open("ab") as log:
        # The server inherits the open socket, so that nobody can take the port in between.
        url = url_of(listener, config)
        begun = log.tell()
        server = subprocess.Popen(
            [*_command(home, listener), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(listener.fileno(),),
        )
    home.write_server(ServerRecord(url=url, pid=server.pid))
    deadline = time.monotonic() + START_S_MAX
    with Client(url, token="", certificate=certificate) as client:
        while not _ready(client, server):
            if server.poll() is not None or time.monotonic() > deadline:
                got = _tail(home.log, begun) or _trouble(client, server)
                server.kill()
                raise Unavailable(
                    "start the Mainspring server",
                    on=url,
                    got=got,
                    next_step=f"read {home.log}",
                )
            with suppress(subprocess.TimeoutExpired):
                server.wait(_POLL_S)
    return ServerRecord(url=url, pid=server.pid)


def down(home: Home) -> bool:
    """Stops the home's server and returns whether it was running. Jobs go on; the next `up` picks them up again.

    Raises:
        Unavailable: It did not end in time.
    """
    record = home.server()
    if record is None or not running(record, home):
        return False
    with suppress(ProcessLookupError):
        process = os.pidfd_open(record.pid)
        try:
            os.kill(record.pid, signal.SIGTERM)
            ends, _, _ = select.select([process], [], [], STOP_S_MAX)
        finally:
            os.close(process)
        if not ends:
            raise Unavailable("stop the server", on=f"process {record.pid}", next_step=f"kill -9 {record.pid}")
    return True


def running(record: ServerRecord, home: Home, program: str = "server") -> bool:
    """Returns whether that process lives and is the home's server, not a later one with its number.

    Args:
        record: Where the server was.
        home: Whose it was.
        program: Or another program that runs beside it.
    """
    try:
        words = Path(f"/proc/{record.pid}/cmdline").read_bytes().split(b"\0")
        state = Path(f"/proc/{record.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    server = {b"mainspring", program.encode()} <= set(
        words
    ) or b"mainspring.app.server" in words  # The latter until 0.1.
    served = words[words.index(b"--home") + 1] if b"--home" in words[:-1] else b""
    return server and state != "Z" and os.path.realpath(served) == os.path.realpath(os.fsencode(home.path))


def _port_of(record: ServerRecord) -> int:
    """Returns the port that a server listens on.

    Args:
        record: Where it is, or was.
    """
    return int(record.url.rpartition(":")[2])


def _ready(client: Client, server: subprocess.Popen[bytes]) -> bool:
    try:
        return client.ready()
    except NotAllowed:  # Nobody could use a server whose certificate does not hold its name.
        server.kill()
        server.wait()
        raise


def _trouble(client: Client, server: subprocess.Popen[bytes]) -> str:
    """Returns what is the matter with a server that says nothing in its log, as where the disk is full."""
    if server.returncode is not None:
        return f"it ended with {server.returncode}, and no word in its log: is the disk full?"
    with suppress(MainspringError):
        return str(client.health())
    return f"no answer in {START_S_MAX:.0f} s"


def _listen(config: Config, port: int) -> socket.socket:
    """Returns a socket on the port; the threads of a server that was just killed may hold it for a moment longer."""
    from mainspring.control.connections import Tls, listen  # No other verb needs what serves.

    tls = Tls(certificate=Path(config.certificate), key=Path(config.key)) if config.certificate else None
    deadline = time.monotonic() + RELEASE_S_MAX
    while True:
        try:
            return listen(config.host, port, tls=tls)
        except Conflict as error:
            if time.monotonic() > deadline:
                raise Conflict(
                    error.attempted, on=error.on, got=error.got, next_step="ms up --port 0 takes any free port"
                ) from error
            time.sleep(_POLL_S)


def _tail(log: Path, begun: int) -> str:
    with log.open("rb") as file:
        file.seek(begun)
        lines = file.read()[-4_000:].decode(errors="replace").strip().splitlines()
    return last_words(lines[-1]) if lines else ""
