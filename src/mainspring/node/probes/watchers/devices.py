"""NVIDIA's GPUs: lost or to be reset, memory errors, rows that could not be remapped, NVLink, clocks held down, heat.

What the driver says goes through `DeviceReader`, so that tests, and machines without a GPU, have recorded answers.

Source: NVML API Reference; "NVIDIA GPU Memory Error Management" for rows: one that failed asks for a new GPU, one that
waits for a reset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.domain.hardware.xids import xid_of
from mainspring.node.probes.sightings import Sighting, well

SLOW_LOOKS = 3  # A clock that is held down for a moment after a burst of work is as it should be.
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
    uncorrected: int | None = None
    link_recoveries: int | None = None
    slow_looks: int = 0


@final
class Devices:
    """Watches GPUs.

    Args:
        reader: Their driver.
    """

    name = "nvml"
    every_s = 5.0

    def __init__(self, reader: DeviceReader) -> None:
        self._reader = reader
        self._known: dict[str, _Known] = {}

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what stands and what happened at each device."""
        found = [_xid(seen) for seen in self._reader.xids()]
        readings = self._reader.read()
        here = {reading.address for reading in readings}
        for address in self._known:
            if readings and address not in here:
                found.append(_lost(address))
        for reading in readings:
            known = self._known.setdefault(reading.address, _Known())
            if reading.lost:
                found.append(_lost(reading.address))
                continue
            found.append(well("device-lost", ScopeKind.DEVICE, reading.address))
            found += _standing(reading)
            found += _changed(reading, known)
        found += _compared([reading for reading in readings if not reading.lost])
        return found

    def close(self) -> None:
        """Lets go of the driver."""
        self._reader.close()


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
    if reading.remap_failed is not None:
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


def _changed(reading: DeviceReading, known: _Known) -> Iterator[Sighting]:
    at = reading.address
    if reading.uncorrected is not None:
        if known.uncorrected is not None and reading.uncorrected > known.uncorrected:
            words = f"{reading.uncorrected - known.uncorrected} uncorrected errors of memory"
            yield _happened(_fault("ecc", at, words, Repair.RESET_DEVICE))
        known.uncorrected = reading.uncorrected
    if reading.link_recoveries is not None:
        if known.link_recoveries is not None and reading.link_recoveries > known.link_recoveries:
            words = f"NVLinks were trained again {reading.link_recoveries - known.link_recoveries} times"
            yield _happened(_fault("nvlink-recovery", at, words, Repair.NONE))
        known.link_recoveries = reading.link_recoveries
    if reading.slowdowns is not None:
        codes = tuple(name for bit, name in SLOWDOWNS.items() if reading.slowdowns & bit)
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
