"""Starter: the process through which an agent acts as its team's user; ranks are its children.

It is begun as root and becomes the user, or by sudo as the user. What it is asked comes over its standard input, a
socket of packets: each brings a file in memory with one request, a pipe for its answers, and the files that it needs.
So nothing of it is on a command line or on a disk. When the agent is gone, however it ended, the starter kills all that
runs for it and removes all that it made. Nothing it says is trusted further than its user: ranks of that user may end
it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from mainspring.domain.codec import FRAME_HEADER_BYTES, frame, unframe
from mainspring.node.process.actions import (
    FAILURES,
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
from mainspring.node.process.requests import (
    REASON_LETTERS_MAX,
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

FILES_MAX = 4  # With a request: itself, where its answers go, and at most two of its own.
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """A rank's process.

    Args:
        mark: What it and all that it starts carry in their environment.
        answers: Where its end is told.
    """

    process: subprocess.Popen[bytes]
    mark: str
    answers: int


@final
class Starter:
    """Does what it is asked over a line.

    Args:
        line: The agent's other end.
        woken: Readable once a child may have ended.
    """

    def __init__(self, line: socket.socket, woken: socket.socket) -> None:
        self._line = line
        self._woken = woken
        self._folder = ""
        self._memory = ""
        self._children: dict[int, _Child] = {}

    def serve(self) -> None:
        """Returns once the agent is gone, and with it all that was made for it."""
        while True:
            readable, _, _ = select.select([self._line, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(1 << 10)
                self._reap()
            if self._line in readable:
                data, files, _, _ = socket.recv_fds(self._line, 1, FILES_MAX, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    break
                self._take(files)
        for pid in self._children:
            signal_if_there(pid, signal.SIGKILL, group=True)
        if self._folder:
            kill_marked(f"{self._folder}/")
            remove(self._memory)
            remove(self._folder)

    def _take(self, files: list[int]) -> None:
        payload, answers, *others = files
        try:
            with open(payload, "rb") as file:
                self._obey(unframe(file.read()[FRAME_HEADER_BYTES:], StarterRequest), answers, others)
        except (*FAILURES, subprocess.SubprocessError) as error:
            _tell(answers, NotDone(reason=str(error)[:REASON_LETTERS_MAX]))
        finally:
            for file_number in (answers, *others):
                if not any(child.answers == file_number for child in self._children.values()):
                    os.close(file_number)

    def _obey(self, request: StarterRequest, answers: int, files: list[int]) -> None:
        match request:
            case BeginStarter():
                self._begin(request)
                _tell(answers, Started(pid=os.getpid()))
            case UnpackCode():
                code = os.path.join(self._folder, "code")
                _tell(answers, Made(path=unpack(files[0] if files else None, code, request.inside)))
            case BindSocket():
                with socket.socket(fileno=os.dup(files[0])) as unbound:
                    bind(unbound, request.path)
                _tell(answers, Made(path=request.path))
            case WriteFiles():
                folder = os.path.join(self._memory, request.name)
                make_folder(folder)
                write_files(folder, request.files)
                _tell(answers, Made(path=folder))
            case RemovePath():
                remove(request.path)
            case SignalProcess():
                signal_if_there(request.pid, request.number, group=request.group)
            case StartProcess():
                self._start(request, answers, files)

    def _begin(self, request: BeginStarter) -> None:
        for pid in request.end:
            signal_if_there(pid, signal.SIGKILL, group=False)
        make_folder(request.folder)
        self._folder = request.folder
        self._memory = make_memory_folder(request.folder)

    def _start(self, request: StartProcess, answers: int, files: list[int]) -> None:
        output, *entry = files
        process = subprocess.Popen(
            request.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=request.folder,
            env=request.environment,
            start_new_session=True,
            preexec_fn=becoming_a_rank(entry[0] if entry else -1),  # noqa: PLW1509  (there is one thread)
        )
        self._children[process.pid] = _Child(process=process, mark=request.mark, answers=answers)
        _tell(answers, Started(pid=process.pid))

    def _reap(self) -> None:
        """Tells of children that have ended, once nothing that they started lives."""
        for pid, child in list(self._children.items()):
            exit_code = child.process.poll()
            if exit_code is not None:
                signal_if_there(pid, signal.SIGKILL, group=True)
                kill_marked(child.mark)
                del self._children[pid]
                _tell(child.answers, Exited(exit_code=exit_code))
                os.close(child.answers)


def _tell(answers: int, answer: StarterAnswer) -> None:
    with suppress(BrokenPipeError):  # The agent asks no more.
        os.write(answers, frame(answer))


def _become(name: str) -> None:
    """Gives up all rights but a user's."""
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def main() -> None:
    """Serves whoever holds the other end of standard input; as a user that is named, where it is begun as root."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # Handled, not ignored: what is ignored stays so in ranks.
    if sys.argv[1:]:
        _become(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # Ranks are of the same user, and have no business in its memory.
    with socket.socket(fileno=os.dup(0)) as line:
        Starter(line, woken).serve()
