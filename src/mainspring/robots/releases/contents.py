"""What a release of a checkpoint holds: files by the hash of their bytes, and what they came from and fit.

    recipe.json            how it was trained, with every transform; whatever the trainer noted
    facts.json             the trainer's own small facts: signature, view
    weights/ROOT/*         safetensors of each root of the checkpoint's tree that the policy is read from
    views.json             how its training views were made: rate, image size, cameras
    tokenizer/FILE         the tokenizer of its prompts, where that is a file
    evaluations/NAME.json  reports of evaluations of this step
    lineage.json           parents, views, versions and episodes

The optimizer stays behind. A file names nothing of the step that it came from, so weights that did not change are the
same file: a release of adapters alone moves adapters alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final, get_args

import numpy as np

from mainspring.checkpoint import Checkpoint, read_manifest
from mainspring.checkpoint.exchange import StoredSource
from mainspring.checkpoint.format import Manifest, dtype_named
from mainspring.checkpoint.interop import ArraySource, ArraySpec, Block, Facts, Progress, Selected, part_of
from mainspring.checkpoint.safetensors import write_safetensors
from mainspring.data import Split, ViewManifest, open_view
from mainspring.data.features import ACTION, STATE
from mainspring.data.views.manifest import view_manifest
from mainspring.data.views.view import MappedRanges
from mainspring.domain.answers.policies.releases import (
    CameraPort,
    Embodiment,
    GateSeen,
    GateStanding,
    ReleaseFile,
    ReleaseLineage,
    RobotChannel,
)
from mainspring.domain.codec import decode, encode, to_plain
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.job import checkpoint_named
from mainspring.domain.wire import Part
from mainspring.objects import Blob, ObjectStore, fetch_blob
from mainspring.robots.evaluation.keeping import evaluations, gates
from mainspring.robots.releases.shelf import ReleaseShelf
from mainspring.train.recipe import Recipe
from mainspring.train.robots import BYTES

DTYPES = ("bfloat16", "float16", "float32")
PIECE_BYTES = 512 << 20  # A file of weights: large enough to be few, small enough for a robot's memory stick.
PARENTS_MAX = 1_000
TOKENIZER_BYTES_MAX = 64 << 20  # Gemma's is 4 MB.
UNASKED = "evaluation"  # What the gate is called that nobody has asked.
_WEIGHTS, _EMA, _ADAPTERS = "weights", "ema", "adapters"  # Roots of the trainer's state.
_HASHED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContents:
    """What a checkpoint gives a release.

    Args:
        moved_bytes: Of the files that the object store did not have.
    """

    files: tuple[ReleaseFile, ...]
    lineage: ReleaseLineage
    fits: Embodiment
    moved_bytes: int


def gates_seen(
    store: ObjectStore, job: JobId, step: int, wanted: Sequence[str], waived: dict[str, str]
) -> tuple[GateSeen, ...]:
    """Returns the gates that a release of a checkpoint stands on, those waived with their reasons.

    Args:
        wanted: Names of gates; none for all that were asked of it, and where none was, `UNASKED`.
        waived: Reasons by name.

    Raises:
        InvalidInput: What is waived is none of them.
    """
    known = {gate.name: gate for gate in gates(store, job, step)}
    names = list(dict.fromkeys(wanted or known or (UNASKED,)))
    for name in waived:
        if name not in names:
            raise InvalidInput("waive a gate", got=name[:80], wanted=f"one of {', '.join(names)}")
    return tuple(
        GateSeen(
            name=name,
            standing=GateStanding(known[name].verdict.value) if name in known else GateStanding.UNDECIDED,
            seen=known[name].seen if name in known else "nobody has asked it",
            waived=waived.get(name, ""),
        )
        for name in names
    )


def make_contents(
    store: ObjectStore,
    checkpoint: Checkpoint,
    *,
    dtype: str,
    cache: Path,
    progress: Progress = lambda done: None,
) -> ReleaseContents:
    """Puts a checkpoint's files into the object store, those that are not there, and returns what they are.

    Args:
        dtype: Of weights, "" for what they were trained in.
        cache: Folder for the view's table of episodes.
        progress: Told of bytes of weights as they are written.

    Raises:
        InvalidInput: The type is none that weights can have.
        NotFound: The tokenizer's file is not here.
        DamagedData: The checkpoint does not hold together.
    """
    if dtype and dtype not in DTYPES:
        raise InvalidInput("release weights", got=f"type {dtype[:40]!r}", wanted=f"one of {', '.join(DTYPES)}")
    manifest = checkpoint.manifest
    recipe, views = _recipe(manifest), _views(store, manifest)
    lineage, episodes = _lineage(store, manifest, views, cache)
    shelf = ReleaseShelf(store)
    state = dict(manifest.state)
    text = state.pop("recipe", None)
    if isinstance(text, str):
        shelf.add("recipe.json", text.encode())
    shelf.add("facts.json", _json(state))
    shelf.add("lineage.json", _json({**to_plain(lineage), "episode_ids": episodes}))
    if views:
        shelf.add(
            "views.json", _json([{"id": each.id, "version": each.version, "recipe": each.recipe} for each in views])
        )
    for report in evaluations(store, manifest.job):
        if report.step == manifest.step:
            shelf.add(f"evaluations/{report.name}.json", encode(report))
    if recipe is not None and recipe.data.tokenizer not in ("", BYTES):
        path = Path(recipe.data.tokenizer)
        shelf.add(f"tokenizer/{path.name}", _tokenizer(path))
    for root, source in _roots(StoredSource(checkpoint), recipe):
        cast = source if not dtype or root not in (_WEIGHTS, _EMA, _ADAPTERS) else _Cast(source, dtype)
        with tempfile.TemporaryDirectory(prefix="mainspring-release-") as folder:
            written = Path(folder) / "weights"
            write_safetensors(_Nameless(cast), written, progress=progress, file_bytes_max=PIECE_BYTES)
            for file in sorted(written.iterdir()):
                shelf.add_file(f"weights/{root}/{file.name}", file)
    files = tuple(sorted(shelf.files, key=lambda file: file.path))
    return ReleaseContents(files=files, lineage=lineage, fits=fits_of(views), moved_bytes=shelf.moved_bytes)


def fits_of(views: Sequence[ViewManifest]) -> Embodiment:
    """Returns what a policy that learned from views fits, as far as they say: they know no units.

    Of views of several kinds of robots it is empty: somebody says for which of them a release is.
    """
    found = [_fits(view) for view in views]
    return found[0] if found and all(each == found[0] for each in found) else Embodiment()


def _fits(view: ViewManifest) -> Embodiment:
    known = {camera.name: camera for camera in view.features.cameras}
    names = view.recipe.cameras if view.recipe.cameras is not None else tuple(known)
    columns = {column.name for column in view.features.columns}

    def channels(column: str) -> tuple[RobotChannel, ...]:
        return tuple(RobotChannel(name=name) for name in view.features.names(column)) if column in columns else ()

    return Embodiment(
        state=channels(STATE),
        action=channels(ACTION),
        rate_hz=view.recipe.rate_hz or 0.0,
        cameras=tuple(
            CameraPort(name=name, width=known[name].width, height=known[name].height) for name in names if name in known
        ),
    )


def _recipe(manifest: Manifest) -> Recipe | None:
    text = manifest.state.get("recipe")
    try:
        return decode(Recipe, text.encode()) if isinstance(text, str) else None
    except (InvalidMessage, InvalidInput):  # Somebody else's word.
        return None


def _views(store: ObjectStore, manifest: Manifest) -> tuple[ViewManifest, ...]:
    """Returns the views that a checkpoint was trained on, as far as they are there."""
    named = manifest.state.get("view")
    found = (view_manifest(store, id) for id in (named.split() if isinstance(named, str) else ()))
    return tuple(view for view in found if view is not None)


def _lineage(
    store: ObjectStore, manifest: Manifest, views: Sequence[ViewManifest], cache: Path
) -> tuple[ReleaseLineage, dict[str, list[str]]]:
    """Returns what a checkpoint came from, and the episodes of its views by split: their tables alone are read."""

    def fetched(blob: Blob) -> Path:
        return fetch_blob(store, blob, cache)

    parents: list[str] = []
    parent = manifest.lineage.parent
    while parent and parent not in parents and len(parents) < PARENTS_MAX:
        parents.append(parent)
        job, step = checkpoint_named(parent)
        try:
            parent = read_manifest(store, JobId(job), step or 0).lineage.parent
        except (NotFound, DamagedData):  # It was deleted since.
            break
    episodes = {
        f"{view.id} {split}": list(opened.episode_ids)
        for view in views
        for split in get_args(Split)
        if split in view.splits and view.splits[split].episodes
        for opened in (open_view(store, view.id, cache, split, files=fetched, ranges=MappedRanges(fetched)),)
    }
    lineage = ReleaseLineage(
        checkpoint=f"{manifest.job}@{manifest.step}",
        parents=tuple(parents),
        views=tuple(view.id for view in views),
        versions=tuple(dict.fromkeys((*(str(view.version) for view in views), *manifest.lineage.inputs))),
        episodes=sum(map(len, episodes.values())),
        code=manifest.lineage.code,
        commit=manifest.lineage.commit,
    )
    return lineage, episodes


def _roots(source: ArraySource, recipe: Recipe | None) -> Iterator[tuple[str, ArraySource]]:
    """Yields the roots of a checkpoint's tree that a policy is read from, each with its arrays."""
    unused: set[str] = set()
    if recipe is not None:
        thin = _ADAPTERS if recipe.ema_decay is None else _EMA
        used = {_WEIGHTS, thin} if recipe.lora is not None else {_WEIGHTS if recipe.ema_decay is None else _EMA}
        unused = {_WEIGHTS, _ADAPTERS, _EMA} - used
    by_root: dict[str, dict[ArraySpec, ArraySpec]] = {}
    for array in source.arrays:
        root = array.path.partition("/")[0]
        parts = (array.part, part_of(array.path, {}))  # Other programs say it by the name alone.
        if Part.OPTIMIZER not in parts and root not in unused:
            by_root.setdefault(root, {})[array] = array
    for root, chosen in by_root.items():
        yield root, Selected(source, chosen)


@final
class _Nameless:
    """A source that says nothing of where it is from, so that equal weights are equal files."""

    def __init__(self, source: ArraySource) -> None:
        self._source = source
        self.arrays = source.arrays
        self.facts = Facts()
        self.name = source.name

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        self._source.read(blocks)


@final
class _Cast:
    """A source whose floats are of another type."""

    def __init__(self, source: ArraySource, dtype: str) -> None:
        self._source = source
        self._own = {replace(array, dtype=dtype) if "float" in array.dtype else array: array for array in source.arrays}
        self.arrays = tuple(self._own)
        self.facts = source.facts
        self.name = source.name

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        read = [
            replace(each, array=array, elements=np.empty(each.elements.shape, dtype_named(array.dtype)))
            for each in blocks
            for array in (self._own[each.array],)
        ]
        self._source.read(read)
        for each, theirs in zip(blocks, read, strict=True):
            each.elements[...] = theirs.elements.astype(each.elements.dtype)


def _tokenizer(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= TOKENIZER_BYTES_MAX else b""
    except OSError as error:
        step = "make the release where the recipe's data.tokenizer is"
        raise NotFound("release a tokenizer", on=str(path), got=str(error.strerror), next_step=step) from error
    if size > TOKENIZER_BYTES_MAX:
        raise InvalidInput(
            "release a tokenizer", on=str(path), got=f"{size} bytes", wanted=f"at most {TOKENIZER_BYTES_MAX}"
        )
    return data


def _json(value: object) -> bytes:
    return (json.dumps(to_plain(value), sort_keys=True, indent=1) + "\n").encode()
