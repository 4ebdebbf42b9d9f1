"""Recorded trees of `/sys`, `/proc` and `/dev`, as nodes show them."""

from __future__ import annotations

from pathlib import Path

BOOT = "2248b5af-0d36-4593-a95c-76c4d197c047"
BOOTED_S = 1_790_000_000
GREW_FROM = 10_000


class Recorded:
    """A node's files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = 0
        self.put("proc/sys/kernel/random/boot_id", f"{BOOT}\n")
        self.put("proc/stat", f"cpu  1 2 3\nintr {'0 ' * 50_000}\nbtime {BOOTED_S}\nprocesses 9\n")
        self.put("dev/kmsg", "")

    def put(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def log(self, text: str, *, after_s: float = 1.0, facility: int = 0) -> None:
        """Adds a record to the kernel's log."""
        self.records += 1
        with (self.root / "dev/kmsg").open("a") as log:
            log.write(f"{facility << 3 | 3},{self.records},{int(after_s * 1e6)},-;{text}\n SUBSYSTEM=pci\n")

    def adapter(
        self, name: str, *, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", driver: str = "mlx5_core"
    ) -> None:
        """Adds an adapter of one port, with a network interface of its own."""
        number = "".join(letter for letter in name if letter.isdigit()) or "0"
        device = f"sys/devices/pci0000:00/0000:00:01.0/0000:{int(number):02x}:00.0"
        adapter = f"sys/class/infiniband/{name}"
        for file, text in {
            "link_layer": "InfiniBand",
            "state": state,
            "phys_state": "5: LinkUp",
            "rate": rate,
            "counters/link_downed": "3",
            "counters/symbol_error": str(GREW_FROM),
            "counters/port_xmit_discards": "0",
            "hw_counters/rnr_nak_retry_err": "0",
            "hw_counters/roce_slow_restart": "0",
        }.items():
            self.put(f"{adapter}/ports/1/{file}", f"{text}\n")
        self.put(f"{adapter}/hca_type", "MT4129\n")
        self.put(f"{adapter}/board_id", "MT_0000000838\n")
        self.put(f"{device}/net/ib{number}/operstate", "up\n")
        self.put(f"{device}/net/ib{number}/carrier_down_count", "1\n")
        self.put(f"sys/bus/pci/drivers/{driver}/module", "")
        self._link(f"{device}/driver", f"../../../../bus/pci/drivers/{driver}")
        self._link(f"{adapter}/device", f"../../../devices/pci0000:00/0000:00:01.0/0000:{int(number):02x}:00.0")

    def counter(self, adapter: str, file: str, value: int | str) -> None:
        self.put(f"sys/class/infiniband/{adapter}/ports/1/{file}", f"{value}\n")

    def pci(self, address: str, **files: str) -> None:
        """Adds a PCI device below a port of 16 lanes at 32 GT/s."""
        port = "sys/devices/pci0000:00/0000:00:01.0"
        self.put(f"{port}/max_link_width", "16\n")
        self.put(f"{port}/max_link_speed", "32.0 GT/s PCIe\n")
        for file, text in files.items():
            self.put(f"{port}/{address}/{file}", f"{text}\n")
        self._link(f"sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/0000:00:01.0/{address}")
        self._link("sys/bus/pci/devices/0000:00:01.0", "../../../devices/pci0000:00/0000:00:01.0")

    def _link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(target)
