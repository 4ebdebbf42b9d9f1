from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.intake.making import arm, recipe, write_log
from tests.data.making import record, record_many, write_lerobot_v2

from mainspring.data.catalog.log import resolve
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.episode import NANOSECONDS
from mainspring.data.intake.arrivals import Arrival, Inbox
from mainspring.data.intake.report import IngestReport
from mainspring.data.intake.watch import watch
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import ObjectStore, blob_of_file, open_store
from mainspring.testing.time_and_chance import FakeClock

SETTLE_S = 10.0
POLL_S = 2.0


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


class Life:
    """Lets time pass for a watch, and does something at some of its looks."""

    def __init__(self, clock: FakeClock, looks: int, does: dict[int, Callable[[], object]] | None = None) -> None:
        self.clock, self.looks, self.does, self.look = clock, looks, does or {}, 0

    def wait(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        self.look += 1
        self.does.get(self.look, lambda: None)()
        return self.look < self.looks


def watched(folder: Path, store: ObjectStore, life: Life, moved: Path | None = None) -> list[IngestReport]:
    clock, wait = life.clock, life.wait
    return [*watch(folder, store, "pick", clock=clock, wait=wait, moved=moved, settle_s=SETTLE_S, poll_s=POLL_S)]


def test_recording_is_taken_once_it_has_not_changed_for_a_while(folder: Path, store: ObjectStore) -> None:
    clock = FakeClock(1_000.0)
    whole = record(folder / "a.mcap").read_bytes()
    (folder / "a.mcap").write_bytes(whole[:1_000])

    def rest() -> None:
        (folder / "a.mcap").write_bytes(whole)

    (report,) = watched(folder, store, Life(clock, 12, {4: rest}))
    assert (report.episodes, report.left_out) == (1, ())
    (row,) = episode_rows(store, resolve(store, "pick"))
    assert row.arrived_ns == (1_000 + 4 * 2) * NANOSECONDS


def test_recordings_that_keep_coming_become_versions_and_none_is_read_twice(folder: Path, store: ObjectStore) -> None:
    comes: dict[int, Callable[[], object]] = {
        1: lambda: record(folder / "1.mcap", seed=1),
        9: lambda: record(folder / "9.mcap", seed=9),
    }
    life = Life(FakeClock(), 30, comes)
    reports = watched(folder, store, life)
    assert [(report.recordings, report.added) for report in reports] == [(1, 1), (1, 1)]
    assert resolve(store, "pick").name == "pick@2"


def test_watch_that_is_started_again_reads_nothing_twice(folder: Path, store: ObjectStore) -> None:
    record_many(folder, 3)
    assert len(watched(folder, store, Life(FakeClock(), 10))) == 1
    assert watched(folder, store, Life(FakeClock(), 10)) == []
    assert resolve(store, "pick").name == "pick@1"


def test_recordings_that_were_read_are_moved_with_their_folders(
    folder: Path, store: ObjectStore, tmp_path: Path
) -> None:
    record(folder / "deep" / "a.mcap")
    (folder / "bad.mcap").write_bytes(b"nothing")
    write_lerobot_v2(folder / "arm", [12])
    life = Life(FakeClock(), 16, {8: lambda: record(folder / "deep" / "a.mcap", seed=5)})
    reports = watched(folder, store, life, tmp_path / "done")
    assert [report.recordings for report in reports] == [3, 1]
    assert sorted(path.name for path in (tmp_path / "done").rglob("*") if path.is_file()) == [
        "a.mcap",
        "a.mcap.1",
        "bad.mcap",
    ]
    assert (folder / "arm" / "meta" / "info.json").exists()


def test_more_than_a_round_holds_is_taken_in_the_next_without_waiting(folder: Path, store: ObjectStore) -> None:
    record_many(folder, 5)
    clock = FakeClock()
    life = Life(clock, 9)
    reports = [
        *watch(folder, store, "pick", clock=clock, wait=life.wait, settle_s=SETTLE_S, poll_s=POLL_S, round_units_max=2)
    ]
    assert clock.monotonic_s() == 7 * POLL_S
    assert [report.recordings for report in reports] == [2, 2, 1]
    assert resolve(store, "pick").episodes == 5


def test_dataset_whose_description_arrives_last_is_waited_for(folder: Path, store: ObjectStore) -> None:
    write_lerobot_v2(folder, [12, 15])
    text = (folder / "meta" / "info.json").read_text()
    (folder / "meta" / "info.json").write_text(text[:100])
    life = Life(FakeClock(), 20, {6: lambda: (folder / "meta" / "info.json").write_text(text)})
    reports = watched(folder, store, life)
    assert [report.episodes for report in reports] == [2]


def test_recording_that_was_sent_is_taken_from_its_inbox(folder: Path, store: ObjectStore, tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", arm())
    inbox, arrival = Inbox(folder), Arrival(blob=blob_of_file(log), name="a.mcap")
    data, half = log.read_bytes(), log.stat().st_size // 2
    inbox.append(arrival, 0, data[:half])
    clock = FakeClock()
    life = Life(clock, 20, {10: lambda: inbox.append(arrival, half, data[half:])})
    (report,) = watch(folder, store, "reach", clock=clock, wait=life.wait, recipe=recipe(), settle_s=0.0, poll_s=POLL_S)
    assert (report.episodes, life.look) == (1, 20)


def test_folder_that_cannot_be_watched_is_refused(folder: Path, store: ObjectStore) -> None:
    life = Life(FakeClock(), 1)
    with pytest.raises(NotFound):
        watched(folder / "none", store, life)
    with pytest.raises(InvalidInput, match="another place"):
        watched(folder, store, life, folder / "done")
