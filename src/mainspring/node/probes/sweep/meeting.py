"""A sweep: nodes work alone and in groups, and whoever leads it says which of them are at fault.

Each node runs a member. The lead's is one of them, and listens for the others, one line of JSON a message: a member
says who it is, is given work, and says what came of it. The work itself is done by child processes, so that one that
crashes or hangs takes nobody with it. As with the collectives of ranks, nobody asks who the others are: it is for a
network where strangers cannot be.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, TypeVar, final

from mainspring.domain import codec
from mainspring.domain.errors import InvalidMessage, Unavailable
from mainspring.domain.ids import checked_name
from mainspring.domain.ports import Clock
from mainspring.node.probes.sweep.pairing import SLOW_RATIO, Grouped, Isolated, isolated, next_groups
from mainspring.node.probes.sweep.verdicts import Alone, Measure

LINE_BYTES_MAX = 1 << 16
MEMBERS_MAX = 4_096
CALL_AGAIN_S = 0.5
LATE_S = 15.0  # Beyond the limit of its work, for a member to say that it was over.
SAID_MAX = 500  # Letters of what a child said last.
POLL_S = 0.1  # How soon a child that has ended is noticed.

Message = TypeVar("Message")


@final
class SweepLine:
    """A connection over which lines of JSON go, one a message.

    Args:
        line: The connection; it is closed with this.
    """

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._read = b""

    def send(self, message: object, limit_s: float = LATE_S) -> None:
        """Sends a message.

        Raises:
            OSError: The other end is gone.
        """
        self.line.settimeout(limit_s)
        self.line.sendall(codec.encode(message) + b"\n")

    def receive(self, kind: type[Message], limit_s: float | None) -> Message | None:
        """Returns what the other end says, None where it is gone, late, or says something else."""
        self.line.settimeout(limit_s)
        try:
            while b"\n" not in self._read:
                data = self.line.recv(LINE_BYTES_MAX)
                if not data or len(self._read) > LINE_BYTES_MAX:
                    return None
                self._read += data
            said, _, self._read = self._read.partition(b"\n")
            return codec.decode(kind, said)
        except (OSError, InvalidMessage):
            return None

    def speaks(self, wait_s: float) -> bool:
        """Returns whether the other end says something, or is gone, within some seconds."""
        return b"\n" in self._read or bool(select.select([self.line], [], [], wait_s)[0])

    def close(self) -> None:
        """Closes the connection."""
        self.line.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHello:
    """Who a member is, and where others would find the first of a group that it is in.

    Args:
        port: A free one, for its next group.
    """

    rank: int
    node: str
    host: str
    port: int

    def __post_init__(self) -> None:
        """Checks the name: files and events are named by it.

        Raises:
            InvalidInput: It is none.
        """
        checked_name(self.node, "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """Work for a member.

    Args:
        seconds: How long to work at each thing, about; 0 to end.
        limit_s: After that it has failed.
        coordinator: Where the first of its group serves the others; "" to work alone.
        count: How many are in the group; 0 to stop what it is at: another of its group has failed.
    """

    seconds: float
    limit_s: float = 0.0
    coordinator: str = ""
    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What came of it.

    Args:
        measure: None where it failed.
        said: Why, in the child's last words.
        port: A free one, for its next group.
    """

    measure: Measure | None
    said: str = ""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """How a sweep is done.

    Args:
        count: How many members there are.
        seconds: How long each works at each thing, about.
        limit_s: How long any work may take, with all that has to be started for it.
        meet_s: How long members are waited for.
        slow_ratio: How many times the usual time of a group is slow.
    """

    count: int
    seconds: float
    limit_s: float
    meet_s: float
    slow_ratio: float = SLOW_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep saw.

    Args:
        nodes: By rank, of those that came.
        missing: Ranks that did not.
        alone: By rank, what came of working alone.
        groups: What came of working in groups.
    """

    nodes: Mapping[int, str]
    missing: tuple[int, ...]
    alone: Mapping[int, Alone]
    groups: Isolated


# Does a task, and asks, waiting for some seconds, whether it is to be stopped.
Work = Callable[["SweepTask", Callable[[float], bool]], SweepReport]


# ---------------------------------------------------------------- a member


def child_work(command: Sequence[str]) -> Work:
    """Returns how a member works: by a child process, which is ended when it is late, or not wanted any more.

    Args:
        command: The program; it is told its task in words.
    """

    def work(task: SweepTask, stopped: Callable[[float], bool]) -> SweepReport:
        group = [task.coordinator, str(task.index), str(task.count)] if task.coordinator else []
        words, polls = [*command, str(task.seconds), *group], int(task.limit_s / POLL_S) + 1
        with TemporaryFile() as out, TemporaryFile() as errors:
            with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=errors) as child:
                said = f"no end in {task.limit_s:g} s"
                for _ in range(polls):
                    if child.poll() is not None:
                        said = ""
                        break
                    if stopped(POLL_S):
                        said = "another of its group failed"
                        break
                child.kill()
            if said:
                return SweepReport(measure=None, said=said, port=free_port())
            if child.returncode:
                said = _last_words(errors) or f"ended with {child.returncode}"
                return SweepReport(measure=None, said=said, port=free_port())
            try:
                last = _tail(out, LINE_BYTES_MAX).strip().rsplit(b"\n", 1)[-1]
                return SweepReport(measure=codec.decode(Measure, last), port=free_port())
            except InvalidMessage as error:
                return SweepReport(measure=None, said=str(error)[:SAID_MAX], port=free_port())

    return work


def _tail(file: IO[bytes], bytes_max: int) -> bytes:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - bytes_max))
    return file.read(bytes_max)


def _last_words(file: IO[bytes]) -> str:
    return " ".join(_tail(file, 4 * SAID_MAX).decode(errors="replace").split())[-SAID_MAX:]


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    with socket.socket() as tried:
        tried.bind(("", 0))
        return int(tried.getsockname()[1])


def be_member(
    lead: tuple[str, int],
    rank: int,
    node: str,
    work: Work,
    *,
    clock: Clock,
    meet_s: float,
    pause: Callable[[float], object],
) -> None:
    """Does what the lead gives it to do, to the end.

    Args:
        lead: Its host and port.
        pause: Waits for some seconds.

    Raises:
        Unavailable: The lead is not there in time, or went away.
    """
    line = SweepLine(_called(lead, clock, meet_s, pause))
    try:
        line.send(SweepHello(rank=rank, node=node, host=line.line.getsockname()[0], port=free_port()))
        while True:
            task = line.receive(SweepTask, None)  # Others may take long; a lead that dies closes the line.
            if task is None:
                raise Unavailable("work in a sweep", on=f"{lead[0]}:{lead[1]}", got="a lead that went away")
            if task.count and task.seconds <= 0:
                return
            if task.count:  # Else it is to stop what it has done already.
                line.send(work(task, line.speaks))
    except OSError as error:
        raise Unavailable("work in a sweep", on=f"{lead[0]}:{lead[1]}", got=str(error)) from error
    finally:
        line.close()


def _called(lead: tuple[str, int], clock: Clock, meet_s: float, pause: Callable[[float], object]) -> socket.socket:
    until_s = clock.monotonic_s() + meet_s
    while True:
        try:
            return socket.create_connection(lead, timeout=max(0.1, until_s - clock.monotonic_s()))
        except OSError as error:
            if clock.monotonic_s() >= until_s:
                where = f"{lead[0]}:{lead[1]}"
                raise Unavailable("join a sweep", on=where, got=str(error), wanted="its lead") from error
            pause(CALL_AGAIN_S)


# ---------------------------------------------------------------- the lead


@dataclass(slots=True)
class _Member:
    hello: SweepHello
    line: SweepLine
    port: int = 0
    gone: bool = False


@final
class SweepLead:
    """Leads a sweep over those who call.

    Args:
        listener: Where they call.
    """

    def __init__(self, listener: socket.socket, plan: SweepPlan, clock: Clock) -> None:
        self._listener = listener
        self._plan = plan
        self._clock = clock
        self._members: dict[int, _Member] = {}

    def meet(self) -> None:
        """Waits until all have called, or the time for it is over."""
        until_s = self._clock.monotonic_s() + self._plan.meet_s
        while len(self._members) < min(self._plan.count, MEMBERS_MAX):
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                return
            self._listener.settimeout(left_s)
            try:
                line, _ = self._listener.accept()
            except OSError:
                continue
            called = SweepLine(line)
            hello = called.receive(SweepHello, max(0.1, min(LATE_S, left_s)))
            if hello is None or not 0 <= hello.rank < self._plan.count or hello.rank in self._members:
                called.close()
                continue
            self._members[hello.rank] = _Member(hello, called, port=hello.port)

    def sweep(self) -> Swept:
        """Returns what one sweep sees of those who came."""
        alone = self._do(
            {rank: SweepTask(seconds=self._plan.seconds, limit_s=self._plan.limit_s) for rank in self._here}
        )
        right = [rank for rank, report in alone.items() if report.measure is not None and not report.measure.wrong]
        rounds: list[list[Grouped]] = []
        while groups := next_groups(right, rounds):
            rounds.append(self._in_groups(groups))
        return Swept(
            nodes={rank: member.hello.node for rank, member in sorted(self._members.items())},
            missing=tuple(sorted(set(range(self._plan.count)) - set(self._members))),
            alone={rank: Alone(measure=report.measure, said=report.said) for rank, report in alone.items()},
            groups=isolated(right, rounds, self._plan.slow_ratio),
        )

    def end(self) -> None:
        """Tells all that it is over."""
        for member in self._members.values():
            with suppress(OSError):
                member.line.send(SweepTask(seconds=0.0))
            member.line.close()

    @property
    def _here(self) -> list[int]:
        return [rank for rank, member in sorted(self._members.items()) if not member.gone]

    def _in_groups(self, groups: Sequence[tuple[int, ...]]) -> list[Grouped]:
        tasks = {}
        for group in groups:
            first = self._members[group[0]]
            for index, rank in enumerate(group):
                tasks[rank] = SweepTask(
                    seconds=self._plan.seconds,
                    limit_s=self._plan.limit_s,
                    coordinator=f"{first.hello.host}:{first.port}",
                    index=index,
                    count=len(group),
                )
        reports = self._do(tasks, groups)
        return [Grouped(members=group, seconds=_slowest([reports[rank] for rank in group])) for group in groups]

    def _do(self, tasks: Mapping[int, SweepTask], groups: Sequence[tuple[int, ...]] = ()) -> dict[int, SweepReport]:
        """Returns what came of work that is done by all at once; of a group one that fails stops the others."""
        together = {rank: group for group in groups for rank in group}
        reports: dict[int, SweepReport] = {}
        waiting: dict[int, _Member] = {}
        for rank, task in tasks.items():
            member = self._members[rank]
            with suppress(OSError):
                member.line.send(task)
                waiting[rank] = member
        until_s = self._clock.monotonic_s() + self._plan.limit_s + LATE_S
        while waiting and (left_s := until_s - self._clock.monotonic_s()) > 0:
            for rank in _heard(waiting, left_s):
                member = waiting.pop(rank)
                report = member.line.receive(SweepReport, LATE_S)
                if report is not None:
                    reports[rank], member.port = report, report.port
                if report is None or report.measure is None:
                    self._stop(waiting[other] for other in together.get(rank, ()) if other in waiting)
        for rank in tasks.keys() - reports.keys():
            self._members[rank].gone = True
            reports[rank] = SweepReport(measure=None, said="the node went away", port=0)
        return {rank: reports[rank] for rank in tasks}

    def _stop(self, members: Iterable[_Member]) -> None:
        for member in members:
            with suppress(OSError):
                member.line.send(SweepTask(seconds=0.0, count=0))


def _heard(members: Mapping[int, _Member], limit_s: float) -> list[int]:
    """Returns who says something, waiting until anybody does."""
    with selectors.DefaultSelector() as selector:  # Of any number of connections, unlike select(2).
        for rank, member in members.items():
            selector.register(member.line.line, selectors.EVENT_READ, rank)
        return [key.data for key, _ in selector.select(limit_s)]


def _slowest(reports: Sequence[SweepReport]) -> float | None:
    """Returns how long a group took, None where any of it failed or was wrong."""
    measures = [report.measure for report in reports]
    times = [each.seconds for each in measures if each is not None and not each.wrong and each.seconds is not None]
    return max(times) if len(times) == len(reports) else None
