"""NVIDIA's driver through its management library, NVML; it is loaded when a reader is opened, and may not be there.

Only what a node has is asked for twice: an answer of "not supported" is remembered for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, final

from mainspring.domain.errors import Unavailable
from mainspring.node.probes.sightings import bus_address
from mainspring.node.probes.watchers.devices import DeviceReading, XidSeen

XIDS_MAX = 64  # Read at one look; a GPU in trouble tells of a few a second.
LINKS_MAX = 36  # Of one GPU. Source: NVML, NVML_NVLINK_MAX_LINKS.


def open_nvml() -> NvmlDevices:
    """Returns a reader of this machine's GPUs.

    Raises:
        Unavailable: The library, its Python package or the driver is not there; says which.
    """
    try:
        nvml = import_module("pynvml")
    except ImportError as error:
        raise Unavailable(
            "watch GPUs",
            on="NVML",
            got=str(error),
            wanted="the package nvidia-ml-py",
            next_step="install mainspring[nvidia] where there are GPUs; everything else is watched without it",
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unavailable(
            "watch GPUs",
            on="NVML",
            got=str(error),
            wanted="NVIDIA's driver",
            next_step="nothing, where there is no GPU: everything else is watched without it",
        ) from error
    return NvmlDevices(nvml)


@final
class NvmlDevices:
    """GPUs as NVML shows them.

    Args:
        nvml: The module `pynvml`, after `nvmlInit`.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._lacking: set[tuple[str, str]] = set()
        self._events: Any = None
        self._listen()

    def read(self) -> Sequence[DeviceReading]:
        """Returns how each GPU is; see `DeviceReader`."""
        return [self._reading(address, handle) for address, handle in self._handles.items()]

    def xids(self) -> Sequence[XidSeen]:
        """Returns what was told since the last call; see `DeviceReader`."""
        found: list[XidSeen] = []
        nvml = self._nvml
        while self._events is not None and len(found) < XIDS_MAX:
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
                address = _address(nvml, data.device)
            except nvml.NVMLError:  # Nothing was told: that is a time-out.
                break
            found.append(XidSeen(address=address, code=int(data.eventData)))
        return found

    def close(self) -> None:
        """Lets go of the driver."""
        nvml, self._handles = self._nvml, {}
        try:
            if self._events is not None:
                nvml.nvmlEventSetFree(self._events)
            self._events = None
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            pass  # It is gone already.

    def _listen(self) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            events = None
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                address = _address(nvml, handle)
                self._names[address] = str(nvml.nvmlDeviceGetName(handle))
            except nvml.NVMLError:
                continue  # It was lost before we came: the kernel's log told of it.
            self._handles[address] = handle
            try:
                if events is not None:
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
                    self._events = events
            except nvml.NVMLError:
                pass  # Xids are in the kernel's log too.

    def _reading(self, address: str, handle: Any) -> DeviceReading:
        nvml = self._nvml
        try:
            temperature = self._ask(address, "heat", nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            remapped = self._ask(address, "remap", nvml.nvmlDeviceGetRemappedRows, handle)
            return DeviceReading(
                address=address,
                name=self._names[address],
                uncorrected=self._ask(
                    address,
                    "ecc",
                    nvml.nvmlDeviceGetTotalEccErrors,
                    handle,
                    nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                ),
                remap_failed=None if remapped is None else bool(remapped[3]),
                remap_pending=None if remapped is None else bool(remapped[2]),
                links_up=self._links_up(address, handle),
                link_recoveries=self._field(address, handle, "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
                slowdowns=self._ask(address, "clocks", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
                temperature_c=temperature,
                slow_from_c=self._ask(
                    address,
                    "slow from",
                    nvml.nvmlDeviceGetTemperatureThreshold,
                    handle,
                    nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
                ),
                recovery=self._field(address, handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"),
            )
        except _Lost:
            return DeviceReading(address=address, name=self._names[address], lost=True)

    def _ask(self, address: str, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        nvml = self._nvml
        if (address, what) in self._lacking:
            return None
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise _Lost from error
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._lacking.add((address, what))
            return None

    def _field(self, address: str, handle: Any, name: str) -> int | None:
        number = getattr(self._nvml, name, None)
        if number is None:
            return None
        values = self._ask(address, name, self._nvml.nvmlDeviceGetFieldValues, handle, [number])
        if values is None:
            return None
        if values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            self._lacking.add((address, name))
            return None
        return int(values[0].value.uiVal)

    def _links_up(self, address: str, handle: Any) -> int | None:
        """Returns how many NVLinks are up, None for a GPU that has none."""
        nvml, states = self._nvml, []
        for link in range(LINKS_MAX):
            try:
                state = nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    raise _Lost from error
                break  # It has no more of them.
            states.append(bool(state))
        return sum(states) if states else None


class _Lost(Exception):
    """The GPU that was asked does not answer any more."""


def _address(nvml: Any, handle: Any) -> str:
    told = nvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_address(told.decode() if isinstance(told, bytes) else str(told))
