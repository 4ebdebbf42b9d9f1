"""Process reaper: a tiny child that outlives a killed agent just long enough to end what it leaves behind.

It reads lines from the agent: "+<group>" and "-<group>" for process groups that began and ended, "=<folder>" for a
folder to remove at the end (a memory limit's), "*<folder>" for one to remove with its files (a rank's secrets). When
the pipe closes, however the agent ended, it kills every group still noted, then every process that carries the agent's
mark in its environment, whatever group it has moved to.
The ranks themselves die with the agent (PR_SET_PDEATHSIG); this catches their children.
Run as a file by an isolated interpreter, so that it starts in milliseconds and holds little memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

SOCKET_VARIABLE = "MAINSPRING_SOCKET"
SWEEPS_MAX = 5  # A process that forks while it is swept has its child caught by the next sweep.
REMOVALS_MAX = 20
REMOVE_WAIT_S = 0.05  # Killed processes leave their group within milliseconds.


def main(mark: str) -> None:
    """Notes groups and folders until the agent is gone, then kills and removes them.

    Args:
        mark: What the agent's ranks have at the front of their socket's path.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    folders: set[str] = set()
    filled: set[str] = set()
    for line in sys.stdin:
        what, value = line[0], line[1:].rstrip("\n")
        if what == "=":
            folders.add(value)
        elif what == "*":
            filled.add(value)
        elif what == "+":
            groups.add(int(value))
        else:
            groups.discard(int(value))
    for group in sorted(groups):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    kill_marked(mark)
    for folder in sorted(filled):
        empty(folder)
    for folder in sorted(folders | filled, reverse=True):
        remove(folder)


def kill_marked(mark: str) -> int:
    """Kills every process whose environment has a socket path that begins with `mark`; returns how many there were.

    Args:
        mark: The front of the path, or all of it.
    """
    wanted = f"{SOCKET_VARIABLE}={mark}".encode()
    killed = 0
    for _ in range(SWEEPS_MAX):
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _marked(pid, wanted)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed += len(found)
        if not found:
            break
    return killed


def _marked(pid: int, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # Empty once a process is a zombie.
            environment = file.read()
    except OSError:
        return False  # Gone, or somebody else's.
    return environment.startswith(wanted) or b"\0" + wanted in environment


def empty(folder: str) -> None:
    """Removes the files of a folder."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))


def remove(folder: str) -> None:
    """Removes an empty folder, or a limit's once its last process has left it."""
    for _ in range(REMOVALS_MAX):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            select.select([], [], [], REMOVE_WAIT_S)
        else:
            return


if __name__ == "__main__":
    main(sys.argv[1])
