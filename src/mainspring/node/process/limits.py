"""Memory limits: each rank in a control group of its own, under the agent's, where the machine lets us.

Version 1 and version 2 of the kernel's interface. Version 2 allows limits only below a group that holds no process, so
the agent moves into a group of its own first; where others share the agent's group that cannot be, and nothing is
limited. Sources: Linux `Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from mainspring.node.process.guard import remove

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What one version of the interface calls things."""

    limit: str
    events: str


_V1 = _Names(limit="memory.limit_in_bytes", events="memory.oom_control")
_V2 = _Names(limit="memory.max", events="memory.events")


@final
class MemoryLimit:
    """One process's bound.

    Args:
        names: What the kernel calls things.
    """

    def __init__(self, folder: Path, memory_mib: int, names: _Names) -> None:
        self.folder = folder
        self._memory_mib = memory_mib
        self._names = names
        self.procs = os.open(folder / "cgroup.procs", os.O_WRONLY)

    @property
    def passed(self) -> str:
        """Returns the words for a process the kernel killed over the bound, "" when it killed none."""
        with contextlib.suppress(OSError):
            for line in (self.folder / self._names.events).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.strip() not in ("", "0"):
                    return f"killed: out of memory, limit {self._memory_mib} MiB"
        return ""

    async def close(self) -> None:
        """Removes the group, once its processes are gone."""
        os.close(self.procs)
        await asyncio.to_thread(remove, str(self.folder))


@final
class MemoryLimits:
    """Makes bounds below one control group.

    Args:
        own: The agent's own control group for memory, None where there is none to use.
        names: What the kernel calls things there.
    """

    def __init__(self, own: Path | None, names: _Names = _V1) -> None:
        self.own = own
        self._names = names
        self._count = 0

    def limit(self, memory_mib: int) -> MemoryLimit | None:
        """Returns a bound for one more process; None where none can be made, and none is wanted for 0."""
        if self.own is None or memory_mib <= 0:
            return None
        self._count += 1
        folder = self.own / f"mainspring-{os.getpid()}-{self._count}"
        try:
            folder.mkdir()
            (folder / self._names.limit).write_text(str(memory_mib << 20))
            return MemoryLimit(folder, memory_mib, self._names)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()
            return None


def find_limits(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> MemoryLimits:
    """Returns what this machine allows.

    Args:
        root: Where control groups are mounted.
        own_groups: The kernel's list of this process's groups.
    """
    with contextlib.suppress(OSError):
        for line in own_groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                own = root / "memory" / path.lstrip("/")
                return MemoryLimits(own if (own / _V1.limit).exists() and os.access(own, os.W_OK) else None, _V1)
        for line in own_groups.read_text().splitlines():
            if line.startswith("0::"):
                return MemoryLimits(_made_parent(root / line[3:].lstrip("/")), _V2)
    return MemoryLimits(None)


def _made_parent(own: Path) -> Path | None:
    """Returns the group, made fit to have limited groups below it; None when it cannot be."""
    if "memory" not in (own / "cgroup.controllers").read_text().split() or not os.access(own, os.W_OK):
        return None
    leaf = own / f"mainspring-agent-{os.getpid()}"
    try:
        leaf.mkdir()
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text("+memory")
    except OSError:  # Others live in the group.
        with contextlib.suppress(OSError):
            (own / "cgroup.procs").write_text(str(os.getpid()))
            leaf.rmdir()
        return None
    return own
