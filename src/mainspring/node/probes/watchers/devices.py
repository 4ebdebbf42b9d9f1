"""NVIDIA's GPUs: lost or to be reset, memory errors, rows that could not be remapped, NVLink, clocks held down, heat.

What the driver says goes through `DeviceReader`, so that tests, and machines without a GPU, have recorded answers.

Source: NVML API Reference; "NVIDIA GPU Memory Error Management" for rows: one that failed asks for a new GPU, one that
waits for a reset; DCGM's `dcgm_gpu_hardware_limits.h` for how much of what corrects itself is too much.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.domain.hardware.xids import xid_of
from mainspring.node.probes.sightings import Sighting, well

DEVICES_MAX = 64  # Of one node: eight times what one has.
SLOW_LOOKS = 3  # A clock that is held down for a moment after a burst of work is as it should be.
HOT_SHARE_MIN = 0.1  # Of the time between two looks that heat held clocks down: our own choice.
# How often a minute before it is told, of what corrects itself. Source: DCGM, DCGM_LIMIT_MAX_SBE_RATE ("dummy value
# until a real one is determined"), DCGM_LIMIT_MAX_NVLINK_CRC_ERROR (a second), DCGM_LIMIT_MAX_PCIREPLAY_RATE.
CORRECTED_MAX, LINK_ERRORS_MAX, REPLAYS_MAX = 10.0, 60 * 100.0, 8.0
# What holds a clock down that is no limit of power that somebody set. Source: NVML, nvmlClocksEventReasons.
SLOWDOWNS = {0x08: "hw-slowdown", 0x20: "sw-thermal", 0x40: "hw-thermal", 0x80: "power-brake"}
# What the driver itself asks for, and whether the device is of no use until then. Source: NVML,
# nvmlDeviceGpuRecoveryAction_t.
RECOVERIES: dict[int, tuple[str, Repair, bool]] = {
    1: ("gpu-reset", Repair.RESET_DEVICE, True),
    2: ("node-reboot", Repair.RESTART_NODE, True),
    3: ("drain-p2p", Repair.RESET_DEVICE, False),
    4: ("drain-and-reset", Repair.RESET_DEVICE, False),
    5: ("recover-imex-domain", Repair.CALL_PEOPLE, False),
    6: ("bus-reset", Repair.RESET_DEVICE, True),
    7: ("system-reboot", Repair.RESTART_NODE, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What the driver says of one GPU. None is what it does not say of such a one.

    Args:
        address: PCI address, as the kernel writes it.
        name: The maker's.
        lost: Whether it no longer answers.
        uncorrected: Memory errors since the driver was loaded.
        remap_failed: Whether a row of memory could not be put in place of a bad one.
        remap_pending: Whether one will be at the next reset.
        links_up: How many NVLinks are.
        link_recoveries: How often NVLinks were trained again.
        slowdowns: Why clocks are held down, as bits.
        temperature_c: Of the chip.
        slow_from_c: At which temperature it slows down.
        recovery: What the driver asks for; 0 for nothing.
        corrected: Memory errors that were corrected, since the driver was loaded.
        link_errors: What came over NVLinks with a wrong checksum, and was sent again.
        pcie_replays: What was sent again over PCIe.
        hot_ns: How long heat has held its clocks down.
    """

    address: str
    name: str = ""
    lost: bool = False
    uncorrected: int | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    links_up: int | None = None
    link_recoveries: int | None = None
    slowdowns: int | None = None
    temperature_c: int | None = None
    slow_from_c: int | None = None
    recovery: int | None = None
    corrected: int | None = None
    link_errors: int | None = None
    pcie_replays: int | None = None
    hot_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XidSeen:
    """An Xid that the driver told of while we listened."""

    address: str
    code: int


class DeviceReader(Protocol):
    """What a driver says of its devices. No call waits for anything but the driver, and none raises."""

    def read(self) -> Sequence[DeviceReading]:
        """Returns how each device is; nothing while the driver does not answer."""

    def xids(self) -> Sequence[XidSeen]:
        """Returns what was told since the last call."""

    def close(self) -> None:
        """Lets go of the driver."""


@dataclass(slots=True)
class _Known:
    counts: dict[str, int] = field(default_factory=dict)
    at_s: float = 0.0
    slow_looks: int = 0
    absent_looks: int = 0


@final
class Devices:
    """Watches GPUs.

    Args:
        reader: Their driver, or who asks it for us.
        name: Of the watcher.
        sure: Whether a GPU that is not told of any more is lost; else it may have been left out.
    """

    every_s = 5.0

    def __init__(self, reader: DeviceReader, *, name: str = "nvml", sure: bool = True) -> None:
        self.name = name
        self._reader = reader
        self._sure = sure
        self._known: dict[str, _Known] = {}

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what stands and what happened at each device."""
        found = [_xid(seen) for seen in self._reader.xids()]
        readings = self._reader.read()
        here = {reading.address for reading in readings}
        for address, known in self._known.items():
            if readings and address not in here:
                found += self._absent(address, known)
        for reading in readings:
            if reading.address not in self._known and len(self._known) >= DEVICES_MAX:
                continue
            known = self._known.setdefault(reading.address, _Known())
            known.absent_looks = 0
            if reading.lost:
                found.append(_lost(reading.address))
                continue
            found.append(well("device-lost", ScopeKind.DEVICE, reading.address))
            found += _standing(reading)
            found += _changed(reading, known, now_s)
        found += _compared([reading for reading in readings if not reading.lost])
        return found

    def close(self) -> None:
        """Lets go of the driver."""
        self._reader.close()

    def _absent(self, address: str, known: _Known) -> Iterator[Sighting]:
        known.absent_looks += 1
        if self._sure:
            yield _lost(address)
        elif known.absent_looks >= SLOW_LOOKS:
            yield _fault("device-lost", address, "nothing is told any more of the GPU", Repair.RESTART_NODE)


def _fault(check: str, address: str, message: str, repair: Repair, *codes: str, fatal: bool = False) -> Sighting:
    return Sighting(
        check=check,
        kind=ScopeKind.DEVICE,
        part=address,
        codes=codes,
        fatal=fatal,
        message=f"{message} on {address}",
        repair=repair,
    )


def _happened(seen: Sighting) -> Sighting:
    return replace(seen, stands=False)


def _lost(address: str) -> Sighting:
    return _fault("device-lost", address, "the driver has lost the GPU", Repair.RESTART_NODE, fatal=True)


def _xid(seen: XidSeen) -> Sighting:
    xid = xid_of(seen.code)
    words = f"Xid {xid.code}: {xid.words}"
    return _happened(_fault("xid", seen.address, words, xid.repair, str(xid.code), fatal=xid.fatal))


def _standing(reading: DeviceReading) -> Iterator[Sighting]:
    at = reading.address
    if reading.remap_failed is not None or reading.remap_pending is not None:
        if reading.remap_failed:
            words = "a row of memory could not be remapped"
            yield _fault("row-remap", at, words, Repair.CALL_PEOPLE, "failed", fatal=True)
        elif reading.remap_pending:
            words = "a row of memory is remapped at the next reset"
            yield _fault("row-remap", at, words, Repair.RESET_DEVICE, "pending")
        else:
            yield well("row-remap", ScopeKind.DEVICE, at)
    if reading.temperature_c is not None and reading.slow_from_c:
        words = f"{reading.temperature_c} of {reading.slow_from_c} C"
        hot = reading.temperature_c >= reading.slow_from_c
        yield _fault("heat", at, words, Repair.CALL_PEOPLE) if hot else well("heat", ScopeKind.DEVICE, at)
    if reading.recovery is not None:
        known = RECOVERIES.get(reading.recovery)
        if known is not None:
            code, repair, fatal = known
            yield _fault("recovery", at, f"the driver asks for {code}", repair, code, fatal=fatal)
        elif reading.recovery == 0:
            yield well("recovery", ScopeKind.DEVICE, at)


def _changed(reading: DeviceReading, known: _Known, now_s: float) -> Iterator[Sighting]:
    at, minutes = reading.address, (now_s - known.at_s) / 60.0

    def more(what: str, count: int | None) -> int:
        """Returns by how much a count has grown; one that began anew, or is looked at the first time, has not."""
        before = known.counts.get(what)
        if count is not None:
            known.counts[what] = count
        return 0 if count is None or before is None else max(0, count - before)

    if grown := more("uncorrected", reading.uncorrected):
        yield _happened(_fault("ecc", at, f"{grown} uncorrected errors of memory", Repair.RESET_DEVICE))
    if grown := more("link recoveries", reading.link_recoveries):
        yield _happened(_fault("nvlink-recovery", at, f"NVLinks were trained again {grown} times", Repair.NONE))
    for check, count, most, words in (
        ("ecc-corrected", reading.corrected, CORRECTED_MAX, "corrected errors of memory"),
        ("nvlink-errors", reading.link_errors, LINK_ERRORS_MAX, "wrong checksums on NVLinks"),
        ("pcie-replays", reading.pcie_replays, REPLAYS_MAX, "repetitions over PCIe"),
    ):
        grown = more(check, count)
        if minutes > 0 and grown > most * minutes:
            yield _happened(_fault(check, at, f"{grown} {words} in {minutes * 60:.0f} s", Repair.NONE))
    hot_s = more("hot", reading.hot_ns) / 1e9
    known.at_s = now_s
    if reading.slowdowns is not None or reading.hot_ns is not None:
        codes = tuple(name for bit, name in SLOWDOWNS.items() if (reading.slowdowns or 0) & bit)
        if minutes > 0 and hot_s > HOT_SHARE_MIN * minutes * 60:
            codes = (*codes, "thermal")
        known.slow_looks = known.slow_looks + 1 if codes else 0
        if known.slow_looks >= SLOW_LOOKS:
            yield _fault("clocks", at, "clocks are held down", Repair.CALL_PEOPLE, *codes)
        elif not codes:
            yield well("clocks", ScopeKind.DEVICE, at)


def _compared(readings: Sequence[DeviceReading]) -> Iterator[Sighting]:
    """Yields whether each GPU has as many NVLinks up as most GPUs of its name."""
    alike: dict[str, list[DeviceReading]] = defaultdict(list)
    for reading in readings:
        if reading.links_up is not None:
            alike[reading.name].append(reading)
    for group in alike.values():
        usual, count = Counter(reading.links_up for reading in group).most_common(1)[0]
        for reading in group:
            assert reading.links_up is not None
            assert usual is not None
            if reading.links_up < usual and 2 * count > len(group):
                words = f"{reading.links_up} NVLinks are up, {usual} on GPUs like it"
                yield _fault("nvlink", reading.address, words, Repair.RESET_DEVICE, fatal=True)
            else:
                yield well("nvlink", ScopeKind.DEVICE, reading.address)
