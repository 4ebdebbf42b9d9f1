"""Ranks under the account of their team's user: `UserAccount`, an `Account` that an agent reaches through a starter.

An agent that is root has the starter become the user; any other asks sudo to begin it as that user. All else is alike.
Such ranks share nothing with their agent but what it hands them. What is theirs lies in a folder of theirs, in which
the agent opens nothing, so that no link of a rank's can lead it astray.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from mainspring.domain.codec import FRAME_HEADER_BYTES, frame, frame_length, unframe
from mainspring.domain.errors import InvalidMessage, NotAllowed, Unavailable
from mainspring.node.process.account import Account, Child, Guard, OwnAccount
from mainspring.node.process.requests import (
    ANSWER_BYTES_MAX,
    BeginStarter,
    BindSocket,
    Exited,
    Made,
    NotDone,
    RemovePath,
    SignalProcess,
    Started,
    StarterAnswer,
    StarterRequest,
    StartProcess,
    UnpackCode,
    WriteFiles,
)

BEGIN_LIMIT_S = 30.0  # sudo may ask a directory of the site's, and a PAM module that is slow.
END_LIMIT_S = 60.0  # As many files as code may have are removed in a few seconds, on a disk that works.
SUDO = ("sudo", "-n", "-u")  # Never asks for a password.
RULE = "{own} ALL=({user}) NOPASSWD: ALL"
_ATTEMPTED = "run programs as their team's user"
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from mainspring.node.process.starter import main; main()"
_PACKAGES = str(Path(__file__).parents[3])
_WORDS_BYTES_MAX = 2_000  # Of what sudo, or the interpreter, says before it gives up.
_EXIT_LOST = -signal.SIGKILL  # Ranks die with their starter.

_Answer = TypeVar("_Answer", bound=StarterAnswer)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of this machine."""

    name: str
    uid: int
    home: str
    shell: str

    @staticmethod
    def named(name: str) -> User:
        """Returns a user.

        Raises:
            Unavailable: This machine has no such user, or it may do whatever it likes, or it is ours.
        """
        try:
            found = pwd.getpwnam(name)
        except KeyError as error:
            raise Unavailable(_ATTEMPTED, on=f"user {name!r}", got="no such user here") from error
        if found.pw_uid in (0, os.geteuid()):
            got = "root" if found.pw_uid == 0 else "the agent's own account"
            raise Unavailable(_ATTEMPTED, on=f"user {name!r}", got=got, wanted="another")
        return User(name=name, uid=found.pw_uid, home=found.pw_dir, shell=found.pw_shell)

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns what programs learn of the account."""
        return {"HOME": self.home, "LOGNAME": self.name, "SHELL": self.shell, "USER": self.name}

    @property
    def starter(self) -> Sequence[str]:
        """Returns the command of a process of this user, by what we may do: as root, or by a rule of sudo."""
        program = (sys.executable, "-I", "-S", "-c", _PROGRAM, _PACKAGES)
        return (*program, self.name) if os.geteuid() == 0 else (*SUDO, self.name, "--", *program)

    @property
    def rule(self) -> str:
        """Returns what lets us run commands as this user, as a next step; "" where we need nothing."""
        own = pwd.getpwuid(os.geteuid()).pw_name
        return "" if os.geteuid() == 0 else f"in /etc/sudoers.d: {RULE.format(own=own, user=self.name)}"


@final
class _Answers:
    """What the starter says to one request, over a pipe of its own."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._reader = reader
        self._transport = transport

    @staticmethod
    async def over(pipe: int) -> _Answers:
        """Returns the answers that come through a pipe, which is closed with them."""
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
        return _Answers(reader, transport)

    async def next(self, kind: type[_Answer]) -> _Answer | None:
        """Returns the next answer; None when there is none, or the starter speaks as none does.

        Raises:
            OSError: The starter could not do it, and says why.
        """
        try:
            header = await self._reader.readexactly(FRAME_HEADER_BYTES)
            body = await self._reader.readexactly(frame_length(header, ANSWER_BYTES_MAX))
            answer = unframe(body, StarterAnswer)
        except (EOFError, OSError, InvalidMessage):
            return None
        if isinstance(answer, NotDone):
            raise OSError(answer.reason)
        return answer if isinstance(answer, kind) else None

    def close(self) -> None:
        self._transport.close()


@final
class _UserChild:
    """A process that the starter started; see `Child`."""

    def __init__(self, pid: int, answers: _Answers) -> None:
        self.pid = pid
        self._answers = answers
        self._end = asyncio.create_task(self._exit_code())

    @property
    def over(self) -> bool:
        return self._end.done()

    async def ended(self) -> int:
        return await asyncio.shield(self._end)

    async def _exit_code(self) -> int:
        with contextlib.closing(self._answers), contextlib.suppress(OSError):
            exited = await self._answers.next(Exited)
            if exited is not None:
                return exited.exit_code
        return _EXIT_LOST


@final
class UserAccount:
    """The account of a user, through a starter of that user; see `Account`."""

    def __init__(self, user: User, folder: Path) -> None:
        self.uid = user.uid
        self.variables = user.variables
        self.mark = f"{folder}/"
        self._user = user
        self._starter = _Starter(user, folder)
        self.guard = Guard(self.mark)

    @staticmethod
    async def begun(user: User, folder: Path) -> UserAccount:
        """Returns an account that can be used.

        Args:
            folder: Absolute, of few letters as sockets lie in it; the user makes it, and removes it at the end.

        Raises:
            NotAllowed: We may not run programs as that user.
            Unavailable: The user cannot make the folder.
        """
        account = UserAccount(user, folder)
        try:
            await account._starter.begin()
        except BaseException:
            await account.close()
            raise
        return account

    async def unpack(self, archive: int | None, inside: str) -> Path:
        files = () if archive is None else (archive,)
        return Path(await self._starter.made(UnpackCode(inside=inside), *files))

    async def bind(self, path: str) -> socket.socket:
        unbound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await self._starter.made(BindSocket(path=path), unbound.fileno())
        except BaseException:
            unbound.close()
            raise
        return unbound

    async def write(self, name: str, files: Mapping[str, str]) -> Path:
        return Path(await self._starter.made(WriteFiles(name=name, files=files)))

    def remove(self, path: str) -> None:
        os.close(self._starter.send(RemovePath(path=path)))

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
        request = StartProcess(command=tuple(command), environment=environment, folder=str(folder), mark=mark)
        files = (output,) if entry < 0 else (output, entry)
        answers = await _Answers.over(self._starter.send(request, *files))
        try:
            started = await answers.next(Started)
            if started is None:
                raise self._starter.gone
        except BaseException:
            answers.close()
            raise
        return _UserChild(started.pid, answers)

    def signal(self, pid: int, number: int, *, group: bool) -> None:
        os.close(self._starter.send(SignalProcess(pid=pid, number=number, group=group)))

    async def close(self) -> None:
        """Undoes everything, also where a rank has ended the starter; see `Account`."""
        try:
            if not await self._starter.end():
                again = _Starter(self._user, Path(self.mark))
                with contextlib.suppress(NotAllowed, Unavailable):
                    await again.begin(end=(self._starter.pid,))
                await again.end()
        finally:
            await asyncio.to_thread(self.guard.close)


@final
class _Starter:
    """The agent's end of `starter.py`."""

    def __init__(self, user: User, folder: Path) -> None:
        self.pid = 0
        self._user = user
        self._folder = folder
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        self._words = os.memfd_create("mainspring-words")
        with other:
            try:
                self._process = subprocess.Popen(
                    user.starter,
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._words,
                    cwd="/",
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
            except OSError as error:
                raise NotAllowed(
                    _ATTEMPTED, on=f"user {user.name!r}", got=str(error), wanted="root, or sudo"
                ) from error

    async def begin(self, *, end: tuple[int, ...] = ()) -> None:
        """Has the folder made.

        Args:
            end: Starters before this one, to kill.

        Raises:
            NotAllowed: We may not run programs as that user.
            Unavailable: The user cannot make the folder.
        """
        answers = await _Answers.over(self.send(BeginStarter(folder=str(self._folder), end=end)))
        try:
            async with asyncio.timeout(BEGIN_LIMIT_S):
                begun = await answers.next(Started)
        except (OSError, TimeoutError) as error:
            raise Unavailable(
                _ATTEMPTED, on=f"user {self._user.name!r}", got=str(error) or "no answer", wanted="a folder to share"
            ) from error
        finally:
            answers.close()
        if begun is None:
            words = os.pread(self._words, _WORDS_BYTES_MAX, 0).decode(errors="replace")
            raise NotAllowed(
                _ATTEMPTED,
                on=f"user {self._user.name!r}",
                got=words.strip() or "it ended at once",
                wanted=f"to run {sys.executable} as that user",
                next_step=self._user.rule,
            )
        self.pid = begun.pid

    def send(self, request: StarterRequest, *files: int) -> int:
        """Sends a request; returns the pipe through which its answers come: none, where the starter is gone.

        Args:
            files: Descriptors that it needs.
        """
        answers, end = os.pipe()
        payload = os.memfd_create("mainspring-request")
        try:
            with open(payload, "wb", closefd=False) as file:
                file.write(frame(request))
            os.lseek(payload, 0, os.SEEK_SET)
            with contextlib.suppress(OSError):
                socket.send_fds(self._line, [b"."], [payload, end, *files])
        finally:
            os.close(payload)
            os.close(end)
        return answers

    async def made(self, request: StarterRequest, *files: int) -> str:
        """Returns the path of what was made at a request; see `send`.

        Raises:
            OSError: It could not be done.
            Unavailable: The starter is gone.
        """
        answers = await _Answers.over(self.send(request, *files))
        with contextlib.closing(answers):
            made = await answers.next(Made)
        if made is None:
            raise self.gone
        return made.path

    @property
    def gone(self) -> Unavailable:
        """Returns the error of a starter that does not answer."""
        return Unavailable(_ATTEMPTED, on=f"user {self._user.name!r}", got="the process that does so was ended")

    async def end(self) -> bool:
        """Lets it undo all it has done; returns whether it did."""
        self._line.close()
        try:
            return not await asyncio.to_thread(self._process.wait, END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            os.close(self._words)


async def opened_account(user: str, folder: str, work: Path) -> Account:
    """Returns the account that ranks run under.

    Args:
        user: By name, "" for the agent's own.
        folder: See `UserAccount.begun`.
        work: See `OwnAccount`.

    Raises:
        NotAllowed: See `UserAccount.begun`.
        Unavailable: There is no such user; or see there.
    """
    if user:
        return await UserAccount.begun(User.named(user), Path(folder))
    return OwnAccount(work)
