"""Disks, mounts, memory, clock, open files and PCIe, as recorded trees show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting
from mainspring.node.probes.watchers.machine import ClockState, Machine, Room, clock_state, room_of
from mainspring.node.probes.watchers.pcie import PcieLinks

from .recorded import Recorded

GIB = 1 << 30
WELL = Room(free_bytes=500 * GIB, bytes=1_000 * GIB, free_inodes=900, inodes=1_000)
RIGHT = ClockState(synchronised=True, off_s=0.002)
MOUNTS = """proc /proc proc rw 0 0
/dev/nvme0n1p2 / ext4 rw,relatime 0 0
/dev/nvme1n1 /data\\040sets xfs rw,noatime 0 0
/dev/nvme0n1p2 /var/lib/kubelet/pods/1 ext4 ro 0 0
server:/home /home nfs4 ro 0 0
/dev/loop0 /snap squashfs ro 0 0
"""


class Looked:
    """A machine that is looked at."""

    def __init__(self, root: Path) -> None:
        self.node = Recorded(root)
        self.rooms = {"/": WELL, "/data sets": WELL}
        self.clock: ClockState | None = RIGHT
        self.node.put("proc/1/mounts", MOUNTS)
        self.memory(free_kib=60_000_000)
        self.node.put("proc/sys/fs/file-nr", "12000\t0\t9223372036854775807\n")
        self.machine = Machine(NodeFiles(str(root)), self._room, lambda: self.clock)
        self._root = str(root)

    def _room(self, path: str) -> Room | None:
        return self.rooms.get(path.removeprefix(self._root))

    def memory(self, free_kib: int) -> None:
        self.node.put("proc/meminfo", f"MemTotal:  100000000 kB\nMemFree: 1 kB\nMemAvailable: {free_kib} kB\n")

    def faults(self) -> list[Sighting]:
        return [seen for seen in self.machine.look(1.0) if not seen.healthy]


@pytest.fixture
def looked(tmp_path: Path) -> Looked:
    return Looked(tmp_path)


def test_a_machine_that_is_well_says_so_of_each_thing(looked: Looked) -> None:
    seen = looked.machine.look(1.0)
    assert all(each.healthy for each in seen)
    assert {(each.check, each.part) for each in seen} == {
        ("mount", "/"), ("mount", "/data?sets"), ("disk", "/"), ("disk", "/data?sets"),
        ("memory", ""), ("clock", ""), ("open-files", ""),
    }  # fmt: skip


def test_a_disk_is_full_by_its_bytes_or_its_inodes(looked: Looked) -> None:
    looked.rooms["/"] = Room(free_bytes=15 * GIB, bytes=1_000 * GIB, free_inodes=900, inodes=1_000)
    looked.rooms["/data sets"] = Room(free_bytes=500 * GIB, bytes=1_000 * GIB, free_inodes=19, inodes=1_000)
    assert [(seen.part, seen.codes) for seen in looked.faults()] == [("/", ("space",)), ("/data?sets", ("inodes",))]


def test_a_large_disk_with_room_for_logs_is_not_full_and_one_without_inodes_has_none_to_lack(looked: Looked) -> None:
    looked.rooms["/"] = Room(free_bytes=17 * GIB, bytes=4_000 * GIB, free_inodes=0, inodes=0)
    assert looked.faults() == []


def test_a_mount_that_turned_read_only_is_a_fault(looked: Looked) -> None:
    assert looked.faults() == []
    looked.node.put("proc/1/mounts", MOUNTS.replace("xfs rw,noatime", "xfs ro,noatime"))
    (seen,) = looked.faults()
    assert (seen.check, seen.part, seen.fatal) == ("mount", "/data?sets", True)
    assert "/dev/nvme1n1" in seen.message


def test_a_mount_that_was_read_only_before_is_a_fault_where_operators_want_it_written(looked: Looked) -> None:
    looked.node.put("proc/1/mounts", MOUNTS.replace("rw,relatime", "ro,relatime").replace("xfs rw", "xfs ro"))
    assert looked.faults() == []
    looked.node.put("etc/fstab", "# comment\nUUID=1 / ext4 errors=remount-ro 0 1\n/dev/x /media auto ro 0 0\n")
    assert [seen.part for seen in looked.faults()] == ["/"]


def test_memory_files_and_clock_have_their_bounds(looked: Looked) -> None:
    looked.memory(free_kib=1_000_000)
    looked.node.put("proc/sys/fs/file-nr", "95000 0 100000\n")
    looked.clock = ClockState(synchronised=True, off_s=2.5)
    assert [seen.check for seen in looked.faults()] == ["memory", "open-files", "clock"]
    looked.clock = ClockState(synchronised=False, off_s=16.0)
    assert looked.faults()[-1].message == "nobody keeps the clock"


def test_what_cannot_be_read_is_not_judged(looked: Looked, tmp_path: Path) -> None:
    for name in ("proc/meminfo", "proc/1/mounts", "proc/sys/fs/file-nr"):
        looked.node.put(name, "\x00\xff garbage: x\n\n: :\n")
    looked.clock = None
    assert list(looked.machine.look(1.0)) == []
    bare = tmp_path / "bare"
    bare.mkdir()
    assert list(Machine(NodeFiles(str(bare)), clock=lambda: None).look(1.0)) == []


def test_this_machine_tells_its_room_and_its_clock() -> None:
    room = room_of("/")
    assert room is not None
    assert 0 <= room.free_bytes <= room.bytes
    state = clock_state()
    assert state is None or state.off_s >= 0
    assert room_of("/nowhere/at/all") is None


# ---------------------------------------------------------------- PCIe


def _pcie(root: Path, **files: str) -> list[Sighting]:
    node = Recorded(root)
    known = {
        "class": "0x020700", "current_link_width": "16", "max_link_width": "16",
        "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe",
    }  # fmt: skip
    node.pci("0000:1a:00.0", **(known | files))
    return list(PcieLinks(NodeFiles(str(root))).look(1.0))


def test_a_device_with_all_its_lanes_at_full_speed_is_well(tmp_path: Path) -> None:
    seen = _pcie(tmp_path)
    assert [(each.check, each.healthy) for each in seen] == [("pcie-width", True), ("pcie-speed", True)]


@pytest.mark.parametrize(
    ("files", "faults"),
    [
        ({"current_link_width": "8"}, ["pcie-width"]),
        ({"current_link_speed": "16.0 GT/s PCIe"}, ["pcie-speed"]),
        ({"max_link_width": "32", "max_link_speed": "64.0 GT/s PCIe"}, []),  # The slot has no more.
        ({"current_link_width": "4", "max_link_width": "4"}, []),
        ({"current_link_width": "0", "current_link_speed": "Unknown"}, []),
        ({"current_link_width": "255", "max_link_width": "255"}, []),
        ({"class": "0x030200", "current_link_speed": "2.5 GT/s PCIe"}, []),  # An idle GPU.
        ({"class": "0x030200", "current_link_width": "4"}, ["pcie-width"]),
        ({"class": "0x0c0330", "current_link_width": "1"}, []),  # A USB controller.
        ({"physfn": "", "current_link_width": "1"}, []),
        ({"class": "nonsense"}, []),
        ({"current_link_width": "\x00?", "max_link_speed": "fast"}, []),
    ],
)
def test_links_are_judged_by_what_device_and_slot_can_do(
    files: dict[str, str], faults: list[str], tmp_path: Path
) -> None:
    assert [seen.check for seen in _pcie(tmp_path, **files) if not seen.healthy] == faults
