"""What is done under the account of ranks: by their agent where that is its own, else by its starter.

Of the standard library and `domain` alone, so that a starter begins quickly and needs nothing that its user could not
read.
"""

from __future__ import annotations

import ctypes
import gzip  # noqa: F401  (by `tarfile`, only once it is used: then a starter may not read the interpreter's files)
import os
import shutil
import signal
import socket
import stat
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress

from mainspring.domain.fleet import MEMORY, memory_of

MEMBERS_MAX = 200_000
UNPACKED_BYTES_MAX = 8 << 30  # A working tree with its assets; data belongs in the catalog.
FAILURES = (OSError, EOFError, ValueError, tarfile.TarError)  # Of the actions below: what each says is for people.
_FOLDER, _FILE, _SOCKET, _OTHERS = 0o700, 0o400, 0o600, 0o077
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def make_folder(path: str) -> None:
    """Makes a folder that is its owner's alone; one that is there already must be so too.

    Raises:
        OSError: It cannot be made, or is somebody else's.
    """
    with suppress(FileExistsError):
        os.mkdir(path, _FOLDER)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise PermissionError(f"{path} is there already, and not this user's alone")


def make_memory_folder(folder: str) -> str:
    """Returns the place of a folder's files in memory, made; inside of it where a machine has no such place.

    Raises:
        OSError: See `make_folder`.
    """
    memory = memory_of(folder) if os.access(MEMORY, os.W_OK | os.X_OK) else os.path.join(folder, "memory")
    make_folder(memory)
    return memory


def unpack(archive: int | None, root: str, inside: str) -> str:
    """Returns the folder that commands run in, having made it and unpacked an archive there.

    Args:
        archive: Descriptor of a tar file that gzip has compressed, None for an empty folder.
        root: The folder to unpack into.
        inside: Where in it commands run, "" for itself.

    Raises:
        ValueError: The archive is too large, or no folder of it is called so.
        OSError: It would write outside the folder, or cannot be written; others of `FAILURES` likewise.
    """
    os.makedirs(root, exist_ok=True)
    if archive is None:
        return root
    with open(archive, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
        size_bytes = 0
        for members, member in enumerate(tar, start=1):
            size_bytes += member.size
            if members > MEMBERS_MAX or size_bytes > UNPACKED_BYTES_MAX:
                raise ValueError(f"over {MEMBERS_MAX} files, or over {UNPACKED_BYTES_MAX} bytes")
            tar.extract(member, root, filter="data")
    whole, found = os.path.realpath(root), os.path.realpath(os.path.join(root, inside))
    if os.path.commonpath([whole, found]) != whole or not os.path.isdir(found):
        raise ValueError(f"no folder {inside[:200]!r} inside")
    return found


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Writes new files into a folder, all of them their owner's alone.

    Raises:
        OSError: They cannot be written.
    """
    for name, text in files.items():
        with open(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE), "wb") as file:
            file.write(text.encode())


def remove(path: str) -> None:
    """Removes a file, or a folder with all that is in it, as far as that can be done; no link leads out of it."""
    with suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def bind(unbound: socket.socket, path: str) -> None:
    """Gives a Unix socket its name, which is for its owner alone to connect to.

    Raises:
        OSError: Its folder cannot be written, or the path is too long.
    """
    unbound.bind(path)
    os.chmod(path, _SOCKET)  # Nobody connects before it listens.


def signal_if_there(pid: int, number: int, *, group: bool) -> None:
    """Signals a process, or a group of them; one that is gone, or another's, is left alone."""
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def becoming_a_rank(entry: int) -> Callable[[], None]:
    """Returns what a new process does before it runs its program: it dies with this one, and has its memory bounded.

    Args:
        entry: Descriptor of the `cgroup.procs` of its control group, -1 for none.
    """
    starter = os.getpid()

    def begin() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != starter:  # It died before the line above took hold.
            os.kill(os.getpid(), signal.SIGKILL)
        if entry >= 0:
            os.write(entry, b"0")  # Us.

    return begin
