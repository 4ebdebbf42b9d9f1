"""Serves a policy to robots: `python -m mainspring serve SOURCE`, alone or as a rank of a service.

As a rank it joins its agent, and tells it once a second how it does. It takes no more requests once it is asked to
stop, or gets SIGTERM, and answers those under way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from mainspring.app.base.system import SystemClock, SystemDice, raise_open_files, tune_for_serving
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.robots.serving.functions import FunctionPolicy, function_named
from mainspring.robots.serving.guards import read_limits
from mainspring.robots.serving.kept import KeptRequests
from mainspring.robots.serving.policy import ServedPolicy, warm
from mainspring.robots.serving.server import PolicyServer, ServeLimits
from mainspring.session import Session, join

PORT = 8000  # Source: openpi, `serve_policy.py`.
TELL_S = 1.0
TOKENS_MAX = 1_000
_log = logging.getLogger(__name__)


def main() -> int:
    """Serves until it is told to end; returns the exit code."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    words = arguments_of(sys.argv[1:])
    try:
        return asyncio.run(serve(words))
    except MainspringError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns what a command says.

    Args:
        arguments: Its words, after the name of the program.
    """
    bounds = ServeLimits()
    parser = argparse.ArgumentParser(prog="python -m mainspring serve", description="Serves a policy to robots.")
    parser.add_argument("source", help="MODULE:FUNCTION")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; else only on this machine")
    parser.add_argument("--port", type=int, default=PORT, help="0 for any that is free")
    parser.add_argument("--address", default="", help="how robots reach it, where that is not HOST:PORT")
    parser.add_argument("--token-file", type=Path, default=None, help="tokens, one a line; robots show one of them")
    parser.add_argument("--certificate", type=Path, default=None, help="serve TLS with this certificate")
    parser.add_argument("--key", type=Path, default=None, help="and this key")
    parser.add_argument("--behind-proxy", action="store_true", help="a proxy in front speaks TLS for it")
    parser.add_argument("--limits", type=Path, default=None, help="the robot's limits: a JSON file of low and high")
    parser.add_argument("--batched", type=int, default=None, metavar="N", help="the function takes up to N at once")
    parser.add_argument("--connections", type=int, default=bounds.connections, help="robots at once")
    parser.add_argument("--rate", type=float, default=bounds.requests_per_s, help="requests a second, of one robot")
    parser.add_argument("--message-mib", type=float, default=bounds.message_bytes / (1 << 20), help="of one request")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for requests whose robots ask to keep them")
    parser.add_argument("--keep-files", type=int, default=100, help="so many, the newest")
    parser.add_argument("--drain", type=float, default=10.0, help="seconds for requests under way when it ends")
    return parser.parse_args(arguments)


async def serve(words: argparse.Namespace) -> int:
    """Serves a policy until the program is told to end.

    Args:
        words: The command's.

    Raises:
        MainspringError: The policy, or where to listen, cannot be what the command says.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    session = await asyncio.to_thread(join)
    clock = SystemClock()
    tokens = _tokens(words.token_file)
    context = _tls(words)
    _check_open(words, tokens)
    listening = _bound(words.host, words.port)
    policy = await asyncio.to_thread(_policy, words)
    server = PolicyServer(
        policy,
        clock=clock,
        dice=SystemDice(),
        tokens=tokens,
        limits=ServeLimits(
            message_bytes=int(words.message_mib * (1 << 20)),
            connections=words.connections,
            requests_per_s=words.rate,
            burst=max(1, int(words.rate)),
        ),
        actions=None if words.limits is None else read_limits(words.limits),
        kept=None if words.keep is None else KeptRequests(words.keep, files=words.keep_files),
    )
    raise_open_files()
    tune_for_serving()
    await server.start(listening, ssl=context)
    host = f"[{words.host}]" if ":" in words.host else words.host
    address = words.address or f"{'ws' if context is None else 'wss'}://{host}:{server.port}"
    _log.info("serving %s on %s", policy.facts.name, address)
    telling = asyncio.create_task(_tell(session, server, address, ended))
    await ended.wait()
    await telling
    await server.stop(drain_s=words.drain)
    _log.info("served %d chunks, %d late", server.serving.answered, server.serving.missed)
    return 0


async def _tell(session: Session, server: PolicyServer, address: str, ended: asyncio.Event) -> None:
    """Tells the session how the server does, until it is to end, and then that it leaves."""
    while True:
        told = server.serving
        try:
            stops = session.serving(
                address,
                ready=told.ready and not ended.is_set(),
                in_flight=told.in_flight,
                answered=told.answered,
                missed=told.missed,
            )
        except Unavailable as error:  # Its agent is gone; robots are still there, until the engine ends the rank.
            _log.warning("%s", error)
            stops = False
        if ended.is_set():
            return
        if stops:
            ended.set()
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                await ended.wait()


def _policy(words: argparse.Namespace) -> ServedPolicy:
    if words.batched is not None and words.batched < 1:
        raise InvalidInput("serve a policy", on="--batched", got=str(words.batched), wanted="at least 1")
    policy = FunctionPolicy(function_named(words.source), name=words.source, batch_max=words.batched)
    warm(policy)
    return policy


def _tokens(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise InvalidInput("read tokens", on=str(path), got=str(error), wanted="a token a line") from error
    tokens = [line for line in lines if line]
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise InvalidInput("read tokens", on=str(path), got=f"{len(tokens)} tokens", wanted=f"1 to {TOKENS_MAX}")
    return tokens


def _check_open(words: argparse.Namespace, tokens: Sequence[str]) -> None:
    """Checks that nobody listens in, or comes in unasked, where others than this machine's programs can.

    Raises:
        InvalidInput: They could.
    """
    try:
        private = ip_address(words.host).is_loopback
    except ValueError:
        private = words.host == "localhost"
    if private:
        return
    if not tokens:
        step = "give --token-file FILE"
        raise InvalidInput("listen beyond this machine", on=words.host, got="no tokens", next_step=step)
    if words.certificate is None and not words.behind_proxy:
        step = "give --certificate and --key, or --behind-proxy where a proxy speaks TLS for it"
        raise InvalidInput("listen beyond this machine", on=words.host, got="no TLS", next_step=step)


def _tls(words: argparse.Namespace) -> Any:
    if words.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(words.certificate, words.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput("read a certificate", on=str(words.certificate), got=str(error)) from error
    return context


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that has its address already, and refuses whoever comes until the server listens."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
    except (OSError, OverflowError) as error:
        raise Unavailable("listen", on=f"{host}:{port}", got=str(error), next_step="choose another --port") from error
    return listening


if __name__ == "__main__":
    sys.exit(main())
