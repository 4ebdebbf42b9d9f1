from __future__ import annotations

import os
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mcap.writer import CompressionType, Writer
from tests.data.intake.making import START_NS, arm, images, recipe, said, write_log
from tests.data.making import PERIOD_NS, record, record_many, write_lerobot_v2
from tests.data.readers.logs import robot_bag1, robot_bag2

from mainspring.data.catalog.log import Version, VersionCandidate, resolve
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.episode import NANOSECONDS
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.logs.recipe import Align, Fact, MappingRecipe, RecipePart
from mainspring.data.intake.report import IngestProgress
from mainspring.data.intake.workers import PROCESSES_PAY_BYTES, Workers
from mainspring.data.loss import LOST
from mainspring.data.options import IngestOptions
from mainspring.data.packs import read_piece
from mainspring.data.video.packets import index_from_parquet
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound, StorageFull
from mainspring.objects import ObjectStore, blob_of, get_blob, open_store
from mainspring.objects.folder import FolderStore
from mainspring.objects.port import Data
from mainspring.testing.time_and_chance import FakeClock


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def test_source_ingested_keeps_columns_facts_and_raw_bytes(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    report = ingest(source, store, "pick", clock=FakeClock())
    assert report.version is not None
    assert (report.episodes, report.added, report.frames, report.left_out) == (3, 3, 69, ())
    assert (report.version.name, report.version.episodes, report.version.frames) == ("pick@1", 3, 69)
    for row in episode_rows(store, report.version):
        assert get_blob(store, row.raw[0].blob) == (source / row.source).read_bytes()
        table = pq.read_table(pa.BufferReader(read_piece(store, row.columns)))
        assert table["frame"].to_pylist() == list(range(row.frames))
        assert table["time_ns"].to_pylist() == [step * PERIOD_NS for step in range(row.frames)]
        assert row.seconds == pytest.approx((row.frames - 1) / 20)


def test_source_ingested_again_makes_the_same_version(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    first = ingest(source, store, "pick", clock=FakeClock())
    stored = store.list("")
    again = ingest(source, store, "pick", clock=FakeClock())
    assert again.version == first.version
    assert again.added == 0
    assert store.list("") == stored


def test_source_ingested_elsewhere_makes_the_same_ids(store: ObjectStore, tmp_path: Path) -> None:
    here = ingest(record_many(tmp_path / "raw", 3), store, "pick", clock=FakeClock())
    there = ingest(record_many(tmp_path / "moved", 3), open_store("memory://"), "other", clock=FakeClock())
    assert here.version is not None
    assert there.version is not None
    assert here.version.id == there.version.id


def test_source_with_more_episodes_extends_the_dataset(store: ObjectStore, tmp_path: Path) -> None:
    ingest(record_many(tmp_path / "raw", 2), store, "pick", clock=FakeClock())
    record_many(tmp_path / "raw", 4)
    report = ingest(tmp_path / "raw", store, "pick", clock=FakeClock())
    assert report.version is not None
    assert (report.version.number, report.version.episodes, report.added) == (2, 4, 2)


def test_damaged_recordings_are_reported_and_left_out(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 4)
    (source / "001.mcap").write_bytes((source / "001.mcap").read_bytes()[:-100])
    (source / "002.mcap").write_bytes(b"")
    (source / "old.bag").write_bytes(b"#ROSBAG V2.0")
    progress: list[IngestProgress] = []
    report = ingest(source, store, "pick", progress=progress.append, clock=FakeClock())
    assert report.version is not None
    assert {row.source for row in episode_rows(store, report.version)} == {"000.mcap", "003.mcap"}
    assert [entry.source for entry in report.left_out] == ["001.mcap", "002.mcap", "old.bag"]
    assert "empty file" in report.left_out[1].reason
    assert "ms data inspect" in report.left_out[2].reason
    assert [entry.done for entry in progress] == [1, 2, 3, 4, 5]
    assert [bool(entry.reason) for entry in progress] == [False, True, True, False, True]


def raw_recording(path: Path, times_ns: list[int], values: str = "1.0") -> Path:
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        writer = Writer(file, compression=CompressionType.NONE, enable_crcs=False)
        writer.start()
        schema = writer.register_schema("vector", "jsonschema", b"{}")
        channels = [writer.register_channel(topic, "json", schema) for topic in ("/observation/state", "/action")]
        for time_ns in times_ns:
            for channel in channels:
                writer.add_message(channel, time_ns, b'{"values": [%s]}' % values.encode(), time_ns)
        writer.add_metadata("episode", {"task": "t", "robot": "r", "rate_hz": "20.0"})
        writer.finish()  # type: ignore[no-untyped-call]
    return path


@pytest.mark.parametrize(
    ("times", "values", "reason"),
    [
        ([0, 1, 2, 2, 3], "1.0", "time does not advance after step 2"),
        ([0, 1, 2, 1, 3], "1.0", "time does not advance after step 2"),
        ([0, 1, 2, 3, 4], "NaN", "not finite, first at step 0"),
        ([0, 1, 2, 3, 4], "1e999", "not finite"),
        ([0, 2, 4, 6, 8], "1.0", "10.00 steps per second, declared 20"),
        ([*range(100), *range(111, 300)], "1.0", "a gap of 0.600 s after step 99"),
        ([0], "1.0", "1 steps, wanted at least 2"),
    ],
)
def test_recording_the_doctor_refuses_names_its_reason(
    store: ObjectStore, tmp_path: Path, times: list[int], values: str, reason: str
) -> None:
    raw_recording(tmp_path / "raw" / "a.mcap", [step * PERIOD_NS for step in times], values)
    report = ingest(tmp_path / "raw", store, "pick", clock=FakeClock())
    assert report.version is None
    assert reason in report.left_out[0].reason


def test_recording_with_other_features_than_the_rest_is_left_out(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    record(source / "odd.mcap", state_dims=9)
    report = ingest(source, store, "pick", clock=FakeClock())
    assert report.episodes == 3
    assert [entry.source for entry in report.left_out] == ["odd.mcap"]
    assert "state 9" in report.left_out[0].reason
    record(tmp_path / "later" / "odd.mcap", state_dims=9)
    later = ingest(tmp_path / "later", store, "pick", clock=FakeClock())
    assert (later.episodes, later.version) == (0, report.version)


def test_recording_whose_name_is_in_capitals_is_read(store: ObjectStore, tmp_path: Path) -> None:
    record(tmp_path / "raw" / "a.mcap").rename(tmp_path / "raw" / "A.MCAP")
    assert ingest(tmp_path / "raw", store, "pick", clock=FakeClock()).episodes == 1


def test_source_with_much_to_parse_is_read_by_processes(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 2)
    small = ingest(source, open_store("memory://"), "pick", clock=FakeClock())
    (source / "large.mcap").write_bytes(bytes(PROCESSES_PAY_BYTES))
    report = ingest(source, store, "pick", clock=FakeClock())
    assert report.version is not None
    assert small.version is not None
    assert report.version.id == small.version.id
    assert [entry.source for entry in report.left_out] == ["large.mcap"]


def test_path_that_is_no_source_is_refused_by_name(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("hello")
    with pytest.raises(NotFound):
        ingest(tmp_path / "nowhere", store, "pick", clock=FakeClock())
    for path in ("empty", "text", "text/notes.txt"):
        with pytest.raises(InvalidInput, match=r"LeRobot v2 or v3"):
            ingest(tmp_path / path, store, "pick", clock=FakeClock())
    with pytest.raises(InvalidInput):
        ingest(record(tmp_path / "raw" / "a.mcap"), store, "Bad Name", clock=FakeClock())


def test_folder_of_everything_is_taken_in_at_any_depth(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    for name in ("a.mcap", "deep/er/b.mcap"):
        record(source / name, seed=len(name), state_dims=3, action_dims=2)
    write_lerobot_v2(source / "deep" / "arm", [12, 15])
    (source / "deep" / "broken" / "meta").mkdir(parents=True)
    (source / "deep" / "broken" / "meta" / "info.json").write_text("{")
    (source / "deep" / "old.hdf5").write_bytes(b"x")
    (source / ".hidden.mcap").write_bytes(b"x")
    (source / "notes.txt").write_bytes(b"x")
    report = ingest(source, store, "pick", clock=FakeClock())
    names = ["deep/arm/episode_000000", "deep/arm/episode_000001"]
    left = {entry.source: entry.reason for entry in report.left_out}
    assert {"deep/broken", "deep/old.hdf5"} <= left.keys()
    assert "HDF5" in left["deep/old.hdf5"]
    assert report.recordings == 6
    assert report.version is not None
    sources = {row.source for row in episode_rows(store, report.version)}
    assert sources in ({"a.mcap", "deep/er/b.mcap"}, {*names})  # Their names of dimensions differ: as many of each.


def test_logs_and_datasets_become_one_dataset_by_a_recipe(store: ObjectStore, tmp_path: Path) -> None:
    for number in range(3):
        sent = [*arm(1.0 + number), *images(25 * (1 + number)), said("/task", START_NS, f"task {number}")]
        write_log(tmp_path / "raw" / f"{number}.mcap", sent)
    by = recipe(25, camera="/camera/compressed", task=Fact(topic="/task"))
    report = ingest(tmp_path / "raw", store, "reach", clock=FakeClock(), recipe=by)
    assert (report.left_out, report.episodes) == ((), 3)
    assert report.version is not None
    assert report.version.tasks == ("task 0", "task 1", "task 2")
    assert report.version.origin.detail == f"recipe {by.id}"
    for row in episode_rows(store, report.version):
        index = index_from_parquet(read_piece(store, row.videos[0].index))
        packets = get_blob(store, row.videos[0].blob)
        assert index.frames == row.frames
        assert packets[index.offset[0] :][:3] == b"\xff\xd8\xff"
        assert get_blob(store, row.raw[0].blob) == (tmp_path / "raw" / row.source).read_bytes()


def test_bags_of_both_kinds_are_mapped_side_by_side_with_logs(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    robot_bag1(tmp_path / "raw" / "one.bag")
    robot_bag2(tmp_path / "raw" / "two")
    fields = ("x", "y", "theta")
    by = MappingRecipe(
        rate_hz=50,
        columns={
            "state": tuple(RecipePart(topic="/pose", field=field, tolerance_ms=10) for field in fields),
            "action": (RecipePart(topic="/pose", field="theta", tolerance_ms=10, align=Align.HOLD),),
        },
    )
    report = ingest(tmp_path / "raw", store, "pose", clock=FakeClock(), recipe=by)
    assert (report.left_out, report.episodes) == ((), 1)  # Both say the same, so they are the same.
    assert report.version is not None
    (row,) = episode_rows(store, report.version)
    assert row.frames == 25
    single = ingest(tmp_path / "raw" / "two", store, "other", clock=FakeClock(), recipe=by)
    assert single.version is not None
    assert single.version.id == report.version.id
    (row,) = episode_rows(store, single.version)
    assert {Path(file.name).suffix for file in row.raw} == {".db3", ".yaml"}


def test_log_cut_off_is_refused_with_the_option_that_lets_it_in(store: ObjectStore, tmp_path: Path) -> None:
    log = write_log(tmp_path / "raw" / "a.mcap", arm(4.0))
    log.write_bytes(log.read_bytes()[: log.stat().st_size * 6 // 10])
    refused = ingest(tmp_path / "raw", store, "reach", clock=FakeClock(), recipe=recipe())
    assert refused.version is None
    assert "nobody can know how much is gone" in refused.left_out[0].reason
    assert "--lost-max 100%" in refused.left_out[0].reason
    options = IngestOptions(lost_max=1.0)
    report = ingest(tmp_path / "raw", store, "reach", clock=FakeClock(), recipe=recipe(), options=options)
    assert [noted.source for noted in report.noted] == ["a.mcap"]
    assert report.version is not None
    assert report.version.lossy == 1
    (row,) = episode_rows(store, report.version)
    assert row.metadata[LOST] in report.noted[0].note
    assert "recovered up to byte" in row.metadata[LOST]
    assert 1.0 < row.seconds < 3.5


def test_episode_that_comes_again_keeps_its_first_arrival(store: ObjectStore, tmp_path: Path) -> None:
    clock = FakeClock(1_000.0)
    source = record_many(tmp_path / "raw", 2)
    ingest(source, store, "pick", clock=clock)
    clock.advance(500)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "other-name.mcap").write_bytes((source / "000.mcap").read_bytes())
    record(copy / "new.mcap", seed=9)
    report = ingest(copy, store, "pick", clock=clock)
    assert report.version is not None
    assert (report.episodes, report.added, report.known) == (2, 1, 1)
    arrived = {row.source: row.arrived_ns // NANOSECONDS for row in episode_rows(store, report.version)}
    assert arrived == {"000.mcap": 1_000, "001.mcap": 1_000, "new.mcap": 1_500}


def test_second_ingest_reads_nothing_that_is_known(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    first = ingest(source, store, "pick", clock=FakeClock())
    assert (first.known, first.read_bytes) == (0, sum(path.stat().st_size for path in source.iterdir()))
    (source / "001.mcap").rename(source / "renamed.mcap")
    again = ingest(source, store, "pick", clock=FakeClock())
    assert (again.known, again.read_bytes, again.episodes, again.frames) == (3, 0, 3, first.frames)


def test_version_that_gates_refuse_is_published_later_without_reading_again(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)

    def refuse(_: ObjectStore, candidate: VersionCandidate) -> Version:
        raise InvalidInput("publish a version", on=candidate.dataset, got=f"{candidate.episodes} odd episodes")

    with pytest.raises(InvalidInput, match="3 odd"):
        ingest(source, store, "pick", clock=FakeClock(), publish=refuse)
    assert store.list("catalog") == ()
    report = ingest(source, store, "pick", clock=FakeClock())
    assert (report.known, report.episodes, report.added) == (3, 3, 3)


def test_dataset_that_was_deleted_with_its_bytes_is_read_again(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 2)
    first = ingest(source, store, "pick", clock=FakeClock())
    for folder in ("catalog", "blobs", "uses"):
        for entry in store.list(folder):
            store.delete(entry.key)
    again = ingest(source, store, "pick", clock=FakeClock())
    assert first.version is not None
    assert again.version is not None
    assert (again.known, again.version.id) == (0, first.version.id)
    for row in episode_rows(store, again.version):
        assert read_piece(store, row.columns)


def test_refused_recording_is_tried_again_by_the_next_ingest(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 2)
    (source / "bad.mcap").write_bytes(b"no log")
    assert ingest(source, store, "pick", clock=FakeClock()).refused == 1
    again = ingest(source, store, "pick", clock=FakeClock())
    assert (again.refused, again.known, again.recordings) == (1, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("file_s", [0.0, 11.0, 31.0])  # A batch of all, of three, and of one.
def test_refused_counts_each_of_equal_files_however_they_are_journaled(
    store: ObjectStore, tmp_path: Path, file_s: float
) -> None:
    clock = FakeClock()
    source = record_many(tmp_path / "raw", 2)
    for number in range(7):
        (source / f"bad{number}.mcap").write_bytes(b"no log")
        record(source / f"odd{number}.mcap", state_dims=9)
    record(source / "other.mcap", state_dims=8)
    (source / "worse.mcap").write_bytes(b"no log either")
    record_many(tmp_path / "good", 16, first_seed=30)
    (tmp_path / "good").rename(source / "good")
    for _ in range(2):  # Some are known the second time.
        report = ingest(source, store, "pick", clock=clock, progress=lambda _: clock.advance(file_s))
        assert (report.episodes, report.refused, report.recordings) == (18, 7 + 7 + 1 + 1, 34)


def test_small_tables_of_many_episodes_share_a_blob(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 12)
    report = ingest(source, store, "pick", clock=FakeClock())
    assert report.version is not None
    assert len({row.columns.blob for row in episode_rows(store, report.version)}) == 1
    assert len(store.list("blobs")) == 12 + 1 + len(report.version.fragments)


class FullStore(FolderStore):
    """A folder on a disk with room for only so many bytes."""

    room_bytes = 0

    def put_if_absent(self, key: str, data: Data) -> bool:
        self._spend(memoryview(data).nbytes)
        return super().put_if_absent(key, data)

    def put(self, key: str, data: Data) -> None:
        self._spend(memoryview(data).nbytes)
        super().put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._spend(path.stat().st_size)
        super().put_file(key, path)

    def _spend(self, size_bytes: int) -> None:
        self.room_bytes -= size_bytes
        if self.room_bytes < 0:
            raise StorageFull("store an object", got="a full disk", next_step="free some room")


@pytest.mark.parametrize("room_bytes", [1_000, 12_000, 40_000, 60_000])
def test_disk_that_fills_up_publishes_nothing_and_the_next_try_completes(tmp_path: Path, room_bytes: int) -> None:
    source = record_many(tmp_path / "raw", 8)
    clean = ingest(source, open_store("memory://"), "pick", clock=FakeClock())
    store = FullStore(tmp_path / "store")
    store.room_bytes = room_bytes
    with pytest.raises(StorageFull, match="a full disk"):
        ingest(source, store, "pick", clock=FakeClock())
    assert store.list("catalog") == ()
    store.room_bytes = 1 << 30
    report = ingest(source, store, "pick", clock=FakeClock())
    assert clean.version is not None
    assert report.version is not None
    assert (report.version.id, report.version.number) == (clean.version.id, 1)


class TouchingStore(FolderStore):
    """A folder during whose writing a recorder goes on with a file of the source."""

    touched: Path | None = None

    def put_file(self, key: str, path: Path) -> None:
        if path == self.touched:
            with path.open("ab") as file:
                file.write(b"more")
            self.touched = None
        super().put_file(key, path)


def test_file_that_grows_while_it_is_read_is_left_for_the_next_time(tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 2)
    store = TouchingStore(tmp_path / "store")
    store.touched = source / "000.mcap"
    whole = (source / "000.mcap").read_bytes()
    report = ingest(source, store, "pick", clock=FakeClock())
    assert report.episodes == 1
    assert [(entry.source, "changed while it was read" in entry.reason) for entry in report.left_out] == [
        ("000.mcap", True)
    ]
    for entry in store.list("blobs"):
        assert blob_of(store.get(entry.key)).key == entry.key
    (source / "000.mcap").write_bytes(whole)
    assert ingest(source, store, "pick", clock=FakeClock()).episodes == 2


def test_two_ingests_at_once_lose_nothing(store: ObjectStore, tmp_path: Path) -> None:
    sources = [record_many(tmp_path / f"raw{number}", 3, first_seed=10 * number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda source: ingest(source, store, "pick", clock=FakeClock()), sources))
    newest = resolve(store, "pick")
    assert newest.episodes == 12


@pytest.mark.slow
def test_thousands_of_tiny_files_make_few_objects_and_one_version(store: ObjectStore, tmp_path: Path) -> None:
    count = 2_000
    source = many_tiny(tmp_path / "raw", count)
    report = ingest(source, store, "tiny", clock=FakeClock())
    assert (report.episodes, report.refused) == (count, 0)
    assert report.version is not None
    assert report.version.number == 1
    assert len(store.list("intake")) == 1
    assert ingest(source, store, "tiny", clock=FakeClock()).known == count


@pytest.mark.soak
@pytest.mark.timeout(1_800)  # Four to five minutes of one core.
def test_a_hundred_thousand_tiny_files_are_taken_in_within_little_memory(tmp_path: Path) -> None:
    count = 100_000
    source = many_tiny(tmp_path / "raw", count)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def told(progress: IngestProgress) -> None:  # `pytest -s` shows it: this takes minutes.
        if progress.done % (count // 10) == 0:
            sys.stderr.write(f"{progress.done} of {progress.total} files\n")

    report = ingest(source, open_store(str(tmp_path / "store")), "tiny", clock=FakeClock(), progress=told)
    assert (report.episodes, report.refused) == (count, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 700 << 10


def many_tiny(folder: Path, count: int) -> Path:
    """Recordings of two steps that differ in one number: the same bytes but for it."""
    first = raw_recording(folder / "template.mcap", [0, PERIOD_NS], "1.000000")
    data = first.read_bytes()
    first.unlink()
    for number in range(count):
        path = folder / f"{number // 1_000:03d}" / f"{number:06d}.mcap"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data.replace(b"1.000000", f"1.{number:06d}".encode()))
    return folder


def test_progress_says_how_far_it_is_in_recordings_and_bytes(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    seen: list[IngestProgress] = []
    clock = FakeClock()

    def advanced(progress: IngestProgress) -> None:
        seen.append(progress)
        clock.advance(1.0)

    report = ingest(source, store, "pick", clock=clock, progress=advanced)
    assert [(one.done, one.total) for one in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1].done_bytes == seen[-1].total_bytes == report.read_bytes
    assert (report.seconds, report.recordings_per_s) == (3.0, 1.0)
    assert report.bytes_per_s == report.read_bytes / 3


@pytest.mark.slow
def test_worker_that_dies_of_what_it_reads_is_blamed_and_the_others_go_on() -> None:
    with Workers(2) as workers:
        with pytest.raises(DamagedData, match=r"bad\.mcap; got a process that dies"):
            workers.run("bad.mcap", os._exit, 1)
        assert workers.run("good.mcap", len, "four") == 4
