"""What conditions of a node's object mean that others set than Kubernetes itself: a table, and nothing but it.

Kubernetes' own are read elsewhere: `Ready`, and the taints that it makes of the others, close a node by themselves.
NVIDIA's GPU operator sets none. What is not listed says nothing. Whatever is listed is told as health events, and a
node that has it is used on until somebody lets a rule act.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.domain.hardware.health import MESSAGE_LENGTH_MAX, Repair

NPD = "https://github.com/kubernetes/node-problem-detector/tree/master/config"
AKS = "https://learn.microsoft.com/en-us/azure/aks/node-problem-detector"
EKS = "https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html"
NVSENTINEL = "https://github.com/NVIDIA/NVSentinel/blob/main/docs/INTEGRATIONS.md"
_RESET, _RESTART, _PEOPLE = Repair.RESET_DEVICE, Repair.RESTART_NODE, Repair.CALL_PEOPLE


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCondition:
    """A condition that is listed.

    Args:
        type: As whoever sets it calls it.
        bad: The status that is bad; of "Unknown" nobody can tell, and any other is well.
        check: Ours; no two have the same, so that none takes back what another says.
        repair: What would help; who sets NVSentinel's says it in each message.
        source: Where it is described.
    """

    type: str
    bad: str
    check: str
    repair: Repair
    source: str


# What only comes often, or is announced, asks for nothing by itself.
CONDITIONS: tuple[KnownCondition, ...] = tuple(
    KnownCondition(type=name, bad=bad, check=check, repair=repair, source=source)
    for source, bad, rows in (
        (NPD, "True", (
            ("KernelDeadlock", "kernel-deadlock", _RESTART),
            ("ReadonlyFilesystem", "filesystem-read-only", _RESTART),
            ("XfsShutdown", "xfs-shutdown", _RESTART),
            ("CorruptDockerOverlay2", "overlay-corrupt", _PEOPLE),
            ("KubeletUnhealthy", "kubelet-unhealthy", _RESTART),
            ("ContainerRuntimeUnhealthy", "container-runtime-unhealthy", _RESTART),
            ("FrequentKubeletRestart", "kubelet-restarts", Repair.NONE),
            ("FrequentDockerRestart", "docker-restarts", Repair.NONE),
            ("FrequentContainerdRestart", "containerd-restarts", Repair.NONE),
            ("FrequentUnregisterNetDevice", "net-device-stuck", Repair.NONE),
            ("NTPProblem", "ntp-problem", Repair.NONE),
        )),
        (AKS, "True", (
            ("FilesystemCorruptionProblem", "filesystem-corrupt", _PEOPLE),
            ("KubeletProblem", "kubelet-problem", _RESTART),
            ("ContainerRuntimeProblem", "container-runtime-problem", _RESTART),
            ("VMEventScheduled", "vm-event-scheduled", Repair.NONE),
            ("GPUMissing", "gpu-missing", _RESTART),
            ("NVLinkStatusInactive", "nvlink-inactive", _RESTART),
            ("XIDErrors", "xid-errors", _RESET),
            ("IBLinkFlapping", "ib-link-flapping", _PEOPLE),
        )),
        (EKS, "False", (
            ("AcceleratedHardwareReady", "accelerated-hardware", _RESTART),
            ("ContainerRuntimeReady", "container-runtime", _RESTART),
            ("KernelReady", "kernel-ready", _RESTART),
            ("NetworkingReady", "networking", _RESTART),
            ("StorageReady", "storage", _RESTART),
        )),
        (NVSENTINEL, "True", (
            ("GpuMemWatch", "gpu-mem-watch", _RESET),
            ("GpuThermalWatch", "gpu-thermal-watch", _PEOPLE),
            ("GpuPcieWatch", "gpu-pcie-watch", _RESTART),
            ("GpuPowerWatch", "gpu-power-watch", _PEOPLE),
            ("GpuInforomWatch", "gpu-inforom-watch", _PEOPLE),
            ("GpuSmWatch", "gpu-sm-watch", _RESET),
            ("GpuNvlinkWatch", "gpu-nvlink-watch", _RESET),
            ("GpuMcuWatch", "gpu-mcu-watch", _RESET),
            ("GpuPmuWatch", "gpu-pmu-watch", _RESET),
            ("GpuDriverWatch", "gpu-driver-watch", _RESTART),
            ("GpuCpusetWatch", "gpu-cpuset-watch", Repair.NONE),
            ("SysLogsXIDError", "syslogs-xid", _RESET),
            ("SysLogsSXIDError", "syslogs-sxid", _RESTART),
            ("SysLogsGPUFallenOff", "syslogs-gpu-fallen-off", _RESTART),
            ("NVSwitchFatalError", "nvswitch-fatal", _RESTART),
            ("NVSwitchDown", "nvswitch-down", _RESTART),
            ("NVSwitchNonFatalError", "nvswitch-nonfatal", Repair.NONE),
            ("DCGMError", "dcgm-error", Repair.NONE),
            ("CSPMaintenance", "csp-maintenance", Repair.NONE),
            ("SyslogError", "syslog-error", Repair.NONE),
        )),
    )
    for name, check, repair in rows
)  # fmt: skip
_KNOWN = {one.type: one for one in CONDITIONS}

# NVSentinel's words for what to do, at the end of a message.
_ACTIONS: Mapping[str, Repair] = {
    "NONE": Repair.NONE,
    "COMPONENT_RESET": _RESET,
    "RESTART_VM": _RESTART,
    "RESTART_BM": _RESTART,
    "REPLACE_VM": _PEOPLE,
    "RUN_FIELDDIAG": _PEOPLE,
    "CONTACT_SUPPORT": _PEOPLE,
}
_ACTION = re.compile(r"RecommendedAction: ?(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionSeen:
    """A listed condition that is not well.

    Args:
        repair: What would help, by the table or by its setter's word.
        message: In its setter's words.
        stands: Whether it is bad; else its setter cannot tell.
    """

    known: KnownCondition
    repair: Repair
    message: str
    stands: bool


def read_conditions(conditions: Iterable[Mapping[str, Any]]) -> tuple[ConditionSeen, ...]:
    """Returns which of a node's conditions are listed, and not well; in order of check.

    Args:
        conditions: `status.conditions` of its object.
    """
    found: dict[str, ConditionSeen] = {}
    for one in conditions:
        known = _KNOWN.get(str(one.get("type")))
        if known is not None and one.get("status") in (known.bad, "Unknown"):
            words = ": ".join(filter(None, (str(one.get(part) or "") for part in ("type", "reason", "message"))))
            found[known.check] = ConditionSeen(
                known=known,
                repair=_asked(words, known.repair) if known.source == NVSENTINEL else known.repair,
                message=" ".join(words.split())[:MESSAGE_LENGTH_MAX],
                stands=one.get("status") == known.bad,
            )
    return tuple(found[check] for check in sorted(found))


def _asked(words: str, usual: Repair) -> Repair:
    """Returns the most that a message asks for."""
    asked = [_ACTIONS[action] for action in _ACTION.findall(words) if action in _ACTIONS]
    return max(asked, key=lambda repair: repair.rank, default=usual)
