"""The policy server: openpi's protocol over websockets, bounded, with what robots need beside it under one key.

One thread speaks to robots, another computes (`batching`). A connection has one request under way at a time, as its
robot waits for the answer. What a request is worth is decided here (tokens, rates, deadlines); which chunk it gets is
not.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.http11 import Request, Response

from mainspring.domain.errors import InvalidInput, InvalidMessage
from mainspring.domain.ports import Clock, Dice
from mainspring.robots.serving.admission import Admission
from mainspring.robots.serving.batching import Batcher, NoChunk
from mainspring.robots.serving.guards import ActionLimits
from mainspring.robots.serving.kept import KeptRequests
from mainspring.robots.serving.metrics import ServingMetrics
from mainspring.robots.serving.policy import ServedPolicy, asked_from
from mainspring.robots.serving.wire import OURS, Refusal, pack, refusal, unpack

_log = logging.getLogger(__name__)
_strangers = logging.getLogger(f"{__name__}.strangers")  # A traceback for every handshake that is none.
_strangers.setLevel(logging.CRITICAL)

PROTOCOL = 1  # Of what is ours in a message.
SPARE_CONNECTIONS = 64  # Beyond the robots', for health checks and metrics.
PING_S = 20.0  # A robot that is gone without a word is noticed after twice that.
SEEDS_BITS = 31
INVALID_DATA, GOING_AWAY = 1003, 1001  # Source: RFC 6455, section 7.4.1.
DEADLINE_MS_MAX = 600_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """What a server takes.

    Args:
        message_bytes: Of one message: three pictures of 1080p fit.
        connections: Robots at once.
        waiting: Requests that wait for the policy, over all robots.
        requests_per_s: Of one robot, over any length of time; a control loop asks for a chunk once in several steps.
        burst: Requests of one robot at once.
        send_s: How long a robot may take to read an answer; one that never reads is hung up on.
        handshake_s: How long somebody may take to say that it is a robot.
    """

    message_bytes: int = 24 << 20
    connections: int = 1_000
    waiting: int = 1_000
    requests_per_s: float = 100.0
    burst: int = 100
    send_s: float = 10.0
    handshake_s: float = 10.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: One is not positive.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 < value < math.inf:
                raise InvalidInput("bound a policy server", on=each.name, got=str(value), wanted="more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """How a server does, as its session is told it."""

    ready: bool
    in_flight: int
    answered: int
    missed: int


@final
class PolicyServer:
    """Serves a policy from one event loop. Made there; `swap` may be called from any thread.

    Args:
        policy: Warmed up.
        clock: Of deadlines and measurements.
        dice: Of the seeds of requests that name none.
        admission: Who may come in, None for everybody.
        limits: What it takes.
        actions: The robot's limits, None where nobody knows them.
        kept: Where requests are kept whose robots ask for that, None for nowhere.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        *,
        clock: Clock,
        dice: Dice,
        admission: Admission | None = None,
        limits: ServeLimits | None = None,
        actions: ActionLimits | None = None,
        kept: KeptRequests | None = None,
    ) -> None:
        self.limits = limits or ServeLimits()
        self.metrics = ServingMetrics()
        self._clock = clock
        self._dice = dice
        self._admission = admission
        self._kept = kept
        self._batcher = Batcher(
            policy,
            limits=actions,
            waiting_max=self.limits.waiting,
            monotonic_s=clock.monotonic_s,
            told=self.metrics.computed,
        )
        self.metrics.version.set(1)
        self._state = _State()

    @property
    def serving(self) -> ServerLoad:
        """Returns how it does."""
        state = self._state
        return ServerLoad(
            ready=state.server is not None and not state.draining and not self._batcher.hangs,
            in_flight=state.in_flight,
            answered=self.metrics.answered,
            missed=self.metrics.missed,
        )

    @property
    def port(self) -> int:
        """Returns where it listens, once it does."""
        assert self._state.server is not None
        port: int = next(iter(self._state.server.sockets)).getsockname()[1]
        return port

    @property
    def policy_version(self) -> int:
        """Returns how many policies were in use so far."""
        return self._batcher.version

    @property
    def connections(self) -> int:
        """Returns how many there are, whether robots' or not."""
        return self._state.connections

    async def start(self, listening: socket.socket, *, ssl: Any = None) -> None:
        """Listens from now on.

        Args:
            listening: Bound, and not yet listening: robots that come before this are refused, and try again.
            ssl: For TLS, the context of a server.
        """
        state = self._state
        self._batcher.start()
        state.server = await serve(
            self._serve_robot,
            sock=listening,
            ssl=ssl,
            process_request=self._open,
            create_connection=_bounded(state, self.limits.connections + SPARE_CONNECTIONS),
            compression=None,
            max_size=self.limits.message_bytes,
            max_queue=2,  # A robot waits for its answer: more is a flood, and stays in its own socket.
            open_timeout=self.limits.handshake_s,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1.0,
            server_header=None,
            logger=_strangers,
        )

    async def stop(self, *, drain_s: float) -> None:
        """Takes no more requests, answers those under way, and hangs up.

        Args:
            drain_s: How long that may take.
        """
        state = self._state
        assert state.server is not None
        state.draining = True
        if state.in_flight:
            state.idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await state.idle.wait()
        state.server.close(code=GOING_AWAY, reason="the server ends")
        await state.server.wait_closed()
        self._batcher.close()
        if self._kept is not None:
            self._kept.close()

    def swap(self, policy: ServedPolicy) -> int:
        """Puts another policy in use, from the next batch on; returns its version.

        Args:
            policy: Warmed up; it may have other weights, and other chunks.
        """
        version = self._batcher.swap(policy)
        self.metrics.version.set(version)
        _log.info("policy %d is in use: %s", version, policy.facts.name)
        return version

    def _open(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers what is no robot, and those that may not come in."""
        if request.path == "/healthz":
            if self.serving.ready:
                return connection.respond(http.HTTPStatus.OK, "OK\n")
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "draining, or the policy hangs\n")
        if self._admission is not None and not self._admission.admits(request.headers.get_all("Authorization")):
            words = "Show a token: Authorization: Api-Key TOKEN\n"
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, words)
        if request.path == "/metrics":
            response = connection.respond(http.HTTPStatus.OK, self.metrics.text().decode())
            response.headers["Content-Type"] = "text/plain; version=0.0.4; charset=utf-8"
            return response
        if self._state.draining:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "The server ends.\n")
        if self._state.robots >= self.limits.connections:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "As many robots as the server takes.\n")
        return None

    async def _serve_robot(self, connection: ServerConnection) -> None:
        state = self._state
        if state.robots >= self.limits.connections:  # Others came in while its handshake was under way.
            await connection.close(GOING_AWAY, "as many robots as the server takes")
            return
        state.robots += 1
        self.metrics.connections.set(state.robots)
        try:
            await self._converse(connection)
        except ConnectionClosed:
            pass
        except Exception:
            _log.exception("a robot's connection failed")
            raise
        finally:
            state.robots -= 1
            self.metrics.connections.set(state.robots)

    async def _converse(self, connection: ServerConnection) -> None:
        now = self._clock.monotonic_s
        allowance = _Allowance(self.limits, now())
        await self._send(connection, pack(self._metadata()))
        before_ms: float | None = None
        async for frame in connection:
            came_s = now()
            if isinstance(frame, str):
                await self._send(connection, refusal(Refusal.BAD_REQUEST, "got a text frame; wanted msgpack"))
                await connection.close(INVALID_DATA, "a text frame")
                return
            self._begin()
            try:
                answer, readable = await self._answer(frame, allowance, came_s, before_ms)
                await self._send(connection, answer)
            finally:
                self._end()
            before_ms = (now() - came_s) * 1000
            if not readable:
                await connection.close(INVALID_DATA, "no message that can be read")
                return

    def _begin(self) -> None:
        self._state.in_flight += 1
        self.metrics.in_flight.set(self._state.in_flight)

    def _end(self) -> None:
        self._state.in_flight -= 1
        self.metrics.in_flight.set(self._state.in_flight)
        if not self._state.in_flight:
            self._state.idle.set()

    async def _send(self, connection: ServerConnection, message: bytes | str) -> None:
        try:
            async with asyncio.timeout(self.limits.send_s):
                await connection.send(message)
        except TimeoutError:  # It never reads: no closing handshake would reach it, either.
            connection.transport.abort()
            raise ConnectionClosedError(None, None) from None

    def _metadata(self) -> dict[str, Any]:
        facts = self._batcher.policy.facts
        ours = {
            "protocol": PROTOCOL,
            "policy": facts.name,
            "policy_version": self._batcher.version,
            "real_time_chunking": facts.guided,
            "horizon": facts.horizon,
            "action_dim": facts.action_dim,
        }
        return {**facts.metadata, OURS: ours}

    async def _answer(
        self, frame: bytes, allowance: _Allowance, came_s: float, before_ms: float | None
    ) -> tuple[bytes | str, bool]:
        """Returns the answer to a request, and whether it could be read at all."""
        try:
            return await self._drawn(frame, allowance, came_s, before_ms), True
        except NoChunk as error:
            if error.reason is Refusal.DEADLINE_MISSED:
                self.metrics.late()
            self.metrics.refused(error.reason)
            return refusal(error.reason, str(error)), True
        except InvalidInput as error:
            self.metrics.refused(Refusal.BAD_REQUEST)
            return refusal(Refusal.BAD_REQUEST, str(error)), not isinstance(error, InvalidMessage)

    async def _drawn(self, frame: bytes, allowance: _Allowance, came_s: float, before_ms: float | None) -> bytes:
        if self._state.draining:
            raise NoChunk(Refusal.DRAINING, "the server ends; ask another")
        if not allowance.take(came_s):
            words = f"over {self.limits.requests_per_s:g} a second; ask less often"
            raise NoChunk(Refusal.TOO_MANY_REQUESTS, words)
        message = unpack(frame)
        asked = asked_from(message, seed=self._dice.bits(SEEDS_BITS))
        ours = message.get(OURS, {})
        deadline_s = came_s + _deadline_s(ours)
        drawn = await self._batcher.draw(asked, deadline_s=deadline_s)
        total_s = self._clock.monotonic_s() - came_s
        late_ms = max(0.0, (came_s + total_s - deadline_s) * 1000)
        if late_ms:
            self.metrics.late()
        self.metrics.sent(total_s)
        timing = {"infer_ms": drawn.computed_s * 1000}
        if before_ms is not None:
            timing["prev_total_ms"] = before_ms
        told: dict[str, Any] = {
            "policy_version": drawn.version,
            "policy": drawn.name,
            "seed": asked.seed,
            "waited_ms": drawn.waited_s * 1000,
            "batch": drawn.batch,
            "late_ms": late_ms,
        }
        if self._kept is not None and ours.get("keep") is True:
            self._kept.keep(frame, {**told, "at": self._clock.now_s(), "actions": drawn.chunk_TA})
        return pack({"actions": drawn.chunk_TA, "server_timing": timing, OURS: told})


@dataclass(slots=True, kw_only=True, eq=False)
class _State:
    """What changes while a server serves."""

    server: Server | None = None
    draining: bool = False
    robots: int = 0
    connections: int = 0
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


@final
class _Allowance:
    """How often a robot may still ask: a bucket that fills at its rate."""

    def __init__(self, limits: ServeLimits, now_s: float) -> None:
        self._rate, self._most = limits.requests_per_s, float(limits.burst)
        self._left, self._then_s = self._most, now_s

    def take(self, now_s: float) -> bool:
        """Returns whether there is one more."""
        self._left = min(self._most, self._left + (now_s - self._then_s) * self._rate)
        self._then_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _deadline_s(ours: Mapping[str, Any]) -> float:
    """Returns how long a robot waits for its chunk, from when its request came; infinity where it does not say."""
    deadline_ms = ours.get("deadline_ms")
    if deadline_ms is None:
        return math.inf
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, (int, float)):
        deadline_ms = math.nan
    if not 0 < deadline_ms <= DEADLINE_MS_MAX:
        raise InvalidInput(
            "read an observation",
            on="deadline_ms",
            got=str(ours["deadline_ms"])[:80],
            wanted=f"milliseconds from when it is sent, up to {DEADLINE_MS_MAX:g}",
        )
    return float(deadline_ms) / 1000


def _bounded(state: _State, most: int) -> type[ServerConnection]:
    """Returns the class of connections of which there are never more than so many; one more is hung up on at once."""

    class Bounded(ServerConnection):
        def connection_made(self, transport: Any) -> None:
            state.connections += 1
            super().connection_made(transport)
            if state.connections > most:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            state.connections -= 1
            super().connection_lost(exc)

    return Bounded
