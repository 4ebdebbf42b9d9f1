"""The promises of `ObjectStore`, kept by every adapter."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore

from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound
from mainspring.objects import (
    DIRECT_BYTES,
    LISTED_MAX,
    Blob,
    ObjectStore,
    aligned_buffer,
    blob_of,
    blob_of_file,
    checked_key,
    fetch_blob,
    get_blob,
    is_aligned,
    open_store,
    put_blob,
    put_blob_file,
)
from mainspring.objects.direct import DIRECT_BYTES_MIN
from mainspring.objects.remote import RemoteStore

WAIT_S = 120.0
TICK_S = 0.005
CLOCK_STEP_S = 1.1  # A store may tell whole seconds.
LARGE = bytes(range(256)) * 4_099 * 2 + b"end"  # Two megabytes, and no multiple of a page.


@pytest.fixture(params=["folder", "memory", "obstore-folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    if request.param == "memory":
        return open_store("memory://")
    return RemoteStore(LocalStore(tmp_path / "store", mkdir=True))


def wait_until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / TICK_S)):
        if condition():
            return
        tick.wait(TICK_S)
    raise AssertionError("the condition did not come true")


def test_object_put_again_replaces_the_first(store: ObjectStore) -> None:
    store.put("a/b", b"one")
    store.put("a/b", memoryview(bytearray(b"second")))
    assert store.get("a/b") == b"second"
    assert store.size("a/b") == 6


def test_object_put_if_absent_keeps_the_first(store: ObjectStore) -> None:
    assert store.put_if_absent("a", b"one")
    assert not store.put_if_absent("a", b"two")
    assert store.get("a") == b"one"


def test_object_of_wide_elements_is_stored_as_its_bytes(store: ObjectStore) -> None:
    store.put("wide", memoryview(b"01234567").cast("I"))
    assert store.get("wide") == b"01234567"


def test_object_missing_is_named_by_every_reader(store: ObjectStore, tmp_path: Path) -> None:
    readers: list[Callable[[], object]] = [
        lambda: store.get("nothing"),
        lambda: store.get_range("nothing", offset=0, size_bytes=1),
        lambda: store.get_range("nothing", offset=0, size_bytes=0),
        lambda: store.get_into("nothing", offset=0, into=memoryview(bytearray(1))),
        lambda: store.fetch_file("nothing", tmp_path / "out"),
        lambda: store.put_file("something", tmp_path / "no such file"),
    ]
    for reader in readers:
        with pytest.raises(NotFound):
            reader()
    assert store.size("nothing") is None
    assert store.size("something") is None
    assert not (tmp_path / "out").exists()


def test_object_deleted_is_gone_and_may_be_deleted_again(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    assert store.size("a/b") is None
    assert store.list("") == ()


def test_range_inside_gives_exactly_its_bytes(store: ObjectStore) -> None:
    store.put("a", bytes(range(100)))
    assert store.get_range("a", offset=10, size_bytes=5) == bytes(range(10, 15))
    assert store.get_range("a", offset=95, size_bytes=5) == bytes(range(95, 100))
    assert store.get_range("a", offset=100, size_bytes=0) == b""


@pytest.mark.parametrize(("offset", "size_bytes"), [(96, 5), (100, 1), (1000, 1), (101, 0)])
def test_range_past_the_end_is_damage(store: ObjectStore, offset: int, size_bytes: int) -> None:
    store.put("a", bytes(100))
    with pytest.raises(DamagedData):
        store.get_range("a", offset=offset, size_bytes=size_bytes)
    with pytest.raises(DamagedData):
        store.get_into("a", offset=offset, into=memoryview(bytearray(size_bytes)))


def test_range_with_negative_numbers_is_refused(store: ObjectStore) -> None:
    store.put("a", bytes(100))
    for offset, size_bytes in ((-1, 5), (0, -1), (0, 1 << 40)):
        with pytest.raises(InvalidInput):
            store.get_range("a", offset=offset, size_bytes=size_bytes)
    with pytest.raises(InvalidInput):
        store.get_into("a", offset=-1, into=memoryview(bytearray(1)))


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_memory_that_must_come_at_once_is_never_of_huge_pages() -> None:
    data = np.frombuffer(aligned_buffer(9 << 20, huge=False), dtype=np.uint8)
    assert data.flags.writeable
    assert is_aligned(data.data)
    flags = [
        part.partition("VmFlags:")[2].split()
        for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
        if (bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", part))
        and int(bounds[1], 16) <= data.ctypes.data < int(bounds[2], 16)
    ]
    assert [("nh" in of_one) for of_one in flags] == [True]


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3 * DIRECT_BYTES), st.sampled_from([0, 100, 1 << 20]), st.integers(0, 2), st.integers(0, 1))
def test_range_read_into_memory_is_its_bytes_however_it_is_aligned(
    store: ObjectStore, start: int, size_bytes: int, blocks: int, shift: int
) -> None:
    offset, size_bytes = (start // DIRECT_BYTES * DIRECT_BYTES, size_bytes) if blocks else (start, size_bytes + start)
    if store.size("large") is None:
        store.put("large", LARGE)
    into = aligned_buffer(size_bytes + shift)[shift:]
    store.get_into("large", offset=offset, into=into)
    assert bytes(into) == LARGE[offset : offset + size_bytes]


@pytest.mark.parametrize("size_bytes", [1, 4096, 65_536, 65_537, 300_000, 17 << 20])
@pytest.mark.parametrize("shift", [0, 64])
def test_object_put_from_memory_at_any_address_is_its_bytes_whole(
    store: ObjectStore, size_bytes: int, shift: int
) -> None:
    data = aligned_buffer(size_bytes + shift)[shift:]
    data[:] = (LARGE * (size_bytes // len(LARGE) + 1))[:size_bytes]
    store.put("new", data)
    assert store.put_if_absent("other", data)
    for key in ("new", "other"):
        into = aligned_buffer(size_bytes)
        store.get_into(key, offset=0, into=into)
        assert store.size(key) == size_bytes
        assert bytes(into) == bytes(data)


@pytest.mark.parametrize("size_bytes", [DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1])
def test_range_that_ends_after_a_large_object_is_damage(store: ObjectStore, size_bytes: int) -> None:
    store.put("short", bytes(size_bytes - 1))
    with pytest.raises(DamagedData):
        store.get_into("short", offset=0, into=aligned_buffer(size_bytes))


def test_folder_on_a_file_system_in_memory_keeps_the_promises_too() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = open_store(folder)
        data = aligned_buffer(300_000)
        data[:] = (LARGE * 2)[:300_000]
        store.put("a", data)
        into = aligned_buffer(300_000 - DIRECT_BYTES)
        store.get_into("a", offset=DIRECT_BYTES, into=into)
        assert bytes(into) == bytes(data)[DIRECT_BYTES:]


def test_list_says_when_each_object_was_last_stored(store: ObjectStore) -> None:
    before_s = time.time()
    store.put_if_absent("a", b"one")
    assert before_s - CLOCK_STEP_S <= store.list("")[0].modified_s <= time.time() + CLOCK_STEP_S
    first_s = store.list("")[0].modified_s

    def stored_again() -> bool:
        store.put("a", b"two")
        return store.list("")[0].modified_s > first_s

    wait_until(stored_again)
    last_s = store.list("")[0].modified_s
    assert not store.put_if_absent("a", b"three")
    assert store.list("")[0].modified_s == last_s


def test_list_gives_the_folder_below_a_prefix_in_key_order(store: ObjectStore) -> None:
    for key in ("b/2", "b/10", "b-c/1", "a", "bc/1", "b/d/e"):
        store.put(key, key.encode())
    assert [entry.key for entry in store.list("b")] == ["b/10", "b/2", "b/d/e"]
    assert [(entry.key, entry.size_bytes) for entry in store.list("bc")] == [("bc/1", 4)]
    assert [entry.key for entry in store.list("")] == ["a", "b-c/1", "b/10", "b/2", "b/d/e", "bc/1"]
    assert store.list("zebra") == ()
    assert LISTED_MAX > 6


def test_file_put_and_fetched_is_the_same(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 40_000)
    store.put_file("large", source)
    store.fetch_file("large", tmp_path / "new" / "folder" / "copy")
    assert (tmp_path / "new" / "folder" / "copy").read_bytes() == source.read_bytes()
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["copy"]


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "a\0", "ä", "a" * 901]
)
def test_key_outside_the_rules_is_refused_by_every_call(store: ObjectStore, key: str, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b""),
        lambda: store.put_if_absent(key, b""),
        lambda: store.get(key),
        lambda: store.get_range(key, offset=0, size_bytes=1),
        lambda: store.size(key),
        lambda: store.delete(key),
        lambda: store.fetch_file(key, tmp_path / "out"),
        lambda: store.put_file(key, Path(__file__)),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()


@given(st.text(max_size=40))
def test_key_accepted_never_leaves_the_root(key: str) -> None:
    root = Path("/store")
    try:
        checked_key(key)
    except InvalidInput:
        return
    path = root / key
    assert path.is_relative_to(root)
    assert ".." not in path.parts
    assert path != root


def test_threads_racing_to_put_have_one_winner(store: ObjectStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda i: store.put_if_absent("race", b"%d" % i), range(16)))
    assert won.count(True) == 1
    assert store.get("race") == b"%d" % won.index(True)


RACER = """
import sys
from mainspring.objects import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(store.put_if_absent("race/key", sys.argv[2].encode() * 10_000), flush=True)
"""


@pytest.mark.slow
def test_processes_racing_to_put_have_one_winner(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, root, chr(ord("a") + i)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(16)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=WAIT_S)[0].strip() for racer in racers]
    assert sorted(answers) == ["False"] * 15 + ["True"]
    winner = chr(ord("a") + answers.index("True"))
    assert open_store(root).get("race/key") == winner.encode() * 10_000
    assert not list((tmp_path / "store" / ".writing").iterdir())


def test_folder_key_that_is_another_keys_folder_is_a_conflict(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    store.put("a", b"")
    store.put("b/c", b"")
    for key in ("a/b", "b"):
        with pytest.raises(Conflict):
            store.put(key, b"")
    assert store.size("b") is None


WRITER = """
import sys
from pathlib import Path
from mainspring.objects import open_store
open_store(sys.argv[1]).put_file("slow", Path(sys.argv[2]))
"""


def slow_writer(tmp_path: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Starts a process that copies a pipe into a store."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "store"), str(pipe)])
    return writer, pipe


def locked(path: Path) -> bool:
    """Returns whether a writer has a file for its own: for a moment after it was made, a sweep may take it."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.slow
def test_folder_writer_killed_leaves_nothing_to_see_and_is_swept(tmp_path: Path) -> None:
    writer, pipe = slow_writer(tmp_path)
    hidden = tmp_path / "store" / ".writing"
    with open(pipe, "wb") as feed:
        feed.write(b"x" * 10_000)
        feed.flush()
        wait_until(lambda: hidden.is_dir() and any(map(locked, hidden.iterdir())))
        store = open_store(str(tmp_path / "store"))
        assert list(hidden.iterdir())  # The writer lives, so its file is left alone.
        writer.send_signal(signal.SIGKILL)
        writer.wait(WAIT_S)
    assert store.list("") == ()
    assert store.size("slow") is None
    assert list(hidden.iterdir())
    open_store(str(tmp_path / "store"))
    assert not list(hidden.iterdir())


@pytest.mark.slow
def test_folder_opened_beside_a_writer_does_not_disturb_it(tmp_path: Path) -> None:
    writer, pipe = slow_writer(tmp_path)
    hidden = tmp_path / "store" / ".writing"
    with open(pipe, "wb") as feed:
        feed.write(b"x" * 10_000)
        feed.flush()
        wait_until(lambda: hidden.is_dir() and any(map(locked, hidden.iterdir())))
        open_store(str(tmp_path / "store"))
        feed.write(b"y")
    assert writer.wait(WAIT_S) == 0
    assert open_store(str(tmp_path / "store")).get("slow") == b"x" * 10_000 + b"y"


FULL = """
import resource, sys
from mainspring.domain.errors import StorageFull
from mainspring.objects import open_store
store = open_store(sys.argv[1])
store.put("key", b"before")
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
for write in (store.put, store.put_if_absent):
    try:
        write("key" if write == store.put else "other", bytes(1 << 20))
    except StorageFull:
        print("full")
print(store.get("key"), [entry.key for entry in store.list("")])
"""


@pytest.mark.slow
def test_folder_without_room_says_so_and_keeps_what_was_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "store")], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout == "full\nfull\nb'before' ['key']\n", done.stderr
    assert not list((tmp_path / "store" / ".writing").iterdir())


@pytest.mark.parametrize("url", ["relative/path", "ftp://host/x", "", "file://host/path", "http://host"])
def test_open_store_of_an_unknown_kind_names_those_known(url: str) -> None:
    with pytest.raises(InvalidInput, match="memory"):
        open_store(url)


def test_open_store_with_a_wrong_option_is_refused() -> None:
    with pytest.raises(InvalidInput):
        open_store("s3://bucket/prefix", {"no_such_option": "1"})


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix"])
def test_open_store_of_a_cloud_bucket_needs_no_network(url: str) -> None:
    account = {"account_name": "lab"} if url.startswith("az") else {}
    assert isinstance(open_store(url, {"skip_signature": "true", **account}), RemoteStore)


def test_blob_is_named_by_its_content_and_stored_once(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"robot" * 1000)
    blob = put_blob(store, b"robot" * 1000)
    assert blob == blob_of_file(path) == blob_of(b"robot" * 1000)
    put_blob_file(store, path, blob)
    assert get_blob(store, blob) == b"robot" * 1000
    assert [entry.key for entry in store.list("blobs")] == [blob.key]


def test_blob_changed_in_the_store_is_damage(store: ObjectStore, tmp_path: Path) -> None:
    blob = put_blob(store, b"true")
    store.put(blob.key, b"false")
    with pytest.raises(DamagedData):
        get_blob(store, blob)
    with pytest.raises(DamagedData):
        fetch_blob(store, blob, tmp_path / "cache")
    assert not (tmp_path / "cache" / blob.id).exists()


def test_blob_fetched_by_many_at_once_is_whole_for_all(store: ObjectStore, tmp_path: Path) -> None:
    blob = put_blob(store, bytes(range(256)) * 10_000)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: fetch_blob(store, blob, tmp_path / "cache"), range(8)))
    assert len(set(paths)) == 1
    assert blob_of_file(paths[0]) == blob


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_blob_with_an_id_that_is_no_hash_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Blob(id=name, size_bytes=1)
