"""DCGM's exporter as it answers for a node of eight GPUs, in its own format, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

GPUS = 8
WELL: Mapping[str, float] = {
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_SLOWDOWN_TEMP": 87,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 4,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_POWER_VIOLATION": 880_000_000_000,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 3,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 11,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 0,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0,
}


def address(gpu: int) -> str:
    """Where a GPU is, as all watchers name it."""
    return f"0000:{16 * gpu + 11:02x}:00.0"


def uuid(gpu: int) -> str:
    """What NVIDIA's driver calls it."""
    return f"GPU-{gpu:08x}-0000-1111-2222-333344445555"


class Exporter:
    """What the exporter of a node knows."""

    def __init__(self, host: str = "n1", *, tells_bus: bool = True) -> None:
        self.host = host
        self.tells_bus = tells_bus
        self.status = 200
        self.gpus = {gpu: dict(WELL) for gpu in range(GPUS)}
        self.recent_xids: dict[tuple[int, int], int] = {}
        self.raw: bytes | None = None

    def text(self) -> str:
        """Returns its whole answer."""
        lines = []
        for name in WELL:
            kind = "counter" if name.endswith(("_TOTAL", "_COUNTER", "_VIOLATION")) else "gauge"
            lines += [f"# HELP {name} Of a GPU.", f"# TYPE {name} {kind}"]
            for gpu, values in self.gpus.items():
                if name in values:
                    lines.append(f"{name}{{{self._labels(gpu)}}} {values[name]:g}")
        name = "DCGM_EXP_XID_ERRORS_COUNT"
        lines += [f"# HELP {name} Count of XID Errors within user-specified time window.", f"# TYPE {name} gauge"]
        for gpu in self.gpus:
            own = {code: count for (at, code), count in self.recent_xids.items() if at == gpu}
            window = f'{self._labels(gpu)},window_size_in_ms="300000"'
            lines += [f'{name}{{{window},xid="{code}"}} {count}' for code, count in own.items()]
            lines += [] if own else [f"{name}{{{window}}} 0"]
        return "\n".join([*lines, ""])

    def _labels(self, gpu: int) -> str:
        bus = f'pci_bus_id="0000{address(gpu).upper()}",' if self.tells_bus else ""
        return (
            f'gpu="{gpu}",UUID="{uuid(gpu)}",{bus}device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",'
            f'Hostname="{self.host}",DCGM_FI_DRIVER_VERSION="580.95.05",container="",namespace="",pod=""'
        )


@contextmanager
def served(exporter: Exporter) -> Iterator[str]:
    """Serves an exporter's answers, and yields where."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exporter.text().encode() if exporter.raw is None else exporter.raw
            self.send_response(exporter.status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # Who asked has heard enough.
                self.wfile.write(body)

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
