from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mainspring.checkpoint import (
    Manifest,
    commit,
    crc32c_of,
    durable_steps,
    fetch,
    load,
    prune,
    read_manifest,
    share_key,
    verify,
)
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Shard
from mainspring.objects import ObjectStore, open_store

JOB = JobId("job-1")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path / 'objects'}")


def arrays_at(step: int) -> dict[str, np.ndarray]:
    return {
        "params/w": np.arange(64, dtype=np.float32).reshape(8, 8) * step,
        "params/b": (np.arange(5) * step).astype(ml_dtypes.bfloat16),
        "n": np.array(step, dtype=np.int64),
    }


def save(store: ObjectStore, step: int, *, ranks: int = 2, replace: bool = False) -> Manifest:
    """Saves arrays cut along their first axis over ranks, as ranks of a job would."""
    shards = []
    for rank in range(ranks):
        data, file = b"", f"attempt-1-1-1-{rank}.bin"
        for path, array in arrays_at(step).items():
            rows = np.array_split(np.arange(array.shape[0]), ranks)[rank] if array.ndim else np.arange(rank == 0)
            if not len(rows):
                continue
            block = array[rows[0] : rows[-1] + 1] if array.ndim else array
            raw = np.frombuffer(block.tobytes(), dtype=np.uint8)
            shards.append(
                Shard(
                    path=path,
                    dtype=array.dtype.name,
                    global_shape=array.shape,
                    start=(int(rows[0]),) + (0,) * (array.ndim - 1) if array.ndim else (),
                    shape=block.shape,
                    offset=len(data),
                    size_bytes=len(raw),
                    file=file,
                    crc32c=crc32c_of(raw),
                )
            )
            data += raw.tobytes()
        store.put(share_key(JOB, step, file), data)
    manifest = Manifest(
        job=JOB,
        attempt=AttemptId("attempt-1"),
        step=step,
        created_s=1.0,
        shards=tuple(shards),
        state={"cursor": step, "loss": 0.5},
    )
    commit(store, manifest, replace=replace)
    return manifest


def damage(store: ObjectStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checkpoint_loaded_equals_what_was_saved_whatever_the_ranks(store: ObjectStore, ranks: int) -> None:
    save(store, 7, ranks=ranks)
    loaded = load(store, JOB)
    assert (loaded.step, loaded.state, loaded.passed_over) == (7, {"cursor": 7, "loss": 0.5}, ())
    assert loaded.lineage.attempt == "attempt-1"
    for path, array in arrays_at(7).items():
        assert loaded.arrays[path].dtype == array.dtype
        assert loaded.arrays[path].tobytes() == array.tobytes()


def test_checkpoint_steps_are_newest_first_and_count_only_with_a_manifest(store: ObjectStore) -> None:
    for step in (10, 9, 100):
        save(store, step)
    store.put(share_key(JOB, 200, "attempt-1-1-1-0.bin"), b"a share whose step never became real")
    assert durable_steps(store, JOB) == (100, 10, 9)
    assert load(store, JOB).step == 100
    assert load(store, JOB, 9).step == 9


@pytest.mark.parametrize("file", ["attempt-1-1-1-1.bin", "manifest.jsonl"])
def test_checkpoint_damaged_is_passed_over_for_the_one_before_and_said(store: ObjectStore, file: str) -> None:
    save(store, 1)
    save(store, 2)
    damage(store, share_key(JOB, 2, file))
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert [passed.step for passed in loaded.passed_over] == [2]
    assert "crc32c" in loaded.passed_over[0].reason
    with pytest.raises(DamagedData):
        load(store, JOB, 2)
    with pytest.raises(DamagedData):
        verify(store, JOB, 2)


def test_checkpoint_with_a_data_file_missing_or_short_is_passed_over(store: ObjectStore) -> None:
    for step in (1, 2, 3):
        save(store, step)
    store.delete(share_key(JOB, 3, "attempt-1-1-1-0.bin"))
    short = share_key(JOB, 2, "attempt-1-1-1-0.bin")
    store.put(short, store.get(short)[:-1])
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert [passed.step for passed in loaded.passed_over] == [3, 2]


def test_checkpoint_with_every_step_damaged_is_never_loaded(store: ObjectStore) -> None:
    save(store, 1)
    damage(store, share_key(JOB, 1, "attempt-1-1-1-0.bin"))
    with pytest.raises(DamagedData):
        load(store, JOB)


def test_checkpoint_of_a_job_without_any_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        load(store, JOB)
    with pytest.raises(NotFound):
        read_manifest(store, JOB, 3)


def test_checkpoint_with_a_share_left_out_of_its_manifest_is_damaged(store: ObjectStore) -> None:
    whole = save(store, 1)
    part = Manifest(
        job=JOB,
        attempt=whole.attempt,
        step=2,
        created_s=1.0,
        shards=tuple(s for s in whole.shards if s.start != (0, 0)),
    )
    for rank in range(2):
        file = f"attempt-1-1-1-{rank}.bin"
        store.put(share_key(JOB, 2, file), store.get(share_key(JOB, 1, file)))
    commit(store, part, replace=False)
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert "32 elements" in loaded.passed_over[0].reason


def test_checkpoint_committed_twice_keeps_the_first_unless_that_is_known_damaged(store: ObjectStore) -> None:
    first = save(store, 1)
    other = Manifest(job=JOB, attempt=AttemptId("attempt-2"), step=1, created_s=2.0, shards=first.shards)
    assert not commit(store, other, replace=False)
    assert read_manifest(store, JOB, 1).attempt == "attempt-1"
    assert commit(store, other, replace=True)
    assert read_manifest(store, JOB, 1).attempt == "attempt-2"


def test_checkpoint_fetched_lies_verified_in_the_folder(store: ObjectStore, tmp_path: Path) -> None:
    save(store, 1)
    fetched = fetch(store, JOB, 1, tmp_path / "here")
    assert sorted(path.name for path in fetched.files.values()) == ["attempt-1-1-1-0.bin", "attempt-1-1-1-1.bin"]
    damage(store, share_key(JOB, 1, "attempt-1-1-1-0.bin"))
    with pytest.raises(DamagedData, match="crc32c"):
        fetch(store, JOB, 1, tmp_path / "there")


def test_checkpoint_prune_keeps_the_newest_and_sweeps_what_lies_below(store: ObjectStore) -> None:
    for step in range(1, 6):
        save(store, step)
    store.put(share_key(JOB, 2, "orphan.bin"), b"left behind")
    store.put(share_key(JOB, 9, "attempt-1-1-2-0.bin"), b"under way")
    assert prune(store, JOB, keep=3) == (1, 2)
    assert durable_steps(store, JOB) == (5, 4, 3)
    assert {seen.key.split("/")[2] for seen in store.list(f"checkpoints/{JOB}")} == {
        f"{step:012d}" for step in (3, 4, 5, 9)
    }
    assert verify(store, JOB, 3).step == 3


def test_crc32c_of_the_standard_check_string_is_the_published_value() -> None:
    assert crc32c_of(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283
