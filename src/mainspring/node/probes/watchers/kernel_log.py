"""The kernel's log: which of its lines tell of a fault, of what, and what would help.

A record of the log is known by the boot and its number in it, whoever reads it: two watchers of one node, or one that
starts again, say the same of it under the same name.

Source: the messages are those of Linux (drivers/pci/pcie/aer.c, drivers/nvme/host, block/blk-core.c, fs/ext4, fs/xfs,
mm/oom_kill.c, mm/memory-failure.c, drivers/edac, kernel/watchdog.c, kernel/hung_task.c), of NVIDIA's driver ("Xid
Catalog"; "Fabric Manager User Guide", SXid errors) and of mlx5_core (drivers/net/ethernet/mellanox/mlx5/core/health.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.domain.hardware.xids import xid_of
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, bus_address

LOG = "dev/kmsg"
RECORD_BYTES_MAX = 8_192  # Of one record. Source: Linux, PRINTKRB_RECORD_MAX and /dev/kmsg's own buffer.
RECORDS_MAX = 20_000  # Read at one look; what is left is read at the next.
QUIET_US = 10_000_000  # The same said again within ten seconds of the log's own time is one fault.
STAT_BYTES_MAX = 1 << 20  # A count for each of thousands of interrupts stands before the time of the boot.
FAULTS_MAX = 1_024  # Told apart within that.
_KERNEL = 0  # Facility of the kernel itself; programs that write to the log have others, and are not believed.
_BUS = r"(?P<part>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPattern:
    """What a line of the log tells.

    Args:
        pattern: Found in such a line. Its groups, where it has them: `part` (a device or link), `code`.
        words: For people; the line follows.
    """

    check: str
    pattern: re.Pattern[str]
    words: str
    kind: ScopeKind = ScopeKind.NODE
    fatal: bool = False
    repair: Repair = Repair.NONE


def _row(
    check: str,
    pattern: str,
    words: str,
    repair: Repair = Repair.NONE,
    *,
    fatal: bool = False,
    kind: ScopeKind = ScopeKind.NODE,
) -> LogPattern:
    return LogPattern(check=check, pattern=re.compile(pattern), words=words, repair=repair, fatal=fatal, kind=kind)


# Of a bank's status, bit 61 says that it was not corrected. Source: Intel SDM volume 3, "Machine-Check Architecture".
_UNCORRECTED = r"Machine Check Exception|Machine Check: .*Bank \d+: [abef][0-9a-f]{15}"
_DEVICE = ScopeKind.DEVICE
_NODE_AGAIN, _PEOPLE = Repair.RESTART_NODE, Repair.CALL_PEOPLE

# In order: the first that is found in a line says what it tells.
PATTERNS: tuple[LogPattern, ...] = (
    _row("xid", rf"NVRM: Xid \((?:PCI:)?{_BUS}[^)]*\): (?P<code>\d+)", "Xid", kind=_DEVICE),
    _row("xid", rf"NVRM: .*{_BUS}.*GPU has fallen off the bus", "fallen off the bus", kind=_DEVICE),
    _row("sxid", rf"SXid \((?:PCI:)?{_BUS}\): (?P<code>\d+), Fatal", "fatal error of an NVSwitch", _NODE_AGAIN,
         fatal=True, kind=_DEVICE),
    _row("sxid", rf"SXid \((?:PCI:)?{_BUS}\): (?P<code>\d+), ", "error of an NVSwitch", kind=_DEVICE),
    _row("memory-error", r"Memory failure: 0x[0-9a-f]+: (?:recovery action|Killing)", "a page of memory is lost"),
    _row("machine-check", r"EDAC .*\d+ UE |Uncorrected hardware memory error|\[Hardware Error\]:.*Uncorrected error",
         "uncorrected error of memory", _PEOPLE, fatal=True),
    _row("machine-check", _UNCORRECTED,
         "machine check", _NODE_AGAIN, fatal=True),
    _row("memory-corrected", r"EDAC .*\d+ CE ", "corrected error of memory"),
    _row("oom", r"(?<!cgroup )[Oo]ut of memory: Kill(?:ed)? process (?P<code>\d+)", "the node ran out of memory"),
    _row("pcie", rf"{_BUS}.*(?:AER: Uncorrected \(Fatal\)|severity=Uncorrected \(Fatal\)|Uncorrectable \(Fatal\))",
         "fatal error of PCIe", Repair.RESET_DEVICE, fatal=True, kind=_DEVICE),
    _row("pcie", rf"{_BUS}.*(?:Uncorrected \(Non-Fatal\)|Uncorrectable \(Non-Fatal\))", "error of PCIe",
         Repair.RESET_DEVICE, kind=_DEVICE),
    _row("pcie", rf"{_BUS}.*pciehp: Slot\(.*\): (?:Link Down|Card not present)", "a slot lost its card", _PEOPLE,
         fatal=True, kind=_DEVICE),
    _row("pcie-corrected", rf"{_BUS}.*(?:AER: (?:Multiple )?Correct(?:ed|able)|severity=Correct(?:ed|able))",
         "corrected error of PCIe", kind=_DEVICE),
    _row("nic", rf"mlx5_core {_BUS}.*(?:health compromised|Health issue observed|assert_var)",
         "an adapter's firmware stopped", Repair.RESET_DEVICE, fatal=True, kind=_DEVICE),
    _row("nic-module", rf"mlx5_core {_BUS}.*Port module event\[error\]", "fault of a cable or transceiver", _PEOPLE,
         kind=_DEVICE),
    _row("nic", rf"mlx5_core {_BUS}.*(?:command .*timeout|Detected insufficient power)", "an adapter does not answer",
         Repair.RESET_DEVICE, kind=_DEVICE),
    _row("nvme", r"nvme (?P<part>nvme\d+): .*(?:[Rr]emoving after probe failure|Device not ready|controller is down)",
         "a disk does not answer", _PEOPLE, fatal=True, kind=_DEVICE),
    _row("nvme", r"nvme (?P<part>nvme\d+): I/O .*timeout", "a disk is late", kind=_DEVICE),
    _row("filesystem", r"EXT4-fs \((?P<part>[\w-]+)\): Remounting filesystem read-only", "a file system is read-only",
         _NODE_AGAIN, fatal=True, kind=_DEVICE),
    _row("filesystem", r"EXT4-fs error \(device (?P<part>[\w-]+)\)", "damage in a file system", _PEOPLE, kind=_DEVICE),
    _row("filesystem", r"XFS \((?P<part>[\w-]+)\): (?:.*[Ss]hut(?:ting)? down|.*Corruption (?:of|detected))",
         "a file system is shut", _NODE_AGAIN, fatal=True, kind=_DEVICE),
    _row("disk-io", r"(?:XFS \((?P<part>[\w-]+)\): .*I/O error)", "a file system's disk fails", _PEOPLE, kind=_DEVICE),
    _row("disk-io", r"I/O error,? (?:on )?dev (?!sr\d|fd\d|loop)(?P<part>[\w-]+)", "a disk fails", _PEOPLE,
         kind=_DEVICE),
    _row("kernel", r"Kernel panic|BUG: unable to handle|kernel BUG at|Oops: ", "the kernel failed", _NODE_AGAIN,
         fatal=True),
    _row("kernel", r"watchdog: BUG: soft lockup|hard LOCKUP|rcu: INFO: rcu_\w+ .*detected stall",
         "a processor is stuck", _NODE_AGAIN),
    _row("hung-task", r"INFO: task (?P<code>\S+):\d+ blocked for more than \d+ seconds", "a program is stuck"),
)  # fmt: skip


@final
class KernelLog:
    """Watches the kernel's log, from its oldest record on.

    Args:
        since_s: Records from before that are passed over, in seconds since the Unix epoch.
    """

    name = "kernel-log"
    every_s = 1.0

    def __init__(self, files: NodeFiles, since_s: float = 0.0) -> None:
        self._files = files
        self._since_s = since_s
        self._opened = -1
        self._rest = b""
        self._boot = files.text("proc/sys/kernel/random/boot_id", 64)
        self._boot_s = _boot_s(files)
        self._told: dict[tuple[str, str, tuple[str, ...]], int] = {}

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what was logged since the last look."""
        found = []
        for line in self._lines():
            record = _record(line)
            if record is None:
                continue
            at_s = self._boot_s + record.at_us / 1e6 if self._boot_s else now_s
            if at_s >= self._since_s:
                seen = self._sighting(record, at_s)
                if seen is not None:
                    found.append(seen)
        return found

    def close(self) -> None:
        """Closes the log; it is read from its beginning if it is looked at again."""
        if self._opened >= 0:
            os.close(self._opened)
            self._opened, self._rest = -1, b""

    def _lines(self) -> Iterator[bytes]:
        if self._opened < 0:
            try:
                self._opened = os.open(self._files.path(LOG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return
        for _ in range(RECORDS_MAX):
            try:
                data = os.read(self._opened, RECORD_BYTES_MAX)
            except BrokenPipeError:
                continue  # Records were overwritten before they were read; the next read is of those that are left.
            except OSError:
                return  # Nothing more yet, or nobody may read it.
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-RECORD_BYTES_MAX:]
            yield from whole

    def _sighting(self, record: _Record, at_s: float) -> Sighting | None:
        seen = seen_in(record.text)
        if seen is None:
            return None
        key = seen.check, seen.part, seen.codes
        before = self._told.pop(key, None)
        if before is not None and 0 <= record.at_us - before < QUIET_US:
            self._told[key] = before
            return None
        while len(self._told) >= FAULTS_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = record.at_us
        number = (self._boot, record.sequence) if self._boot else None
        return replace(seen, stands=False, at_s=at_s, record=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    sequence: int
    at_us: int
    text: str


def _record(line: bytes) -> _Record | None:
    """Returns a record that the kernel itself wrote. Source: Linux, Documentation/ABI/testing/dev-kmsg."""
    head, mark, text = line.partition(b";")
    fields = head.split(b",")
    if not mark or len(fields) < 3 or not all(field.isdigit() and len(field) < 19 for field in fields[:3]):
        return None
    if int(fields[0]) >> 3 != _KERNEL:
        return None
    plain = text.decode(errors="replace")  # What is not printable is escaped by the kernel, and stays so.
    return _Record(sequence=int(fields[1]), at_us=int(fields[2]), text=" ".join(plain.split()))


def seen_in(text: str) -> Sighting | None:
    """Returns what a message of the kernel tells of, None where it tells of no fault."""
    for row in PATTERNS:
        found = row.pattern.search(text)
        if found is None:
            continue
        groups = found.groupdict()
        part, code = groups.get("part") or "", groups.get("code") or ""
        words, fatal, repair = row.words, row.fatal, row.repair
        if row.check == "xid":
            xid = xid_of(int(code[:6]) if code else 79)
            code, words, fatal, repair = str(xid.code), f"Xid {xid.code}: {xid.words}", xid.fatal, xid.repair
        if row.check == "oom":
            code = ""  # A program's number tells nobody anything.
        return Sighting(
            check=row.check,
            kind=row.kind if part else ScopeKind.NODE,
            part=bus_address(part),
            stands=False,
            codes=(code,) if code else (),
            fatal=fatal,
            message=f"{words}: {text}"[:500],
            repair=repair,
        )
    return None


def _boot_s(files: NodeFiles) -> float:
    for line in files.text("proc/stat", STAT_BYTES_MAX).splitlines():
        if line.startswith("btime "):
            words = line.split()
            return float(words[1]) if len(words) == 2 and words[1].isdigit() and len(words[1]) < 12 else 0.0
    return 0.0
