"""The server's entry program: `python -m mainspring.app.server --home FOLDER --socket FD`, started by `ms up`.

Joins the adapters to the ports: which store, which engines, which objects.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from mainspring.app.arrivals import Inboxes, Reader
from mainspring.app.home import Home, url_of
from mainspring.app.system import SystemClock, SystemDice
from mainspring.control import Caller, Control, TokenRole, open_store
from mainspring.control.server import Server
from mainspring.domain.errors import MainspringError, NotFound
from mainspring.domain.job import LAB
from mainspring.domain.team import Team
from mainspring.engines.local import LocalCluster, LocalEngine

AGENT_COMMAND = (sys.executable, "-m", "mainspring.app.agent")


def main() -> int:
    """Serves one home folder until told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(description="Runs the Mainspring server of one home folder.")
    parser.add_argument("--home", type=Path, required=True, help="home folder")
    parser.add_argument("--socket", type=int, required=True, help="number of the open socket to serve on")
    words = parser.parse_args()
    try:
        serve(Home(words.home), socket.socket(fileno=words.socket))
    except MainspringError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def serve(home: Home, listener: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        home: The home folder.
        listener: A socket that listens.

    Raises:
        Conflict: Another controller leads the same store.
    """
    config = home.config()
    clock = SystemClock()
    control = Control(
        store=open_store(home.database_url(config)),
        engines={
            cluster.name: LocalEngine(
                cluster,
                root=home.engines / cluster.name,
                agent_command=AGENT_COMMAND,
                environment=agent_environment(os.environ, cluster),
                clock=clock,
            )
            for cluster in config.clusters
        },
        clock=clock,
        dice=SystemDice(),
        controller_url=url_of(listener),
        objects_url=home.objects_url(config),
        key=home.key(SystemDice()),
        policy=home.policy(),
    )
    try:
        home.token()
    except NotFound:
        control.set_team(Team(name=LAB), Caller(role=TokenRole.ADMIN, team=LAB))
        home.write_token(control.issue_token(role=TokenRole.ADMIN, team=LAB))
    inboxes = Inboxes(home.arrivals)
    reader = Reader(inboxes, home.objects_url(config))
    server = Server(control, listener, arrivals=inboxes)
    server.start()
    reader.start()
    try:
        server.wait()
    finally:
        reader.stop()
        server.stop()
        control.store.close()


def agent_environment(environment: Mapping[str, str], cluster: LocalCluster) -> dict[str, str]:
    """Returns what agents of a local cluster get of the server's environment.

    Args:
        environment: The server's own.
        cluster: The cluster; where chips are pretended, JAX runs on the processors.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("MAINSPRING_")}
    own = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([own, kept.get("PATH", os.defpath)])  # `python` is the one that runs Mainspring.
    if cluster.simulated or cluster.chip == "cpu":
        kept["JAX_PLATFORMS"] = "cpu"
        # Ranks share this machine's processors: XLA's threads (it reads NPROC) get each chip's share of them, no more.
        chips = cluster.nodes * cluster.chips_per_node
        kept.setdefault("NPROC", str(max(1, (os.cpu_count() or 1) // chips)))
    return kept


if __name__ == "__main__":
    sys.exit(main())
