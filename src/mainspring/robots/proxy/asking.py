"""One robot's requests: each goes to a replica, and to another where none answers in time, within its deadline.

An answer is a pure function of the request and its seed, so that it may be asked for twice; what the robot gets is the
first. Frames pass through as they are: of a request only the deadline is read, and no array.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final
from urllib.parse import urlsplit

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from mainspring.domain.wire.trust import is_loopback
from mainspring.robots.proxy.routing import Replicas
from mainspring.robots.serving.wire import OURS, Refusal, read_refusal, refusal

DEADLINE_S = 10.0  # Of a robot that names none; as long as our own client waits.
CONNECT_S = 2.0
CONTEXTS_MAX = 1_024  # As many replicas as there may be of a few services at their largest.
LOOK_S = 0.02  # Between two looks whether a replica has come, where there is none.
KEYS_MAX = 1_000  # Of a request; a robot sends tens.
_LASTING = (Refusal.BAD_REQUEST, Refusal.UNSAFE_ACTION, None)  # Another replica would say the same.
_FAILED = (OSError, WebSocketException, TimeoutError)


def deadline_of(frame: bytes) -> float:
    """Returns how long a robot waits for its answer, in seconds; `DEADLINE_S` where it does not say, or not well."""
    unpacker = msgpack.Unpacker(max_buffer_size=0, strict_map_key=False)
    unpacker.feed(frame)
    try:
        for _ in range(min(unpacker.read_map_header(), KEYS_MAX)):
            if unpacker.unpack() != OURS:
                unpacker.skip()
                continue
            for _ in range(min(unpacker.read_map_header(), KEYS_MAX)):
                if unpacker.unpack() != "deadline_ms":
                    unpacker.skip()
                    continue
                told = unpacker.unpack()
                known = isinstance(told, (int, float)) and not isinstance(told, bool) and 0 < told < math.inf
                return float(told) / 1000 if known else DEADLINE_S
            break
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        pass  # The replica says what is wrong with it.
    return DEADLINE_S


@lru_cache(maxsize=CONTEXTS_MAX)
def trusting(certificate: str) -> ssl.SSLContext:
    """Returns how to speak TLS with whoever has the key of a certificate.

    Args:
        certificate: As PEM text; "" for whoever an authority of the system vouches for, by name.
    """
    if not certificate:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The key alone tells who it is.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # Though an authority has signed it, too.
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as error:
        raise OSError(f"no certificate: {error}") from error
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """How replicas are called.

    Args:
        message_bytes: The most of one message.
        monotonic_s: Seconds that never go back.
    """

    message_bytes: int
    monotonic_s: Callable[[], float]


def calling(replicas: Replicas, address: str) -> dict[str, Any]:
    """Returns how a replica is called: what it is known by, and what it is shown, which is never sent in the clear.

    Raises:
        OSError: It is gone, or its certificate is none.
    """
    target, url = replicas.target(address), urlsplit(address)
    if target is None:
        raise OSError("the replica is gone")
    how: dict[str, Any] = {"ssl": trusting(target.certificate)} if url.scheme == "wss" else {}
    if target.ticket and (how or is_loopback(url.hostname or "")):
        how["additional_headers"] = {"Authorization": f"Api-Key {target.ticket}"}
    return how


@final
class Robot:
    """One robot's lines to the replicas of its service; a replica that breaks off breaks no other line."""

    def __init__(self, replicas: Replicas, lines: Lines) -> None:
        self._replicas = replicas
        self._how = lines
        self._open: dict[str, ClientConnection] = {}
        self._stays = ""

    async def greet(self, limit_s: float) -> bytes | str | None:
        """Returns the first frame of a replica, its metadata; None where none is to be had in time."""
        end_s = self._how.monotonic_s() + limit_s
        tried: set[str] = set()
        while self._how.monotonic_s() < end_s:
            address = self._replicas.choose(tried, "", self._how.monotonic_s())
            if address is None:
                tried.clear()
                await asyncio.sleep(LOOK_S)
                continue
            tried.add(address)
            try:
                first = await self._connected(address)
            except _FAILED:
                self._replicas.failed(address, self._how.monotonic_s())
                continue
            self._stays = address
            return first
        return None

    async def ask(self, frame: bytes | str) -> bytes | str:
        """Returns the answer to a request: a replica's, or, where none is left or in time, a refusal.

        Args:
            frame: As it came.
        """
        now_s = self._how.monotonic_s
        deadline_s = deadline_of(frame) if isinstance(frame, bytes) else DEADLINE_S
        end_s, patience_s = now_s() + deadline_s, self._replicas.patience_s(deadline_s)
        asked: dict[asyncio.Task[bytes | str], str] = {}
        tried: set[str] = set()
        said = ""
        try:
            while (left_s := end_s - now_s()) > 0:
                address = self._replicas.choose(tried, self._stays, now_s())
                if address is not None:
                    tried.add(address)
                    asked[asyncio.create_task(self._once(address, frame))] = address
                elif not asked:
                    if said and read_refusal(said).reason is not Refusal.DRAINING:
                        return said  # All have said so.
                    tried.clear()  # Some may come back, or another be there.
                    await asyncio.sleep(min(LOOK_S, left_s))
                    continue
                wait_s = min(patience_s, left_s) if len(tried) < len(self._replicas.addresses) else left_s
                done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = self._judged(task, asked.pop(task))
                    if isinstance(answer, bytes) or (answer and read_refusal(answer).reason in _LASTING):
                        return answer
                    said = answer or said
        finally:
            for task, address in asked.items():
                self._give_up(task, address)
        return said or refusal(Refusal.DEADLINE_MISSED, "no replica of the service answered in time")

    async def close(self) -> None:
        """Hangs up."""
        lines = list(self._open.values())
        self._open.clear()
        for line in lines:
            line.transport.abort()

    def _judged(self, task: asyncio.Task[bytes | str], address: str) -> bytes | str:
        """Returns what a replica said, "" where it broke off."""
        try:
            answer = task.result()
        except _FAILED:
            self._replicas.failed(address, self._how.monotonic_s())
            return ""
        if isinstance(answer, bytes):
            self._stays = address
        elif read_refusal(answer).reason is Refusal.DRAINING:
            self._replicas.failed(address, self._how.monotonic_s())
        return answer

    def _give_up(self, task: asyncio.Task[bytes | str], address: str) -> None:
        """Stops waiting for a replica: its answer would be taken for that to the next request."""
        if not task.cancel() and not task.cancelled():
            task.exception()  # It came just now, and nobody waits for it.
        self._replicas.failed(address, self._how.monotonic_s())
        if (line := self._open.pop(address, None)) is not None:
            line.transport.abort()

    async def _once(self, address: str, frame: bytes | str) -> bytes | str:
        started_s = self._how.monotonic_s()
        self._replicas.begun(address)
        try:
            line = self._open.get(address)
            if line is None:
                await self._connected(address)
                line = self._open[address]
            await line.send(frame)
            answer = await line.recv()
        except _FAILED:
            self._open.pop(address, None)
            raise
        finally:
            self._replicas.over(address)
        if isinstance(answer, bytes):
            self._replicas.answered(address, self._how.monotonic_s() - started_s)
        return answer

    async def _connected(self, address: str) -> bytes | str:
        """Opens a line to a replica, and returns its first frame."""
        how: dict[str, Any] = {"compression": None, "max_size": self._how.message_bytes, "max_queue": 2}
        how |= {"open_timeout": CONNECT_S, "ping_interval": None, "close_timeout": 1.0, "proxy": None}
        how |= calling(self._replicas, address)
        line = await connect(address, **how)
        with contextlib.ExitStack() as failed:
            failed.callback(line.transport.abort)
            async with asyncio.timeout(CONNECT_S):
                first = await line.recv()
            failed.pop_all()
        self._open[address] = line
        return first
