"""Whether a node is set up for collectives over its fast network: NCCL over InfiniBand and RoCE, and EFA.

Each row of the table looks at one thing and names what to do. What a node has no use for is skipped.

Source: NVIDIA, "NCCL: Environment Variables" and "NCCL: Troubleshooting" (GPUDirect, ACS, topology file, memlock);
Linux, Documentation/ABI/testing/sysfs-class-infiniband (gid_attrs); AWS, "Get started with EFA and NCCL"; PCI Express
Base Specification, 7.7.11 for ACS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.watchers.tpu import has_tpu

ADAPTERS, INTERFACES, DEVICES = "sys/class/infiniband", "sys/class/net", "sys/bus/pci/devices"
GIDS_MAX = 256  # Of one port.
JUMBO_BYTES = 4_200  # An RDMA packet of 4,096 bytes and its headers.
CONFIG_BYTES = 4_096  # Of a PCI device; who is not root sees the first 64.
_FIRST_EXTENDED, _ACS, _ACS_CONTROL, _REDIRECTS = 0x100, 0x000D, 6, 0x000C  # Request and completion redirect.
_MAPPED = re.compile(r"(?:0000:){5}ffff:")
_DMA_BUF_KERNEL = (5, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFinding:
    """What was found of one thing.

    Args:
        name: What was looked at.
        standing: "ok", "warning", "failed" or "skipped".
        fix: What to do about it.
    """

    name: str
    standing: str
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Port:
    adapter: str
    number: str
    ethernet: bool
    efa: bool
    interface: str

    @property
    def folder(self) -> str:
        return f"{ADAPTERS}/{self.adapter}/ports/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node as it is looked at.

    Args:
        ports: Of physical adapters.
        gpus: How many of NVIDIA's there are.
        virtual: Whether it is a virtual machine.
        variables: Of the environment in which ranks are to run.
    """

    files: NodeFiles
    ports: tuple[_Port, ...]
    gpus: int
    virtual: bool
    variables: Mapping[str, str]


def network_findings(files: NodeFiles, variables: Mapping[str, str]) -> tuple[NetworkFinding, ...]:
    """Returns what is found of a node's network, one for each thing that is looked at.

    Args:
        variables: Those of NCCL in the environment in which ranks are to run.
    """
    node, tpus = _node(files, variables), _tpus(files)
    if not node.ports:
        skipped = _skipped("adapters", "no InfiniBand, RoCE or EFA adapter: collectives go over TCP")
        return (skipped, _interfaces(node), *tpus)
    return (*(look(node) for look in _LOOKS), *tpus)


def _node(files: NodeFiles, variables: Mapping[str, str]) -> _Node:
    ports = []
    for adapter in files.names(ADAPTERS):
        device = f"{ADAPTERS}/{adapter}/device"
        if files.exists(f"{device}/physfn") and not files.text("proc/cpuinfo").count("hypervisor"):
            continue
        for number in files.names(f"{ADAPTERS}/{adapter}/ports"):
            layer = files.text(f"{ADAPTERS}/{adapter}/ports/{number}/link_layer", 64)
            efa = files.link(f"{device}/driver") == "efa"
            interface = next(iter(files.names(f"{device}/net")), "")
            ethernet = layer == "Ethernet" and not efa
            ports.append(_Port(adapter=adapter, number=number, ethernet=ethernet, efa=efa, interface=interface))
    classes = [(files.text(f"{DEVICES}/{each}/vendor", 16), files.text(f"{DEVICES}/{each}/class", 16)[:6])
               for each in files.names(DEVICES)]  # fmt: skip
    return _Node(
        files=files,
        ports=tuple(ports),
        gpus=sum(vendor == "0x10de" and kind in ("0x0300", "0x0302") for vendor, kind in classes),
        virtual="hypervisor" in files.text("proc/cpuinfo"),
        variables=variables,
    )


def _skipped(name: str, found: str) -> NetworkFinding:
    return NetworkFinding(name=name, standing="skipped", found=found)


def _ok(name: str, found: str) -> NetworkFinding:
    return NetworkFinding(name=name, standing="ok", found=found)


def _warning(name: str, found: str, fix: str) -> NetworkFinding:
    return NetworkFinding(name=name, standing="warning", found=found, fix=fix)


def _failed(name: str, found: str, fix: str) -> NetworkFinding:
    return NetworkFinding(name=name, standing="failed", found=found, fix=fix)


# ---------------------------------------------------------------- looks


def _adapters(node: _Node) -> NetworkFinding:
    kinds = sorted({"EFA" if port.efa else "RoCE" if port.ethernet else "InfiniBand" for port in node.ports})
    down = [port.adapter for port in node.ports if "ACTIVE" not in node.files.text(f"{port.folder}/state", 64)]
    found = f"{len(node.ports)} ports of {' and '.join(kinds)}"
    if len(down) == len(node.ports):
        return _failed("adapters", f"{found}, none of them up", "see the cables, the switch, and the subnet manager")
    if down:
        fix = f"connect them, or keep NCCL off them: NCCL_IB_HCA=^{','.join(down)}"
        return _warning("adapters", f"{found}; {', '.join(down)} down", fix)
    return _ok("adapters", found)


def _speeds(node: _Node) -> NetworkFinding:
    speeds: dict[str, list[str]] = {}
    for port in node.ports:
        if "ACTIVE" in node.files.text(f"{port.folder}/state", 64):
            speeds.setdefault(node.files.text(f"{port.folder}/rate", 64), []).append(port.adapter)
    found = "; ".join(f"{', '.join(adapters)} at {speed}" for speed, adapters in sorted(speeds.items()))
    if len(speeds) > 1:
        fix = "see cables and ports of the slower ones; if they are for storage, keep NCCL off them with NCCL_IB_HCA"
        return _warning("speeds", found, fix)
    return _ok("speeds", found) if speeds else _skipped("speeds", "no port is up")


def _gids(node: _Node) -> NetworkFinding:
    ports = [port for port in node.ports if port.ethernet]
    if not ports:
        return _skipped("GID", "no RoCE")
    wrong, indexes = [], set[int]()
    for port in ports:
        own = [index for index in range(GIDS_MAX) if _is_routable(node.files, port, index)]
        indexes.add(own[0] if own else -1)
        wrong += [] if own else [port.adapter]
    asked = node.variables.get("NCCL_IB_GID_INDEX", "")
    if wrong:
        fix = f"give {', '.join(wrong)} an IPv4 address, and RoCE v2: cma_roce_mode -d ADAPTER -p 1 -m 2"
        return _failed("GID", f"{', '.join(wrong)} without a GID of RoCE v2 with an IPv4 address", fix)
    if asked and (not asked.isdigit() or int(asked) not in indexes):
        fix = f"leave it out, or NCCL_IB_GID_INDEX={min(indexes)}"
        return _warning("GID", f"NCCL_IB_GID_INDEX={asked[:40]} is not one of RoCE v2 with an IPv4 address", fix)
    return _ok("GID", f"RoCE v2 with an IPv4 address at index {', '.join(str(index) for index in sorted(indexes))}")


def _is_routable(files: NodeFiles, port: _Port, index: int) -> bool:
    kind = files.text(f"{port.folder}/gid_attrs/types/{index}", 64)
    return kind == "RoCE v2" and _MAPPED.match(files.text(f"{port.folder}/gids/{index}", 64)) is not None


def _mtu(node: _Node) -> NetworkFinding:
    sizes = {
        port.interface: node.files.number(f"{INTERFACES}/{port.interface}/mtu")
        for port in node.ports
        if port.interface and (port.ethernet or port.efa)
    }
    known = {name: size for name, size in sizes.items() if size is not None}
    if not known:
        return _skipped("MTU", "no RoCE or EFA interface; InfiniBand's is its subnet manager's")
    small = sorted(name for name, size in known.items() if size < JUMBO_BYTES)
    if small:
        fix = f"ip link set dev {small[0]} mtu 9000, on all nodes and switches alike"
        return _warning("MTU", f"{', '.join(small)} at {min(known.values())} bytes", fix)
    if len(set(known.values())) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sorted(known.items()))
        return _warning("MTU", found, "set one MTU for all interfaces of the fabric")
    return _ok("MTU", f"{min(known.values())} bytes")


def _gpudirect(node: _Node) -> NetworkFinding:
    if not node.gpus:
        return _skipped("GPUDirect", "no NVIDIA GPU")
    if node.files.exists("sys/module/nvidia_peermem"):
        return _ok("GPUDirect", "nvidia_peermem is loaded")
    driver, kernel = node.files.text("proc/driver/nvidia/version"), _kernel(node.files)
    if "Open Kernel Module" in driver and kernel >= _DMA_BUF_KERNEL:
        return _ok("GPUDirect", f"dma-buf: NVIDIA's open kernel modules on Linux {kernel[0]}.{kernel[1]}")
    found = "neither nvidia_peermem nor dma-buf (NVIDIA's open kernel modules, Linux 5.12): data goes through memory"
    return _failed("GPUDirect", found, "modprobe nvidia-peermem, and name it in /etc/modules-load.d")


def _kernel(files: NodeFiles) -> tuple[int, int]:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", files.text("proc/sys/kernel/osrelease", 128))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _acs(node: _Node) -> NetworkFinding:
    if not node.gpus:
        return _skipped("ACS", "no NVIDIA GPU")
    if node.virtual:
        return _skipped("ACS", "a virtual machine: its host sees to it, with ATS on the adapters")
    bridges = [each for each in node.files.names(DEVICES) if _class(node.files, each) == "0x0604"]
    controls = [_acs_control(node.files, each) for each in bridges]
    if bridges and all(control is None for control in controls):
        return _skipped("ACS", "only root can read it")
    on = [
        bridge
        for bridge, control in zip(bridges, controls, strict=True)
        if control is not None and control & _REDIRECTS
    ]
    if on:
        fix = "turn ACS off in the firmware, or at each boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000"
        return _warning(
            "ACS", f"on at {len(on)} bridges ({on[0]}): GPUs and adapters reach each other through memory", fix
        )
    return _ok("ACS", f"off at {len(bridges)} bridges")


def _class(files: NodeFiles, device: str) -> str:
    return files.text(f"{DEVICES}/{device}/class", 16)[:6]


def _acs_control(files: NodeFiles, device: str) -> int | None:
    """Returns a bridge's ACS control register: 0 where it has none, None where that cannot be read."""
    try:
        with open(files.path(f"{DEVICES}/{device}/config"), "rb") as file:
            config = file.read(CONFIG_BYTES)
    except OSError:
        return None
    if len(config) <= _FIRST_EXTENDED:
        return None
    at, seen = _FIRST_EXTENDED, set[int]()
    while _FIRST_EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            return int.from_bytes(config[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
        at = head >> 20
    return 0


def _iommu(node: _Node) -> NetworkFinding:
    if not node.gpus or node.virtual:
        return _skipped("IOMMU", "no NVIDIA GPU" if not node.gpus else "a virtual machine")
    if not node.files.names("sys/class/iommu"):
        return _ok("IOMMU", "off")
    if "iommu=pt" in node.files.text("proc/cmdline", 4_096).split():
        return _ok("IOMMU", "on, passed through")
    return _warning("IOMMU", "on: each transfer is translated", "add iommu=pt to the kernel's command line")


def _memlock(node: _Node) -> NetworkFinding:
    for line in node.files.text("proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            words = line.removeprefix("Max locked memory").split()
            if words[:1] == ["unlimited"]:
                return _ok("locked memory", "unlimited")
            found = f"at most {words[0] if words else '?'} bytes: memory cannot be registered with adapters"
            fix = "memlock unlimited in /etc/security/limits.d, LimitMEMLOCK=infinity in the unit that starts agents"
            return _failed("locked memory", found, fix)
    return _skipped("locked memory", "the kernel does not tell")


def _topology(node: _Node) -> NetworkFinding:
    named = node.variables.get("NCCL_TOPO_FILE", "")
    if named:
        if node.files.exists(named.lstrip("/")):
            return _ok("topology file", named)
        return _failed(
            "topology file", f"NCCL_TOPO_FILE={named[:200]} is not there", "name the file of this machine's type"
        )
    if node.files.exists("var/run/nvidia-topologyd/virtualTopology.xml"):
        return _ok("topology file", "/var/run/nvidia-topologyd/virtualTopology.xml")
    if node.virtual and node.gpus > 1 and not any(port.efa for port in node.ports):
        fix = "set NCCL_TOPO_FILE to the file that the cloud gives for this machine's type"
        return _warning("topology file", "none, on a virtual machine: NCCL cannot see what is near to what", fix)
    return _skipped("topology file", "not needed: NCCL sees the machine's own topology")


def _libfabric(node: _Node) -> NetworkFinding:
    if not any(port.efa for port in node.ports):
        return _skipped("libfabric", "no EFA")
    library = _first(node.files, ("opt/amazon/efa/lib", "opt/amazon/efa/lib64"), "libfabric.so")
    below = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
    folders = [f"opt/{home}/{each}" for home in ("amazon/ofi-nccl", "aws-ofi-nccl") for each in below]
    plugin = _first(node.files, folders, "libnccl-net")
    if not library or (node.gpus and not plugin):
        found = "no libfabric of EFA" if not library else "no plugin of NCCL for it (aws-ofi-nccl)"
        return _failed("libfabric", found, "install EFA's software: efa_installer.sh -y, which brings both")
    return _ok("libfabric", f"{library}{f', {plugin}' if plugin else ''}")


def _first(files: NodeFiles, folders: tuple[str, ...] | list[str], prefix: str) -> str:
    return next(
        (f"/{folder}/{name}" for folder in folders for name in files.names(folder) if name.startswith(prefix)), ""
    )


def _interfaces(node: _Node) -> NetworkFinding:
    files = node.files
    real = [each for each in files.names(INTERFACES) if files.exists(f"{INTERFACES}/{each}/device")]
    up = [each for each in real if files.text(f"{INTERFACES}/{each}/operstate", 16) in ("up", "unknown")]
    asked = node.variables.get("NCCL_SOCKET_IFNAME", "").removeprefix("=")
    asked = "" if asked.startswith("^") else asked  # Those not to be used need not be there.
    absent = [
        each for each in asked.split(",") if each and not any(name.startswith(each) for name in files.names(INTERFACES))
    ]
    found = f"up: {', '.join(up) or 'none'}"
    if absent:
        fix = "name interfaces that are on every node, or leave NCCL_SOCKET_IFNAME out"
        return _failed(
            "interfaces", f"NCCL_SOCKET_IFNAME names {', '.join(absent)[:200]}, which is not there; {found}", fix
        )
    return _ok("interfaces", found) if up else _warning("interfaces", found, "bring up one that all nodes can reach")


def _tpus(files: NodeFiles) -> tuple[NetworkFinding, ...]:
    """Returns whether links between TPUs are watched, where there are any."""
    if not has_tpu(files):
        return ()
    if find_spec("libtpu") is None:
        found = "there is no libtpu beside Mainspring: links between chips are not watched"
        return (_warning("TPUs", found, "pip install libtpu, of the release that jobs use"),)
    return (_ok("TPUs", "libtpu is there: links between chips are watched"),)


_LOOKS: tuple[Callable[[_Node], NetworkFinding], ...] = (
    _adapters, _speeds, _interfaces, _gids, _mtu, _gpudirect, _acs, _iommu, _memlock, _topology, _libfabric,
)  # fmt: skip
