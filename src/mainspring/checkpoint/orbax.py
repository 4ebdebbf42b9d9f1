"""Orbax checkpoints as sources and as exports, through TensorStore alone: no JAX, no devices.

Read: what `PyTreeCheckpointer`, `StandardCheckpointer` and `CheckpointManager` write, with OCDBT or plain files, zarr 2
or zarr 3. Written: what they write by default (OCDBT, zarr 2), uncompressed, in chunks that a restore can read alone.

Source: https://orbax.readthedocs.io, "Checkpoint format"; what orbax-checkpoint 0.12 writes; TensorStore's pages on its
drivers zarr, zarr3 and ocdbt.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.checkpoint.files import json_file, whole_folder
from mainspring.checkpoint.format import AXES_MAX, dtype_named
from mainspring.checkpoint.interop import (
    FACTS_KEY,
    ArraySource,
    ArraySpec,
    Block,
    Facts,
    Progress,
    batches,
    checked_arrays,
    checked_path,
    facts_from,
    noted,
    part_of,
    region_shape,
)
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError, NotFound, StorageFull, Unavailable
from mainspring.objects import reported

if TYPE_CHECKING:
    import tensorstore

_TREE_FILE = "_METADATA"
_ROOT_FILE = "_CHECKPOINT_METADATA"
_STRINGS_FILE = "_strings.json"
_UNFINISHED = ".orbax-checkpoint-tmp"  # In the name of a folder that Orbax has not finished, or was killed in.
_HANDLER = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
_SEQUENCE_KEY, _DICT_KEY = 1, 2  # `KeyType` of Orbax's tree metadata.
_OPENED_AT_ONCE = 256  # Waits for a disk or a network together, and stays below a process's bound on open files.
_CACHE_BYTES_MAX = 8 << 30  # What one array's chunks may take while they are read across: Orbax's are whole shards.
_STEP_DIGITS_MAX = 12  # As many as a checkpoint's key holds.
_STRINGS_MAX = 10_000  # They become facts of the program, which are few and small.
_ESSAY = re.compile(r"\[(?:tensorstore_spec|source locations)=")  # Where an error of TensorStore's stops telling news.
_QUOTED_MAX = 200  # Of either end of such an error: what was done stands first, and why it failed last.
_FULL = ("No space left", "File too large", "quota exceeded")  # strerror of ENOSPC, EFBIG, EDQUOT.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """One array as Orbax knows it: `name` is its path's segments joined by dots, under which it is stored."""

    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """What the tree's metadata says, with the options its arrays were written with."""

    leaves: tuple[_Leaf, ...]
    strings: tuple[_Leaf, ...]
    ocdbt: bool
    zarr3: bool
    whole: bool  # Every chunk was written, so that a missing one is damage, and not an array's zeros.
    facts: object


class OrbaxSource:
    """An Orbax checkpoint of one tree as an `ArraySource`.

    Args:
        path: Its folder, or a step's folder that holds one such item.

    Raises:
        NotFound: There is no such folder.
        InvalidInput: It is not a checkpoint of one tree, or of a type of numbers that is not known.
        DamagedData: It is one, and does not hold together.
    """

    def __init__(self, path: Path) -> None:
        path = path.absolute()
        self._folder = _item_of(path)
        self.name = str(path)
        self._tree = _tree_of(self._folder)
        parts = facts_from(self._tree.facts, self.name)
        self.facts = Facts(
            state={**parts.state, **_strings_of(self._folder, self._tree)},
            step=parts.step if parts.step >= 0 else _step_of(path),
            origin=parts.origin,
            parts=parts.parts,
        )
        self._names = {leaf.path: leaf.name for leaf in self._tree.leaves}
        self._chunk_rows: dict[str, int] = {}
        self.arrays = checked_arrays(list(self._specs()), self.name)
        self._open: dict[str, tensorstore.TensorStore] = {}

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        stores = {**self._open, **self._opened([each for each in blocks if each.array.path not in self._open])}
        reading = [stores[each.array.path][each.place].read() for each in blocks]
        for each, future in zip(blocks, reading, strict=True):
            with _told("read an Orbax array", f"{each.array.path} of {self.name}", DamagedData):
                each.elements[...] = future.result()
        last = blocks[-1].array.path
        self._open = {last: stores[last]}  # More of it may follow, from chunks that are unpacked already.

    def _specs(self) -> Iterator[ArraySpec]:
        import tensorstore

        leaves = self._tree.leaves
        for first in range(0, len(leaves), _OPENED_AT_ONCE):
            some = leaves[first : first + _OPENED_AT_ONCE]
            opening = [tensorstore.open(self._stored(leaf.name), open=True, read=True) for leaf in some]
            for leaf, future in zip(some, opening, strict=True):
                with _told("open an Orbax array", f"{leaf.path} of {self.name}", DamagedData):
                    store = future.result()
                dtype, shape = store.dtype.name, tuple(store.shape)
                if len(shape) > AXES_MAX:
                    raise InvalidInput("read an Orbax array", on=leaf.path, got=f"{len(shape)} axes")
                try:
                    dtype_named(dtype)
                except DamagedData as error:
                    raise InvalidInput(
                        "read an Orbax array", on=f"{leaf.path} of {self.name}", got=dtype, wanted=error.wanted
                    ) from error
                self._chunk_rows[leaf.path] = next(iter(store.chunk_layout.read_chunk.shape or ()), None) or 1
                yield ArraySpec(path=leaf.path, dtype=dtype, shape=shape, part=part_of(leaf.path, self.facts.parts))

    def _stored(self, name: str) -> dict[str, Any]:
        below = {"driver": "file", "path": f"{self._folder}/{name}/"}
        kvstore = _in_database(self._folder, name) if self._tree.ocdbt else below
        driver = "zarr3" if self._tree.zarr3 else "zarr"
        return {"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": not self._tree.whole}

    def _opened(self, blocks: Sequence[Block]) -> dict[str, tensorstore.TensorStore]:
        """Returns arrays by path, those that are read in parts with room to keep a row of their chunks unpacked."""
        import tensorstore

        opening: dict[str, tensorstore.Future[tensorstore.TensorStore]] = {}
        for each in blocks:
            array = each.array
            if array.path not in opening:
                rows = max(1, array.shape[0] if array.shape else 1)
                row_bytes = array.size_bytes // rows * self._chunk_rows[array.path]
                room_bytes = min(2 * row_bytes, _CACHE_BYTES_MAX) if each.region.shape != array.shape else 0
                context = tensorstore.Context({"cache_pool": {"total_bytes_limit": room_bytes}})
                spec = {**self._stored(self._names[array.path]), "recheck_cached_data": False}
                opening[array.path] = tensorstore.open(spec, open=True, read=True, context=context)
        stores: dict[str, tensorstore.TensorStore] = {}
        for path, future in opening.items():
            with _told("open an Orbax array", f"{path} of {self.name}", DamagedData):
                stores[path] = future.result()
        return stores


@contextlib.contextmanager
def _told(attempted: str, on: str, kind: type[MainspringError]) -> Iterator[None]:
    """Turns TensorStore's errors, most of them of one type, into ours.

    Args:
        attempted: What is being done.
        on: The thing it is done to.
        kind: What an error means that is not for lack of room.
    """
    try:
        yield
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:
        got = " ".join(_ESSAY.split(str(error))[0].split())
        full = any(words in got for words in _FULL)
        raise (StorageFull if full else kind)(
            attempted, on=on, got=got if len(got) <= 2 * _QUOTED_MAX else f"{got[:_QUOTED_MAX]} .. {got[-_QUOTED_MAX:]}"
        ) from error


def write_orbax(source: ArraySource, folder: Path, *, progress: Progress = lambda done: None) -> None:
    """Writes a source as an Orbax checkpoint of one tree of NumPy arrays. It appears whole or not at all.

    `StandardCheckpointer().restore(folder)` gives nested dictionaries, with lists where segments of paths count from 0
    without a gap; given a target it gives that target's structure, types of containers and shardings.

    Args:
        source: What is written.
        folder: Where; it must not exist.
        progress: Told of bytes as they are written.

    Raises:
        Conflict: Something is there already.
        InvalidInput: A path cannot be one of Orbax's, or an array's type is not one that TensorStore knows.
        StorageFull: There is no room.
        DamagedData: The source does not hold together.
    """
    tree = _tree_metadata(source)
    with whole_folder(folder.absolute()) as made:
        _write_arrays(source, made, progress)
        (made / _TREE_FILE).write_text(json.dumps(tree, ensure_ascii=False))
        root = {"item_handlers": _HANDLER, "metrics": {}, "performance_metrics": {}, "custom_metadata": {}}
        (made / _ROOT_FILE).write_text(
            json.dumps({**root, "init_timestamp_nsecs": None, "commit_timestamp_nsecs": None})
        )


def _write_arrays(source: ArraySource, folder: Path, progress: Progress) -> None:
    import tensorstore

    context = tensorstore.Context()
    empty = [array for array in source.arrays if not array.elements]
    for some in (empty[low : low + _OPENED_AT_ONCE] for low in range(0, len(empty), _OPENED_AT_ONCE)):
        with _told("write an Orbax checkpoint", source.name, Unavailable):
            for future in [tensorstore.open(_new(array, folder), context=context) for array in some]:
                future.result()
    for blocks in batches(source, source.arrays):
        # One commit for each batch: TensorStore keeps a transaction in memory, and one for each array is an fsync each.
        transaction = tensorstore.Transaction()
        with _told("write an Orbax checkpoint", source.name, Unavailable):
            arrays = {each.array.path: each.array for each in blocks}
            specs = [_new(array, folder) for array in arrays.values()]
            opening = [tensorstore.open(spec, context=context, transaction=transaction) for spec in specs]
            stores = {path: future.result() for path, future in zip(arrays, opening, strict=True)}
            for written in [stores[each.array.path][each.place].write(each.elements) for each in blocks]:
                written.result()
            transaction.commit_sync()
        progress(sum(each.elements.nbytes for each in blocks))


def _new(array: ArraySpec, folder: Path) -> dict[str, Any]:
    return {
        "driver": "zarr",
        "kvstore": _in_database(folder, _name_of(array.path)),
        "metadata": {"shape": array.shape, "chunks": region_shape(array), "compressor": None, "order": "C"},
        "dtype": array.dtype,
        "create": True,
        "open": True,  # A large array comes in several batches.
        "store_data_equal_to_fill_value": True,
    }


def _in_database(folder: Path, name: str) -> dict[str, Any]:
    # Never as a URL, in which some letters mean others.
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder}/"}, "path": f"{name}/"}


def _name_of(path: str) -> str:
    return ".".join(path.split("/"))


def _tree_metadata(source: ArraySource) -> dict[str, Any]:
    """Returns the tree's metadata, once it is sure that Orbax can hold every array."""
    import tensorstore

    children: dict[str, set[str]] = {}
    names: dict[str, str] = {}
    for array in source.arrays:
        segments = array.path.split("/")
        other = names.setdefault(_name_of(array.path), array.path)
        if other != array.path or not all(segments):
            raise InvalidInput(
                "write an Orbax checkpoint",
                on=array.path,
                got=f"beside {other!r}" if other != array.path else "an empty segment",
                wanted="segments that are not empty, and names that differ when their segments are joined by dots",
            )
        try:
            tensorstore.dtype(array.dtype)
        except TypeError as error:
            raise InvalidInput("write an Orbax checkpoint", on=array.path, got=array.dtype) from error
        for count, segment in enumerate(segments):
            children.setdefault("/".join(segments[:count]), set()).add(segment)
    both = sorted(set(children) & {array.path for array in source.arrays})
    if both:
        raise InvalidInput(
            "write an Orbax checkpoint", on=both[0], got="an array and arrays below it", wanted="one or the other"
        )
    sequences = {above for above, below in children.items() if below == {str(index) for index in range(len(below))}}
    tree: dict[str, Any] = {}
    for array in source.arrays:
        segments = array.path.split("/")
        keys = [
            {"key": segment, "key_type": _SEQUENCE_KEY if "/".join(segments[:count]) in sequences else _DICT_KEY}
            for count, segment in enumerate(segments)
        ]
        value = {"value_type": "np.ndarray", "skip_deserialize": False}
        tree[str(tuple(segments))] = {"key_metadata": keys, "value_metadata": value}
    options = {"use_ocdbt": True, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    return {"tree_metadata": tree, **options, "custom_metadata": {FACTS_KEY: noted(source)}}


def _item_of(path: Path) -> Path:
    """Returns the folder that holds the tree: the one named, or the only such item below it."""
    if _UNFINISHED in path.name:
        raise DamagedData("read an Orbax checkpoint", on=str(path), got="one that was not finished")
    if (path / _TREE_FILE).is_file():
        return path
    try:
        with reported("read an Orbax checkpoint", str(path)):
            below = sorted(entry.name for entry in path.iterdir())
    except NotFound as error:
        raise NotFound("read an Orbax checkpoint", on=str(path), got="no such folder") from error
    items = [name for name in below if (path / name / _TREE_FILE).is_file()]
    if len(items) == 1:
        return path / items[0]
    one = items[:1] or sorted((name for name in below if name.isascii() and name.isdigit()), key=int)[-1:]
    raise InvalidInput(
        "read an Orbax checkpoint",
        on=str(path),
        got=f"items {', '.join(items)[:200]}" if items else f"no {_TREE_FILE} in it",
        wanted="the folder of one tree",
        next_step=f"name one of them, such as {path / one[0]}" if one else "",
    )


def _step_of(path: Path) -> int:
    """Returns the step that `CheckpointManager` named a folder by, -1 when it named none."""
    item = not (path / _ROOT_FILE).is_file()  # One of several in a step's folder, which has the root's file.
    for folder in (path, path.parent) if item else (path,):
        if folder.name.isascii() and folder.name.isdigit() and len(folder.name) <= _STEP_DIGITS_MAX:
            return int(folder.name)
    return -1


def _tree_of(folder: Path) -> _Tree:
    on = str(folder / _TREE_FILE)
    plain = json_file(folder / _TREE_FILE)
    tree = plain.get("tree_metadata")
    if not isinstance(tree, dict):
        raise DamagedData("read an Orbax checkpoint", on=on, wanted="tree_metadata")
    leaves: list[_Leaf] = []
    strings: list[_Leaf] = []
    for entry in tree.values():
        try:
            keys = [str(key["key"]) for key in entry["key_metadata"]]
            value = entry["value_metadata"]
            kind, skipped = value["value_type"], bool(value["skip_deserialize"])
        except (KeyError, TypeError) as error:
            raise DamagedData("read an Orbax checkpoint", on=on, got=ascii(entry)[:200]) from error
        if skipped:
            continue  # An empty container or None: a place in a tree without an array.
        leaf = _Leaf(path=checked_path("/".join(keys), on), name=".".join(keys))
        if {"", ".", ".."} & set(leaf.name.split("/")):
            raise InvalidInput("read an Orbax checkpoint", on=on, got=repr(leaf.name), wanted="names without . and ..")
        (strings if kind == "string" else leaves).append(leaf)
    ocdbt = plain.get("use_ocdbt", (folder / "manifest.ocdbt").is_file())
    own = plain.get("custom_metadata")
    return _Tree(
        leaves=tuple(leaves),
        strings=tuple(strings),
        ocdbt=bool(ocdbt),
        zarr3=bool(plain.get("use_zarr3", False)),
        whole=bool(plain.get("store_array_data_equal_to_fill_value", False)),
        facts=own.get(FACTS_KEY) if isinstance(own, dict) else None,
    )


def _strings_of(folder: Path, tree: _Tree) -> dict[str, str]:
    """Returns the tree's strings, which are no arrays, as facts of the program."""
    if not tree.strings:
        return {}
    texts = json_file(folder / _STRINGS_FILE)
    found = {leaf.path: texts.get(leaf.name) for leaf in tree.strings[:_STRINGS_MAX]}
    return {path: text for path, text in found.items() if isinstance(text, str)}
