"""Processes of this machine as Linux shows them in /proc: alive or not, whose session, and how to end them all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GONE = "ZX"  # States of proc(5): a zombie or dead process holds nothing but its number.


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that cannot be mistaken for a later one with the same number.

    Args:
        boot: Id of the boot of the machine it runs in.
        start_ticks: When it started, in clock ticks since boot.
    """

    boot: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """What proc(5) says in `/proc/<pid>/stat`, fields 3, 4, 6 and 22."""

    state: str
    parent: int
    session: int
    start_ticks: int


def boot_id() -> str:
    """Returns what tells this boot of the machine from every other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(child: int) -> Process:
    """Returns a child of this process that was not reaped yet, so that its number is surely its own."""
    stat = _stat(child)
    assert stat is not None
    return Process(boot=boot_id(), pid=child, start_ticks=stat.start_ticks)


def alive(process: Process) -> bool:
    """Returns whether a process still runs; one that waits to be reaped does not."""
    stat = _stat(process.pid)
    return (
        stat is not None
        and stat.state not in _GONE
        and stat.start_ticks == process.start_ticks
        and process.boot == boot_id()
    )


def ask_to_end(process: Process) -> None:
    """Sends SIGTERM to one process, if it lives."""
    if alive(process):
        _signal(process.pid, signal.SIGTERM)


def kill_all(leaders: Iterable[Process]) -> None:
    """Sends SIGKILL to session leaders, to everything in their sessions, and to all their descendants.

    Args:
        leaders: Processes that lead a session each. A number stays taken while its session has members, so what a dead
            leader left behind is found too.
    """
    boot = boot_id()
    wanted = {leader.pid: leader for leader in leaders if leader.boot == boot}
    table = _table()
    # The number of a leader that is gone may belong to a stranger only once its session is empty.
    roots = {pid for pid, leader in wanted.items() if pid not in table or table[pid].start_ticks == leader.start_ticks}
    doomed = {pid for pid, stat in table.items() if pid in roots or stat.session in roots}
    while grown := {pid for pid, stat in table.items() if stat.parent in doomed} - doomed:
        doomed |= grown
    for pid in sorted(doomed):
        if table[pid].state not in _GONE:
            _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # What runs as another user ends with its agent.
        os.kill(pid, number)


def _table() -> Mapping[int, _Stat]:
    return {int(name): stat for name in os.listdir(_PROC) if name.isdigit() and (stat := _stat(int(name)))}


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name, in parentheses, may itself hold spaces and parentheses.
    words = text.rpartition(")")[2].split()
    return _Stat(state=words[0], parent=int(words[1]), session=int(words[3]), start_ticks=int(words[19]))
