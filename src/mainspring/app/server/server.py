"""The server's entry program: `python -m mainspring server --home FOLDER --socket FD`, started by `ms up`.

It is entered from `app.web`, which adds pages.

Joins the adapters to the ports: which store, which engines, which objects.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from mainspring.app.base.backups import backed_up_s, backups_in
from mainspring.app.base.home import Config, Home, url_of
from mainspring.app.base.oidc import fetch
from mainspring.app.base.system import FILES_WANTED, SystemClock, SystemDice, raise_open_files, tune_for_serving
from mainspring.app.server.arrivals import Inboxes, Reader
from mainspring.app.server.engines import Engines
from mainspring.app.server.leading.evaluations import evaluation_thread
from mainspring.app.server.leading.notices import notice_thread
from mainspring.app.server.leading.repairs import repair_thread
from mainspring.app.server.leading.rollouts import rollout_thread
from mainspring.app.server.output import OutputFile
from mainspring.app.server.programs.robots.keeping import ProxyKeeper
from mainspring.app.server.store_grants import agents_environment, grants_of
from mainspring.app.server.telemetry.logs import start_log
from mainspring.app.server.telemetry.traces import TraceThread, require_exporter
from mainspring.control import AgentAccess, Control, Settings, open_store
from mainspring.control.api_releases import request_facts
from mainspring.control.connections import BoundedConnection, Tls, bounded_by
from mainspring.control.logins import Logins
from mainspring.control.server import Server
from mainspring.control.service.metrics.home import HomeCollector
from mainspring.control.store.databases.opening import is_sqlite, parsed_url
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import MainspringError, NotFound
from mainspring.domain.ids import NAME_LENGTH_MAX
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire.telemetry import LogForm
from mainspring.objects import SharedGrants

_log = logging.getLogger(__name__)
Extend: TypeAlias = Callable[[Server], None]


def main(extend: Extend) -> int:
    """Serves one home folder until told to stop; returns the exit code.

    Args:
        extend: Adds to what the server shows, before it does.
    """
    parser = argparse.ArgumentParser(description="Runs the Mainspring server of one home folder.")
    parser.add_argument("--home", type=Path, required=True, help="home folder")
    parser.add_argument("--socket", type=int, required=True, help="number of the open socket to serve on")
    parser.add_argument("--no-backup", action="store_true", help="change the store's tables without copying it before")
    parser.add_argument("--log-format", choices=list(map(str.lower, LogForm.__members__)), help="as config.yaml's")
    words = parser.parse_args()
    OutputFile().start()
    try:
        serve(
            Home(words.home),
            socket.socket(fileno=words.socket),
            extend,
            backup=not words.no_backup,
            log_form=LogForm(words.log_format) if words.log_format else None,
        )
    except MainspringError as error:
        _log.critical("%s", error)  # The last line, which `ms up` shows.
        return error.exit_code
    return 0


def serve(
    home: Home, listener: socket.socket, extend: Extend, *, backup: bool = True, log_form: LogForm | None = None
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        listener: A socket that listens.
        extend: Adds to what the server shows, before it does.
        backup: Whether to copy the store before its tables change.
        log_form: How to say what there is to say, None for what the configuration says.

    Raises:
        Conflict: Another server works with the same store, which cannot be shared.
    """
    start_log(log_form or LogForm.TEXT, now=request_facts)
    config = home.config()
    config = replace(config, log_format=log_form or config.log_format)
    start_log(config.log_format, now=request_facts)
    require_exporter(config.traces)
    clock = SystemClock()
    back_up = backups_in(home, clock.now_s()) if backup else None
    store = open_store(home.database_url(config), back_up, owned_s=clock.now_s())
    engines = Engines(config, home, environment=agents_environment(config, os.environ), clock=clock)
    own = url_of(listener, config)
    proxy = ProxyKeeper(home, config, own, clock)
    access = _access(home, config, own, proxy.url)
    store.agree("key", access.key)
    control = Control(
        store=store,
        engines=engines.by_name,
        clock=clock,
        dice=SystemDice(),
        access=access,
        policy=home.policy(),
        settings=_settings(config),
    )
    _admit_first(home, control)
    inboxes = Inboxes(home.arrivals)
    reader = Reader(inboxes, home.objects_url(config))
    server = Server(
        control,
        listener,
        tls=Tls(certificate=Path(config.certificate), key=Path(config.key)) if config.certificate else None,
        arrivals=inboxes,
        proxied=bool(config.public_url) and not config.certificate,
        logins=Logins(control.people, config.oidc, fetch, clock) if config.oidc else None,
        connection=_connections(),
    )
    extend(server)
    server.measures.registry.register(_home_measures(home, config, inboxes, clock))
    notices, evaluations = notice_thread(control, server, config.notices), evaluation_thread(control, server)
    repairs = repair_thread(control, server, config.health)
    rollouts, traces = rollout_thread(control, server), TraceThread(control, server, config.traces, instance=own)
    tune_for_serving()
    server.heed_signals()  # Whoever waits for it to be ready may end it at once, and with it what it started.
    for part in (server, reader, notices, evaluations, repairs, rollouts, traces, proxy):
        part.start()
    try:
        server.wait()
    finally:
        for part in (proxy, evaluations, notices, repairs, rollouts, traces, server, reader):
            part.stop()
        engines.close()
        control.store.close()


def _access(home: Home, config: Config, own: str, proxy_url: str) -> AgentAccess:
    grants = grants_of(config, os.environ)
    return AgentAccess(
        controller_urls=config.public_urls or (own,),
        objects_url=home.objects_url(config),
        key=home.key(SystemDice()),
        environment_passed=config.environment_passed,
        secret_keys=home.secret_keys,
        grants=SharedGrants(grants, SystemClock()) if grants is not None else None,
        proxy_url=proxy_url,
    )


def _admit_first(home: Home, control: Control) -> None:
    """Gives whoever shares the home a token, where they have none yet."""
    try:
        home.token()
    except NotFound:
        control.people.set_team(Team(name=LAB))
        home.write_token(control.people.new_token(NewToken(holder=_owner(), team=LAB, role=TeamRole.ADMIN)).secret)


def _settings(config: Config) -> Settings:
    return Settings(
        one_line=not config.shared_account,
        run_as=config.run_as,
        limits=config.limits,
        keep=config.keep,
        notices=config.notices,
        traces=config.traces,
        care=config.health,
        log_form=config.log_format,
        robot_poll_s=config.robot_poll_s,
    )


def _connections() -> type[BoundedConnection]:
    """Returns what serves connections, as many as this process may have open; the log tells of a low limit."""
    files = raise_open_files()
    kind = bounded_by(files)
    if kind.connections_max < kind.heads_max:
        _log.warning(
            "this process may have %d files open, and so serves %d connections at once: too few for a lab of many "
            "nodes; its hard limit can be raised (LimitNOFILE=%d in a unit of systemd, or ulimit -Hn)",
            files,
            kind.connections_max,
            FILES_WANTED,
        )
    return kind


def _home_measures(home: Home, config: Config, inboxes: Inboxes, clock: Clock) -> HomeCollector:
    """Returns what tells Prometheus of the home folder and what it is served with."""
    url = parsed_url(home.database_url(config))
    return HomeCollector(
        certificate=Path(config.certificate) if config.certificate else None,
        store_folder=Path(str(url.database)).parent if is_sqlite(url) else None,
        backed_up_s=partial(backed_up_s, home, embedded=is_sqlite(url)),
        unread_s=lambda: inboxes.unread_s(clock.now_s()),
    )


def _owner() -> str:
    """Returns the name of the user who runs the server, as a token's holder."""
    name = re.sub("[^a-z0-9]+", "-", pwd.getpwuid(os.getuid()).pw_name.lower()).strip("-")
    return name[:NAME_LENGTH_MAX] or "admin"
