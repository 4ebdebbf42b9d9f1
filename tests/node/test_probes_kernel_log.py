"""What lines of the kernel's log are taken to tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.domain.hardware.xids import XIDS
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Teller, bus_address
from mainspring.node.probes.watchers.kernel_log import KernelLog, seen_in
from mainspring.testing.time_and_chance import SeededDice

from .recorded import BOOT, BOOTED_S, Recorded

NOW_S = BOOTED_S + 1e6

# A line as a kernel wrote it; then check, part, codes, whether it is fatal, what would help.
LINES: list[tuple[str, str, str, tuple[str, ...], bool, Repair]] = [
    ("NVRM: Xid (PCI:0000:cb:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     "xid", "0000:cb:00.0", ("79",), True, Repair.RESTART_NODE),
    ("NVRM: Xid (PCI:0000:1B:00): 13, pid=2412, name=python, Graphics SM Warp Exception on (GPC 7, TPC 3, SM 1)",
     "xid", "0000:1b:00.0", ("13",), False, Repair.RESTART_RANKS),
    ("NVRM: Xid (0009:01:00): 144, NETIR_LINK_EVT Fatal XC1 i0 Link 14 (0x00000001)",
     "xid", "0009:01:00.0", ("144",), False, Repair.CALL_PEOPLE),
    ("NVRM: GPU 0000:cb:00.0: GPU has fallen off the bus.",
     "xid", "0000:cb:00.0", ("79",), True, Repair.RESTART_NODE),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
     "sxid", "0000:c1:00.0", ("20034",), True, Repair.RESTART_NODE),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
     "sxid", "0000:c1:00.0", ("28006",), False, Repair.NONE),
    ("Out of memory: Killed process 4321 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:0",
     "oom", "", (), False, Repair.NONE),
    ("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000001010090",
     "machine-check", "", (), True, Repair.RESTART_NODE),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x0 offset:0x0)",
     "machine-check", "", (), True, Repair.CALL_PEOPLE),
    ("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0",
     "memory-corrected", "", (), False, Repair.NONE),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
     "pcie", "0000:00:01.0", (), True, Repair.RESET_DEVICE),
    ("mlx5_core 0000:1a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
     "pcie-corrected", "0000:1a:00.0", (), False, Repair.NONE),
    ("pcieport 0000:00:01.0: pciehp: Slot(0-4): Link Down",
     "pcie", "0000:00:01.0", (), True, Repair.CALL_PEOPLE),
    ("mlx5_core 0000:1a:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
     "nic", "0000:1a:00.0", (), True, Repair.RESET_DEVICE),
    ("mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable error, High Temperature",
     "nic-module", "0000:1a:00.0", (), False, Repair.CALL_PEOPLE),
    ("nvme nvme3: Device not ready; aborting reset, CSTS=0x1",
     "nvme", "nvme3", (), True, Repair.CALL_PEOPLE),
    ("nvme nvme0: I/O tag 123 (107b) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting req_op:READ(0) size:4096",
     "nvme", "nvme0", (), False, Repair.NONE),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
     "filesystem", "nvme0n1p2", (), True, Repair.RESTART_NODE),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
     "filesystem", "sda1", (), False, Repair.CALL_PEOPLE),
    ("XFS (dm-0): Filesystem has been shut down due to log error (0x2).",
     "filesystem", "dm-0", (), True, Repair.RESTART_NODE),
    ("XFS (nvme1n1): metadata I/O error in \"xfs_buf_ioend\" at daddr 0x1 len 8 error 5",
     "disk-io", "nvme1n1", (), False, Repair.CALL_PEOPLE),
    ("I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
     "disk-io", "nvme0n1", (), False, Repair.CALL_PEOPLE),
    ("blk_update_request: I/O error, dev sda, sector 0", "disk-io", "sda", (), False, Repair.CALL_PEOPLE),
    ("Buffer I/O error on dev sdb1, logical block 1, lost async page write",
     "disk-io", "sdb1", (), False, Repair.CALL_PEOPLE),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:1234]",
     "kernel", "", (), False, Repair.RESTART_NODE),
    ("INFO: task kworker/u8:2:345 blocked for more than 120 seconds.",
     "hung-task", "", ("kworker/u8:2",), False, Repair.NONE),
]  # fmt: skip


@pytest.mark.parametrize(("line", "check", "part", "codes", "fatal", "repair"), LINES)
def test_lines_of_faults_say_what_failed_and_what_would_help(
    line: str, check: str, part: str, codes: tuple[str, ...], fatal: bool, repair: Repair
) -> None:
    seen = seen_in(line)
    assert seen is not None
    assert (seen.check, seen.part, seen.codes, seen.fatal, seen.repair) == (check, part, codes, fatal, repair)
    assert (seen.kind is ScopeKind.NODE) == (not part)
    assert line in seen.message


@pytest.mark.parametrize(
    "line",
    [
        "Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB",  # A job's own limit.
        "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010092",  # Corrected.
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "",
    ],
)
def test_other_lines_tell_of_no_fault(line: str) -> None:
    assert seen_in(line) is None


@given(st.sampled_from(sorted(XIDS)), st.integers(0, 255))
def test_every_xid_of_the_catalogue_is_told_as_it_says(code: int, bus: int) -> None:
    seen = seen_in(f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid=1, name=x")
    assert seen is not None
    assert (seen.codes, seen.fatal, seen.repair) == ((str(code),), XIDS[code].fatal, XIDS[code].repair)
    assert seen.part == f"0000:{bus:02x}:00.0"


def test_addresses_of_nvml_and_of_the_kernel_are_the_same_device() -> None:
    assert bus_address("00000000:CB:00.0") == bus_address("0000:cb:00") == "0000:cb:00.0"
    assert bus_address("nvme0") == "nvme0"


def test_a_record_is_known_by_its_boot_and_number_to_whoever_reads_it(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.log("usb 1-1: new device")
    node.log("NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.", after_s=2.5)
    told = []
    for seed in (1, 2):
        log = KernelLog(NodeFiles(str(tmp_path)))
        teller = Teller(ClusterName("hall"), NodeName("n1"), SeededDice(seed, "probes"))
        told.append(teller.tell(log.name, log.look(NOW_S), NOW_S))
        log.close()
    assert told[0] == told[1]
    ((event,), _) = told
    assert (event.source.session, event.source.sequence) == (BOOT, 2)
    assert event.at_s == BOOTED_S + 2.5
    assert event.fatal


def test_what_is_added_to_the_log_is_seen_at_the_next_look(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    log = KernelLog(NodeFiles(str(tmp_path)))
    assert log.look(NOW_S) == []
    node.log("nvme nvme3: Device not ready; aborting reset, CSTS=0x1")
    assert [seen.part for seen in log.look(NOW_S)] == ["nvme3"]
    assert log.look(NOW_S) == []
    log.close()


def test_programs_that_write_to_the_log_are_not_believed(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.log("NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.", facility=1)
    assert KernelLog(NodeFiles(str(tmp_path))).look(NOW_S) == []


def test_a_fault_that_is_logged_over_and_over_is_told_every_ten_seconds_of_the_log(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    for tenth in range(250):
        node.log("EDAC MC1: 3 CE memory scrubbing error", after_s=tenth / 10)
        node.log(f"nvme nvme{tenth % 2}: I/O tag 1 QID 4 timeout, aborting", after_s=tenth / 10)
    found = KernelLog(NodeFiles(str(tmp_path))).look(NOW_S)
    assert [seen.check for seen in found].count("memory-corrected") == 3
    assert len({seen.part for seen in found if seen.check == "nvme"}) == 2


def test_records_from_before_the_time_asked_for_are_passed_over(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.log("nvme nvme1: Device not ready; aborting reset", after_s=10)
    node.log("nvme nvme2: Device not ready; aborting reset", after_s=30)
    found = KernelLog(NodeFiles(str(tmp_path)), since_s=BOOTED_S + 20).look(NOW_S)
    assert [seen.part for seen in found] == ["nvme2"]


def test_a_node_that_does_not_tell_when_it_started_is_told_of_as_of_now(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.put("proc/stat", "cpu 1 2 3\n")
    node.log("nvme nvme2: Device not ready; aborting reset")
    (seen,) = KernelLog(NodeFiles(str(tmp_path)), since_s=NOW_S - 10).look(NOW_S)
    assert seen.at_s == NOW_S


def test_what_a_program_calls_itself_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    node.log("Out of memory: Killed process 9 (\\x1b[2J) total-vm:9kB")
    (seen,) = KernelLog(NodeFiles(str(tmp_path))).look(NOW_S)
    assert seen.message.isprintable()


def test_a_node_without_a_log_that_can_be_read_tells_nothing(tmp_path: Path) -> None:
    assert KernelLog(NodeFiles(str(tmp_path))).look(NOW_S) == []


@given(st.binary(max_size=400))
def test_garbage_in_the_log_is_passed_over(garbage: bytes) -> None:
    text = garbage.decode(errors="replace")
    seen_in(text)
    seen_in(f"NVRM: Xid (PCI:0000:cb:00): 99999999999999999999, {text}")


def test_a_log_of_garbage_is_read_to_its_end(tmp_path: Path) -> None:
    node = Recorded(tmp_path)
    head = bytes(range(256)) * 40 + b"\n9999999999999999999999,1,1,-;x\n-1,2,3;y\n;;;\n"
    (tmp_path / "dev/kmsg").write_bytes(head)
    node.log("nvme nvme2: Device not ready; aborting reset")
    assert [seen.part for seen in KernelLog(NodeFiles(str(tmp_path))).look(NOW_S)] == ["nvme2"]
