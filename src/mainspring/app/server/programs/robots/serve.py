"""Serves a policy to robots: `python -m mainspring serve SOURCE`, alone or as a rank of a service.

A source is a job's checkpoint (`JOB` or `JOB@STEP`, in the store that `--objects` names), a release by the hash of what
it says (`release:SHA256`, there too), the release in a slot of a robot (`slot:FOLDER`), a function of Python
(`MODULE:FUNCTION`) or a folder that LeRobot saved a policy in (`lerobot:FOLDER`).
As a rank it joins its agent, and tells it once a second how it does. There it listens where other nodes reach it, in
TLS with a key of its own where that is a network, and asks for tickets made from the secret that its agent gave it.
It takes no more requests once it is asked to stop, or gets SIGTERM, and answers those under way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mainspring.app.base.system import SystemClock, SystemDice, raise_open_files, tune_for_serving
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.job import FILE_SUFFIX
from mainspring.domain.wire.tickets import SERVICE_SECRET
from mainspring.domain.wire.trust import is_loopback
from mainspring.node.net.certificates import SEED_BYTES, load_key, self_signed
from mainspring.node.process.environment import HOST_VARIABLE
from mainspring.robots.serving.admission import Admission
from mainspring.robots.serving.following import REST_S, follow
from mainspring.robots.serving.guards import read_limits
from mainspring.robots.serving.kept import KeptRequests
from mainspring.robots.serving.policies.functions import FunctionPolicy, function_named
from mainspring.robots.serving.policy import ServedPolicy, warm
from mainspring.robots.serving.server import PolicyServer, ServeLimits
from mainspring.session import Session, join

PORT = 8000  # Source: openpi, `serve_policy.py`.
NEAR = "127.0.0.1"
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
TELL_S = 1.0
FOLLOW_S = 5.0  # A job saves once in minutes.
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
    parser.add_argument("source", help="JOB, JOB@STEP, release:SHA256, slot:FOLDER, MODULE:FUNCTION or lerobot:FOLDER")
    parser.add_argument("--objects", default="", help="URL of the object store, for the checkpoints of a job")
    parser.add_argument("--follow", action="store_true", help="put the job's newer checkpoints in use as they come")
    parser.add_argument("--every", type=float, default=FOLLOW_S, help="seconds between two looks for newer ones")
    parser.add_argument("--tokenizer", type=Path, default=None, help="SentencePiece file, for policies told in words")
    parser.add_argument("--cache", type=Path, default=None, help="folder for compiled programs")
    parser.add_argument(
        "--host", default="", help=f"where to listen; else {NEAR}, and a rank where its node is reached"
    )
    parser.add_argument("--port", type=int, default=PORT, help="0 for any that is free")
    parser.add_argument("--address", default="", help="how robots reach it, where that is not HOST:PORT")
    parser.add_argument("--token-file", type=Path, default=None, help="tokens, one a line; robots show one of them")
    parser.add_argument("--certificate", type=Path, default=None, help="serve TLS with this certificate")
    parser.add_argument("--key", type=Path, default=None, help="and this key")
    parser.add_argument("--behind-proxy", action="store_true", help="a proxy in front speaks TLS for it")
    parser.add_argument("--limits", type=Path, default=None, help="the robot's limits: a JSON file of low and high")
    parser.add_argument(
        "--batched", type=int, default=None, metavar="N", help="observations at once; a function takes a list then"
    )
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
    words.host = words.host or os.environ.get(HOST_VARIABLE, NEAR)
    admission = Admission(tokens=_tokens(words.token_file), secret=_secret(os.environ), now_s=clock.now_s)
    check_open(words, admission)
    tls = _tls(words)
    listening = _bound(words.host, words.port)
    source = await asyncio.to_thread(_opened, words)
    policy = source.policy
    server = PolicyServer(
        policy,
        clock=clock,
        dice=SystemDice(),
        admission=admission,
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
    await server.start(listening, ssl=tls.context)
    host = f"[{words.host}]" if ":" in words.host else words.host
    address = words.address or f"{'ws' if tls.context is None else 'wss'}://{host}:{server.port}"
    _log.info("serving %s on %s", policy.facts.name, address)
    telling = asyncio.create_task(_tell(session, server, _Address(url=address, certificate=tls.certificate), ended))
    following = None
    if words.follow and source.load is not None and source.newest is not None:
        following = asyncio.create_task(
            follow(server, begun=source.step, newest=source.newest, load=source.load, every_s=words.every)
        )
    await ended.wait()
    if following is not None:
        following.cancel()
    await telling
    await server.stop(drain_s=words.drain)
    _log.info("served %d chunks, %d late", server.serving.answered, server.serving.missed)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """Where robots reach it, and the certificate that it shows there, "" for none."""

    url: str
    certificate: str


async def _tell(session: Session, server: PolicyServer, address: _Address, ended: asyncio.Event) -> None:
    """Tells the session how the server does, until it is to end, and then that it leaves."""
    while True:
        told = server.serving
        try:
            stops = session.serving(
                address.url,
                ready=told.ready and not ended.is_set(),
                in_flight=told.in_flight,
                answered=told.answered,
                missed=told.missed,
                certificate=address.certificate,
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """A policy that is warm, and where others of its kind come from.

    Args:
        step: Of its weights, 0 where they have none.
    """

    policy: ServedPolicy
    step: int = 0
    newest: Callable[[], int] | None = None
    load: Callable[[int], ServedPolicy] | None = None


def _opened(words: argparse.Namespace) -> _Source:
    """Returns what the command's source names, warmed up; may take minutes.

    Raises:
        MainspringError: It names nothing, or what it names cannot be served.
    """
    if words.batched is not None and words.batched < 1:
        raise InvalidInput("serve a policy", on="--batched", got=str(words.batched), wanted="at least 1")
    kind, _, rest = words.source.partition(":")
    if rest and words.follow:
        raise InvalidInput("follow a job", on=words.source, got="no job", next_step="leave --follow out")
    if kind == "lerobot" and rest:
        from mainspring.robots.serving.policies.lerobot import (
            open_lerobot,
        )  # Who serves another policy needs no PyTorch.

        source = _Source(policy=open_lerobot(Path(rest), batch_max=words.batched or 1))
    elif kind == "release" and rest:
        source = _Source(policy=_released(words, rest))
    elif kind == "slot" and rest:
        source = _Source(policy=_in_slot(words, Path(rest)))
    elif rest:
        named = function_named(words.source)
        source = _Source(policy=FunctionPolicy(named, name=words.source, batch_max=words.batched))
    else:
        source = _trained(words)
    warm(source.policy)
    return source


def _released(words: argparse.Namespace, sha256: str) -> ServedPolicy:
    from mainspring.robots.serving.policies.released import load_release  # See `_trained`.
    from mainspring.robots.serving.policies.trained import BATCH_MAX
    from mainspring.session import open_named_store
    from mainspring.session.jax_distributed import keep_compiled

    keep_compiled(words.cache)
    with tempfile.TemporaryDirectory(prefix="mainspring-release-") as folder:
        batch_max = words.batched or BATCH_MAX
        store = open_named_store(_objects(words))
        return load_release(store, sha256, Path(folder), tokenizer=words.tokenizer, batch_max=batch_max)


def _in_slot(words: argparse.Namespace, folder: Path) -> ServedPolicy:
    from mainspring.robots.serving.policies.released import load_slot  # See `_trained`.
    from mainspring.robots.serving.policies.trained import BATCH_MAX
    from mainspring.session.jax_distributed import keep_compiled

    keep_compiled(words.cache)
    return load_slot(folder, tokenizer=words.tokenizer, batch_max=words.batched or BATCH_MAX)


def _objects(words: argparse.Namespace) -> str:
    if not words.objects:
        advice = "give --objects URL, the lab's object store, or MODULE:FUNCTION"
        raise InvalidInput("find a policy", on=words.source, got="a job and no store", next_step=advice)
    url: str = words.objects
    return url


def _trained(words: argparse.Namespace) -> _Source:
    name, _, step_text = words.source.partition("@")
    url = _objects(words)
    if step_text and (words.follow or not step_text.isdecimal()):
        wanted = "JOB, to follow it" if words.follow else "JOB@STEP, the step a number"
        raise InvalidInput("find a policy", on=words.source, got=f"step {step_text}", wanted=wanted)
    # Who serves a function needs neither a store nor JAX.
    from mainspring.robots.serving.policies.trained import BATCH_MAX, load_policy, newest_step
    from mainspring.session import open_named_store
    from mainspring.session.jax_distributed import keep_compiled

    store, job = open_named_store(url), JobId(name)
    newest = partial(newest_step, store, job)

    def load(step: int, rest: Callable[[], object] | None = None) -> ServedPolicy:
        batch_max = words.batched or BATCH_MAX
        return load_policy(store, job, step, tokenizer=words.tokenizer, batch_max=batch_max, rest=rest)

    keep_compiled(words.cache)
    step = int(step_text) if step_text else newest()
    rest = partial(threading.Event().wait, REST_S)
    return _Source(policy=load(step), step=step, newest=newest, load=partial(load, rest=rest))


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


def _secret(environment: Mapping[str, str]) -> str:
    """Returns the secret that the agent of a replica gave it, "" where there is none."""
    path = environment.get(f"{SERVICE_SECRET}{FILE_SUFFIX}", "")
    try:
        return Path(path).read_text() if path else ""
    except (OSError, ValueError) as error:
        raise InvalidInput("read a replica's secret", on=path, got=str(error)) from error


def check_open(words: argparse.Namespace, admission: Admission) -> None:
    """Checks that nobody listens in, or comes in unasked, where others than this machine's programs can.

    Raises:
        InvalidInput: They could.
    """
    if is_loopback(words.host):
        return
    if admission.open:
        step = "give --token-file FILE"
        raise InvalidInput("listen beyond this machine", on=words.host, got="no tokens", next_step=step)
    if words.certificate is None and not words.behind_proxy and not admission.by_ticket:
        step = "give --certificate and --key, or --behind-proxy where a proxy speaks TLS for it"
        raise InvalidInput("listen beyond this machine", on=words.host, got="no TLS", next_step=step)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tls:
    """How it speaks TLS, None where it does not; and, where it is a replica, the certificate that callers trust."""

    context: ssl.SSLContext | None = None
    certificate: str = ""


def _tls(words: argparse.Namespace) -> _Tls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if words.certificate is not None:
        try:
            context.load_cert_chain(words.certificate, words.key)
            found = CERTIFICATE.search(words.certificate.read_text())
        except (OSError, ValueError, ssl.SSLError) as error:
            raise InvalidInput("read a certificate", on=str(words.certificate), got=str(error)) from error
        return _Tls(context=context, certificate=found[0] if found else "")
    if words.behind_proxy or is_loopback(words.host):
        return _Tls()
    key = Ed25519PrivateKey.from_private_bytes(SystemDice().bits(8 * SEED_BYTES).to_bytes(SEED_BYTES, "big"))
    certificate = self_signed(key, "mainspring replica 1")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load_key(context, key, certificate)
    return _Tls(context=context, certificate=certificate)


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
