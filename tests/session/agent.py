"""An agent of few lines: speaks the real wire on a real socket, and does what the test tells it."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mainspring.domain import codec, wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.session import Session

WAIT_LIMIT_S = 120.0
SLOT_BYTES = 1 << 21
PAGE = 3  # Shards in one page of a plan: few, so that plans have several pages.
ALIGNMENT_BYTES = 64

Kind = TypeVar("Kind")


def welcome(*, rank: int = 1, world_size: int = 2, generation: int = 2, every: int = 1) -> wire.Welcome:
    return wire.Welcome(
        job=JobId("job-1"),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        rank=rank,
        world_size=world_size,
        local_rank=0,
        generation=generation,
        coordinator="host:1",
        arena_path="",
        local_ranks=(rank,),
        snapshot_every=every,
    )


class Agent:
    """Welcomes are given out one by one from `welcomes`; everything a rank says is in `said`, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "agent.sock")
        self._arena_file = os.memfd_create("arena")
        self.arena = f"/proc/{os.getpid()}/fd/{self._arena_file}"
        self.welcomes: queue.Queue[wire.Welcome] = queue.Queue()
        self.reply = wire.StepReply()
        self.said: list[object] = []
        self.heard = threading.Condition()
        self.refuse_slots = ""
        self.silent = False
        self.here: tuple[wire.Shard, ...] = ()
        self.elsewhere: tuple[wire.Shard, ...] = ()
        self.far_bytes = b""
        self.fetched: Callable[[wire.FetchPieces], object] = self.fetch
        self.plan_step = -1
        self.more = 0  # Shards that a plan promises beyond those it has.
        self._newest: list[tuple[int, int]] = []
        self._lines: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def session(
        self, who: wire.Welcome | None = None, *, stopwatch: Callable[[], float] = lambda: 0.0, **how: bool
    ) -> Session:
        self.welcomes.put(who or welcome())
        return Session(self.path, pid=os.getpid(), stopwatch=stopwatch, **how)

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in list(self.said) if isinstance(message, kind)]

    def wait(self, kind: type[Kind], what: Callable[[Kind], object] = lambda _: True) -> Kind:
        with self.heard:
            ok = self.heard.wait_for(lambda: any(what(message) for message in self.all(kind)), WAIT_LIMIT_S)
        assert ok, f"no such {kind.__name__} in {self.said[-5:]}"
        return next(message for message in self.all(kind) if what(message))

    def resume_from(self, commit: wire.SnapshotCommit) -> None:
        """Lets the next restore map this snapshot in the arena."""
        self.plan_step = commit.step
        self.here = tuple(
            replace(shard, file=self.arena, offset=commit.offset + shard.offset) for shard in commit.shards
        )

    def hang_up(self) -> None:
        self._server.close()
        if self._arena_file >= 0:
            os.close(self._arena_file)
            self._arena_file = -1
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def fetch(self, request: wire.FetchPieces) -> object:
        data, offsets = bytearray(), []
        for piece in request.pieces:
            shard = (self.elsewhere + self.here)[piece.shard]
            offsets.append(len(data))
            at = shard.offset + piece.offset
            data += self.far_bytes[at : at + piece.size_bytes]
            data += bytes(-len(data) % ALIGNMENT_BYTES)
        staged = self.folder / f"staged-{len(self.said)}"
        staged.write_bytes(data)
        return wire.PiecesFetched(file=str(staged), offsets=tuple(offsets))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._server.accept()
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line, line.makefile("rb") as stream:
            while header := stream.read(codec.FRAME_HEADER_BYTES):
                body = stream.read(codec.frame_length(header))
                message = codec.unframe(body, wire.Hello | wire.NextGeneration | wire.RankRequest)
                with self.heard:
                    self.said.append(message)
                    self.heard.notify_all()
                if not self.silent:
                    line.sendall(codec.frame(self._answer(message)))

    def _answer(self, message: object) -> object:
        match message:
            case wire.Hello() | wire.NextGeneration():
                who = self.welcomes.get()
                return replace(who, arena_path=who.arena_path or self.arena)
            case wire.StepReport() | wire.ServingReport():
                return self.reply
            case wire.SnapshotBegin():
                return self._slot(message.size_bytes)
            case wire.RestoreRequest():
                shards = (self.elsewhere if message.everywhere else ()) + self.here
                page = shards[message.since : message.since + PAGE]
                return wire.RestorePlan(step=self.plan_step, shards=page, source="arena", total=len(shards) + self.more)
            case wire.FetchPieces():
                return self.fetched(message)
            case wire.ProfileBegin():
                paths = [self.folder / f"{message.id}.{name}" for name in message.names]
                for path in paths:
                    path.touch()
                return wire.ProfileSlot(paths=tuple(map(str, paths)))
            case _:
                return wire.Done()

    def _slot(self, size_bytes: int) -> wire.SnapshotSlot:
        """Gives out three slots in turn; one that is too small is replaced by a new one at the end."""
        if self.refuse_slots:
            return wire.SnapshotSlot(offset=-1, reason=self.refuse_slots)
        if len(self._newest) == 3:
            offset, room_bytes = self._newest.pop(0)
            if room_bytes >= size_bytes:
                self._newest.append((offset, room_bytes))
                return wire.SnapshotSlot(offset=offset)
        offset = os.fstat(self._arena_file).st_size
        room_bytes = -(-size_bytes // SLOT_BYTES) * SLOT_BYTES
        os.posix_fallocate(self._arena_file, offset, room_bytes)
        self._newest.append((offset, room_bytes))
        return wire.SnapshotSlot(offset=offset)
