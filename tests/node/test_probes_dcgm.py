"""GPUs by the answers of DCGM's exporter: what is read of them, and that no fault counts twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from mainspring.control.health.lemons import lemon_score
from mainspring.control.health.nodes import HealthFold
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, Teller
from mainspring.node.probes.watchers.dcgm import FIELDS, QUIET_S, Dcgm, open_dcgm, read_answer
from mainspring.node.probes.watchers.devices import SLOW_LOOKS, DeviceReading, Devices, XidSeen
from mainspring.node.probes.watchers.kernel_log import seen_in
from mainspring.node.probes.watchers.scrape import (
    ANSWER_BYTES_MAX,
    CALL_LIMIT_S,
    Answer,
    ask,
    checked_url,
    is_own,
)
from mainspring.testing import FakeClock, SeededDice
from tests.node.drivers import RecordedDriver
from tests.node.exporter import GPUS, WELL, Exporter, address, served, uuid

LIMIT_S = 120.0  # Until something is there that takes a moment.
EVERY_S = 30.0


def until(look: Callable[[], object]) -> None:
    """Waits for something to be so."""
    over_s, turn = monotonic() + LIMIT_S, Event()
    while not look():
        assert monotonic() < over_s, "it never came"
        turn.wait(0.01)


class Watched:
    """A watcher that is handed an exporter's answers one by one."""

    def __init__(self, root: Path, exporter: Exporter, *, only: str = "", wanted: bool = True) -> None:
        self.exporter = exporter
        self.now_s = 1_000.0
        self._answer: Answer | None = None
        self.watcher = Dcgm(NodeFiles(str(root)), self, url="http://x:9400/metrics", only=only, wanted=wanted)

    def take(self) -> Answer | None:
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        pass

    def look(self, answer: Answer | None = None, *, later_s: float = EVERY_S) -> Sequence[Sighting]:
        """Returns what a look sees, half a minute after the last."""
        self._answer = Answer(text=self.exporter.text()) if answer is None else answer
        self.now_s += later_s
        seen = self.watcher.look(self.now_s)
        assert not self.watcher.look(self.now_s + 5.0), "an answer is looked at once"
        return seen

    def faults(self, answer: Answer | None = None, *, later_s: float = EVERY_S) -> Sequence[Sighting]:
        """Returns what is wrong by a look."""
        return [one for one in self.look(answer, later_s=later_s) if not one.healthy]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, Exporter())


def test_gpus_that_are_well_say_so_under_their_addresses(watched: Watched) -> None:
    seen = watched.look()
    assert all(one.healthy for one in seen)
    assert {one.part for one in seen if one.check == "row-remap"} == {address(gpu) for gpu in range(GPUS)}
    assert {one.check for one in seen} == {"device-lost", "row-remap", "heat", "clocks", "dcgm"}


@pytest.mark.parametrize(
    ("field", "value", "check", "codes", "fatal", "repair"),
    [
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "row-remap", ("failed",), True, "call people"),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "row-remap", ("pending",), False, "reset device"),
        ("DCGM_FI_DEV_GPU_TEMP", 88, "heat", (), False, "call people"),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, "ecc", (), False, "reset device"),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 3 + 60, "ecc-corrected", (), False, "none"),
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1, "nvlink-recovery", (), False, "none"),
        ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 4_000, "nvlink-errors", (), False, "none"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 4 + 9, "pcie-replays", (), False, "none"),
        ("DCGM_FI_DEV_XID_ERRORS", 79, "xid", ("79",), True, "restart node"),
    ],
)
def test_each_field_tells_of_its_gpu_alone(
    watched: Watched, field: str, value: int, check: str, codes: tuple[str, ...], fatal: bool, repair: str
) -> None:
    assert not watched.faults()
    watched.exporter.gpus[3][field] = value
    (seen,) = watched.faults()
    assert (seen.check, seen.part, seen.codes, seen.fatal, seen.repair.value) == (
        check, address(3), codes, fatal, repair,
    )  # fmt: skip


def test_counters_that_grow_little_or_begin_anew_are_as_they_should_be(watched: Watched) -> None:
    watched.look()
    watched.exporter.gpus[2] |= {
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 8,
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 2_900,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 8,
        "DCGM_FI_DEV_POWER_VIOLATION": 880_000_000_000 + 29_000_000_000,  # It works as hard as its power allows.
    }
    assert not watched.faults()
    watched.exporter.gpus[2] = dict.fromkeys(WELL, 0.0) | {"DCGM_FI_DEV_SLOWDOWN_TEMP": 87.0}
    assert not watched.faults()


def test_heat_that_holds_clocks_down_is_told_once_it_stays(watched: Watched) -> None:
    watched.look()
    for look in range(1, SLOW_LOOKS + 1):
        watched.exporter.gpus[1]["DCGM_FI_DEV_THERMAL_VIOLATION"] += 6e9  # A fifth of the time, in nanoseconds.
        found = [(one.check, one.codes) for one in watched.faults()]
        assert found == ([("clocks", ("thermal",))] if look == SLOW_LOOKS else [])
    assert [one.part for one in watched.look() if one.check == "clocks" and one.healthy].count(address(1)) == 1


def test_xid_of_before_the_first_look_is_of_nobody_knows_when_and_not_told(watched: Watched) -> None:
    watched.exporter.gpus[0]["DCGM_FI_DEV_XID_ERRORS"] = 79
    assert not watched.faults()
    assert not watched.faults()
    watched.exporter.gpus[0]["DCGM_FI_DEV_XID_ERRORS"] = 48
    assert [one.codes for one in watched.faults()] == [("48",)]


def test_xid_that_both_fields_tell_of_is_told_once_and_again_when_it_comes_again(watched: Watched) -> None:
    watched.look()
    watched.exporter.gpus[5]["DCGM_FI_DEV_XID_ERRORS"] = 94
    assert [one.codes for one in watched.faults()] == [("94",)]
    watched.exporter.recent_xids[5, 94] = 1
    assert not watched.faults(), "it is the same one, told a scrape later in another way"
    watched.exporter.recent_xids[5, 94] = 2
    assert [one.codes for one in watched.faults()] == [("94",)]
    assert not watched.faults(later_s=QUIET_S), "it is in the exporter's window still"
    watched.exporter.recent_xids.clear()
    assert not watched.faults(later_s=QUIET_S)
    watched.exporter.recent_xids[5, 94] = 1
    assert [one.codes for one in watched.faults()] == [("94",)]


def test_gpu_that_nothing_is_told_of_any_more_is_missed_not_lost(watched: Watched) -> None:
    watched.look()
    del watched.exporter.gpus[7]
    for _ in range(SLOW_LOOKS - 1):
        assert not watched.faults()
    (seen,) = watched.faults()
    assert (seen.check, seen.part, seen.fatal) == ("device-lost", address(7), False)


def test_exporter_that_does_not_answer_is_told_where_somebody_counts_on_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Exporter())
    assert [one.check for one in watched.faults(Answer(trouble="no answer"))] == ["dcgm"]
    assert [one.check for one in watched.look() if one.check == "dcgm" and one.healthy] == ["dcgm"]
    tried = Watched(tmp_path, Exporter(), wanted=False)
    assert not tried.look(Answer(trouble="no answer")), "where it is only looked for, it is not missed"
    tried.look()
    assert [one.check for one in tried.faults(Answer(trouble="no answer"))] == ["dcgm"]


def test_answer_of_another_machine_is_never_taken_for_this_one(tmp_path: Path) -> None:
    watched = Watched(tmp_path, Exporter("n2.hall.example"), only="n1")
    watched.exporter.gpus[0]["DCGM_FI_DEV_ROW_REMAP_FAILURE"] = 1
    (seen,) = watched.look()
    assert seen.check == "dcgm"
    assert "n2.hall.example" in seen.message
    assert "n1" in seen.message
    watched.exporter.host = "N1.hall.example"
    assert [one.check for one in watched.faults()] == ["row-remap"]


@pytest.mark.parametrize(
    ("host", "node", "same"),
    [
        ("n1.hall.example", "n1", True),
        ("n1", "n1.hall.example", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("n1.east.example", "n1.west.example", False),
        ("dcgm-exporter-x7k2p", "n1", False),
        ("", "n1", False),
    ],
)
def test_machine_is_a_node_by_its_whole_name_or_where_one_lacks_a_domain(host: str, node: str, same: bool) -> None:
    found = read_answer(Exporter(host).text(), lambda labels: labels["UUID"], only=node)
    assert bool(found.readings) is same


@pytest.mark.parametrize(
    "text",
    [
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} hot',
        "\n".join(f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-{number}"}} 60' for number in range(65)),
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1"} 60\n' * 20_001,
    ],
)
def test_answer_that_cannot_be_read_is_told_and_blames_no_gpu(watched: Watched, text: str) -> None:
    (seen,) = watched.faults(Answer(text=text))
    assert seen.check == "dcgm"
    assert "cannot be read" in seen.message


def test_what_is_no_value_and_what_is_no_gpu_says_nothing(watched: Watched) -> None:
    odd = [
        f'DCGM_FI_DEV_ROW_REMAP_FAILURE{{UUID="{uuid(0)}"}} 9223372036854775792',
        f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(0)}"}} NaN',
        f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{UUID="{uuid(0)}"}} 140737488355328',
        'DCGM_FI_DEV_GPU_TEMP{nvswitch="0"} 99',
        'DCGM_FI_DEV_GPU_TEMP_OF_OTHERS{UUID="GPU-1"} 99',
        "SOMETHING_ELSE{ 1",
    ]
    assert [one.check for one in watched.faults(Answer(text="\n".join(odd)))] == ["dcgm"]


def test_gpu_is_known_by_the_drivers_word_where_the_exporter_tells_no_address(tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia/gpus" / address(2)
    folder.mkdir(parents=True)
    (folder / "information").write_text(
        f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid(2)}\nBus Location: \t {address(2)}\n"
    )
    watched = Watched(tmp_path, Exporter(tells_bus=False))
    parts = {one.part for one in watched.look() if one.check == "heat"}
    assert parts == {address(2), *(uuid(gpu) for gpu in range(GPUS) if gpu != 2)}


def test_parts_of_one_gpu_are_one_gpu() -> None:
    lines = [f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{UUID="u",GPU_I_ID="{part}"}} 4' for part in range(7)]
    found = read_answer("\n".join(lines), lambda labels: labels["UUID"])
    assert found.readings == (DeviceReading(address="u", uncorrected=4),)


def test_fields_of_two_releases_are_one_and_errors_of_two_kinds_add_up() -> None:
    names = ("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
             "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL")  # fmt: skip
    found = read_answer("\n".join(f'DCGM_FI_DEV_{name}{{UUID="u"}} 4' for name in names), lambda labels: labels["UUID"])
    assert found.readings == (DeviceReading(address="u", slowdowns=4, link_errors=8),)


def test_every_field_is_one_of_a_reading_and_exported_once() -> None:
    known = set(DeviceReading.__dataclass_fields__)
    assert {one.of for one in FIELDS} <= known
    assert len({one.name for one in FIELDS}) == len(FIELDS)


# ---------------------------------------------------------------- no fault counts twice

HALL, NODE = ClusterName("hall"), NodeName("n1")
AT = NodeRef(cluster=HALL, node=NODE)


def _told_by_all(watched: Watched, *, by: Sequence[str]) -> list[HealthEvent]:
    """Returns what a node's watchers tell of three Xids that a reset cures for two days, as each of them sees it."""
    well = [DeviceReading(address=address(gpu), remap_failed=False, uncorrected=0) for gpu in range(GPUS)]
    teller, driver = Teller(HALL, NODE, SeededDice(1)), RecordedDriver(well)
    devices, events = Devices(driver), list[HealthEvent]()
    for look in range(6):
        now_s = 1_000.0 + look * 86_400.0
        fault = look % 2 == 1
        if fault:
            driver.told.append(XidSeen(address=address(3), code=119))
            watched.exporter.recent_xids[3, 119] = 1
        else:
            watched.exporter.recent_xids.clear()
        watched.now_s = now_s
        line = f"NVRM: Xid (PCI:{address(3)[:-2]}): 119, pid=1, Timeout after 6s"
        seen: dict[str, Sequence[Sighting | None]] = {
            "kernel-log": [seen_in(line)] if fault else [],
            "nvml": list(devices.look(now_s + 4)),
            "dcgm": list(watched.look(later_s=27.0)),
        }
        after_s = {"kernel-log": 0.0, "nvml": 4.0, "dcgm": 27.0}
        for name in by:
            sightings = [one for one in seen[name] if one is not None]
            events += teller.tell(name, sightings, now_s + after_s[name])
    return events


@pytest.mark.parametrize("first", ["kernel-log", "nvml", "dcgm"])
def test_fault_that_several_tell_of_is_one_fault(tmp_path: Path, first: str) -> None:
    alone = _told_by_all(Watched(tmp_path, Exporter()), by=[first])
    together = _told_by_all(Watched(tmp_path, Exporter()), by=["kernel-log", "nvml", "dcgm"])
    assert len([event for event in together if event.fatal]) == 3 * len([event for event in alone if event.fatal]) == 9
    faults = [[event for event in events if not event.healthy] for events in (alone, together)]
    assert lemon_score(faults[0]) == lemon_score(faults[1]) == 5.0  # Three, of which two came back where they were.
    found = []
    for events in (alone, together):
        fold = HealthFold()
        for event in events:
            fold.add(event)
        found.append([(finding.rule, finding.repair) for finding in fold.of(AT, 1_000.0 + 5 * 86_400.0 + 60).findings])
    assert found[0] == found[1]
    assert [rule for rule, _ in found[0]] == ["reset-in-vain", "fatal", "lemon"]


# ---------------------------------------------------------------- over HTTP


def test_answers_come_over_http_within_bounds() -> None:
    exporter, clock = Exporter(), FakeClock()
    with served(exporter) as url:
        assert ask(url, clock).text == exporter.text()
        exporter.status = 503
        assert "503" in ask(url, clock).trouble
        exporter.status, exporter.raw = 200, b"x" * (ANSWER_BYTES_MAX + 1)
        assert "MiB" in ask(url, clock).trouble
    assert "no answer" in ask(url, clock).trouble


def test_answer_that_takes_too_long_is_given_up() -> None:
    class Late(FakeClock):
        def monotonic_s(self) -> float:
            self.advance(CALL_LIMIT_S)
            return super().monotonic_s()

    exporter = Exporter()
    exporter.raw = b"x" * (1 << 20)
    with served(exporter) as url:
        assert "takes longer" in ask(url, Late()).trouble


@pytest.mark.parametrize("url", ["", "9400", "file:///etc/passwd", "http://", "http://x y/", "http://x:99999/"])
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="--dcgm"):
        checked_url(url)


def test_only_this_machine_answers_at_its_own_addresses() -> None:
    assert [is_own(f"http://{host}:9400/metrics") for host in ("127.0.0.1", "localhost", "[::1]")] == [True] * 3
    assert [is_own(f"http://{host}:9400/metrics") for host in ("10.0.0.1", "dcgm.gpu-operator")] == [False] * 2


def test_watcher_asks_a_real_exporter(tmp_path: Path) -> None:
    exporter = Exporter()
    exporter.gpus[6]["DCGM_FI_DEV_ROW_REMAP_FAILURE"] = 1
    with served(exporter) as url:
        watcher, seen = open_dcgm(NodeFiles(str(tmp_path)), url, node="elsewhere", clock=FakeClock()), list[Sighting]()

        def looked() -> bool:
            seen.extend(watcher.look(1.0))
            return bool(seen)

        until(looked)
        watcher.close()
    assert [(one.check, one.part) for one in seen if not one.healthy] == [("row-remap", address(6))]


@pytest.mark.slow
def test_program_tells_what_an_exporter_says_of_its_node(tmp_path: Path) -> None:
    exporter = Exporter()
    exporter.gpus[4]["DCGM_FI_DEV_ROW_REMAP_FAILURE"] = 1
    words = ["--cluster", "hall", "--node", "n1", "--root", str(tmp_path), "--json", "--no-nvml", "--seconds", "600"]
    with served(exporter) as url:
        command = [sys.executable, "-m", "mainspring", "probes", *words, "--dcgm", url]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
            assert program.stdout is not None
            told = next(
                one for one in map(json.loads, program.stdout) if one["check"] == "row-remap" and one.get("fatal")
            )
            program.terminate()
    assert told["source"]["name"] == "dcgm"
    assert told["scope"]["part"] == address(4)
