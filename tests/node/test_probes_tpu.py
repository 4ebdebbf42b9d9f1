"""TPUs by recorded answers of libtpu, and the process that asks it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import SimpleNamespace

import pytest

from mainspring.app.server.programs.probes import OTHERS, arguments_of
from mainspring.domain.ports import Backoff
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.network import network_findings
from mainspring.node.probes.sightings import Sighting
from mainspring.node.probes.watchers.libtpu import LINE_BYTES_MAX, LibtpuProcess, ask_on
from mainspring.node.probes.watchers.tpu import LINK_HEALTH, METRICS, SLOW_LOOKS, THROTTLE, TpuAnswer, Tpus, has_tpu
from mainspring.testing import FakeClock

LIMIT_S = 120.0  # Until something is there that takes a moment.
WELL = {
    LINK_HEALTH: tuple(f"tray1.chip{chip}.ici{port}.int: 0" for chip in range(4) for port in range(6)),
    THROTTLE: ("0-0", "1-0", "2-0", "3-0"),
}


class Recorded:
    """libtpu as it answered."""

    def __init__(self) -> None:
        self.answer: TpuAnswer | None = None
        self.closed = False

    def read(self) -> TpuAnswer | None:
        answer, self.answer = self.answer, None
        return answer

    def close(self) -> None:
        self.closed = True


def look(tpus: Tpus, reader: Recorded, metrics: Mapping[str, tuple[str, ...]]) -> Sequence[Sighting]:
    """Returns what is wrong by an answer."""
    reader.answer = TpuAnswer(metrics=metrics)
    return [one for one in tpus.look(1.0) if not one.healthy]


def test_chips_that_are_well_say_so() -> None:
    reader = Recorded()
    tpus = Tpus(reader)
    reader.answer = TpuAnswer(metrics=WELL)
    seen = tpus.look(1.0)
    assert all(one.healthy for one in seen)
    assert sum(one.check == "ici-link" for one in seen) == 24
    assert {one.part for one in seen if one.check == "clocks"} == {"tpu0", "tpu1", "tpu2", "tpu3"}
    assert tpus.look(2.0) == ()
    tpus.close()
    assert reader.closed


@pytest.mark.parametrize(
    ("score", "code", "fatal", "repair"),
    [
        (1, "transient", False, "none"),
        (5, "transient", False, "none"),
        (6, "minor", False, "call people"),
        (9, "minor", False, "call people"),
        (10, "unusable", True, "restart node"),
    ],
)
def test_link_is_told_by_its_score(score: int, code: str, fatal: bool, repair: str) -> None:
    reader = Recorded()
    links = (*WELL[LINK_HEALTH][:-1], f"tray1.chip3.ici5.int: {score}")
    (seen,) = look(Tpus(reader), reader, {**WELL, LINK_HEALTH: links})
    assert (seen.check, seen.kind.value, seen.part) == ("ici-link", "device", "tray1.chip3.ici5.int")
    assert (seen.codes, seen.fatal, seen.repair.value) == ((code,), fatal, repair)


def test_clocks_are_held_down_only_when_they_stay_so() -> None:
    reader = Recorded()
    tpus = Tpus(reader)
    held = {**WELL, THROTTLE: ("0-0", "1-3", "2-0", "3-0")}
    for _ in range(SLOW_LOOKS - 1):
        assert look(tpus, reader, held) == []
    (seen,) = look(tpus, reader, held)
    assert (seen.check, seen.part) == ("clocks", "tpu1")
    assert "30 %" in seen.message
    assert look(tpus, reader, WELL) == []
    assert look(tpus, reader, held) == []


def test_rows_of_another_form_and_what_is_not_told_are_not_judged() -> None:
    reader = Recorded()
    odd = {LINK_HEALTH: ("", "tray1: ten", "a b: 10", f"{'x' * 200}: 10", "l: 100"), THROTTLE: ("1", "-1-1", "x-1")}
    assert look(Tpus(reader), reader, odd) == []
    assert look(Tpus(reader), reader, {}) == []


def test_libtpu_that_does_not_answer_is_told() -> None:
    reader = Recorded()
    reader.answer = TpuAnswer(trouble="libtpu cannot be asked: no")
    (seen,) = Tpus(reader).look(1.0)
    assert (seen.check, seen.fatal, seen.message) == ("libtpu", False, "libtpu cannot be asked: no")


@pytest.mark.parametrize(
    ("vendor", "kind", "is_tpu"),
    [
        ("0x1ae0", "0x120000", True),
        ("0x1ae0", "0x088000", True),
        ("0x1ae0", "0x020000", False),
        ("0x1ae0", "0x010802", False),
        ("0x10de", "0x030200", False),
    ],
)
def test_tpu_is_known_by_the_bus(tmp_path: Path, vendor: str, kind: str, is_tpu: bool) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    files = NodeFiles(str(tmp_path))
    assert has_tpu(files) is is_tpu
    assert ("TPUs" in {one.name for one in network_findings(files, {})}) is is_tpu


# ---------------------------------------------------------------- the process


def until(process: LibtpuProcess) -> TpuAnswer:
    """Waits for an answer."""
    over_s, turn = monotonic() + LIMIT_S, Event()
    while (answer := process.read()) is None:
        assert monotonic() < over_s, "nothing came"
        turn.wait(0.01)
    return answer


def python(program: str) -> tuple[str, ...]:
    """Returns a command that runs a program of Python."""
    return (sys.executable, "-S", "-c", program)


def test_newest_line_of_the_process_is_read_and_one_that_ends_is_started_anew() -> None:
    clock = FakeClock()
    line = json.dumps({LINK_HEALTH: ["tray1.chip0.ici0.int: 10"], THROTTLE: [], "other": [1]})
    process = LibtpuProcess(python(f"print('{{}}'); print('''{line}''')"), dict(os.environ), clock)
    answer = until(process)
    while not answer.metrics.get(LINK_HEALTH):  # The first may be read before the second is written.
        answer = until(process)
    assert answer == TpuAnswer(metrics={LINK_HEALTH: ("tray1.chip0.ici0.int: 10",), THROTTLE: ()})
    assert "ended with 0" in until(process).trouble
    assert process.read() is None, "it is started anew, but not at once"
    clock.advance(3_600.0)
    assert until(process).trouble == ""
    process.close()
    process.close()


def test_process_that_says_nothing_is_ended() -> None:
    clock = FakeClock()
    process = LibtpuProcess(
        python("import sys; sys.stdin.read()"), dict(os.environ), clock, silent_s=60.0, again=Backoff(first_s=1e9)
    )
    assert process.read() is None
    clock.advance(59.0)
    assert process.read() is None
    clock.advance(2.0)
    answer = process.read()
    assert answer is not None
    assert "60 s" in answer.trouble
    process.close()


@pytest.mark.parametrize("line", ["no json", "[1]", '{"' + LINK_HEALTH + '": 5}', "[" * 50_000])
def test_line_that_is_none_is_told_or_says_nothing(line: str) -> None:
    process = LibtpuProcess(python(f"import sys; print({line!r}); sys.stdin.read()"), dict(os.environ), FakeClock())
    answer = until(process)
    assert answer.metrics == {}
    assert bool(answer.trouble) is not line.startswith("{")
    process.close()


def test_line_without_an_end_takes_no_more_memory_than_its_bound() -> None:
    program = f"import sys; sys.stdout.write('x' * {3 * LINE_BYTES_MAX}); print(); print('{{}}'); sys.stdin.read()"
    process = LibtpuProcess(python(program), dict(os.environ), FakeClock())
    while until(process).trouble:
        pass
    process.close()


def test_program_that_is_not_there_is_told() -> None:
    process = LibtpuProcess(("/no/such/program",), {}, FakeClock())
    answer = process.read()
    assert answer is not None
    assert "cannot be asked" in answer.trouble


def test_asking_goes_on_until_nobody_listens() -> None:
    said: Mapping[str, Callable[[], Sequence[str]]] = {LINK_HEALTH: lambda: ["a: 0"]}

    def get_metric(name: str) -> SimpleNamespace:
        if name not in said:
            raise RuntimeError("not of this chip")
        return SimpleNamespace(data=said[name])

    lines: list[bytes] = []
    theirs, ours = os.pipe()
    twice = Event()

    def write(line: bytes) -> None:
        lines.append(line)
        if len(lines) == 2:
            twice.set()

    asking = Thread(target=ask_on, args=(get_metric, write, theirs, 0.01))
    asking.start()
    assert twice.wait(LIMIT_S)
    os.close(ours)
    asking.join(LIMIT_S)
    assert not asking.is_alive()
    os.close(theirs)
    assert json.loads(lines[0])[LINK_HEALTH] == ["a: 0"]
    assert THROTTLE not in json.loads(lines[0])


def test_program_has_a_word_for_it() -> None:
    assert "tpu" in OTHERS
    assert not arguments_of(["--cluster", "hall"]).no_tpu
    assert set(METRICS) == set(WELL)
