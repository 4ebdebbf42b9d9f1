"""The machine around the chips: disks, mounts, memory, clock, open files.

How little is too little is our own choice: what a node needs to start ranks, keep logs and be reached.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, well

DISKS = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs")
)  # A call to these does not wait for a server.
MOUNTS_MAX = 64  # Looked at; a host of many containers has more, of the same few disks.
FREE_SHARE_MIN = 0.02
FREE_BYTES_MIN = 16 << 30  # Two hundredths of a large disk are still room.
MEMORY_SHARE_MIN = 0.02
FILES_SHARE_MAX = 0.9
CLOCK_OFF_S_MAX = 1.0  # Logs can be compared, tokens are valid; NTP keeps a thousandth of it.
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\134", "\\"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is left of a file system.

    Args:
        free_bytes: For programs that are not root.
        inodes: 0 where it makes them as it needs them.
    """

    free_bytes: int
    bytes: int
    free_inodes: int
    inodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """What the kernel knows of its clock.

    Args:
        synchronised: Whether somebody keeps it right.
        off_s: The most that it may be off, as far as they know.
    """

    synchronised: bool
    off_s: float


def room_of(path: str) -> Room | None:
    """Returns the room of the file system at a path, None where it does not say."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return Room(
        free_bytes=found.f_bavail * found.f_frsize,
        bytes=found.f_blocks * found.f_frsize,
        free_inodes=found.f_favail,
        inodes=found.f_files,
    )


_TIMEX_BYTES = 208  # Of struct timex on 64 bits. Source: Linux, include/uapi/linux/timex.h.
_UNSYNCHRONISED, _STATUS_AT, _MAXERROR_AT = 0x0040, 40, 24  # STA_UNSYNC; where `status` and `maxerror` (us) are.


def clock_state() -> ClockState | None:
    """Returns what adjtimex(2) says, which changes nothing and needs no rights; None where there is no such call."""
    answer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        if ctypes.CDLL(None).adjtimex(answer) < 0:
            return None
    except (AttributeError, OSError):
        return None
    (maxerror_us,) = struct.unpack_from("<q", answer, _MAXERROR_AT)
    (status,) = struct.unpack_from("<i", answer, _STATUS_AT)
    return ClockState(synchronised=not status & _UNSYNCHRONISED, off_s=maxerror_us / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    device: str
    path: str
    writable: bool


@final
class Machine:
    """Watches what a node needs beside its chips.

    Args:
        room: Returns the room at a path.
        clock: Returns what is known of the clock.
    """

    name = "machine"
    every_s = 30.0

    def __init__(
        self,
        files: NodeFiles,
        room: Callable[[str], Room | None] = room_of,
        clock: Callable[[], ClockState | None] = clock_state,
    ) -> None:
        self._files = files
        self._room = room
        self._clock = clock
        self._written: set[str] = set()

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what stands."""
        found = [*self._disks(), *self._memory(), *self._open_files()]
        state = self._clock()
        if state is not None:
            off = not state.synchronised or state.off_s > CLOCK_OFF_S_MAX
            words = f"the clock may be off by {state.off_s:g} s" if state.synchronised else "nobody keeps the clock"
            found.append(Sighting(check="clock", message=words) if off else well("clock"))
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _disks(self) -> Iterator[Sighting]:
        planned = self._planned()
        for mount in self._mounts():
            part = mount.path.replace(" ", "?")
            if mount.writable:
                self._written.add(mount.path)
                yield well("mount", ScopeKind.DEVICE, part)
            elif mount.path in self._written or mount.path in planned:
                yield Sighting(
                    check="mount",
                    kind=ScopeKind.DEVICE,
                    part=part,
                    fatal=True,
                    message=f"{mount.path} ({mount.device}) can only be read",
                    repair=Repair.RESTART_NODE,
                )
                continue
            else:
                continue
            room = self._room(self._files.path(mount.path.lstrip("/")))
            if room is not None and room.bytes:
                yield _disk(part, room)

    def _mounts(self) -> Iterator[_Mount]:
        """Yields the file systems that disks of this node hold, each once."""
        devices: set[str] = set()
        table = self._files.text("proc/1/mounts") or self._files.text("proc/mounts")
        for line in table.splitlines():
            words = line.split(" ")
            if len(words) < 4 or words[2] not in DISKS or words[0] in devices or len(devices) >= MOUNTS_MAX:
                continue
            devices.add(words[0])
            path = words[1]
            for escape, letter in _ESCAPES:
                path = path.replace(escape, letter)
            yield _Mount(device=words[0], path=path, writable="rw" in words[3].split(","))

    def _planned(self) -> set[str]:
        """Returns where the operators want something that can be written."""
        rows = (line.split() for line in self._files.text("etc/fstab").splitlines() if not line.startswith("#"))
        return {row[1] for row in rows if len(row) >= 4 and "ro" not in row[3].split(",")}

    def _memory(self) -> Iterator[Sighting]:
        kib: dict[str, int] = {}
        for line in self._files.text("proc/meminfo").splitlines():
            name, _, words = line.partition(":")
            number = words.split(maxsplit=1)[0] if words.split() else ""
            if number.isdigit():
                kib[name] = int(number)
        total, free = kib.get("MemTotal", 0), kib.get("MemAvailable", 0)
        if total:
            low = free < MEMORY_SHARE_MIN * total
            words = f"{free >> 10} of {total >> 10} MiB of memory are left"
            yield Sighting(check="memory", message=words) if low else well("memory")

    def _open_files(self) -> Iterator[Sighting]:
        words = self._files.text("proc/sys/fs/file-nr", 128).split()
        if len(words) == 3 and all(word.isdigit() for word in words) and int(words[2]):
            many = int(words[0]) > FILES_SHARE_MAX * int(words[2])
            said = f"{words[0]} of {words[2]} files are open"
            yield Sighting(check="open-files", message=said) if many else well("open-files")


def _disk(part: str, room: Room) -> Sighting:
    full = room.free_bytes < min(FREE_BYTES_MIN, FREE_SHARE_MIN * room.bytes)
    few = room.inodes > 0 and room.free_inodes < FREE_SHARE_MIN * room.inodes
    if not full and not few:
        return well("disk", ScopeKind.DEVICE, part)
    left = (
        f"{room.free_bytes >> 20} of {room.bytes >> 20} MiB" if full else f"{room.free_inodes} of {room.inodes} inodes"
    )
    return Sighting(
        check="disk",
        kind=ScopeKind.DEVICE,
        part=part,
        codes=("space",) if full else ("inodes",),
        message=f"{left} are left on {part}",
        repair=Repair.CALL_PEOPLE,
    )
