"""The account of this machine that ranks run under: their agent's own, or that of their team.

`Account` is all that an agent does under it. `OwnAccount` does so itself, `UserAccount` (in `users.py`) through a
process of that user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, final

from mainspring.node.process.actions import (
    becoming_a_rank,
    bind,
    make_folder,
    make_memory_folder,
    remove,
    signal_if_there,
    unpack,
    write_files,
)
from mainspring.node.process.guard import kill_marked


class Child(Protocol):
    """A process that runs under the account, in a session and a group of its own."""

    @property
    def pid(self) -> int:
        """Returns its number, which is also its group's."""

    @property
    def over(self) -> bool:
        """Returns whether it has ended: its number may be another's soon."""

    async def ended(self) -> int:
        """Returns the exit code once it has ended and nothing that carries its mark lives. Asked once."""


class Account(Protocol):
    """What an agent does under the account that its ranks run under. All of it is undone when the agent ends.

    Args:
        uid: The account's number.
        mark: What the paths of all sockets begin with, and so what all processes have in their environment.
        variables: What programs learn of the account, where it is not the agent's.
        guard: The agent's, for what is its own whoever runs.
    """

    uid: int
    mark: str
    variables: Mapping[str, str]
    guard: Guard

    async def unpack(self, archive: int | None, inside: str) -> Path:
        """Returns a new folder of code that the account owns; see `actions.unpack`.

        Raises:
            ValueError: The archive is none, is too large, or has no such folder; or OSError and the like.
            Unavailable: The account cannot be used any more.
        """

    async def bind(self, path: str) -> socket.socket:
        """Returns a Unix socket that has a path, for the account alone to connect to once it listens.

        Args:
            path: Begins with `mark`.

        Raises:
            OSError: It cannot be made.
            Unavailable: The account cannot be used any more.
        """

    async def write(self, name: str, files: Mapping[str, str]) -> Path:
        """Returns a new folder of files that the account alone can read: in memory, where the machine has a place.

        Args:
            name: Of the folder, used once.
            files: Their texts by name.

        Raises:
            OSError: They cannot be written.
            Unavailable: The account cannot be used any more.
        """

    def remove(self, path: str) -> None:
        """Removes a socket or a folder made here."""

    async def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        mark: str,
        output: int,
        entry: int = -1,
    ) -> Child:
        """Returns a new process, which ends when the agent does.

        Args:
            environment: All its variables.
            folder: Where it runs.
            mark: The path of its own socket, which it carries in its environment.
            output: Descriptor of where its output goes.
            entry: See `becoming_a_rank`.

        Raises:
            OSError: It cannot be started; or ValueError, subprocess.SubprocessError.
            Unavailable: The account cannot be used any more.
        """

    def signal(self, pid: int, number: int, *, group: bool) -> None:
        """Signals a process of the account, or a group of them; one that is gone, or another's, is left alone."""

    async def close(self) -> None:
        """Ends all that still runs, and removes what was made."""


@final
class Guard:
    """The agent's end of `guard.py`.

    Args:
        mark: What the agent's ranks have at the front of their socket's path.
    """

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def note(self, group: int) -> None:
        """Notes a process group as ours."""
        self._write(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Notes that a process group is gone."""
        self._write(f"-{group}\n")

    def note_folder(self, folder: Path) -> None:
        """Notes a folder to remove at the end, if it is still there."""
        self._write(f"={folder}\n")

    def close(self) -> None:
        """Lets the guard end, killing what is still noted."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def note_files(self, folder: Path) -> None:
        """Notes a folder of files to remove at the end with all of them, if it is still there."""
        self._write(f"*{folder}\n")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Somebody killed the guard; ranks still die with the agent.
            self._process.stdin.write(line.encode())


@final
class _OwnChild:
    """A process of ours; see `Child`."""

    def __init__(self, process: asyncio.subprocess.Process, guard: Guard, mark: str) -> None:
        self._process = process
        self._guard = guard
        self._mark = mark
        guard.note(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def over(self) -> bool:
        return self._process.returncode is not None

    async def ended(self) -> int:
        exit_code = await self._process.wait()
        signal_if_there(self.pid, signal.SIGKILL, group=True)  # Children it left behind in its group,
        await asyncio.to_thread(kill_marked, self._mark)  # and those that went to a group of their own.
        self._guard.forget(self.pid)
        return exit_code


@final
class OwnAccount:
    """The agent's own account; see `Account`.

    Args:
        work: The agent's folder.
    """

    def __init__(self, work: Path) -> None:
        self.uid = os.geteuid()
        self.variables: Mapping[str, str] = {}
        self._work = work
        self._folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        # Through our descriptor paths stay short, however deep the folder: Unix sockets allow 107 bytes.
        self.mark = f"/proc/{os.getpid()}/fd/{self._folder}/"
        self.guard = Guard(self.mark)

    async def unpack(self, archive: int | None, inside: str) -> Path:
        return Path(await asyncio.to_thread(unpack, archive, str(self._work / "code"), inside))

    async def bind(self, path: str) -> socket.socket:
        unbound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bind(unbound, path)
        except OSError:
            unbound.close()
            raise
        return unbound

    async def write(self, name: str, files: Mapping[str, str]) -> Path:
        memory = Path(make_memory_folder(str(self._work)))
        self.guard.note_folder(memory)
        folder = memory / name
        self.guard.note_files(folder)
        make_folder(str(folder))
        write_files(str(folder), files)
        return folder

    def remove(self, path: str) -> None:
        remove(path)

    async def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        mark: str,
        output: int,
        entry: int = -1,
    ) -> Child:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=becoming_a_rank(entry),
        )
        return _OwnChild(process, self.guard, mark)

    def signal(self, pid: int, number: int, *, group: bool) -> None:
        signal_if_there(pid, number, group=group)

    async def close(self) -> None:
        await asyncio.to_thread(self.guard.close)
        os.close(self._folder)
