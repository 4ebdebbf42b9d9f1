"""Session of one rank: who it is in its job, its steps, its snapshots, and the state it resumes from."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, final

from mainspring.domain import wire
from mainspring.domain.errors import InvalidInput, InvalidMessage, Unavailable
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.session.arena import ArenaMap, SnapshotWriter, lay_out
from mainspring.session.blocks import Block
from mainspring.session.line import ANSWER_LIMIT_S, CLOSE_LIMIT_S, AgentConnection, Reporter
from mainspring.session.meter import Meter, checked_facts
from mainspring.session.profiling.profiler import Profiler
from mainspring.session.restore import Restored, plan_from

SLOT_LIMIT_S = 600.0  # The agent itself gives up waiting for room earlier.
BLOCKS_MAX = 10_000  # A commit names them all in one message: about 3 MB.

Item = TypeVar("Item")

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

    The agent hears of steps from a thread of the session's own. When the agent is gone, the next call that would
    speak to it raises `Unavailable`.

    Args:
        socket_path: The agent's Unix socket, "" to stand alone.
        pid: This process.
        stopwatch: Seconds that never go back.
        standby: See `join`.
        reconnects: See `join`.

    Raises:
        Unavailable: The agent does not answer.
    """

    def __init__(
        self,
        socket_path: str,
        *,
        pid: int,
        stopwatch: Callable[[], float],
        standby: bool = False,
        reconnects: bool = False,
    ) -> None:
        self._pid = pid
        self._meter = Meter(stopwatch)
        self._writer = SnapshotWriter()
        self._line: AgentConnection | None = None
        self._profiler = Profiler(self._keep_profile, stopwatch)
        self._welcome = ALONE
        if socket_path:
            self._line = AgentConnection(socket_path)
            hello = wire.Hello(pid=pid, standby=standby, reconnects=reconnects)
            limit_s = None if standby else ANSWER_LIMIT_S  # A spare waits for as long as it takes.
            self._welcome = self._line.ask(hello, wire.Welcome, limit_s=limit_s)
            self._reporter = Reporter(self._line, self._meter, self._told)
        self._map_arena()
        self._begin()

    def _map_arena(self) -> None:
        self._arena = ArenaMap(self._welcome.arena_path, self._line.open if self._line is not None else os.open)

    def _begin(self) -> None:
        """Forgets what belongs to one generation."""
        self._stop = wire.StepReply()
        self._every = self._welcome.snapshot_every
        self._step = -1  # The newest step begun or reported.
        self._last = -1  # Of those `steps` was asked for.
        self._unsaved = -1  # The newest step that `snapshot_due` found not worth a snapshot.
        self._newest: wire.RestorePlan | None = None  # Where the newest snapshot lies in the arena.
        self._meter.clear()

    @property
    def stopwatch(self) -> Callable[[], float]:
        """Returns the seconds by which the session measures, which never go back."""
        return self._meter.stopwatch

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
        """Returns this rank's place in its role, from 0; another generation may change it."""
        return self._welcome.rank

    @property
    def world_size(self) -> int:
        """Returns how many ranks the role has; another generation may change it."""
        return self._welcome.world_size

    @property
    def shrunk_size(self) -> int:
        """Returns how many ranks the role goes on with once a node is lost and none stands by, 0 when it does not."""
        return self._welcome.shrunk_size

    @property
    def local_rank(self) -> int:
        """Returns this rank's place among the role's ranks on its node, from 0."""
        return self._welcome.local_rank

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """Returns the role's ranks on this node, this one included."""
        return self._welcome.local_ranks

    @property
    def generation(self) -> int:
        """Returns which membership of ranks this is; it grows with every change."""
        return self._welcome.generation

    @property
    def coordinator(self) -> str:
        """Returns "host:port" of the JAX coordination service, "" when there is none."""
        return self._welcome.coordinator

    @property
    def snapshot_every(self) -> int:
        """Returns the number of steps between snapshots that the lead finds best; it follows what is measured."""
        return self._every

    @property
    def stop_requested(self) -> bool:
        """Returns whether the step under way (or the last one reported) is the one to save, and to leave after.

        All ranks are told the same step, ahead of time, so ranks in lockstep leave together.
        """
        return self._reached(self._step)

    @property
    def grace_s(self) -> float:
        """Returns how long the program has once a stop is requested, from when it was learnt."""
        return self._stop.grace_s

    def steps(self, start: int, stop: int) -> Iterator[int]:
        """Yields the steps to do: `start` + 1 to `stop`. Reports each once its body is done, if the body did not.

        Ends early after the step to stop at, unless that is the last; `left` then says what to do. A rank that learns
        of a stop too late ends at once; one that works alone first does one more step when it could not save this one.

        Args:
            start: The last step done before: what `restore` gave, else 0.
            stop: The last step to do.

        Raises:
            Unavailable: The agent is gone.
        """
        if self._line is None:
            yield from range(start + 1, stop + 1)
            return
        self._step, self._last = max(self._step, start), stop
        try:
            for step in range(start + 1, stop + 1):
                self._step = step
                self._profiler.boundary(step)
                yield step
                if self._meter.step < step:
                    self.report(step)
                if self._stop.stop and self._reached(step):
                    in_lockstep = self.world_size > 1 and self._stop.stop_at >= 0
                    if in_lockstep or self._unsaved != step:
                        return
        finally:
            self._profiler.close()

    def report(self, step: int, metrics: Mapping[str, float] | None = None) -> bool:
        """Reports a finished step; returns `stop_requested`. Takes microseconds: call it every step, from any thread.

        Args:
            step: The step just finished, from 0 or 1 as the program likes; it grows.
            metrics: A few numbers for people. Those that are not finite are left out.

        Raises:
            InvalidInput: There are too many metrics.
            Unavailable: The agent is gone.
        """
        if self._line is None:
            return False
        if self._meter.report(step, metrics):
            self._reporter.wake()  # The lead waits for word that the generation steps.
        if step > self._step:
            self._step = step
        if self._reporter.failure is not None:
            raise self._reporter.failure
        return self._stop.stop and self._reached(self._step)

    def serving(
        self,
        address: str,
        *,
        ready: bool,
        in_flight: int = 0,
        answered: int = 0,
        missed: int = 0,
        certificate: str = "",
    ) -> bool:
        """Tells where a replica of a service is called, and its load; returns `stop_requested`.

        Takes microseconds, from any thread. Call it about once a second, and at once when `ready` changes: a replica of
        which nothing is heard is given no requests, and in the end replaced.

        Args:
            address: Where it listens: "ws://host:port". Clients are sent to this node's own address, whatever the host.
            ready: Whether it answers: False while it loads and warms up, and once it is about to leave.
            in_flight: Requests under way or waiting; by this the number of replicas follows the load.
            answered: Requests answered since this process began.
            missed: Requests since then that were not answered within their deadline.
            certificate: What clients are to trust there and nothing else, as PEM text; "" where it speaks no TLS.

        Raises:
            InvalidInput: It is no such address, the certificate is too long, or a count is below 0.
            Unavailable: The agent is gone.
        """
        told = wire.Serving(
            address=address,
            ready=ready,
            in_flight=in_flight,
            answered=answered,
            missed=missed,
            certificate=certificate,
        )
        if self._line is None:
            return False
        self._reporter.serve(told)
        if self._reporter.failure is not None:
            raise self._reporter.failure
        return self.stop_requested

    def timed(self, iterator: Iterator[Item]) -> Iterator[Item]:
        """Returns the iterator's items; the time the program waits for them counts as a data stall.

        Args:
            iterator: Batches, as the training loop takes them.
        """
        return iterator if self._line is None else self._meter.timed(iterator)

    def measured(self, use: TimeUse, seconds: float) -> None:
        """Notes time that went into something other than steps.

        Args:
            use: Compiling, waiting for data, a snapshot, or restoring.
            seconds: How long.

        Raises:
            InvalidInput: It is another use, or no length of time.
        """
        self._meter.add(use, seconds)

    def measure(self, use: TimeUse) -> AbstractContextManager[None]:
        """Returns a context whose time counts as `use`, less what is measured inside it.

        Args:
            use: See `measured`.
        """
        return self._meter.measure(use)

    def snapshot_due(self, step: int) -> bool:
        """Returns whether to take a snapshot of a step: at the lead's pace, and of the last step before the loop ends.

        Every rank of the role gets the same answer for the same step, but for the few around a change of pace. Always
        False when standing alone.

        Args:
            step: The step under way, its work done.
        """
        if self._line is None:
            return False
        due = step % self._every == 0 or step == self._last or (self._stop.stop and self._reached(step))
        if not due:
            self._unsaved = step
        return due

    def snapshot(self, step: int, blocks: Sequence[Block], state: wire.Detail | None = None) -> bool:
        """Leaves a snapshot in the agent's memory, which outlives this process; returns whether there was room.

        Returns once all is copied: the blocks may change then. What devices hold for good (`OnDevice`) is copied by a
        thread: then this returns at once, True, and the next snapshot waits for this one. The agent copies it to a
        peer and to lasting storage later. The agent counts it a moment after it is copied; `left`, `next_generation`
        and `close` wait for that.

        Args:
            step: The step it stands for; every rank of the role saves the same steps.
            blocks: This rank's part of every array, replicas included, so that it can restart from its own memory.
            state: The program's own small facts (position in the data, seeds).

        Raises:
            InvalidInput: A path appears twice at one place, there are too many blocks, or a fact is not finite.
            Unavailable: The agent does not answer.
        """
        if len({(block.path, block.start) for block in blocks}) != len(blocks):
            raise InvalidInput("take a snapshot", got="two blocks at one place", wanted="each place once")
        if len(blocks) > BLOCKS_MAX:
            raise InvalidInput("take a snapshot", got=f"{len(blocks)} blocks", wanted=f"at most {BLOCKS_MAX}")
        facts = checked_facts(state or {}, "take a snapshot")
        if self._line is None:
            return True
        with self._meter.measure(TimeUse.SNAPSHOT):
            return self._writer.write(blocks, partial(self._put, self._line, step, facts))

    def _put(self, line: AgentConnection, step: int, facts: wire.Detail, blocks: Sequence[Block]) -> bool:
        layout = lay_out(blocks)
        slot = line.ask(
            wire.SnapshotBegin(step=step, size_bytes=layout.size_bytes), wire.SnapshotSlot, limit_s=SLOT_LIMIT_S
        )
        if slot.offset < 0:
            return False
        self._arena.write(blocks, layout, slot.offset)
        line.defer(wire.SnapshotCommit(step=step, offset=slot.offset, shards=layout.shards, state=facts), wire.Done)
        self._reporter.wake()
        here = (
            replace(shard, file=self._welcome.arena_path, offset=slot.offset + shard.offset) for shard in layout.shards
        )
        total = len(layout.shards)
        self._newest = wire.RestorePlan(step=step, shards=tuple(here), state=facts, source="arena", total=total)
        return True

    def newest_snapshot(self) -> Restored | None:
        """Returns the newest snapshot that this rank took in its generation, None for none: to go back to.

        It holds this rank's own blocks alone, which are good until the next snapshot.

        Raises:
            DamagedData: It does not hold together.
            Unavailable: The agent does not answer.
        """
        self._writer.wait()
        if self._line is None or self._newest is None:
            return None
        measure = partial(self._meter.measure, TimeUse.RESTORE)
        return Restored(self._newest, self._line.ask, measure, opened=self._line.open)

    def restore(self) -> Restored | None:
        """Returns the state this generation resumes from, or None when it starts fresh. Reads no array yet.

        Raises:
            DamagedData: The state does not hold together.
            Unavailable: The agent or the state cannot be reached.
        """
        if self._line is None:
            return None
        with self._meter.measure(TimeUse.RESTORE):
            plan = plan_from(self._line.ask, everywhere=False)
            if plan.step < 0:
                return None
            measure = partial(self._meter.measure, TimeUse.RESTORE)
            return Restored(plan, self._line.ask, measure, opened=self._line.open)

    def left(self) -> wire.Then:
        """Returns what to do once the loop ended early: exit with `EXIT_PREEMPTED`, or `next_generation`.

        Returns when the agent has all that was reported and saved. `Then.EXIT` when no stop was requested, too.

        Raises:
            Unavailable: The agent is gone.
        """
        if self._line is not None:
            self._writer.wait()
            self._reporter.send(rest=True)
        return self._stop.then if self.stop_requested else wire.Then.EXIT

    def next_generation(self) -> bool:
        """Waits for the next generation and takes part in it: rank, world size and all else are then its own.

        For a process that said it reconnects, after it left its generation: as asked, or because a step failed. Returns
        False when standing alone. A process that is not wanted any more is ended by the agent while it waits.

        Raises:
            Unavailable: The agent is gone.
        """
        if self._line is None:
            return False
        self._writer.wait()
        with self._line.turn:
            self._reporter.send(rest=True)
            question = wire.NextGeneration(after=self.generation)
            before, self._welcome = self._welcome, self._line.ask(question, wire.Welcome, limit_s=None)
            if self._welcome.arena_path != before.arena_path:
                self._map_arena()
            self._begin()
        return True

    def result(self, values: wire.Detail) -> None:
        """Keeps facts as the job's result.

        Args:
            values: A few numbers and words.

        Raises:
            InvalidInput: A number is not finite.
            Unavailable: The agent is gone.
        """
        facts = checked_facts(values, "keep a result")
        if self._line is not None:
            self._line.ask(wire.ResultReport(values=facts), wire.Done)

    def upset(self, step: int, *, kind: str, answer: str, words: str, to_step: int = -1) -> None:
        """Tells of a step that went wrong: an event of the job.

        Args:
            step: It.
            kind: What went wrong with it: "not_finite", "spike".
            answer: What is done about it: "skip", "roll_back", "stop".
            words: What was seen.
            to_step: The step whose state the run goes back to, -1 for none.

        Raises:
            Unavailable: The agent is gone.
        """
        if self._line is not None:
            told = wire.UpsetReport(step=step, upset=kind, answer=answer, words=words, to_step=to_step)
            self._line.ask(told, wire.Done)

    def tried(self, told: wire.StepTried) -> None:
        """Tells of work of a step that was done more than once, and what came of it.

        Args:
            told: It.

        Raises:
            Unavailable: The agent is gone.
        """
        if self._line is not None:
            self._line.ask(told, wire.Done)

    def close(self) -> None:
        """Sends the last report and hangs up. May be called again; `join` arranges for it at exit."""
        if self._line is None or os.getpid() != self._pid:  # A forked child shares the line, and must not speak on it.
            return
        with contextlib.suppress(Unavailable, InvalidMessage):
            self._writer.wait()
        self._reporter.close()
        if self._line.turn.acquire(timeout=CLOSE_LIMIT_S):
            with contextlib.suppress(Unavailable, InvalidMessage):  # The agent may have gone first.
                self._reporter.send(rest=True, limit_s=CLOSE_LIMIT_S)
            self._line.turn.release()
        self._line.close()
        self._line = None

    def _reached(self, step: int) -> bool:
        """Returns whether to leave after a step; never after the last: whoever has done all of them is done."""
        return self._stop.stop and step >= self._stop.stop_at and (self._last < 0 or step < self._last)

    def _keep_profile(self, id: str, files: Mapping[str, Path], failure: str) -> None:
        """Hands the files of a profile to the agent; called from a thread of its own."""
        line = self._line
        if line is None:
            return
        if not failure:
            slot = line.ask(wire.ProfileBegin(id=id, names=tuple(files)), wire.ProfileSlot)
            failure = slot.reason
            for path, place in zip(files.values(), slot.paths, strict=False):
                with open(line.open(place, os.O_WRONLY), "wb") as into, open(path, "rb") as file:
                    shutil.copyfileobj(file, into)
        line.ask(wire.ProfileCommit(id=id, failure=failure), wire.Done)

    def _told(self, reply: wire.StepReply) -> None:
        self._every = max(reply.snapshot_every, 1)
        self._profiler.want(reply.profile)
        if reply.stop:
            self._stop = reply
