"""How nodes are set up for collectives, as recorded trees show them, and what is said to be done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import codec
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.network import NetworkFinding, network_findings

from .recorded import Recorded

MAPPED, LOCAL = "0000:0000:0000:0000:0000:ffff:0a00:0001", "fe80:0000:0000:0000:0e42:a1ff:fe12:3456"
BARE_CONFIG = bytes(256) + (0x0001 | 1 << 16 | 0x200 << 20).to_bytes(4, "little") + bytes(0x200 - 260)
LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n"


class Fabric:
    """A node of four adapters and two GPUs, all of it set up well."""

    def __init__(self, root: Path, *, layer: str = "Ethernet", driver: str = "mlx5_core") -> None:
        self.node = Recorded(root)
        self.variables: dict[str, str] = {}
        for index in range(4):
            adapter = f"mlx5_{index}"
            self.node.adapter(adapter, driver=driver)
            port = f"sys/class/infiniband/{adapter}/ports/1"
            self.node.put(f"{port}/link_layer", layer)
            for gid, (kind, address) in enumerate([("IB/RoCE v1", LOCAL), ("RoCE v2", LOCAL), ("RoCE v2", MAPPED)]):
                self.node.put(f"{port}/gid_attrs/types/{gid}", kind)
                self.node.put(f"{port}/gids/{gid}", address)
            (interface,) = (root / f"sys/class/infiniband/{adapter}/device/net").iterdir()
            self.node.put(f"sys/class/net/{interface.name}/mtu", "9000")
            self.node.put(f"sys/class/net/{interface.name}/operstate", "up")
            self.node.put(f"sys/class/net/{interface.name}/device/vendor", "0x15b3")
        for index in range(2):
            self.node.put(f"sys/bus/pci/devices/0000:8{index}:00.0/vendor", "0x10de")
            self.node.put(f"sys/bus/pci/devices/0000:8{index}:00.0/class", "0x030200")
        self.bridge(control=0)
        self.node.put("sys/module/nvidia_peermem/refcnt", "0")
        self.node.put("proc/self/limits", f"{LIMITS}Max locked memory         unlimited            unlimited   bytes\n")
        self.node.put("proc/cpuinfo", "flags : fpu vme\n")
        self.node.put("proc/cmdline", "ro quiet\n")

    def bridge(self, *, control: int) -> None:
        """Has a bridge whose ACS register says that, behind a capability of another kind."""
        acs = (0x000D | 1 << 16).to_bytes(4, "little") + bytes(2) + control.to_bytes(2, "little")
        path = self.node.put("sys/bus/pci/devices/0000:00:03.0/class", "0x060400").parent
        (path / "config").write_bytes((BARE_CONFIG + acs).ljust(4096, b"\0"))

    def found(self) -> dict[str, NetworkFinding]:
        return {each.name: each for each in network_findings(NodeFiles(str(self.node.root)), self.variables)}

    def wrong(self) -> list[tuple[str, str]]:
        return [(each.name, each.standing) for each in self.found().values() if each.standing in ("warning", "failed")]


@pytest.fixture
def fabric(tmp_path: Path) -> Fabric:
    return Fabric(tmp_path)


def test_a_node_that_is_set_up_well_has_nothing_to_do(fabric: Fabric) -> None:
    assert fabric.wrong() == []
    found = fabric.found()
    assert found["GID"].found == "RoCE v2 with an IPv4 address at index 2"
    assert all(not each.fix for each in found.values())


def test_a_node_without_such_a_network_is_told_so(tmp_path: Path) -> None:
    found = network_findings(NodeFiles(str(tmp_path)), {})
    assert [(each.name, each.standing) for each in found] == [("adapters", "skipped"), ("interfaces", "warning")]


@pytest.mark.parametrize(
    ("files", "name", "standing", "fix"),
    [
        ({"sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN"}, "adapters", "warning", "NCCL_IB_HCA=^mlx5_1"),
        ({"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec"}, "speeds", "warning", "cables"),
        ({"sys/class/infiniband/mlx5_2/ports/1/gids/2": LOCAL}, "GID", "failed", "give mlx5_2 an IPv4 address"),
        ({"sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/2": "IB/RoCE v1"}, "GID", "failed", "cma_roce_mode"),
        ({"sys/class/net/ib50/mtu": "1500"}, "MTU", "warning", "ip link set dev ib50 mtu 9000"),
        ({"sys/class/net/ib50/mtu": "8000"}, "MTU", "warning", "one MTU"),
        (
            {"proc/self/limits": f"{LIMITS}Max locked memory 65536 65536 bytes"},
            "locked memory",
            "failed",
            "LimitMEMLOCK",
        ),
        ({"sys/class/iommu/dmar0/name": ""}, "IOMMU", "warning", "iommu=pt"),
    ],
)
def test_each_thing_that_is_wrong_is_named_with_its_fix(
    fabric: Fabric, files: dict[str, str], name: str, standing: str, fix: str
) -> None:
    for path, text in files.items():
        fabric.node.put(path, text)
    assert fabric.wrong() == [(name, standing)]
    assert fix in fabric.found()[name].fix


def test_gpudirect_needs_peermem_or_open_modules_on_a_kernel_that_has_dma_buf(fabric: Fabric) -> None:
    (fabric.node.root / "sys/module/nvidia_peermem/refcnt").unlink()
    (fabric.node.root / "sys/module/nvidia_peermem").rmdir()
    assert fabric.wrong() == [("GPUDirect", "failed")]
    assert "modprobe nvidia-peermem" in fabric.found()["GPUDirect"].fix
    fabric.node.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86")
    fabric.node.put("proc/sys/kernel/osrelease", "5.4.0-200-generic")
    assert fabric.wrong() == [("GPUDirect", "failed")]
    fabric.node.put("proc/sys/kernel/osrelease", "6.8.0-1021-aws")
    assert fabric.wrong() == []


def test_acs_that_redirects_is_named_where_it_can_be_read_and_matters(fabric: Fabric) -> None:
    fabric.bridge(control=0x001D)
    assert fabric.wrong() == [("ACS", "warning")]
    assert "0000:00:03.0" in fabric.found()["ACS"].found
    config = fabric.node.root / "sys/bus/pci/devices/0000:00:03.0/config"
    config.write_bytes(config.read_bytes()[:64])
    assert fabric.found()["ACS"].standing == "skipped"
    fabric.bridge(control=0x001D)
    fabric.node.put("proc/cpuinfo", "flags : hypervisor\n")
    assert fabric.found()["ACS"].standing == "skipped"


@settings(max_examples=100, deadline=None)
@given(config=st.binary(min_size=8, max_size=4096))
def test_any_bytes_for_a_bridge_are_read_to_an_end(config: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    fabric = Fabric(tmp_path_factory.mktemp("node"))
    (fabric.node.root / "sys/bus/pci/devices/0000:00:03.0/config").write_bytes(bytes(256) + config)
    assert fabric.found()["ACS"].standing in ("ok", "warning")


def test_variables_of_nccl_that_name_what_is_not_there_are_wrong(fabric: Fabric) -> None:
    fabric.variables = {"NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "bond7", "NCCL_TOPO_FILE": "/etc/topo.xml"}
    assert fabric.wrong() == [("interfaces", "failed"), ("GID", "warning"), ("topology file", "failed")]
    assert "NCCL_IB_GID_INDEX=2" in fabric.found()["GID"].fix
    fabric.node.put("etc/topo.xml", "<system/>")
    fabric.variables = {"NCCL_IB_GID_INDEX": "2", "NCCL_SOCKET_IFNAME": "^docker", "NCCL_TOPO_FILE": "/etc/topo.xml"}
    assert fabric.wrong() == []


def test_a_virtual_machine_with_gpus_wants_a_topology_file(fabric: Fabric) -> None:
    fabric.node.put("proc/cpuinfo", "flags : hypervisor\n")
    assert fabric.wrong() == [("topology file", "warning")]
    fabric.node.put("var/run/nvidia-topologyd/virtualTopology.xml", "<system/>")
    assert fabric.wrong() == []


def test_efa_wants_its_libraries_and_no_gid(tmp_path: Path) -> None:
    fabric = Fabric(tmp_path, layer="Unspecified", driver="efa")
    assert fabric.wrong() == [("libfabric", "failed")]
    assert "efa_installer" in fabric.found()["libfabric"].fix
    fabric.node.put("opt/amazon/efa/lib/libfabric.so.1.27", "")
    assert "aws-ofi-nccl" in fabric.found()["libfabric"].found
    fabric.node.put("opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so", "")
    assert fabric.wrong() == []
    assert fabric.found()["GID"].standing == "skipped"


def test_the_program_writes_findings_that_a_check_of_a_cluster_reads(fabric: Fabric) -> None:
    fabric.node.put("sys/class/infiniband/mlx5_2/ports/1/gids/2", LOCAL)
    words = [sys.executable, "-m", "mainspring", "probes", "network", "--root", str(fabric.node.root)]
    done = subprocess.run([*words, "--json"], capture_output=True, timeout=120, env={"PATH": "/usr/bin"})
    assert done.returncode == 1
    found = [codec.decode(Finding, line) for line in done.stdout.splitlines()]
    assert [each.name for each in found if each.standing is CheckResult.FAILED] == ["GID"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=120, env={"PATH": "/usr/bin"}).stdout
    assert "failed   GID: mlx5_2 without a GID of RoCE v2" in told
