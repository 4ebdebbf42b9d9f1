"""Servers for tests: each a controller at work on a socket, all on one store and one fleet."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.app.base.system import SystemClock
from mainspring.control import AgentAccess, Control, Server, Settings, listen, open_store
from mainspring.control.connections import BoundedConnection
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

SETTINGS = Settings(interval_s=0.05, leader_lease_s=2.0)  # A machine under load may pause for a second.


class Lab:
    """Servers on one store and one fleet."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.url = f"sqlite:///{folder / 'served.db'}"
        self.servers: list[Server] = []

    def server(self, name: str, connection: type[BoundedConnection] = BoundedConnection) -> tuple[Server, Control, str]:
        listener = listen("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # Who does not read is soon noticed.
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        control = Control(
            store=open_store(self.url),
            engines=dict(self.world.clusters),
            clock=SystemClock(),
            dice=SeededDice(len(self.servers), name),
            access=AgentAccess(controller_urls=(url,), objects_url="file:///objects", key="a key"),
            settings=SETTINGS,
        )
        made = Server(control, listener, connection=connection)
        self.servers.append(made)
        return made, control, url
