"""The proxy of services: robots come to `/v1/services/NAME`, and stay connected whatever becomes of a replica.

It holds no token of its own: whoever comes shows one, and it asks a server with that who may come in and where the
replicas are, again and again. While no server answers it goes on with what it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http
import logging
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from mainspring.domain.errors import MainspringError, NotAllowed, NotFound
from mainspring.robots.proxy.asking import Lines, Robot
from mainspring.robots.proxy.routing import Replicas, Target

REFRESH_S = 1.0  # How old the list of replicas may be; leads report once a second.
GREET_S = 10.0  # How long a robot that comes first waits for the first replica.
SEND_S = 10.0  # A robot that never reads is hung up on.
HANDSHAKE_S = 10.0
PING_S = 20.0
CONNECTIONS_MAX = 2_000
SERVICES_MAX = 256
MESSAGE_BYTES_MAX = 24 << 20  # As policy servers take.
TRY_AGAIN, NOT_ALLOWED = 1013, 1008  # Source: RFC 6455, section 7.4.1.
_PATH = re.compile(r"/v1/services/([a-z0-9][a-z0-9._-]{0,62})/?(\?.*)?", re.IGNORECASE)
_TOKEN = re.compile(r"(?:Api-Key|Bearer) +(\S{1,16384})", re.IGNORECASE)
_strangers = logging.getLogger(f"{__name__}.strangers")
_strangers.setLevel(logging.CRITICAL)


class Directory(Protocol):
    """Who may call a service, and where its replicas are."""

    async def replicas(self, service: str, token: str) -> Sequence[Target]:
        """Returns where they are.

        Raises:
            NotAllowed: The token's holder may not call it.
            NotFound: There is no such service.
            MainspringError: Nobody can say now.
        """


@dataclass(slots=True, eq=False)
class _Service:
    """One service that robots call."""

    name: str
    replicas: Replicas = field(default_factory=Replicas)
    robots: dict[ServerConnection, str] = field(default_factory=dict)
    refreshing: asyncio.Task[None] | None = None
    told: dict[bytes, float] = field(default_factory=dict)  # Tokens that were let in, hashed, and when last.


@final
class ServiceProxy:
    """Passes robots' requests on to replicas. Made, started and stopped in one event loop.

    Args:
        directory: Says who may come in.
        monotonic_s: Seconds that never go back.
    """

    def __init__(self, directory: Directory, monotonic_s: Callable[[], float]) -> None:
        self._directory = directory
        self._monotonic_s = monotonic_s
        self._services: dict[str, _Service] = {}
        self._server: Server | None = None
        self._lines = Lines(message_bytes=MESSAGE_BYTES_MAX, monotonic_s=monotonic_s)

    @property
    def port(self) -> int:
        """Returns where it listens."""
        assert self._server is not None
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Returns how many robots there are."""
        return sum(len(one.robots) for one in self._services.values())

    @property
    def in_flight(self) -> int:
        """Returns how many requests are under way at replicas."""
        return sum(one.replicas.in_flight for one in self._services.values())

    async def start(self, listening: socket.socket, *, ssl: Any = None) -> None:
        """Listens from now on.

        Args:
            ssl: For TLS, the context of a server.
        """
        self._server = await serve(
            self._serve_robot,
            sock=listening,
            ssl=ssl,
            process_request=self._open,
            compression=None,
            max_size=MESSAGE_BYTES_MAX,
            max_queue=2,
            open_timeout=HANDSHAKE_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1.0,
            server_header=None,
            logger=_strangers,
        )

    async def stop(self) -> None:
        """Hangs up."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        for service in self._services.values():
            if service.refreshing is not None:
                service.refreshing.cancel()

    async def _open(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers those that may not come in, and what is no robot."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        named = _PATH.fullmatch(request.path)
        if named is None:
            return connection.respond(http.HTTPStatus.NOT_FOUND, "Call ws://HOST:PORT/v1/services/NAME\n")
        shown = _TOKEN.fullmatch(next(iter(request.headers.get_all("Authorization")), ""))
        if shown is None:
            words = "Show a token: Authorization: Api-Key TOKEN\n"
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, words)
        if self.connections >= CONNECTIONS_MAX:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "As many robots as the proxy takes.\n")
        name, token = named[1], shown[1]
        service = self._services.get(name)
        try:
            targets = await self._directory.replicas(name, token)
        except NotFound as error:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"{error}\n")
        except NotAllowed as error:
            return connection.respond(http.HTTPStatus.FORBIDDEN, f"{error}\n")
        except MainspringError as error:
            if service is None or _hashed(token) not in service.told:
                return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n")
        else:
            if service is None:
                if len(self._services) >= SERVICES_MAX:
                    return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many services.\n")
                service = self._services.setdefault(name, _Service(name))
            service.replicas.learn(targets)
            service.told[_hashed(token)] = self._monotonic_s()
            while len(service.told) > CONNECTIONS_MAX:
                service.told.pop(next(iter(service.told)))
        return None

    async def _serve_robot(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        named = _PATH.fullmatch(connection.request.path)
        assert named is not None
        shown = _TOKEN.fullmatch(connection.request.headers["Authorization"])
        assert shown is not None
        service = self._services.setdefault(named[1], _Service(named[1]))
        service.robots[connection] = shown[1]
        if service.refreshing is None:
            service.refreshing = asyncio.create_task(self._refresh(service))
        robot = Robot(service.replicas, self._lines)
        try:
            first = await robot.greet(GREET_S)
            if first is None:
                await connection.close(TRY_AGAIN, "no replica of the service answers yet")
                return
            await _send(connection, first)
            async for frame in connection:
                await _send(connection, await robot.ask(frame))
        except ConnectionClosed:
            pass
        finally:
            service.robots.pop(connection, None)
            await robot.close()

    async def _refresh(self, service: _Service) -> None:
        """Asks again and again where replicas are, with the token of one robot after the other, while there are any."""
        turn = 0
        while service.robots:
            await asyncio.sleep(REFRESH_S)
            tokens = list(dict.fromkeys(service.robots.values()))
            if not tokens:
                break
            turn += 1
            token = tokens[turn % len(tokens)]
            try:
                service.replicas.learn(await self._directory.replicas(service.name, token))
            except (NotAllowed, NotFound):  # It is let in no more, or the service has ended.
                service.told.pop(_hashed(token), None)
                gone = [each for each, shown in service.robots.items() if shown == token]
                for connection in gone:
                    with contextlib.suppress(ConnectionClosed):
                        await connection.close(NOT_ALLOWED, "the token may not call the service any more")
            except MainspringError:
                continue  # It goes on with what it knows.
        self._services.pop(service.name, None)


async def _send(connection: ServerConnection, frame: bytes | str) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await connection.send(frame)
    except TimeoutError:
        connection.transport.abort()


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
