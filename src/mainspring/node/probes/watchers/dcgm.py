"""NVIDIA's GPUs by what DCGM's exporter says of them, where the driver may not be asked or DCGM asks it already.

It says the same as the driver does, of the same devices and under the same checks, so that a fault that both tell of is
one fault. What its fields mean for us is a table; those that are not exported are not judged.

Source: NVIDIA/dcgm-exporter, `etc/default-counters.csv` and `docs`; DCGM, `dcgm_fields.h` (durations are nanoseconds,
whatever comments elsewhere say); prometheus.io, "Exposition formats".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

from mainspring.domain.ports import Clock
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, bus_address, well
from mainspring.node.probes.watchers.devices import DEVICES_MAX, DeviceReading, Devices, XidSeen
from mainspring.node.probes.watchers.scrape import USUAL_URL, Answers, Scrape, ask, checked_url, is_own

SAMPLES_MAX = 20_000
LABEL_MAX = 80  # Letters of a label that are used.
QUIET_S = 180.0  # Within which an Xid told in two ways is one: as long as the same said again counts once.
BLANK = 1 << 47  # From there on a value says that there is none. Source: DCGM, DCGM_FP64_BLANK; integers' are more.
LAST_XID, XIDS_IN_WINDOW = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmField:
    """What a field of DCGM is of a GPU's reading.

    Args:
        name: As the exporter writes it.
        of: The field of `DeviceReading`.
        adds: Whether several fields add up; else the largest is meant.
    """

    name: str
    of: str
    adds: bool = False


# POWER_VIOLATION is not among them: a GPU that works as hard as its power allows is as it should be.
FIELDS: tuple[DcgmField, ...] = (
    DcgmField(name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", of="uncorrected"),
    DcgmField(name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", of="corrected"),
    DcgmField(name="DCGM_FI_DEV_ROW_REMAP_FAILURE", of="remap_failed"),
    DcgmField(name="DCGM_FI_DEV_ROW_REMAP_PENDING", of="remap_pending"),
    DcgmField(name="DCGM_FI_DEV_RETIRED_PENDING", of="remap_pending"),
    DcgmField(name="DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", of="link_recoveries"),
    DcgmField(name="DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", of="link_errors", adds=True),
    DcgmField(name="DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", of="link_errors", adds=True),
    DcgmField(name="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", of="pcie_replays"),
    DcgmField(name="DCGM_FI_DEV_THERMAL_VIOLATION", of="hot_ns"),
    DcgmField(name="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", of="slowdowns"),
    DcgmField(name="DCGM_FI_DEV_CLOCKS_EVENT_REASONS", of="slowdowns"),
    DcgmField(name="DCGM_FI_DEV_GPU_TEMP", of="temperature_c"),
    DcgmField(name="DCGM_FI_DEV_SLOWDOWN_TEMP", of="slow_from_c"),
)
_KNOWN = {one.name: one for one in FIELDS}
_FLAGS = {one.name for one in fields(DeviceReading) if str(one.type).startswith("bool |")}
_READ = tuple(sorted([*_KNOWN, LAST_XID, XIDS_IN_WINDOW]))


# ---------------------------------------------------------------- what is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """What one answer says.

    Args:
        readings: By GPU, in order of address.
        last_xids: The last Xid of each GPU since its driver was loaded, 0 for none, by address.
        recent_xids: How often each Xid came within the exporter's window of some minutes, by address and code.
        others: Names of machines that are not this one.
    """

    readings: tuple[DeviceReading, ...] = ()
    last_xids: Mapping[str, int] = field(default_factory=dict)
    recent_xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def read_answer(text: str, address_of: Callable[[Mapping[str, str]], str], *, only: str = "") -> Scraped:
    """Returns what an answer of the exporter says.

    Args:
        address_of: Returns where the GPU with such labels is, "" where nobody knows.
        only: Take what is said of this machine alone; "" for all of it, as where nobody else could have answered.

    Raises:
        ValueError: It is no text of Prometheus, or says more than a node has.
    """
    values: dict[str, dict[str, float]] = defaultdict(dict)
    names: dict[str, str] = {}
    last: dict[str, int] = {}
    recent: dict[tuple[str, int], int] = {}
    others: dict[str, None] = {}
    for sample in _samples(text):
        labels, value = sample.labels, sample.value
        host = labels.get("Hostname", "")[:LABEL_MAX]
        if only and not _is_named(host.lower(), only.lower()):
            others[host] = None
            continue
        address = address_of(labels)
        if not address or not math.isfinite(value) or not 0 <= value < BLANK:
            continue
        if address not in names and len(names) >= DEVICES_MAX:
            raise ValueError(f"more than {DEVICES_MAX} GPUs")
        names.setdefault(address, labels.get("modelName", "")[:LABEL_MAX])
        if sample.name == LAST_XID:
            last[address] = max(int(value), last.get(address, 0))
        elif sample.name == XIDS_IN_WINDOW:
            code = labels.get("xid", "")
            if code.isdigit() and len(code) < 7 and value:
                recent[address, int(code)] = max(int(value), recent.get((address, int(code)), 0))
        else:
            own = values[address]
            own[sample.name] = max(value, own.get(sample.name, 0.0))  # Parts of a GPU repeat what is of all of it.
    readings = tuple(_reading(address, names[address], values[address]) for address in sorted(names))
    return Scraped(readings=readings, last_xids=last, recent_xids=recent, others=tuple(others))


def _is_named(host: str, node: str) -> bool:
    """Returns whether a machine is a node, one of which may be named without its domain."""
    whole = "." in host and "." in node
    return host == node or (not whole and host.partition(".")[0] == node.partition(".")[0])


def _samples(text: str) -> Iterator[Any]:
    """Yields the samples that are looked at; all else is not even parsed."""
    from prometheus_client.parser import text_string_to_metric_families  # Only where there is something to parse.

    lines = [line for line in text.splitlines() if line.startswith(_READ)]
    if len(lines) > SAMPLES_MAX:
        raise ValueError(f"more than {SAMPLES_MAX} samples")
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        yield from (sample for sample in family.samples if sample.name in _READ)


def _reading(address: str, name: str, values: Mapping[str, float]) -> DeviceReading:
    found: dict[str, float] = {}
    for each, value in values.items():
        known = _KNOWN[each]
        before = found.get(known.of, 0.0)
        found[known.of] = before + value if known.adds else max(before, value)
    typed: dict[str, Any] = {of: bool(value) if of in _FLAGS else int(value) for of, value in found.items()}
    return DeviceReading(address=address, name=name, **typed)


# ---------------------------------------------------------------- where GPUs are


@final
class GpuAddresses:
    """Where GPUs are on the bus, which is how all other watchers name them.

    Args:
        files: Of the node: of an exporter that does not tell it, NVIDIA's driver does.
    """

    def __init__(self, files: NodeFiles) -> None:
        self._files = files
        self._by_uuid: dict[str, str] = {}

    def __call__(self, labels: Mapping[str, str]) -> str:
        """Returns a GPU's address, or its UUID where nobody tells that; "" for what is no GPU."""
        told = labels.get("pci_bus_id", "")[:LABEL_MAX]
        if told and bus_address(told) != told:
            return bus_address(told)
        uuid = labels.get("UUID", "")[:LABEL_MAX]
        if told or not uuid:
            return told
        if uuid not in self._by_uuid and len(self._by_uuid) < DEVICES_MAX:
            self._by_uuid[uuid] = self._of_driver(uuid) or uuid
        return self._by_uuid.get(uuid, uuid)

    def _of_driver(self, uuid: str) -> str:
        folder = "proc/driver/nvidia/gpus"
        for name in self._files.names(folder)[:DEVICES_MAX]:
            for line in self._files.text(f"{folder}/{name}/information", 4_096).splitlines():
                what, _, value = line.partition(":")
                if what == "GPU UUID" and value.strip() == uuid:
                    return bus_address(name)
        return ""


# ---------------------------------------------------------------- the watcher


@final
class DcgmDevices:
    """GPUs as the answers of an exporter show them."""

    def __init__(self) -> None:
        self._readings: Sequence[DeviceReading] = ()
        self._xids: list[XidSeen] = []
        self._last: dict[str, int] = {}
        self._recent: Mapping[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], float] = {}
        self._now_s = 0.0

    def take(self, found: Scraped, now_s: float) -> None:
        """Takes what an answer says, for the next look."""
        self._now_s = now_s
        self._readings = found.readings
        for (address, code), count in found.recent_xids.items():
            before = self._recent.get((address, code), 0)
            if before < count and (before or not self._is_told(address, code)):
                self._tell(address, code)
        self._recent = found.recent_xids
        for address, code in found.last_xids.items():
            last = self._last.get(address)  # The first time it may have been weeks ago.
            if last is not None and code not in (0, last) and not self._is_told(address, code):
                self._tell(address, code)
            self._last[address] = code

    def read(self) -> Sequence[DeviceReading]:
        """Returns how each GPU is by a new answer, nothing without one; see `DeviceReader`."""
        found, self._readings = self._readings, ()
        return found

    def xids(self) -> Sequence[XidSeen]:
        """Returns what was told since the last call; see `DeviceReader`."""
        found, self._xids = self._xids, []
        return found

    def close(self) -> None:
        """Nothing is held open."""

    def _is_told(self, address: str, code: int) -> bool:
        return 0 <= self._now_s - self._told.get((address, code), -math.inf) < QUIET_S

    def _tell(self, address: str, code: int) -> None:
        self._told = {key: at_s for key, at_s in self._told.items() if self._now_s - at_s < QUIET_S}
        self._told[address, code] = self._now_s
        self._xids.append(XidSeen(address=address, code=code))


@final
class Dcgm:
    """Watches GPUs through DCGM's exporter.

    Args:
        files: Of the node.
        answers: The exporter's.
        url: Where, for people.
        only: See `read_answer`.
        wanted: Whether somebody said that there is one; else it is not missed before it has answered.
    """

    name = "dcgm"
    every_s = 5.0

    def __init__(self, files: NodeFiles, answers: Answers, *, url: str, only: str = "", wanted: bool = True) -> None:
        self._addresses = GpuAddresses(files)
        self._answers = answers
        self._url = url
        self._only = only
        self._wanted = wanted
        self._told = DcgmDevices()
        self._devices = Devices(self._told, name=self.name, sure=False)

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what a new answer says, and whether there is one."""
        answer = self._answers.take()
        if answer is None:
            return ()
        trouble = answer.trouble
        if not trouble:
            try:
                found = read_answer(answer.text, self._addresses, only=self._only)
            except ValueError as error:
                trouble = f"the answer of {self._url} cannot be read: {error}"[:300]
            else:
                self._told.take(found, now_s)
                trouble = _trouble_of(found, self._url, self._only)
                self._wanted = True
        seen = list(self._devices.look(now_s))
        if trouble and self._wanted:
            seen.append(Sighting(check="dcgm", message=trouble))
        elif not trouble:
            seen.append(well("dcgm"))
        return seen

    def close(self) -> None:
        """Asks no more."""
        self._answers.close()


def _trouble_of(found: Scraped, url: str, only: str) -> str:
    if found.others:
        who = ", ".join(host or "a machine without a name" for host in found.others[:3])
        return f"{url} tells of {who}, not of {only}: ask its own (internalTrafficPolicy Local of the Service)"
    return "" if found.readings else f"{url} tells of no GPU"


def open_dcgm(files: NodeFiles, url: str, *, node: str, clock: Clock) -> Dcgm:
    """Returns a watcher of this node's GPUs through its exporter.

    Args:
        url: Where it is asked; "" for where it usually is, which is not missed where it is not.
        node: What the cluster calls this node.

    Raises:
        InvalidInput: The address is none.
    """
    asked = checked_url(url or USUAL_URL)
    only = "" if is_own(asked) else node
    return Dcgm(files, Scrape(lambda: ask(asked, clock)), url=asked, only=only, wanted=bool(url))
