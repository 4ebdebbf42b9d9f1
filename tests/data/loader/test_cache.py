from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.data.making import version_of, write_lerobot_v2

from mainspring.data import Loader, Sampling, ViewRecipe, build_view, open_view
from mainspring.data.loader.cache import Cache
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound, StorageFull
from mainspring.objects import Blob, ObjectStore, blob_of, open_store, put_blob

SIZE_BYTES = 1_000
WAIT_S = 120.0


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def blobs(store: ObjectStore, count: int) -> list[Blob]:
    return [put_blob(store, bytes([number]) * SIZE_BYTES) for number in range(count)]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def ids(some: list[Blob]) -> set[str]:
    return {blob.id for blob in some}


@contextmanager
def opened(store: ObjectStore, folder: Path, *, room: int) -> Iterator[Cache]:
    """A cache with room for so many blobs."""
    cache = Cache(store, folder, room * SIZE_BYTES)
    try:
        yield cache
    finally:
        cache.close()


def aged(folder: Path, in_order: list[Blob]) -> None:
    """Makes the first the longest unused."""
    for number, blob in enumerate(in_order):
        os.utime(folder / blob.id, ns=(number, number))


def test_cache_gives_whole_files_and_ranges_as_they_are_in_the_store(store: ObjectStore, folder: Path) -> None:
    data = bytes(range(256)) * 4
    blob = put_blob(store, data)
    with opened(store, folder, room=2) as cache:
        assert cache.files(blob).read_bytes() == data
        assert bytes(cache.ranges(blob, 10, 300)) == data[10:310]


def test_cache_with_room_reads_a_range_from_its_own_folder(store: ObjectStore, folder: Path) -> None:
    (blob,) = blobs(store, 1)
    with opened(store, folder, room=1) as cache:
        cache.ranges(blob, 0, 10)
        store.delete(blob.key)
        assert bytes(cache.ranges(blob, 500, 10)) == bytes(10)


def test_cache_without_room_reads_ranges_from_the_store_and_keeps_nothing(store: ObjectStore, folder: Path) -> None:
    one, other = blobs(store, 2)
    with opened(store, folder, room=1) as cache:
        cache.files(one)
        assert bytes(cache.ranges(other, 990, 10)) == bytes([1]) * 10
        assert names(folder) == {one.id}
        store.delete(other.key)
        with pytest.raises(NotFound):
            cache.ranges(other, 0, 10)


def test_cache_without_room_for_a_whole_file_says_so(store: ObjectStore, folder: Path) -> None:
    one, other = blobs(store, 2)
    with opened(store, folder, room=1) as cache:
        cache.files(one)
        with pytest.raises(StorageFull, match="raise the cache's budget"):
            cache.files(other)


FULL = """
import resource, sys
from pathlib import Path
from mainspring.data.loader.cache import Cache
from mainspring.domain.errors import StorageFull
from mainspring.objects import open_store, put_blob
store, folder = open_store(sys.argv[1]), Path(sys.argv[2])
large, small = put_blob(store, b"x" * (1 << 20)), put_blob(store, b"y" * 1_000)
cache = Cache(store, folder, 1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    cache.files(large)
except StorageFull:
    print("full")
for blob in (large, large, small):
    print(bytes(cache.ranges(blob, 0, 4)))
print([path.stat().st_size for path in folder.iterdir() if not path.name.startswith(".")])
"""


@pytest.mark.slow
def test_cache_on_a_full_disk_reads_ranges_from_the_store(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "store"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "full\nb'xxxx'\nb'xxxx'\nb'yyyy'\n[1000]\n", done.stderr


def test_cache_throws_out_what_nobody_uses_the_longest_unused_first(store: ObjectStore, folder: Path) -> None:
    old = blobs(store, 4)
    with opened(store, folder, room=4) as cache:
        for blob in old:
            cache.files(blob)
    aged(folder, [old[2], old[0], old[3], old[1]])
    with opened(store, folder, room=4) as cache:
        cache.files(put_blob(store, b"x" * 2 * SIZE_BYTES))
        assert names(folder) & ids(old) == ids([old[3], old[1]])


def test_cache_never_throws_out_what_another_uses(store: ObjectStore, folder: Path) -> None:
    kept, unused, late = blobs(store, 3)
    with opened(store, folder, room=2) as first, opened(store, folder, room=2) as second:
        first.files(kept)
        with opened(store, folder, room=2) as gone:
            gone.files(unused)
        aged(folder, [kept, unused])
        second.files(late)
        assert names(folder) == {kept.id, late.id}
        assert first.files(kept).read_bytes() == bytes(SIZE_BYTES)


def test_cache_used_again_counts_as_used_last(store: ObjectStore, folder: Path) -> None:
    one, other, late = blobs(store, 3)
    with opened(store, folder, room=2) as cache:
        cache.files(one)
        cache.files(other)
    aged(folder, [one, other])
    with opened(store, folder, room=2) as cache:
        cache.files(one)
    with opened(store, folder, room=2) as cache:
        cache.files(late)
    assert names(folder) == {one.id, late.id}


def test_cache_refuses_bytes_that_are_not_what_they_are_called(store: ObjectStore, folder: Path) -> None:
    blob = blob_of(b"right")
    store.put(blob.key, b"wrong")
    with opened(store, folder, room=1) as cache:
        with pytest.raises(DamagedData):
            cache.files(blob)
        assert names(folder) == set()


def test_cache_asked_for_one_blob_by_many_threads_brings_it_once(store: ObjectStore, folder: Path) -> None:
    (blob,) = blobs(store, 1)
    with opened(store, folder, room=1) as cache:
        found: list[Path] = []
        threads = [threading.Thread(target=lambda: found.append(cache.files(blob))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert found == [folder / blob.id] * 8


@pytest.mark.parametrize("budget_bytes", [0, -1])
def test_cache_without_a_budget_is_refused(store: ObjectStore, folder: Path, budget_bytes: int) -> None:
    with pytest.raises(InvalidInput, match="over 0"):
        Cache(store, folder, budget_bytes)


RANK = """
import sys
from pathlib import Path
from mainspring.data.loader.cache import Cache
from mainspring.objects import blob_of, open_store
url, folder, size_bytes, room, first, count = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
cache = Cache(open_store(url), folder, room * size_bytes)
most_bytes = 0
for turn in range(count):
    value = (first + turn) % count
    assert bytes(cache.ranges(blob_of(bytes([value]) * size_bytes), 0, 1)) == bytes([value])
    kept = [path for path in folder.iterdir() if not path.name.startswith(".")]
    most_bytes = max(most_bytes, size_bytes * len(kept))
print(most_bytes)
"""


@pytest.mark.slow
def test_caches_of_processes_of_one_host_keep_one_budget(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    wanted = blobs(store, 20)
    command = [sys.executable, "-c", RANK, str(tmp_path / "store"), str(folder), str(SIZE_BYTES), "8"]
    ranks = [subprocess.Popen([*command, str(6 * turn), str(len(wanted))], stdout=subprocess.PIPE) for turn in range(3)]
    for each in ranks:
        told, _ = each.communicate(timeout=WAIT_S)
        assert each.returncode == 0
        assert 0 < int(told) <= 8 * SIZE_BYTES
    assert 0 < len(names(folder)) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("packets_fit", [True, False])
def test_loader_over_a_cache_gives_the_same_batches_whether_or_not_videos_fit(
    store: ObjectStore, tmp_path: Path, packets_fit: bool
) -> None:
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [23, 40], video=True), "stack")
    recipe = ViewRecipe(holdout_fraction=0.0, codec="h264", gop=5, image_size=32)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    split = manifest.splits["train"]
    shards = split.shards
    columns = sum(blob.size_bytes for shard in shards for blob in shard.columns.values())
    columns += sum(video.ends.size_bytes for shard in shards for video in shard.videos.values())
    columns += split.episode_table.size_bytes
    packets = sum(video.data.size_bytes for shard in shards for video in shard.videos.values())
    cache = Cache(store, tmp_path / "cache", columns + packets * packets_fit)
    sampling = Sampling(batch_size=8, seed=0, horizon=3)
    whole = open_view(store, manifest.id, tmp_path / "whole", "train")
    part = open_view(store, manifest.id, tmp_path / "cache", "train", files=cache.files, ranges=cache.ranges)
    with Loader(whole, sampling).stream(0) as wanted, Loader(part, sampling).stream(0) as found:
        for _, one, other in zip(range(20), wanted, found, strict=False):
            assert all((one[name] == other[name]).all() for name in one)
    kept = names(tmp_path / "cache")
    videos = {video.data.id for shard in shards for video in shard.videos.values()}
    assert videos <= kept if packets_fit else not videos & kept
    cache.close()
