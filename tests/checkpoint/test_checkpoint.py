from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.checkpoint.making import (
    CLAIM,
    JOB,
    arrays_at,
    manifest_of,
    row_cuts,
    save,
    save_shares,
    snapshot_of,
    snapshots,
)

from mainspring.checkpoint import (
    Claim,
    collect,
    commit,
    crc32c_of,
    durable_steps,
    intact,
    load,
    manifest_key,
    newest_claim,
    open_checkpoint,
    page_bytes_of,
    prune,
    put_claim,
    read_manifest,
    seal,
    share_file,
    tail_key,
    verify,
)
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.ids import AttemptId
from mainspring.domain.wire import Part, Piece
from mainspring.objects import ObjectStore, open_store


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store("memory://" if request.param == "memory" else str(tmp_path / "objects"))


def damage(store: ObjectStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checkpoint_loaded_equals_what_was_saved_whatever_the_ranks(store: ObjectStore, ranks: int) -> None:
    saved = save(store, 7, ranks=ranks)
    loaded = load(store, JOB)
    assert (loaded.step, loaded.state, loaded.passed_over) == (7, {"cursor": 7, "loss": 0.5}, ())
    assert loaded.manifest == saved
    assert loaded.manifest.lineage.parent == "job-0@5"
    assert sorted(loaded.arrays) == sorted(arrays_at(7))
    for path, array in arrays_at(7).items():
        assert loaded.arrays[path].dtype == array.dtype
        assert loaded.arrays[path].shape == array.shape
        assert loaded.arrays[path].tobytes() == array.tobytes()
    assert verify(store, JOB, 7) == saved


def test_checkpoint_of_one_part_reads_no_other(store: ObjectStore) -> None:
    save(store, 1)
    assert sorted(load(store, JOB, parts=(Part.WEIGHTS,)).arrays) == ["n", "none", "params/b", "params/w"]
    assert sorted(load(store, JOB, parts=(Part.OPTIMIZER,)).arrays) == ["opt/m"]


def test_checkpoint_stores_replicas_once(store: ObjectStore) -> None:
    save(store, 1, ranks=2)
    checkpoint = open_checkpoint(store, JOB, 1)
    blocks = [(shard.path, shard.start) for shard in checkpoint.shards]
    assert len(blocks) == len(set(blocks))
    assert checkpoint.states == {0: {"rank": 0}, 1: {"rank": 1}}


def test_checkpoint_steps_are_newest_first_and_count_only_with_a_manifest(store: ObjectStore) -> None:
    for step in (10, 9, 100):
        save(store, step)
    arrays = arrays_at(200)
    save_shares(store, 200, arrays, {path: row_cuts(array.shape, 1) for path, array in arrays.items()}, ranks=1)
    assert durable_steps(store, JOB) == (100, 10, 9)
    assert load(store, JOB).step == 100
    assert load(store, JOB, 9).step == 9


def test_checkpoint_with_every_step_damaged_is_never_loaded(store: ObjectStore) -> None:
    save(store, 1)
    damage(store, manifest_key(JOB, 1))
    with pytest.raises(DamagedData):
        load(store, JOB)


def test_checkpoint_of_a_job_without_any_is_not_found(store: ObjectStore) -> None:
    for look in (lambda: load(store, JOB), lambda: read_manifest(store, JOB, 3), lambda: verify(store, JOB, 3)):
        with pytest.raises(NotFound):
            look()


def test_checkpoint_array_nobody_saved_is_not_found(store: ObjectStore) -> None:
    save(store, 1)
    with pytest.raises(NotFound, match="no/such"):
        open_checkpoint(store, JOB, 1).array("no/such")


def test_checkpoint_with_a_share_left_out_of_its_manifest_is_passed_over(store: ObjectStore) -> None:
    save(store, 1)
    whole = save(store, 2)
    commit(store, manifest_of(2, whole.shares[:1]), replace=True)
    loaded = load(store, JOB)
    assert loaded.step == 1
    assert "leave parts of it out" in loaded.passed_over[0].reason
    with pytest.raises(DamagedData, match="leave parts of it out"):
        verify(store, JOB, 2)


def test_checkpoint_committed_twice_keeps_the_first_unless_that_is_known_damaged(store: ObjectStore) -> None:
    first = save(store, 1)
    other = manifest_of(1, first.shares, attempt="attempt-2")
    assert not commit(store, other, replace=False)
    assert read_manifest(store, JOB, 1).attempt == "attempt-1"
    assert commit(store, other, replace=True)
    assert read_manifest(store, JOB, 1).attempt == AttemptId("attempt-2")


def test_checkpoint_manifest_of_another_step_is_damage(store: ObjectStore) -> None:
    save(store, 1)
    store.put(manifest_key(JOB, 2), store.get(manifest_key(JOB, 1)))
    with pytest.raises(DamagedData, match="step 1"):
        read_manifest(store, JOB, 2)


@pytest.mark.parametrize(
    "piece",
    [
        Piece(shard=-1, offset=0, size_bytes=1),
        Piece(shard=10_000, offset=0, size_bytes=1),
        Piece(shard=0, offset=-1, size_bytes=1),
        Piece(shard=0, offset=0, size_bytes=1 << 40),
        Piece(shard=0, offset=1, size_bytes=2),
    ],
)
def test_checkpoint_read_outside_a_shard_is_refused(store: ObjectStore, piece: Piece) -> None:
    save(store, 1)
    with pytest.raises(InvalidInput):
        open_checkpoint(store, JOB, 1).read([piece], [memoryview(bytearray(1))])


def test_checkpoint_region_outside_its_array_is_refused(store: ObjectStore) -> None:
    save(store, 1)
    with pytest.raises(InvalidInput):
        open_checkpoint(store, JOB, 1).array("params/w", (90, 0), (7, 64))


def test_prune_keeps_the_newest_and_sweeps_what_lies_below(store: ObjectStore) -> None:
    for step in range(1, 6):
        save(store, step)
    arrays = arrays_at(2)
    cuts = {path: row_cuts(array.shape, 1) for path, array in arrays.items()}
    save_shares(store, 2, arrays, cuts, ranks=1, claim=Claim(number=1, epoch=2))
    save_shares(store, 9, arrays, cuts, ranks=1)
    assert prune(store, JOB, keep=3) == (2, 1)
    assert durable_steps(store, JOB) == (5, 4, 3)
    shares = store.list(f"checkpoints/{JOB}/shares")
    assert {int(seen.key.split("/")[3]) for seen in shares} == {3, 4, 5, 9}  # Step 9 may be under way.
    for step in (3, 4, 5):
        verify(store, JOB, step)


def test_collect_tells_what_it_would_delete_and_deletes_that(store: ObjectStore) -> None:
    for step in (1, 2):
        save(store, step)
    arrays = arrays_at(9)
    cuts = {path: row_cuts(array.shape, 1) for path, array in arrays.items()}
    fenced, newest = Claim(number=1, epoch=1), Claim(number=2, epoch=1)
    save_shares(store, 8, arrays, cuts, ranks=1, claim=fenced)
    save_shares(store, 9, arrays, cuts, ranks=1, claim=newest)
    put_claim(store, JOB, fenced)
    put_claim(store, JOB, newest)
    before = {seen.key: seen.size_bytes for seen in store.list("")}
    told = collect(store, JOB, keep=1, dry_run=True)
    assert told.steps == (1,)
    assert {seen.key for seen in store.list("")} == set(before)
    assert collect(store, JOB, keep=1, dry_run=False) == told
    after = {seen.key for seen in store.list("")}
    assert set(before) - after == set(told.keys)
    assert told.size_bytes == sum(before[key] for key in told.keys)
    assert {int(key.split("/")[3]) for key in told.keys if "/shares/" in key} == {1, 8}
    verify(store, JOB, 2)
    assert collect(store, JOB, keep=1, dry_run=False).keys == ()


def test_collect_leaves_the_shares_of_a_step_whose_manifest_is_damaged(store: ObjectStore) -> None:
    save(store, 1)
    damage(store, manifest_key(JOB, 1))
    put_claim(store, JOB, Claim(number=2, epoch=1))
    assert collect(store, JOB, keep=3, dry_run=False).keys == ()


def test_claims_are_ordered_by_attempt_then_epoch(store: ObjectStore) -> None:
    assert newest_claim(store, JOB) is None
    for number, epoch in ((1, 1), (10, 1), (9, 12), (10, 2)):
        put_claim(store, JOB, Claim(number=number, epoch=epoch))
    assert newest_claim(store, JOB) == Claim(number=10, epoch=2)
    assert share_file(CLAIM, generation=3, rank=4) == "000001-000001-000003-000004"


def test_seal_leaves_a_snapshot_intact_until_a_byte_of_a_shard_changes() -> None:
    ((data, sealed),) = snapshots(arrays_at(3), {p: row_cuts(a.shape, 1) for p, a in arrays_at(3).items()}, 1)
    assert intact(data, sealed)
    for shard in sealed.shards:
        if shard.size_bytes:
            data[shard.offset + shard.size_bytes - 1] ^= 0x80
            assert not intact(data, sealed)
            data[shard.offset + shard.size_bytes - 1] ^= 0x80
    assert intact(data, sealed)


def test_pages_are_about_a_hundredth_of_a_shard_and_no_smaller_than_a_disk_reads() -> None:
    assert page_bytes_of(4096) == 0
    assert page_bytes_of(4097) == 4096
    assert page_bytes_of(1 << 40) == 1 << 20
    for size_bytes in (1 << 20, 3 << 20, 100_000_000):
        page_bytes = page_bytes_of(size_bytes)
        assert page_bytes & (page_bytes - 1) == 0
        assert 128 <= size_bytes / page_bytes < 256


def test_seal_of_nothing_is_nothing() -> None:
    data, sealed = snapshot_of([])
    assert (sealed.shards, len(sealed.pages)) == ((), 0)
    assert seal(data, ()).shards == ()


def test_crc32c_of_the_standard_check_string_is_the_published_value() -> None:
    assert crc32c_of(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.complex64, ml_dtypes.float8_e4m3fn])
def test_checkpoint_keeps_every_kind_of_number(store: ObjectStore, dtype: type) -> None:
    array: NDArray[Any] = np.arange(24).reshape(4, 6).astype(dtype)
    shares = save_shares(store, 1, {"x": array}, {"x": row_cuts(array.shape, 2)}, ranks=2)
    commit(store, manifest_of(1, shares), replace=False)
    (loaded,) = load(store, JOB).arrays.values()
    assert loaded.dtype == array.dtype
    assert loaded.tobytes() == array.tobytes()


def test_checkpoint_with_a_tail_of_another_share_is_damage(store: ObjectStore) -> None:
    manifest = save(store, 1)
    first, second = (tail_key(JOB, 1, share.file) for share in manifest.shares)
    store.put(first, store.get(second))
    with pytest.raises(DamagedData):
        open_checkpoint(store, JOB, 1)
