"""GPUs by recorded answers, and NVML's own answers as a library would give them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.domain.hardware.health import Repair
from mainspring.node.probes.sightings import Sighting
from mainspring.node.probes.watchers.devices import SLOW_LOOKS, DeviceReading, Devices, XidSeen
from mainspring.node.probes.watchers.nvml import NvmlDevices, open_nvml
from tests.node.drivers import RecordedDriver

H100 = DeviceReading(
    address="0000:1b:00.0",
    name="NVIDIA H100 80GB HBM3",
    uncorrected=2,
    remap_failed=False,
    remap_pending=False,
    links_up=18,
    link_recoveries=5,
    slowdowns=0x04,  # A cap of power that somebody set.
    temperature_c=61,
    slow_from_c=87,
    recovery=0,
)
EIGHT = [replace(H100, address=f"0000:{16 * index:02x}:00.0") for index in range(8)]


def _faults(devices: Devices) -> list[Sighting]:
    return [seen for seen in devices.look(1.0) if not seen.healthy]


def test_gpus_that_are_well_say_so() -> None:
    seen = Devices(RecordedDriver(EIGHT)).look(1.0)
    assert seen
    assert all(each.healthy for each in seen)


@pytest.mark.parametrize(
    ("change", "check", "codes", "fatal", "repair"),
    [
        ({"lost": True}, "device-lost", (), True, Repair.RESTART_NODE),
        ({"remap_failed": True}, "row-remap", ("failed",), True, Repair.CALL_PEOPLE),
        ({"remap_pending": True}, "row-remap", ("pending",), False, Repair.RESET_DEVICE),
        ({"links_up": 17}, "nvlink", (), True, Repair.RESET_DEVICE),
        ({"temperature_c": 87}, "heat", (), False, Repair.CALL_PEOPLE),
        ({"recovery": 1}, "recovery", ("gpu-reset",), True, Repair.RESET_DEVICE),
        ({"recovery": 2}, "recovery", ("node-reboot",), True, Repair.RESTART_NODE),
    ],
)
def test_each_fault_of_one_gpu_is_told_of_it_alone(
    change: dict[str, Any], check: str, codes: tuple[str, ...], fatal: bool, repair: Repair
) -> None:
    driver = RecordedDriver(EIGHT)
    devices = Devices(driver)
    assert _faults(devices) == []
    driver.answers[3] = replace(EIGHT[3], **change)
    (seen,) = _faults(devices)
    assert (seen.check, seen.codes, seen.fatal, seen.repair) == (check, codes, fatal, repair)
    assert (seen.part, seen.stands) == ("0000:30:00.0", True)


def test_errors_count_from_the_first_look_on_and_once() -> None:
    driver = RecordedDriver(EIGHT)
    devices = Devices(driver)
    _faults(devices)
    driver.answers[0] = replace(EIGHT[0], uncorrected=4, link_recoveries=6)
    seen = _faults(devices)
    assert [(each.check, each.stands) for each in seen] == [("ecc", False), ("nvlink-recovery", False)]
    assert "2 uncorrected" in seen[0].message
    assert _faults(devices) == []
    driver.answers[0] = EIGHT[0]  # A driver that was loaded anew counts from the beginning.
    assert _faults(devices) == []


def test_clocks_are_held_down_only_when_they_stay_so_and_not_by_a_cap_of_power() -> None:
    driver = RecordedDriver(EIGHT)
    devices = Devices(driver)
    driver.answers[1] = replace(EIGHT[1], slowdowns=0x04 | 0x08 | 0x40)
    for _ in range(SLOW_LOOKS - 1):
        assert _faults(devices) == []
    (seen,) = _faults(devices)
    assert (seen.check, seen.codes) == ("clocks", ("hw-slowdown", "hw-thermal"))


def test_a_gpu_that_is_no_longer_listed_is_lost_but_not_all_at_once_while_the_driver_is_silent() -> None:
    driver = RecordedDriver(EIGHT)
    devices = Devices(driver)
    _faults(devices)
    del driver.answers[7]
    assert [(seen.check, seen.part) for seen in _faults(devices)] == [("device-lost", "0000:70:00.0")]
    driver.answers.clear()
    assert _faults(devices) == []


def test_gpus_without_what_others_have_are_not_judged_by_it() -> None:
    bare = [DeviceReading(address="0000:01:00.0", name="NVIDIA L4"), EIGHT[0]]
    assert _faults(Devices(RecordedDriver(bare))) == []
    uneven = [EIGHT[0], replace(EIGHT[1], links_up=12)]  # Two that differ: nobody knows which is right.
    assert _faults(Devices(RecordedDriver(uneven))) == []


def test_xids_that_the_driver_tells_are_of_the_catalogue() -> None:
    driver = RecordedDriver(EIGHT)
    devices = Devices(driver)
    driver.told.append(XidSeen(address="0000:10:00.0", code=79))
    (seen,) = _faults(devices)
    assert (seen.check, seen.codes, seen.fatal, seen.stands) == ("xid", ("79",), True, False)
    assert _faults(devices) == []


# ---------------------------------------------------------------- NVML


class _NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Library:
    """Answers as NVML did for a GPU, or fails as it does."""

    NVMLError = _NvmlError
    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND = 0, 3, 13
    NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 10, 15
    NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 59, 230
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.fails: dict[str, int] = {}
        self.asked: list[str] = []
        self.told: list[tuple[str, int]] = []
        self.open = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
            "nvmlDeviceGetName": lambda handle: "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle[-1]}B:00.0"),
            "nvmlDeviceGetTemperature": lambda handle, sensor: 45,
            "nvmlDeviceGetTemperatureThreshold": lambda handle, threshold: 87,
            "nvmlDeviceGetRemappedRows": lambda handle: (0, 1, 1, 0),
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 7,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 1,
            "nvmlDeviceGetFieldValues": lambda handle, fields: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=ctypes.c_uint(0).value))
            ],
            "nvmlDeviceGetNvLinkState": self._link,
            "nvmlEventSetCreate": object,
            "nvmlDeviceRegisterEvents": lambda handle, kinds, events: None,
            "nvmlEventSetWait_v2": self._event,
            "nvmlEventSetFree": lambda events: None,
            "nvmlShutdown": self._shut,
        }
        if name not in answers:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            if name in self.fails:
                raise _NvmlError(self.fails[name])
            return answers[name](*arguments)

        return call

    def _link(self, handle: str, link: int) -> int:
        if link >= 18:
            raise _NvmlError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(link != 4)

    def _event(self, events: object, wait_ms: int) -> Any:
        if not self.told:
            raise _NvmlError(self.NVML_ERROR_TIMEOUT)
        device, code = self.told.pop(0)
        return SimpleNamespace(device=device, eventData=code)

    def _shut(self) -> None:
        self.open = False


def test_what_nvml_answers_is_read() -> None:
    library = Library()
    devices = NvmlDevices(library)
    first, second = devices.read()
    assert first == DeviceReading(
        address="0000:0b:00.0",
        name="NVIDIA H100 80GB HBM3",
        uncorrected=7,
        remap_failed=False,
        remap_pending=True,
        links_up=17,
        link_recoveries=0,
        slowdowns=1,
        temperature_c=45,
        slow_from_c=87,
        recovery=0,
    )
    assert second.address == "0000:1b:00.0"
    library.told += [("gpu1", 63), ("gpu0", 79)]
    assert list(devices.xids()) == [
        XidSeen(address="0000:1b:00.0", code=63),
        XidSeen(address="0000:0b:00.0", code=79),
    ]
    assert list(devices.xids()) == []
    devices.close()
    assert not library.open


def test_what_a_gpu_does_not_support_is_asked_once() -> None:
    library = Library()
    library.fails = {"nvmlDeviceGetRemappedRows": 3, "nvmlDeviceGetTotalEccErrors": 3, "nvmlDeviceGetNvLinkState": 3}
    devices = NvmlDevices(library)
    for _ in range(3):
        for reading in devices.read():
            assert (reading.remap_failed, reading.uncorrected, reading.links_up) == (None, None, None)
    assert library.asked.count("nvmlDeviceGetRemappedRows") == 2


@pytest.mark.parametrize("call", ["nvmlDeviceGetTemperature", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues"])
def test_a_gpu_that_nvml_says_is_lost_is_lost(call: str) -> None:
    library = Library()
    devices = NvmlDevices(library)
    library.fails = {call: Library.NVML_ERROR_GPU_IS_LOST}
    assert [reading.lost for reading in devices.read()] == [True, True]


def test_an_answer_that_fails_once_is_asked_for_again() -> None:
    library = Library()
    devices = NvmlDevices(library)
    library.fails = {"nvmlDeviceGetTemperature": 999}
    assert devices.read()[0].temperature_c is None
    library.fails = {}
    assert devices.read()[0].temperature_c == 45


def test_a_driver_without_events_is_read_all_the_same() -> None:
    library = Library()
    library.fails = {"nvmlEventSetCreate": 3}
    devices = NvmlDevices(library)
    assert list(devices.xids()) == []
    assert len(devices.read()) == 2


def test_where_nvml_is_not_there_one_sentence_says_so() -> None:
    devices, said = None, ""
    try:
        devices = open_nvml()
    except Unavailable as error:
        said = str(error)
    if devices is None:
        assert "NVML" in said
    else:  # A machine with GPUs: they answer.
        assert all(reading.address for reading in devices.read())
        devices.close()
