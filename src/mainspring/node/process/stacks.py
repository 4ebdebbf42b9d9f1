"""Stack dumps: a rank's process state, and the stacks that Python's faulthandler wrote into its output.

A program that joined has `faulthandler` on SIGUSR1; the signal would kill any other, which is looked at from outside.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mainspring.node.process.ranks import RankProcess

STACKS_BYTES_MAX = 64 << 10  # Hundreds of frames; what a person reads.
GONE = ""
LOOK_S = 0.02
LOOKS_MAX = 75  # One and a half seconds: the lead waits twice as long for everybody's.
LOOKS_QUIET = 5  # A dump is written in one go; after a tenth of a second without more it is whole.
STUCK = frozenset("TtDZX")  # Stopped, traced, in the kernel for good, dead: such a process answers nothing.
_LINE = re.compile(r"^(?:(?:Current t|T)hread 0x[0-9a-f]+|Stack) .*\(most recent call first\):|^  (?:File |\.\.\.|<)")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Where a process is.

    Args:
        top: The innermost frame of the main thread ("file:line function"), "" when it is not known.
        text: All threads, within `STACKS_BYTES_MAX`.
        process_state: Its letter in /proc, "" when it is gone.
    """

    top: str = ""
    text: str = ""
    process_state: str = GONE


async def dumped(process: RankProcess, program: int) -> Stacks:
    """Returns where a rank is, from its own mouth if it can speak, else as the kernel sees it.

    Args:
        program: The process that runs its program: the same, or a child of it.
    """
    if not _is_of(process, program):
        program = process.pid  # Whatever else it called its own is not for it to look into.
    state = process_state(program)
    if state in STUCK or not _asks_safely(program):
        return _seen_from_outside(program, state)
    process.log.listen()
    process.account.signal(program, signal.SIGUSR1, group=False)
    before, quiet = 0, 0
    for _ in range(LOOKS_MAX):
        await asyncio.sleep(LOOK_S)
        heard = len(process.log.heard())
        quiet = quiet + 1 if heard == before and heard > 0 else 0
        before = heard
        if quiet >= LOOKS_QUIET:
            break
    stacks = stacks_in(process.log.heard())
    if not stacks.text:
        return _seen_from_outside(program, process_state(program))
    return Stacks(top=stacks.top, text=stacks.text, process_state=process_state(program))


def _asks_safely(program: int) -> bool:
    """Returns whether the program handles the signal: its default would be the end of it."""
    try:
        status = Path(f"/proc/{program}/status").read_text()
        caught = int(re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]
        return bool(caught >> (signal.SIGUSR1 - 1) & 1)
    except (OSError, TypeError):
        return False  # Gone meanwhile.


def _is_of(process: RankProcess, program: int) -> bool:
    try:
        return os.getsid(program) == process.pid and os.stat(f"/proc/{program}").st_uid == process.account.uid
    except OSError:
        return False  # Gone meanwhile.


def stacks_in(output: bytes) -> Stacks:
    """Returns the stacks that stand in a program's output, between whatever else it wrote.

    Source: `faulthandler.dump_traceback`, CPython 3.11: threads newest first, the main thread last; the one that got
    the signal, which is the main thread unless that blocks it, is called current.
    """
    lines = [line for line in output.decode(errors="replace").splitlines() if _LINE.match(line)]
    heads = [number for number, line in enumerate(lines) if not line.startswith("  ")]
    main = next((number for number in heads if lines[number].startswith("Current")), heads[-1] if heads else len(lines))
    return Stacks(top=_top(lines[main + 1 : main + 2]), text="\n".join(lines)[:STACKS_BYTES_MAX])


def _top(lines: Sequence[str]) -> str:
    frame = _FRAME.match(lines[0]) if lines else None
    return f"{frame['file']}:{frame['line']} {frame['function']}" if frame else ""


def process_state(pid: int) -> str:
    """Returns a process's state letter as /proc gives it, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return GONE


def _seen_from_outside(pid: int, state: str) -> Stacks:
    """Returns what the kernel tells of a process that cannot be asked: where in the kernel its main thread waits."""
    told = {name: _read(f"/proc/{pid}/{name}") for name in ("wchan", "syscall")}
    text = "\n".join(f"{name}: {value}" for name, value in told.items() if value)
    where = told["wchan"] if told["wchan"] not in ("", "0") else ""
    return Stacks(top=f"kernel: {where}" if where else "", text=text, process_state=state)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()[:STACKS_BYTES_MAX]
    except OSError:
        return ""
