"""The proxy of services as a process of its own: a control loop beside it would hold up robots' requests."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import final

from mainspring.app.base.async_client import AsyncClient
from mainspring.app.base.home import Home
from mainspring.app.base.system import SystemClock, raise_open_files, tune_for_serving
from mainspring.app.server.output import OutputFile
from mainspring.domain.codec import alike
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.wire.trust import is_loopback
from mainspring.robots.proxy.proxy import ServiceProxy
from mainspring.robots.proxy.routing import Target

ANSWER_S = 3.0  # A server that takes longer is away: one goes on with what is known.
CLIENTS_MAX = 256  # Tokens whose connections are kept; robots of one site mostly share one.
_log = logging.getLogger(__name__)


@final
class ServerDirectory:
    """Asks a lab's servers, as whoever shows a token.

    Args:
        servers: "URL[,URL...]".
        certificate: PEM text that they are known by besides; see `AsyncClient`.
    """

    def __init__(self, servers: str, certificate: str = "") -> None:
        self._servers, self._certificate = servers, certificate
        self._clients: OrderedDict[str, AsyncClient] = OrderedDict()

    async def replicas(self, service: str, token: str) -> Sequence[Target]:
        """Returns where a service's replicas are; see `Directory`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                told = await self._client(token).service_replicas(service)
        except TimeoutError as error:
            raise Unavailable("find the replicas of a service", on=service, got="no answer in time") from error
        return [Target(**alike(Target, one)) for one in told]

    def _client(self, token: str) -> AsyncClient:
        client = self._clients.pop(token, None) or AsyncClient(self._servers, token, certificate=self._certificate)
        self._clients[token] = client
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)
        return client


def serve_proxy(
    servers: str, *, host: str, port: int, certificate: Path | None, key: Path | None, behind_proxy: bool
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        servers: Of the lab, "URL[,URL...]".
        behind_proxy: Whether another in front speaks TLS for it.

    Raises:
        InvalidInput: Tokens would cross a network in the clear.
        Unavailable: It cannot listen there.
    """
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if certificate is None and not behind_proxy and not is_loopback(host):
        step = "give --certificate and --key, or --behind-proxy where another proxy speaks TLS for it"
        raise InvalidInput("listen beyond this machine", on=host, got="no TLS", next_step=step)
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    raise_open_files()
    tune_for_serving()
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Unavailable("listen", on=f"{host}:{port}", got=str(error), next_step="choose another --port") from error
    asyncio.run(_serve(ServerDirectory(servers), listening, context))


def main() -> int:
    """Serves beside a home's server, which starts it, until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(description="Runs the proxy of services of one home folder.")
    parser.add_argument("--home", type=Path, required=True, help="home folder")
    parser.add_argument("--socket", type=int, required=True, help="number of the open socket to serve on")
    parser.add_argument("--servers", required=True, help="the server beside it")
    words = parser.parse_args()
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    OutputFile().start()
    raise_open_files()
    tune_for_serving()
    try:
        home = Home(words.home)
        config = home.config()
        context = None
        if config.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.certificate, config.key)
        directory = ServerDirectory(words.servers, home.certificate(config))
        asyncio.run(_serve(directory, socket.socket(fileno=words.socket), context))
    except MainspringError as error:
        _log.critical("%s", error)
        return error.exit_code
    return 0


async def _serve(directory: ServerDirectory, listening: socket.socket, context: ssl.SSLContext | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    proxy = ServiceProxy(directory, SystemClock().monotonic_s)
    await proxy.start(listening, ssl=context)
    _log.info("proxy of services on port %d", proxy.port)
    await ended.wait()
    await proxy.stop()


if __name__ == "__main__":
    sys.exit(main())
