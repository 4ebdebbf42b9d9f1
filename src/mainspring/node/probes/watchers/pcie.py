"""PCIe: whether each device has all the lanes and the speed that it and the slot above it are made for.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci (current_link_width and the like); PCI-SIG, "PCI Code and ID
Assignment", for the classes of devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, well

DEVICES = "sys/bus/pci/devices"
DISPLAYS, ACCELERATORS = ("0x0300", "0x0302"), ("0x1200", "0x0b40")
# Disks of NVMe, Ethernet and InfiniBand adapters; of others it matters to nobody.
CLASSES = ("0x0108", "0x0200", "0x0207", *DISPLAYS, *ACCELERATORS)
LANES_MAX = 32  # A device that does not answer says 255, one without a link 0.


@final
class PcieLinks:
    """Watches the width and the speed of PCIe links."""

    name = "pcie"
    every_s = 60.0

    def __init__(self, files: NodeFiles) -> None:
        self._files = files

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what stands at each device."""
        found: list[Sighting] = []
        for address in self._files.names(DEVICES):
            kind = self._files.text(f"{DEVICES}/{address}/class", 32)[:6]
            if kind in CLASSES and not self._files.exists(f"{DEVICES}/{address}/physfn"):
                found += self._device(address, kind)
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _device(self, address: str, kind: str) -> Iterator[Sighting]:
        own, above = f"{DEVICES}/{address}", self._above(address)
        width = self._files.number(f"{own}/current_link_width") or 0
        most = _least(
            self._files.number(f"{own}/max_link_width"),
            self._files.number(f"{above}/max_link_width") if above else None,
        )
        if 0 < width <= LANES_MAX and 0 < most <= LANES_MAX:
            yield _judged("pcie-width", address, width < most, f"{width} of {most} lanes", f"x{width}")
        if kind in DISPLAYS or kind in ACCELERATORS:
            return  # They slow their link down while they have nothing to do.
        speed, fastest = self._speed(f"{own}/current_link_speed"), self._speed(f"{own}/max_link_speed")
        slot = self._speed(f"{above}/max_link_speed") if above else 0.0
        fastest = min(fastest, slot) if slot else fastest
        if speed and fastest:
            yield _judged("pcie-speed", address, speed < fastest, f"{speed:g} of {fastest:g} GT/s", f"{speed:g}")

    def _above(self, address: str) -> str:
        """Returns the folder of the port that a device hangs on, "" where it hangs on none."""
        try:
            real = os.path.realpath(self._files.path(f"{DEVICES}/{address}"))
        except OSError:
            return ""
        parent = os.path.basename(os.path.dirname(real))
        return f"{DEVICES}/{parent}" if self._files.exists(f"{DEVICES}/{parent}/max_link_width") else ""

    def _speed(self, name: str) -> float:
        """Returns the GT/s that a file tells of, 0 where it tells of none ("Unknown")."""
        word = self._files.text(name, 64).partition(" ")[0]
        try:
            return max(0.0, float(word)) if word else 0.0
        except ValueError:
            return 0.0


def _least(own: int | None, slot: int | None) -> int:
    known = [each for each in (own, slot) if each is not None and 0 < each <= LANES_MAX]
    return min(known, default=0)


def _judged(check: str, address: str, less: bool, words: str, code: str) -> Sighting:  # noqa: FBT001
    if not less:
        return well(check, ScopeKind.DEVICE, address)
    return Sighting(
        check=check,
        kind=ScopeKind.DEVICE,
        part=address,
        codes=(code,),
        message=f"the PCIe link of {address} has {words}",
        repair=Repair.CALL_PEOPLE,
    )
