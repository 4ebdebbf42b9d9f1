"""A rank's side of the talk with its agent: blocking, one question at a time, safe from several threads."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from mainspring.domain import codec, wire
from mainspring.domain.errors import InvalidInput, InvalidMessage, Unavailable
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.session.arena import ArenaMap, lay_out, map_bytes
from mainspring.session.blocks import Block, Restored, block_in

REPORT_EVERY_S = 0.1  # Ten reports a second show progress to people and cost a fast loop nothing.
ANSWER_LIMIT_S = 60.0  # An agent answers in under a millisecond; past this it is stuck, and says so by silence.
SLOT_LIMIT_S = 600.0  # The agent itself gives up waiting for room earlier.

Answer = TypeVar("Answer")

ALONE = wire.Welcome(
    job=JobId(""),
    attempt=AttemptId(""),
    role=RoleName("main"),
    rank=0,
    world_size=1,
    local_rank=0,
    generation=0,
    coordinator="",
    arena_path="",
)


@final
class Session:
    """One rank's place in its job, and its line to the agent. Made by `join`.

    Without an agent the session stands alone: rank 0 of 1, reports, snapshots and results go nowhere, nothing restores.

    Args:
        socket_path: The agent's Unix socket, "" to stand alone.
        pid: This process.
        stopwatch: Seconds that never go back.

    Raises:
        Unavailable: The agent does not answer.
    """

    def __init__(self, socket_path: str, *, pid: int, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._welcome = ALONE
        self._stop = wire.StepReply()
        self._waiting: wire.StepReport | None = None
        self._reported_s = -math.inf
        self._blocked_s = 0.0
        if socket_path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(ANSWER_LIMIT_S)
            try:
                self._socket.connect(socket_path)
            except OSError as error:
                raise Unavailable("reach the agent", on=socket_path, got=str(error)) from error
            self._welcome = self._ask(wire.Hello(pid=pid), wire.Welcome)
        self._arena = ArenaMap(self._welcome.arena_path)

    @property
    def job(self) -> JobId:
        """Returns the job's id, "" when standing alone."""
        return self._welcome.job

    @property
    def attempt(self) -> AttemptId:
        """Returns the attempt's id, "" when standing alone."""
        return self._welcome.attempt

    @property
    def role(self) -> RoleName:
        """Returns the role this rank belongs to."""
        return self._welcome.role

    @property
    def rank(self) -> int:
        """Returns this rank's place in its role, from 0."""
        return self._welcome.rank

    @property
    def world_size(self) -> int:
        """Returns how many ranks the role has."""
        return self._welcome.world_size

    @property
    def local_rank(self) -> int:
        """Returns this rank's place among the role's ranks on its node, from 0."""
        return self._welcome.local_rank

    @property
    def generation(self) -> int:
        """Returns which membership of ranks this is; it grows with every restart."""
        return self._welcome.generation

    @property
    def coordinator(self) -> str:
        """Returns "host:port" of the JAX coordination service, "" when there is none."""
        return self._welcome.coordinator

    @property
    def stop_requested(self) -> bool:
        """Returns whether the program should save and exit with `EXIT_PREEMPTED`; learnt with each report sent.

        Ranks may learn it at different steps: a program whose ranks work in lockstep must agree on the step first.
        """
        return self._stop.stop

    @property
    def grace_s(self) -> float:
        """Returns how long the program has once a stop is requested, from when it was learnt."""
        return self._stop.grace_s

    def report(self, step: int, metrics: Mapping[str, float] | None = None) -> bool:
        """Reports a finished step; returns `stop_requested`. Cheap enough to call every step: most are not sent.

        Args:
            step: The step just finished, from 0 or 1 as the program likes; it grows.
            metrics: A few numbers for people. Those that are not finite are left out.
        """
        finite = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
        with self._lock:
            self._waiting = wire.StepReport(step=step, metrics=finite)
        if self._stopwatch() - self._reported_s >= REPORT_EVERY_S:
            self._send_report()
        return self.stop_requested

    def snapshot(self, step: int, blocks: Sequence[Block], state: wire.Detail | None = None) -> bool:
        """Leaves a snapshot in the agent's memory, which outlives this process; returns whether there was room.

        Blocks until the copy is done; writing it to lasting storage happens later, in the agent.

        Args:
            step: The step it stands for; every rank of the role saves the same steps.
            blocks: This rank's part of every array, replicas included, so that it can restart from its own memory.
            state: The program's own small facts (position in the data, seeds).

        Raises:
            InvalidInput: A path appears twice at one place, or a fact is not finite.
            Unavailable: The agent does not answer.
        """
        places = {(block.path, block.start) for block in blocks}
        if len(places) != len(blocks):
            raise InvalidInput("take a snapshot", got="two blocks at one place", wanted="each place once")
        facts = _checked(state or {}, "take a snapshot")
        if self._socket is None:
            return True
        started_s = self._stopwatch()
        self._send_report()
        layout = lay_out(blocks)
        begin = wire.SnapshotBegin(step=step, size_bytes=layout.size_bytes)
        slot = self._ask(begin, wire.SnapshotSlot, limit_s=SLOT_LIMIT_S)
        if slot.offset >= 0:
            self._arena.write(blocks, layout, slot.offset)
            commit = wire.SnapshotCommit(step=step, offset=slot.offset, shards=layout.shards, state=facts)
            self._ask(commit, wire.Done)
        with self._lock:
            self._blocked_s += self._stopwatch() - started_s
        return slot.offset >= 0

    def restore(self) -> Restored | None:
        """Returns the state this generation resumes from, or None when it starts fresh.

        Raises:
            DamagedData: The state does not hold together.
            Unavailable: The agent or the state cannot be reached.
        """
        if self._socket is None:
            return None
        plan = self._ask(wire.RestoreRequest(), wire.RestorePlan)
        if plan.step < 0:
            return None
        files: dict[str, NDArray[np.uint8]] = {}
        for shard in plan.shards:
            if shard.file not in files:
                files[shard.file] = map_bytes(shard.file)
        blocks = tuple(block_in(shard, files[shard.file]) for shard in plan.shards)
        return Restored(step=plan.step, state=plan.state, source=plan.source, blocks=blocks)

    def result(self, values: wire.Detail) -> None:
        """Keeps facts as the job's result.

        Args:
            values: A few numbers and words.

        Raises:
            InvalidInput: A number is not finite.
        """
        facts = _checked(values, "keep a result")
        if self._socket is not None:
            self._ask(wire.ResultReport(values=facts), wire.Done)

    def close(self) -> None:
        """Sends the last report and hangs up. May be called again; `join` arranges for it at exit."""
        if self._socket is None:
            return
        with contextlib.suppress(Unavailable, InvalidMessage):  # The agent may have gone first.
            self._send_report()
        self._socket.close()
        self._socket = None

    def _send_report(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
            if waiting is None or self._socket is None:
                return
            blocked_s, self._blocked_s = self._blocked_s, 0.0
            self._reported_s = self._stopwatch()
        report = wire.StepReport(step=waiting.step, metrics=waiting.metrics, snapshot_blocked_s=blocked_s)
        reply = self._ask(report, wire.StepReply)
        if reply.stop:
            self._stop = reply

    def _ask(self, message: object, kind: type[Answer], *, limit_s: float = ANSWER_LIMIT_S) -> Answer:
        line = self._socket
        assert line is not None
        with self._lock:
            try:
                line.settimeout(limit_s)
                line.sendall(codec.frame(message))
                answer = codec.unframe(_read(line, codec.frame_length(_read(line, codec.FRAME_HEADER_BYTES))))
            except OSError as error:
                raise Unavailable(
                    f"ask the agent with {type(message).__name__}", got=str(error) or type(error).__name__
                ) from error
        if not isinstance(answer, kind):
            raise InvalidMessage(
                f"ask the agent with {type(message).__name__}", got=type(answer).__name__, wanted=kind.__name__
            )
        return answer


def _checked(facts: wire.Detail, attempted: str) -> wire.Detail:
    for name, value in facts.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(attempted, on=name, got=str(value), wanted="a finite number")
    return dict(facts)


def _read(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the agent hung up")
        data += piece
    return bytes(data)
