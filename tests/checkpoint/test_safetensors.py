"""safetensors both ways, judged by the peer's own reader and writer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.foreign import Arrays, InMemory, assert_same, read_all, some_arrays, stored

from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import Facts, weights_of, without_prefix
from mainspring.checkpoint.safetensors import SafetensorsSource, write_safetensors
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, MainspringError, NotFound, StorageFull
from mainspring.domain.wire import Part
from mainspring.objects import open_store

_TYPES = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"}
_TYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
_TYPES |= {f"{sign}{bits}": f"{'u' * (sign == 'U')}int{bits}" for sign in "IU" for bits in (8, 16, 32, 64)}


def read_by_peer(*files: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Reads by the peer's own parser, which unlike its NumPy face knows every type."""
    found = {}
    for file in files:
        for name, entry in safetensors.deserialize(file.read_bytes()):  # type: ignore[no-untyped-call]
            data = np.frombuffer(bytes(entry["data"]), dtype=dtype_named(_TYPES[entry["dtype"]]))
            found[name] = data.reshape(entry["shape"])
    return found


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_export_of_a_sharded_save_is_read_by_safetensors_bit_for_bit(tmp_path: Path) -> None:
    arrays = some_arrays()
    write_safetensors(stored(open_store(str(tmp_path / "objects")), arrays), tmp_path / "out")
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["model.safetensors"]
    assert_same(read_by_peer(tmp_path / "out" / "model.safetensors"), arrays)


@pytest.mark.slow
def test_export_is_read_by_torch_with_its_types(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    arrays = some_arrays()
    write_safetensors(InMemory(arrays), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found["params/dense/bias"].dtype == torch.bfloat16
    assert found["params/quantised"].dtype == torch.float8_e4m3fn
    assert found["opt_state/0/count"].shape == ()
    raw = {path: found[path].reshape(-1).view(torch.uint8).numpy().tobytes() for path in arrays if arrays[path].size}
    assert raw == {path: array.tobytes() for path, array in arrays.items() if array.size}


def test_export_larger_than_a_file_is_several_with_the_index_of_the_hub(tmp_path: Path) -> None:
    arrays = some_arrays()
    write_safetensors(InMemory(arrays), tmp_path / "out", file_bytes_max=1_600)
    files, index = parts(tmp_path / "out"), json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert_same(read_by_peer(*files), arrays)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays.values())
    assert all(name in read_by_peer(tmp_path / "out" / file) for name, file in index["weight_map"].items())
    assert sorted(index["weight_map"]) == sorted(arrays)
    assert_same(read_all(SafetensorsSource(tmp_path / "out")), arrays)


def test_arrays_in_an_export_lie_at_multiples_of_their_width(tmp_path: Path) -> None:
    write_safetensors(InMemory(some_arrays()), tmp_path / "out")
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    for entry in header.values():
        assert (8 + length + entry["data_offsets"][0]) % dtype_named(_TYPES[entry["dtype"]]).itemsize == 0


def test_what_safetensors_wrote_is_read_bit_for_bit_as_weights(tmp_path: Path) -> None:
    arrays = {path: array for path, array in some_arrays().items() if array.dtype.name in _TYPES.values()}
    safetensors.numpy.save_file(arrays, tmp_path / "x.safetensors")
    source = SafetensorsSource(tmp_path / "x.safetensors")
    assert_same(read_all(source), arrays)
    assert {array.part for array in source.arrays} == {Part.WEIGHTS}
    assert source.facts == Facts()


def test_export_and_back_keeps_step_state_and_parts(tmp_path: Path) -> None:
    source = stored(open_store(str(tmp_path / "objects")), some_arrays(), step=31)
    write_safetensors(source, tmp_path / "out")
    back = SafetensorsSource(tmp_path / "out")
    assert (back.facts.step, back.facts.origin) == (31, "job-1@31")
    assert back.facts.state == {"cursor": 40, "loss": 0.5, "split": "train"}
    assert back.arrays == source.arrays


def test_weights_alone_leave_the_optimizer_out_and_may_be_named_from_below(tmp_path: Path) -> None:
    arrays = some_arrays()
    write_safetensors(without_prefix(weights_of(InMemory(arrays)), "params"), tmp_path / "out")
    wanted = {path.removeprefix("params/"): each for path, each in arrays.items() if path.startswith("params/")}
    assert_same(read_by_peer(tmp_path / "out" / "model.safetensors"), wanted)


@pytest.mark.slow
def test_export_of_a_large_array_and_many_small_ones_goes_through_regions(tmp_path: Path) -> None:
    large = np.random.default_rng(1).integers(0, 256, (9, 4_000_001), dtype=np.uint8).view(np.uint8)
    arrays: Arrays = {"large": large.reshape(3, 3, -1)} | {f"layers/{i}/w": np.full(3, i) for i in range(3_000)}
    arrays = {**arrays, "wide": np.random.default_rng(2).standard_normal((5, 3_000_000)).astype(np.float64)}
    write_safetensors(InMemory(arrays), tmp_path / "out")
    assert_same(read_by_peer(tmp_path / "out" / "model.safetensors"), arrays)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float8_e3m4, np.complex128])
def test_export_of_a_type_that_safetensors_lacks_names_those_it_has(tmp_path: Path, dtype: type) -> None:
    with pytest.raises(InvalidInput, match=r"params/x.*one of .*bfloat16"):
        write_safetensors(InMemory({"params/x": np.zeros(3, dtype=dtype)}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageFull):
        write_safetensors(InMemory(some_arrays(), broken="step"), tmp_path / "out", file_bytes_max=1_000)
    assert not list(tmp_path.iterdir())


def test_export_over_something_is_refused_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(Conflict):
        write_safetensors(InMemory(some_arrays()), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def made(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GARBAGE = {
    "empty": b"",
    "short": b"\x01\x02",
    "length past the end": struct.pack("<Q", 1 << 40) + b"{}",
    "length of zero": struct.pack("<Q", 0) + b"{}",
    "no JSON": made(b"not json at all"),
    "deep JSON": made(b"[" * 100_000),
    "a list": made([]),
    "no arrays": made({}),
    "a name twice": made(b'{"x":%s,"x":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(4)),
    "no entry": made({"x": 3}),
    "unknown type": made({"x": entry("F33")}, bytes(4)),
    "type that is a list": made({"x": entry(["F32"])}, bytes(4)),
    "shape too large": made({"x": entry(shape=[1 << 40])}, bytes(4)),
    "shape beyond all numbers": made({"x": entry(shape=[1 << 61] * 8)}, bytes(4)),
    "shape of hundreds": made({"x": entry(shape=[1] * 400)}, bytes(4)),
    "shape negative": made({"x": entry(shape=[-1, -1])}, bytes(4)),
    "shape of booleans": made({"x": entry(shape=[True])}, bytes(4)),
    "offsets negative": made({"x": entry(offsets=[-4, 0])}, bytes(4)),
    "offsets backwards": made({"x": entry(offsets=[4, 0])}, bytes(4)),
    "a hole": made({"x": entry(offsets=[4, 8])}, bytes(8)),
    "overlap": made({"x": entry(), "y": entry()}, bytes(4)),
    "truncated data": made({"x": entry(shape=[2], offsets=[0, 8])}, bytes(4)),
    "data too long": made({"x": entry()}, bytes(8)),
    "name with control characters": made({"x\x1b[2J": entry()}, bytes(4)),
    "name empty": made({"": entry()}, bytes(4)),
    "name endless": made({"x" * 5_000: entry()}, bytes(4)),
    "metadata that is a list": made({"__metadata__": [], "x": entry()}, bytes(4)),
    "facts of ours that are not": made({"__metadata__": {"mainspring": '{"step": "x"}'}, "x": entry()}, bytes(4)),
    "facts of ours that are no JSON": made({"__metadata__": {"mainspring": "{"}, "x": entry()}, bytes(4)),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_with_the_file_it_is_in(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(GARBAGE[kind])
    with pytest.raises(InvalidInput, match=r"x\.safetensors"):
        SafetensorsSource(tmp_path / "x.safetensors")


@given(st.binary(max_size=200) | st.builds(made, st.binary(max_size=80)), st.integers(0, 300))
def test_no_bytes_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int) -> None:
    path = tmp_path_factory.mktemp("any") / "x.safetensors"
    sound = made({"x": entry(), "y": entry("BF16", [0, 3], [4, 4])}, bytes(4))
    for content in (data, sound[:cut] + data):
        path.write_bytes(content)
        try:
            read_all(SafetensorsSource(path))
        except MainspringError:
            continue
        assert set(read_by_peer(path)) == {array.path for array in SafetensorsSource(path).arrays}


def several(tmp_path: Path) -> Path:
    write_safetensors(InMemory(some_arrays()), tmp_path / "out", file_bytes_max=1_600)
    return tmp_path / "out"


def test_several_files_without_their_index_are_refused(tmp_path: Path) -> None:
    folder = several(tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InvalidInput, match="index"):
        SafetensorsSource(folder)
    with pytest.raises(DamagedData, match="one file of several"):
        SafetensorsSource(parts(folder)[0])


def test_an_index_whose_file_or_array_is_missing_is_damage(tmp_path: Path) -> None:
    folder = several(tmp_path)
    files = parts(folder)
    files[0].write_bytes(files[1].read_bytes())
    with pytest.raises(DamagedData, match="no array"):
        SafetensorsSource(folder)
    files[0].unlink()
    with pytest.raises(DamagedData, match=f"no file {files[0].name}"):
        SafetensorsSource(folder / "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "\0", 7, ".x"])
def test_an_index_that_points_elsewhere_is_refused_unread(tmp_path: Path, name: object) -> None:
    folder = several(tmp_path)
    index = {"weight_map": {"x": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidInput, match="beside the index"):
        SafetensorsSource(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_that_is_none_is_damage(tmp_path: Path, text: str) -> None:
    folder = several(tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(DamagedData, match=r"index\.json"):
        SafetensorsSource(folder)


def test_a_folder_without_safetensors_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="0 files"):
        SafetensorsSource(tmp_path)
    with pytest.raises(NotFound):
        SafetensorsSource(tmp_path / "nothing.safetensors")
