"""Orbax both ways, judged by Orbax itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoint.foreign import InMemory, assert_same, read_all, some_arrays, stored

from mainspring.checkpoint.interop import Facts
from mainspring.checkpoint.orbax import OrbaxSource, write_orbax
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound, StorageFull
from mainspring.domain.wire import Part
from mainspring.objects import open_store

pytestmark = pytest.mark.slow  # Orbax alone takes seconds to import.
jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")


def flat(tree: Any) -> dict[str, Any]:
    """Returns a tree's arrays by path, as sessions name them."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(key, simple=True, separator="/"): leaf for key, leaf in leaves}


def nested(seed: int = 0) -> dict[str, Any]:
    """Returns `some_arrays` as the tree of a training loop, without the empty array, which Orbax refuses to save."""
    arrays = some_arrays(seed)
    del arrays["params/nothing"]
    tree: dict[str, Any] = {"params": {"dense": {}}, "opt_state": None}
    for path, array in arrays.items():
        *above, name = path.split("/")
        if above[:1] != ["opt_state"]:
            place = tree
            for segment in above:
                place = place[segment]
            place[name] = array
    tree["opt_state"] = (
        {"count": arrays["opt_state/0/count"], "mu": arrays["opt_state/0/mu"]},
        {"mask": arrays["opt_state/1/mask"]},
    )
    return tree


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_orbax(stored(open_store(str(folder / "objects")), some_arrays()), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("reader", ["StandardCheckpointer", "PyTreeCheckpointer"])
def test_export_of_a_sharded_save_is_read_by_orbax_bit_for_bit(exported: Path, reader: str) -> None:
    assert_same(flat(getattr(ocp, reader)().restore(exported)), some_arrays())


def test_export_is_restored_into_a_target_with_tuples_and_shardings(exported: Path) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    target = nested()
    target["params"]["nothing"] = np.zeros((0, 3), dtype=np.float32)
    kernel = target["params"]["dense"]["kernel"]
    target["params"]["dense"]["kernel"] = jax.ShapeDtypeStruct(kernel.shape, kernel.dtype, sharding=sharding)
    restored = ocp.StandardCheckpointer().restore(exported, target)
    assert_same(flat(restored), some_arrays())
    assert isinstance(restored["opt_state"], tuple)
    assert restored["params"]["dense"]["kernel"].sharding == sharding


def test_export_is_restored_in_part_by_orbax(exported: Path) -> None:
    target = {"params": {"half": np.zeros((2, 3, 4), dtype=np.float16)}}
    arguments = ocp.args.PyTreeRestore(target, partial_restore=True)
    restored = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(exported, args=arguments)
    assert_same(flat(restored), {"params/half": some_arrays()["params/half"]})


def test_export_and_back_keeps_step_state_and_parts(tmp_path: Path) -> None:
    source = stored(open_store(str(tmp_path / "objects")), some_arrays(), step=31)
    write_orbax(source, tmp_path / "out")
    back = OrbaxSource(tmp_path / "out")
    assert (back.facts.step, back.facts.origin) == (31, "job-1@31")
    assert back.facts.state == {"cursor": 40, "loss": 0.5, "split": "train"}
    assert back.arrays == source.arrays
    assert_same(read_all(back), some_arrays())


@pytest.mark.parametrize(
    "options", [{}, {"use_ocdbt": False}, {"use_zarr3": True}, {"use_ocdbt": False, "use_zarr3": True}], ids=str
)
def test_what_orbax_wrote_is_read_bit_for_bit(tmp_path: Path, options: dict[str, bool]) -> None:
    tree = {**nested(), "name": "pick", "count": 3, "rate": 0.25, "empty": {}, "none": None}
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)).save(tmp_path / "saved", tree)
    source = OrbaxSource(tmp_path / "saved")
    assert_same(read_all(source), {**flat(nested()), "count": np.array(3), "rate": np.array(0.25)})
    assert source.facts == Facts(state={"name": "pick"})
    parts = {array.path: array.part for array in source.arrays}
    assert parts["params/half"] is Part.WEIGHTS
    assert parts["opt_state/0/mu"] is Part.OPTIMIZER
    assert parts["key"] is Part.OTHER


def test_a_step_of_a_manager_is_read_with_its_number(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(7, args=ocp.args.StandardSave(nested()))
        manager.save(30, args=ocp.args.StandardSave(nested(1)))
        manager.wait_until_finished()
    for path in (tmp_path / "run" / "30", tmp_path / "run" / "30" / "default"):
        source = OrbaxSource(path)
        assert_same(read_all(source), flat(nested(1)))
        assert source.facts.step == 30
    with pytest.raises(InvalidInput, match=r"next: .*run/30"):
        OrbaxSource(tmp_path / "run")


def test_a_step_of_several_trees_asks_for_one_of_them(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {name: ocp.args.StandardSave({"x": np.arange(3)}) for name in ("params", "ema")}
        manager.save(7, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    with pytest.raises(InvalidInput, match=r"items ema, params.*run/7/ema"):
        OrbaxSource(tmp_path / "run" / "7")
    assert OrbaxSource(tmp_path / "run" / "7" / "ema").facts.step == 7


def test_arrays_of_sharded_jax_saves_with_small_chunks_are_put_together(tmp_path: Path) -> None:
    array = jax.numpy.arange(3 * 40 * 50, dtype=jax.numpy.float32).reshape(3, 40, 50)
    arguments = ocp.args.PyTreeSave({"x": array}, save_args={"x": ocp.SaveArgs(chunk_byte_size=1_000)})
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(tmp_path / "saved", args=arguments)
    assert_same(read_all(OrbaxSource(tmp_path / "saved")), {"x": np.asarray(array)})


def test_a_large_array_and_many_small_ones_go_there_and_back(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    arrays: dict[str, Any] = {f"layers/{i}/w": np.full(3, i, dtype=np.float32) for i in range(1_000)}
    arrays["large"] = dice.standard_normal((5, 4_000_000))
    write_orbax(InMemory(arrays), tmp_path / "out")
    assert_same(flat(ocp.StandardCheckpointer().restore(tmp_path / "out")), arrays)
    back = OrbaxSource(tmp_path / "out")
    write_orbax(back, tmp_path / "again")
    assert_same(flat(ocp.StandardCheckpointer().restore(tmp_path / "again")), arrays)


@pytest.mark.parametrize("path", [".", "..", "_METADATA", "a b", "ä", "d", "manifest.ocdbt", "x" * 400])
def test_no_name_of_an_array_escapes_or_meets_a_file(tmp_path: Path, path: str) -> None:
    arrays = {path: np.arange(3.0), "params/x": np.arange(4)}
    write_orbax(InMemory(arrays), tmp_path / "deep" / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["out"]
    assert_same(flat(ocp.StandardCheckpointer().restore(tmp_path / "deep" / "out")), arrays)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b%41#x?y=ä"
    write_orbax(InMemory(some_arrays()), folder)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]
    assert_same(read_all(OrbaxSource(folder)), some_arrays())


@pytest.mark.parametrize("paths", [("a/b", "a.b"), ("a", "a/b"), ("a//b",), ("/a",), ("a/",)])
def test_paths_that_orbax_cannot_tell_apart_are_refused(tmp_path: Path, paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="Orbax"):
        write_orbax(InMemory({path: np.zeros(1) for path in paths}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageFull):
        write_orbax(InMemory(some_arrays(), broken="step"), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_over_something_is_refused_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(Conflict):
        write_orbax(InMemory(some_arrays()), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder"):
        OrbaxSource(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="_METADATA"):
        OrbaxSource(tmp_path)
    (tmp_path / "7.orbax-checkpoint-tmp-3").mkdir()
    with pytest.raises(DamagedData, match="not finished"):
        OrbaxSource(tmp_path / "7.orbax-checkpoint-tmp-3")


def leaf(*keys: object, **value: object) -> dict[str, Any]:
    return {
        "key_metadata": [{"key": key, "key_type": 2} for key in keys],
        "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False, **value},
    }


METADATA = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "no tree": "{}",
    "a tree that is a list": '{"tree_metadata": []}',
    "no leaves": '{"tree_metadata": {}}',
    "a leaf that is none": '{"tree_metadata": {"x": 3}}',
    "keys that are none": '{"tree_metadata": {"x": {"key_metadata": 3, "value_metadata": {}}}}',
    "an array that is not there": json.dumps({"tree_metadata": {"x": leaf("nothing")}, "use_ocdbt": True}),
    "files that are not there": json.dumps({"tree_metadata": {"x": leaf("nothing")}, "use_ocdbt": False}),
    "a path out of the folder": json.dumps({"tree_metadata": {"x": leaf("a/../../../secret")}, "use_ocdbt": False}),
    "an absolute path": json.dumps({"tree_metadata": {"x": leaf("/secret")}, "use_ocdbt": False}),
    "control characters": json.dumps({"tree_metadata": {"x": leaf("a\x1b[2J")}}),
    "one path twice": json.dumps({"tree_metadata": {"x": leaf("params", "half"), "y": leaf("params", "half")}}),
    "facts of ours that are not": json.dumps(
        {"tree_metadata": {"x": leaf("params", "half")}, "custom_metadata": {"mainspring": {"step": "x"}}}
    ),
}


@pytest.mark.parametrize("kind", METADATA)
def test_garbage_in_the_metadata_is_refused(exported: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(exported, tmp_path / "bad")
    (tmp_path / "bad" / "_METADATA").write_text(METADATA[kind])
    with pytest.raises(InvalidInput, match="bad"):
        OrbaxSource(tmp_path / "bad")


def test_a_missing_data_file_is_damage_and_never_zeros(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "bad")
    shutil.rmtree(tmp_path / "bad" / "d")
    with pytest.raises(DamagedData, match="bad"):
        read_all(OrbaxSource(tmp_path / "bad"))


def test_a_missing_chunk_of_plain_files_is_damage_and_never_zeros(tmp_path: Path) -> None:
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(tmp_path / "bad", nested())
    (tmp_path / "bad" / "params.half" / "0.0.0").unlink()
    with pytest.raises(DamagedData, match=r"params/half of .*bad"):
        read_all(OrbaxSource(tmp_path / "bad"))


@pytest.mark.parametrize("file", ["manifest.ocdbt", "d/*"])
def test_a_truncated_file_is_damage(exported: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(exported, tmp_path / "bad")
    for path in (tmp_path / "bad").glob(file):
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DamagedData, match="bad"):
        read_all(OrbaxSource(tmp_path / "bad"))


def test_an_array_of_text_is_refused_by_its_type(tmp_path: Path) -> None:
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).save(tmp_path / "bad", nested())
    array = tmp_path / "bad" / "params.half" / ".zarray"
    array.write_text(array.read_text().replace("<f2", "|S4"))
    with pytest.raises(InvalidInput, match="params/half"):
        OrbaxSource(tmp_path / "bad")
