"""What the watch over a node costs it: 8 GPUs by recorded answers, 8 adapters of 20 counters each, read every second.

Run as `python -m benchmarks.health_probe [--quick]`. The probes run in a process of their own, as the program does, for
120 s, write JSON and tell a controller on loopback, which takes what it is told. The files of a node are written beside
it: every second a third of the counters grow, as those of traffic do, and now and then something fails. `cpu` is the
process's processor time, start and imports included, by the seconds it ran (wanted: at most 0.005), `rss_mib` the most
memory it ever held (wanted: at most 40). `found` is the share of faults that were told (wanted: 1), `found_s` the
longest that one took. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7` (0.20 s is the reference).
`--quick` takes 20 s. A real adapter answers some counters from its firmware, which costs its driver, not this process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http.server import HTTPServer

GPUS, ADAPTERS, COUNTERS = 8, 8, 20
SECONDS, QUICK_S = 120.0, 20.0
FIRST_FAULT_S, FAULT_EVERY_S = 4.0, 6.0
GROWING = 3  # One in so many counters grows every second.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="20 s")
    parser.add_argument("--probe", nargs=3, metavar=("ROOT", "SECONDS", "URL"), help="be the process that is measured")
    given = parser.parse_args()
    if given.probe:
        root, seconds, url = given.probe
        sys.exit(probe(root, float(seconds), url))
    from benchmarks.running import run

    run("health-probe", "", lambda folder: measure(folder, QUICK_S if given.quick else SECONDS))


# ---------------------------------------------------------------- the process that is measured


def probe(root: str, seconds: float, url: str) -> int:
    """Runs the program over a recorded node."""
    from mainspring.app.server.programs.probes import arguments_of, watch
    from mainspring.node.probes.watchers.devices import DeviceReading, XidSeen

    class Recorded:
        """GPUs that answer as healthy ones did."""

        def __init__(self) -> None:
            self._answers = [
                DeviceReading(
                    address=f"0000:{16 * index:02x}:00.0", name="NVIDIA H100 80GB HBM3", uncorrected=0,
                    remap_failed=False, remap_pending=False, links_up=18, link_recoveries=0, slowdowns=4,
                    temperature_c=61, slow_from_c=87, recovery=0,
                )
                for index in range(GPUS)
            ]  # fmt: skip

        def read(self) -> Sequence[DeviceReading]:
            return self._answers

        def xids(self) -> Sequence[XidSeen]:
            return ()

        def close(self) -> None:
            pass

    words = ["--cluster", "hall", "--node", "n1", "--root", root, "--seconds", str(seconds), "--json", "--to", url]
    return watch(arguments_of(words), Recorded())


# ---------------------------------------------------------------- beside it


class Node:
    """The files of a node, and what goes on there."""

    def __init__(self, root: Path) -> None:
        from mainspring.node.probes.watchers.counters import COUNTERS as KNOWN
        from mainspring.node.probes.watchers.counters import PORT, PORT_HARDWARE

        self.root = root
        self.records = 0
        self.failed: dict[str, float] = {}
        rules = [rule for rule in KNOWN if rule.folder in (PORT, PORT_HARDWARE)][:COUNTERS]
        assert len(rules) == COUNTERS
        self.growing: list[Path] = []
        for index in range(ADAPTERS):
            port = root / f"sys/class/infiniband/mlx5_{index}/ports/1"
            for name, text in {"link_layer": "InfiniBand", "state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)"}.items():
                _put(port / name, text)
            for number, rule in enumerate(rules):
                path = port / rule.folder / rule.counter
                _put(path, "1000")
                if rule.window_s and number % GROWING == 0:
                    self.growing.append(path)
        for index in range(GPUS):
            device = root / f"sys/bus/pci/devices/0000:{16 * index:02x}:00.0"
            for name in ("current_link_width", "max_link_width"):
                _put(device / name, "16")
            _put(device / "class", "0x030200")
        _put(root / "proc/sys/kernel/random/boot_id", "2248b5af-0d36-4593-a95c-76c4d197c047")
        _put(root / "proc/stat", f"btime {int(time.time()) - 100_000}")
        _put(root / "proc/meminfo", "MemTotal: 2000000000 kB\nMemAvailable: 1500000000 kB")
        _put(root / "proc/1/mounts", "/dev/nvme0n1p2 / ext4 rw 0 0\n/dev/nvme1n1 /data xfs rw 0 0")
        _put(root / "proc/sys/fs/file-nr", "12000 0 9000000")
        _put(root / "dev/kmsg", "")

    def grow(self, second: int) -> None:
        """Lets a second pass: traffic, a line in the kernel's log."""
        for path in self.growing:
            _put(path, str(1000 + second))
        self.log(f"systemd[1]: second {second}")

    def log(self, text: str) -> None:
        self.records += 1
        with (self.root / "dev/kmsg").open("a") as log:
            log.write(f"3,{self.records},{int((100_000 + self.records) * 1e6)},-;{text}\n")

    def fail(self, number: int) -> None:
        """Breaks something, which is to be told by the words that it is kept under."""
        index = number % ADAPTERS
        if number % 2:
            self.log(f"NVRM: Xid (PCI:0000:{16 * index:02x}:00): 79, GPU has fallen off the bus. ({number})")
            words = f"off the bus. ({number})"
        else:
            _put(self.root / f"sys/class/infiniband/mlx5_{index}/ports/1/counters/link_downed", str(2000 + number))
            words = f"to {2000 + number}"
        self.failed[words] = time.monotonic()


def measure(folder: Path, seconds: float) -> dict[str, float]:
    """Returns the figures of one run."""
    import threading
    from subprocess import PIPE, Popen

    from benchmarks.control_submit import loop_s

    before_s = loop_s()
    node, server = Node(folder / "node"), _controller()
    words = [sys.executable, "-m", "benchmarks.health_probe", "--probe", str(folder / "node"), str(seconds)]
    environment = os.environ | {"MAINSPRING_TOKEN": "t"}
    url = f"http://127.0.0.1:{server.server_address[1]}"
    found: dict[str, float] = {}
    with Popen([*words, url], stdout=PIPE, text=True, env=environment, cwd=Path(__file__).parent.parent) as process:
        started_s = time.monotonic()
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            for line in lines:
                message = json.loads(line)["message"]
                found.update({words: time.monotonic() for words in node.failed if message.endswith(words)})

        reader = threading.Thread(target=read)
        reader.start()
        rss_kib, second, faults = 0, 0, 0
        while process.poll() is None:
            time.sleep(max(0.0, started_s + second + 1 - time.monotonic()))
            second += 1
            node.grow(second)
            if FIRST_FAULT_S + faults * FAULT_EVERY_S <= second < seconds - FAULT_EVERY_S:
                node.fail(faults)
                faults += 1
            rss_kib = _peak_kib(process.pid) or rss_kib
        reader.join()
        code = process.wait()
    wall_s = time.monotonic() - started_s
    used = os.times()
    server.shutdown()
    if code or not node.failed:
        sys.exit(f"the probes ended with {code}")
    late = [found[words] - node.failed[words] for words in node.failed if words in found]
    return {
        "cpu": (used.children_user + used.children_system) / wall_s,
        "rss_mib": rss_kib / 1024,
        "found": len(late) / len(node.failed),
        "found_s": max(late, default=0.0),
        "loop_s": (before_s + loop_s()) / 2,
    }


def _controller() -> HTTPServer:
    """Returns a server that takes all that it is told."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"taken":1}')

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _put(path: Path, text: str) -> None:
    """Writes a file in place, as the kernel's are: whoever has it open reads what is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.write(text + "\n")


def _peak_kib(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()
