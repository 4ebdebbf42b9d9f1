"""What storage does to checkpoints, and that none of it is ever loaded."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.making import (
    CLAIM,
    JOB,
    SEGMENT_BYTES,
    BreakingStore,
    arrays_at,
    manifest_of,
    row_cuts,
    save,
    save_shares,
    snapshots,
)

from mainspring.checkpoint import (
    Sealed,
    commit,
    durable_steps,
    load,
    manifest_key,
    open_checkpoint,
    prune,
    segment_key,
    share_file,
    tail_key,
    verify,
    write_share,
)
from mainspring.domain.errors import DamagedData, MainspringError, StorageFull, Unavailable
from mainspring.objects import ObjectStore, open_store

TMPFS_BYTES = 1 << 20


def saved() -> Mapping[str, bytes]:
    """Returns the objects of a checkpoint of two ranks."""
    store = open_store("memory://")
    save(store, 1)
    return {seen.key: store.get(seen.key) for seen in store.list("")}


def store_of(objects: Mapping[str, bytes]) -> ObjectStore:
    store = open_store("memory://")
    for key, data in objects.items():
        store.put(key, data)
    return store


SAVED = saved()
KEYS = sorted(SAVED)


def shard_bytes() -> Mapping[str, frozenset[int]]:
    """Returns for each object of data the bytes that belong to a shard: the others are whatever lay between."""
    held: dict[str, set[int]] = {}
    for shard in open_checkpoint(store_of(SAVED), JOB, 1).shards:
        for at in range(shard.offset, shard.offset + shard.size_bytes):
            held.setdefault(segment_key(JOB, 1, shard.file, at // SEGMENT_BYTES), set()).add(at % SEGMENT_BYTES)
    return {key: frozenset(places) for key, places in held.items()}


HELD = shard_bytes()


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(KEYS), st.data())
def test_any_single_flipped_bit_is_noticed(key: str, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(sorted(HELD[key])) if key in HELD else st.integers(0, len(SAVED[key]) - 1))
    changed = bytearray(SAVED[key])
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    store = store_of({**SAVED, key: bytes(changed)})
    with pytest.raises(DamagedData):
        verify(store, JOB, 1)
    with pytest.raises(DamagedData):
        load(store, JOB, 1)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.sampled_from(KEYS), st.data())
def test_any_object_cut_short_is_noticed(key: str, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(SAVED[key]) - 1))
    store = store_of({**SAVED, key: SAVED[key][:length]})
    with pytest.raises(DamagedData):
        verify(store, JOB, 1)


@pytest.mark.parametrize("key", [key for key in KEYS if "/manifests/" not in key])
def test_any_object_missing_is_noticed_and_its_step_passed_over(key: str) -> None:
    store = store_of(SAVED)
    save(store, 2)
    gone = key.replace(f"{1:012d}", f"{2:012d}")
    store.delete(gone)
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert [passed.step for passed in loaded.passed_over] == [2]
    with pytest.raises(DamagedData):
        verify(store, JOB, 2)


@pytest.mark.parametrize("object_of", ["manifest", "tail", "segment"])
def test_checkpoint_damaged_is_passed_over_for_the_one_before_and_said(tmp_path: Path, object_of: str) -> None:
    store = open_store(str(tmp_path / "store"))
    save(store, 1)
    file = save(store, 2).shares[1].file
    key = {
        "manifest": manifest_key(JOB, 2),
        "tail": tail_key(JOB, 2, file),
        "segment": segment_key(JOB, 2, file, 0),
    }[object_of]
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert [passed.step for passed in loaded.passed_over] == [2]
    assert "crc32c" in loaded.passed_over[0].reason


def test_object_longer_than_it_was_stored_is_noticed() -> None:
    for key in KEYS:
        store = store_of({**SAVED, key: SAVED[key] + b"\0"})
        with pytest.raises(DamagedData):
            verify(store, JOB, 1)


@pytest.mark.slow
@given(st.integers(0, 70_000))
def test_upload_that_broke_off_goes_on_where_it_was(break_at: int) -> None:
    arrays = arrays_at(1)
    ((data, sealed),) = snapshots(arrays, {path: row_cuts(array.shape, 1) for path, array in arrays.items()}, 1)
    store = BreakingStore(open_store("memory://"), break_at)

    def upload() -> None:
        entry = write_share(
            store,
            job=JOB,
            step=1,
            file=share_file(CLAIM, generation=1, rank=0),
            rank=0,
            data=data,
            shards=sealed.shards,
            sealed=lambda: sealed,
            state={},
            segment_bytes=SEGMENT_BYTES,
        )
        commit(store, manifest_of(1, (entry,)), replace=False)

    try:
        upload()
    except Unavailable:
        assert durable_steps(store, JOB) == ()
        arrived = sum(seen.size_bytes for seen in store.list(""))
        store.mend()
        upload()
        sent_again = sum(seen.size_bytes for seen in store.list("")) - arrived
        assert store.put_bytes == sent_again
    loaded = load(store, JOB)
    assert {path: array.tobytes() for path, array in loaded.arrays.items()} == {
        path: array.tobytes() for path, array in arrays.items()
    }


def test_data_is_on_its_way_while_its_checksums_are_computed() -> None:
    arrays = arrays_at(1)
    ((data, known),) = snapshots(arrays, {path: row_cuts(array.shape, 1) for path, array in arrays.items()}, 1)
    store = open_store("memory://")

    def sealed() -> Sealed:
        until_s = time.monotonic() + 120.0
        while not store.list(""):
            assert time.monotonic() < until_s, "no data came before the checksums"
        return known

    entry = write_share(
        store,
        job=JOB,
        step=1,
        file=share_file(CLAIM, generation=1, rank=0),
        rank=0,
        data=data,
        shards=known.shards,
        sealed=sealed,
        state={},
        segment_bytes=SEGMENT_BYTES,
    )
    commit(store, manifest_of(1, (entry,)), replace=False)
    assert load(store, JOB).arrays["params/w"].tobytes() == arrays["params/w"].tobytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs to mount a small disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, TMPFS_BYTES])
def test_disk_that_fills_during_a_write_keeps_what_was_durable_and_gives_back_the_rest(
    small_disk: Path, segment_bytes: int
) -> None:
    store = open_store(str(small_disk / "store"))
    array = np.arange(TMPFS_BYTES // 2 // 8, dtype=np.int64)
    cuts = {"x": row_cuts(array.shape, 1)}
    commit(store, manifest_of(1, save_shares(store, 1, {"x": array}, cuts, ranks=1)), replace=False)
    before = store.list("")
    with pytest.raises(StorageFull):
        save_shares(store, 2, {"x": array}, cuts, ranks=1, segment_bytes=segment_bytes)
    assert store.list("") == before
    assert not list((small_disk / "store" / ".writing").iterdir())
    assert load(store, JOB).arrays["x"].tobytes() == array.tobytes()
    small = {"x": array[:1000]}
    commit(store, manifest_of(2, save_shares(store, 2, small, {"x": [[0, 1000]]}, ranks=1)), replace=False)
    assert prune(store, JOB, keep=1) == (1,)
    save_shares(store, 3, {"x": array}, cuts, ranks=1)


def test_disk_gone_read_only_refuses_writes_and_still_restores(small_disk: Path) -> None:
    store = open_store(str(small_disk / "store"))
    save(store, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(MainspringError):
        save(store, 2)
    assert durable_steps(open_store(str(small_disk / "store")), JOB) == (1,)
    assert load(store, JOB).step == 1


def test_folder_without_permission_refuses_writes(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    store = open_store(str(tmp_path / "store"))
    save(store, 1)
    (tmp_path / "store" / "checkpoints" / JOB / "shares").chmod(0o555)
    with pytest.raises(MainspringError):
        save(store, 2)
