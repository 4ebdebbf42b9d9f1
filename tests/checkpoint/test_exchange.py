"""Imports into our store, comparisons, and the geometry both rest on."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.foreign import Arrays, InMemory, assert_same, read_all, save, some_arrays, stored

from mainspring.checkpoint import (
    Claim,
    collect,
    durable_steps,
    load,
    open_checkpoint,
    put_claim,
    verify,
)
from mainspring.checkpoint.difference import differences
from mainspring.checkpoint.exchange import IMPORTED, StoredSource, import_source
from mainspring.checkpoint.interop import (
    ArraySpec,
    Facts,
    batches,
    part_of,
    parts_of,
    regions,
    weights_of,
    with_prefix,
    without_prefix,
)
from mainspring.checkpoint.safetensors import SafetensorsSource, write_safetensors
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Part
from mainspring.objects import ObjectStore, open_store

NAME = JobId("pi0")
SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "objects"))


def import_of(store: ObjectStore, source: InMemory, *, step: int = 5) -> None:
    import_source(store, source, job=NAME, step=step, now_s=2.0)


@given(SHAPES, st.integers(1, 300))
def test_regions_cover_an_array_once_in_order_each_one_run_within_the_bound(shape: tuple[int, ...], most: int) -> None:
    items = np.arange(math.prod(shape)).reshape(shape)
    seen = []
    for region in regions(ArraySpec(path="x", dtype="float32", shape=shape), most):
        place = tuple(slice(low, low + size) for low, size in zip(region.start, region.shape, strict=True))
        part = items[place].reshape(-1)
        assert np.array_equal(part, np.arange(part[0], part[0] + len(part)))
        assert len(part) <= max(1, most // 4)
        seen += part.tolist()
    assert seen == items.reshape(-1).tolist()


@given(st.dictionaries(st.text("abc/", min_size=1, max_size=6), st.sampled_from(list(Part)), min_size=1, max_size=8))
def test_what_arrays_are_for_is_told_again_by_the_beginnings_of_their_paths(parts: dict[str, Part]) -> None:
    arrays = tuple(ArraySpec(path=path, dtype="bool", shape=(), part=part) for path, part in parts.items())
    told = parts_of(arrays)
    assert {path: part_of(path, told) for path in parts} == parts


@pytest.mark.slow
def test_batches_hold_every_array_of_any_size_in_order() -> None:
    arrays = {"big": np.arange(9_000_000.0).reshape(9, -1), **{f"small/{i:05d}": np.full(3, i) for i in range(2_500)}}
    source = InMemory(arrays)
    seen: dict[str, list[np.ndarray]] = {}
    for blocks in batches(source, source.arrays):
        for each in blocks:
            seen.setdefault(each.array.path, []).append(each.elements.reshape(-1).copy())
    assert list(seen) == sorted(arrays)
    assert_same({path: np.concatenate(parts).reshape(arrays[path].shape) for path, parts in seen.items()}, arrays)


def test_import_is_a_durable_step_with_state_parts_and_origin(store: ObjectStore) -> None:
    facts = Facts(step=9, state={"cursor": 4}, origin="job-7@9")
    import_source(store, InMemory(some_arrays(), facts=facts), job=NAME, step=5, now_s=2.0)
    loaded = load(store, NAME)
    assert_same(loaded.arrays, some_arrays())
    assert (loaded.step, loaded.state, loaded.manifest.created_s) == (5, {"cursor": 4}, 2.0)
    assert (loaded.manifest.attempt, loaded.manifest.lineage.parent) == (IMPORTED, "job-7@9")
    weights = load(store, NAME, parts=[Part.WEIGHTS]).arrays
    assert sorted(weights) == sorted(path for path in some_arrays() if path.startswith("params/"))


@pytest.mark.slow
def test_import_larger_than_a_share_is_several_that_verify(store: ObjectStore) -> None:
    arrays = {f"params/{i}": np.full((1 << 24,), i, dtype=np.float32) for i in range(5)}
    import_of(store, InMemory(arrays))
    assert len(verify(store, NAME, 5).shares) == 2
    assert_same(load(store, NAME).arrays, arrays)


def test_import_keeps_steps_under_one_name_apart(store: ObjectStore) -> None:
    for step in (5, 6):
        import_of(store, InMemory(some_arrays(step)), step=step)
    assert durable_steps(store, NAME) == (6, 5)
    assert_same(load(store, NAME, 5).arrays, some_arrays(5))
    with pytest.raises(Conflict, match="pi0@6"):
        import_of(store, InMemory(some_arrays()), step=6)


@pytest.mark.parametrize("name", ["job-1", "", "..", "a/b", "A", "x" * 64])
def test_import_under_the_name_of_a_job_or_no_name_is_refused(store: ObjectStore, name: str) -> None:
    with pytest.raises(InvalidInput):
        import_source(store, InMemory(some_arrays()), job=name, step=0, now_s=2.0)
    assert not store.list("")


def test_import_that_breaks_off_leaves_no_share_and_may_be_repeated(store: ObjectStore) -> None:
    with pytest.raises(OSError, match="No space"):
        import_of(store, InMemory(some_arrays(), broken="step"))
    assert not store.list("checkpoints/pi0/shares")
    import_of(store, InMemory(some_arrays(1)))
    assert_same(load(store, NAME).arrays, some_arrays(1))


def test_import_overtaken_by_another_under_the_name_never_mixes_with_it(store: ObjectStore) -> None:
    class Overtaken(InMemory):
        def read(self, blocks: object) -> None:
            put_claim(store, NAME, Claim(number=2, epoch=1))
            super().read(blocks)  # type: ignore[arg-type]

    with pytest.raises(Conflict):
        import_of(store, Overtaken(some_arrays()))
    assert not durable_steps(store, NAME)
    assert not store.list("checkpoints/pi0/shares")


def test_shares_of_an_import_that_was_killed_are_collected_after_the_next(store: ObjectStore) -> None:
    import_of(store, InMemory(some_arrays()), step=4)
    lost = store.list("checkpoints/pi0/manifests")[0].key
    store.delete(lost)  # As after a kill just before the manifest.
    import_of(store, InMemory(some_arrays()), step=5)
    assert collect(store, NAME, keep=3, dry_run=False).keys
    assert all("/000000000005/" in seen.key for seen in store.list("checkpoints/pi0/shares"))
    verify(store, NAME, 5)


def test_a_prefix_goes_on_and_comes_off(store: ObjectStore) -> None:
    arrays = {"encoder.weight": np.arange(3.0), "b": np.arange(2.0)}
    below = with_prefix(InMemory(arrays), "/params/")
    assert {array.path: array.part for array in below.arrays} == {
        "params/b": Part.WEIGHTS,
        "params/encoder.weight": Part.WEIGHTS,
    }
    assert_same(read_all(without_prefix(below, "params")), arrays)
    with pytest.raises(NotFound, match="params"):
        without_prefix(below, "param")
    with pytest.raises(NotFound, match="weights"):
        weights_of(InMemory(arrays))


def test_weights_of_an_import_without_optimizer_are_what_was_saved(store: ObjectStore, tmp_path: Path) -> None:
    write_safetensors(weights_of(stored(store, some_arrays())), tmp_path / "out")
    import_source(store, SafetensorsSource(tmp_path / "out"), job=NAME, step=12, now_s=2.0)
    assert_same(load(store, NAME).arrays, {p: a for p, a in some_arrays().items() if p.startswith("params/")})


def test_a_checkpoint_differs_in_nothing_from_itself_saved_on_other_ranks(store: ObjectStore) -> None:
    one = stored(store, some_arrays())
    other = stored(store, some_arrays(), job=JobId("job-2"), ranks=3)
    found = differences(one, other)
    assert [each.path for each in found] == sorted(some_arrays())
    assert all(each.same for each in found)


def test_differences_are_measured_element_by_element(store: ObjectStore) -> None:
    left: Arrays = {"a": np.array([1.0, -4.0, 0.0, np.nan, np.inf], np.float32), "b": np.arange(3), "c": np.zeros(2)}
    right: Arrays = {"a": np.array([1.0, -2.0, 0.5, 1.0, np.inf], np.float32), "b": np.arange(3.0), "c": np.zeros(3)}
    left = {**left, "gone": np.zeros(1), "x": np.arange(4).astype(ml_dtypes.bfloat16)}
    right = {**right, "x": np.array([0, 1, 2, 5], np.float32)}
    found = {each.path: each for each in differences(InMemory(left), InMemory(right))}
    assert not any(each.same for each in found.values())
    a = found["a"]
    assert (a.absolute, a.relative) == (2.0, 1.0)
    assert a.norm == pytest.approx(math.sqrt(4.25))
    assert a.left_numbers is not None
    assert (a.left_numbers.nans, a.left_numbers.infinities) == (1, 1)
    assert a.left_numbers.norm == pytest.approx(math.sqrt(17))
    assert (found["b"].absolute, found["b"].norm) == (0.0, 0.0)  # Equal numbers of another type.
    assert (found["c"].absolute, found["c"].left_numbers) == (None, None)
    assert found["gone"].right is None
    assert (found["x"].absolute, found["x"].relative) == (2.0, 0.4)


def test_a_sign_of_zero_and_a_payload_of_nan_are_differences_of_nothing() -> None:
    left = {"x": np.array([0.0, np.nan])}
    right = {"x": np.array([-0.0, -np.nan])}
    (found,) = differences(InMemory(left), InMemory(right))
    assert (found.same, found.absolute, found.relative) == (False, 0.0, 0.0)


FULL = """
import resource, sys
from pathlib import Path
from mainspring.checkpoint import open_checkpoint
from mainspring.checkpoint.exchange import StoredSource, import_source
from mainspring.checkpoint.orbax import write_orbax
from mainspring.checkpoint.safetensors import write_safetensors
from mainspring.domain.errors import StorageFull
from mainspring.objects import open_store
store, out = open_store(sys.argv[1]), Path(sys.argv[2])
source = StoredSource(open_checkpoint(store, "job-1", 12))
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
imports = lambda source, out: import_source(store, source, job="pi0", step=1, now_s=1.0)
for write in (write_safetensors, write_orbax, imports):
    try:
        write(source, out / "export")
    except StorageFull as error:
        print("full")
    print(sorted(path.name for path in out.iterdir()), [seen.key for seen in store.list("checkpoints/pi0/shares")])
"""


@pytest.mark.slow
def test_without_room_nothing_is_left_half_written(store: ObjectStore, tmp_path: Path) -> None:
    save(store, {"params/w": np.arange(1 << 18, dtype=np.float32)})
    (tmp_path / "out").mkdir()
    words = [sys.executable, "-c", FULL, str(tmp_path / "objects"), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "full\n[] []\n" * 3, done.stderr


def test_a_source_of_ours_tells_where_it_is_from(store: ObjectStore) -> None:
    manifest = save(store, some_arrays())
    source = StoredSource(open_checkpoint(store, manifest.job, 12))
    assert source.facts == Facts(step=12, state=manifest.state, origin="job-1@12")
    assert source.arrays == tuple(replace(array) for array in InMemory(some_arrays()).arrays)
