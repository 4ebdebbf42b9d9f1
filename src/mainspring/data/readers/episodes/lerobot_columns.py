"""Decides which of a LeRobot dataset's columns and cameras an episode has here, and under which names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa

from mainspring.data.features import ACTION, STATE, Camera, Column, Features
from mainspring.data.options import NEXT, IngestOptions
from mainspring.data.readers.episodes.lerobot_info import DIMS_MAX, NAME_MAX, Feature, Info
from mainspring.data.readers.episodes.shaping import own_name, wanted_parts
from mainspring.domain.errors import InvalidInput

LEROBOT_STATE = "observation.state"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # Told by an episode's own parts.
_NUMBERS = re.compile(r"(u?int(8|16|32|64)|float(16|32|64)?|double|bool)")
_TEXTS = ("string", "large_string", "language")
_VIDEO, _IMAGE = "video", "image"
# Names in use for the two columns that a policy cannot do without: openpi's first, then those of other converters.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    STATE: ("state", "observation/state", "observations/state", "observation.states", "states", "proprio"),
    ACTION: ("actions", "action/actions", "observation.action"),
}
_LIKELY = {STATE: re.compile(r"state|proprio|qpos|joint|pose", re.I), ACTION: re.compile(r"action|cmd|command", re.I)}
_NAMED_MAX = 12


class Kept(Enum):
    """Where a camera's pictures are."""

    VIDEO = "video"
    PARQUET = "parquet"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPart:
    """A column here.

    Args:
        name: Its name.
        parts: The dataset's columns that it is, side by side.
        names: Of its dimensions.
    """

    name: str
    parts: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotCamera:
    """A camera here.

    Args:
        name: Its name.
        key: The dataset's name of it.
        kept: Where its pictures are.
        height: Pixels, as far as it is said; the file decides.
        width: The same.
    """

    name: str
    key: str
    kept: Kept
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """What every episode of a dataset has.

    Args:
        columns: In name order.
        cameras: In name order.
        texts: Columns of words.
        action: The column whose next value stands for the action; "" where the dataset has one.
        notes: What was chosen that its owner may want to know, a clause each.
        problems: Why no episode can be read, a clause each, with the option that would let it in.
    """

    columns: tuple[ColumnPart, ...]
    cameras: tuple[LeRobotCamera, ...]
    texts: tuple[str, ...]
    action: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = field(default=(), compare=False)

    @property
    def features(self) -> Features:
        """Returns what each step holds, with the sizes that are said of the cameras."""
        columns = [Column(name=part.name, names=part.names) for part in self.columns]
        columns += [Column(name=ACTION, names=part.names) for part in self.columns if part.name == self.action]
        return Features(
            columns=tuple(sorted(columns, key=lambda column: column.name)),
            cameras=tuple(Camera(name=part.name, height=part.height, width=part.width) for part in self.cameras),
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Returns the dataset's names of the columns that are read as numbers."""
        return tuple(dict.fromkeys(key for part in self.columns for key in part.parts))

    def without(self, keys: Sequence[str], note: str) -> ColumnPlan:
        """Returns the plan without some cameras.

        Args:
            keys: The dataset's names of them.
            note: Why.
        """
        return replace(
            self, cameras=tuple(part for part in self.cameras if part.key not in keys), notes=(*self.notes, note)
        )


def planned(info: Info, kinds: Mapping[str, pa.DataType], options: IngestOptions) -> ColumnPlan:
    """Returns what the episodes of a dataset have; problems are collected, so that all are told at once.

    Args:
        info: What is said of the dataset.
        kinds: Columns that its files have; none when no file could be read.
        options: What is said of it by whoever takes it in.

    Raises:
        InvalidInput: A name in the options has no form.
    """
    made = _Making(info, kinds, options)
    made.map_names()
    made.recognise()
    made.rest()
    return made.plan()


class _Making:
    """Sorts features into columns, cameras and words, one after the other."""

    def __init__(self, info: Info, kinds: Mapping[str, pa.DataType], options: IngestOptions) -> None:
        self._info, self._kinds, self._options = info, kinds, options
        self._columns: dict[str, ColumnPart] = {}
        self._cameras: dict[str, LeRobotCamera] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._used: set[str] = set()
        self._dropped: set[str] = set()
        self._dims = {key: dims for key in info.features if (dims := self._dimensions(key))}
        self._images = [key for key, feature in info.features.items() if feature.dtype in (_VIDEO, _IMAGE)]

    def map_names(self) -> None:
        """Takes what the options name."""
        for ours, parts in wanted_parts(self._options).items():
            if all(part in self._dims for part in parts):
                self._take(ours, parts)
            elif len(parts) == 1 and parts[0] in self._images:
                self._take_camera(ours, parts[0])
            else:
                unknown = [part for part in parts if part not in self._dims]
                self._problems.append(
                    f"--map {ours}={'+'.join(parts)}: no {', '.join(unknown)} among {self._candidates()}"[:600]
                )

    def recognise(self) -> None:
        """Finds the state and the action where nobody named them."""
        for ours in (STATE, ACTION):
            plain = LEROBOT_STATE if ours == STATE else ours
            if ours in self._columns:
                continue
            if plain in self._dims:
                self._take(ours, (plain,))
                continue
            known = [key for key in _ALIASES[ours] if key in self._dims and key not in self._used]
            prefix = "observation" if ours == STATE else "action"
            likely = known or [key for key in self._free() if key.startswith(prefix) and self._dims[key] > 1]
            if len(likely) == 1:
                self._take(ours, (likely[0],))
                self._notes.append(f"{likely[0]} taken as the {ours}")
            elif ours == ACTION and self._options.action:
                continue
            else:
                self._problems.append(self._missing(ours, plain, likely))

    def rest(self) -> None:
        """Takes every other column of numbers and every camera that is wanted, under their own names."""
        self._dropped = {key for key in self._free() if key in self._options.without_cameras}
        for key in self._free():
            if key != STATE and own_name(key) not in self._columns and key not in self._dropped:
                self._take(key, (key,))
        for key in self._images:
            if key not in self._used and key not in self._cameras:
                self._take_camera(key, key)
        if self._kinds:
            absent = [key for key in self._info.features if key not in (*self._images, *self._kinds, *BOOKKEEPING)]
            extra = [key for key in self._kinds if key not in self._info.features and key not in BOOKKEEPING]
            kept = (*self._used, *self._dropped, *absent, *BOOKKEEPING)
            other = [f"{key} ({feature.dtype})" for key, feature in self._info.features.items() if key not in kept]
            other = [said for said in other if not self._is_text(said.rpartition(" (")[0])]
            for said, keys in (
                ("declared, but not in its files", absent),
                ("not declared, left out", extra),
                ("neither numbers nor words, left out", other),
            ):
                keys = [key for key in keys if not key.startswith("__")]
                if keys:
                    self._notes.append(f"{said}: {_listed(keys)}")

    def plan(self) -> ColumnPlan:
        """Returns what was found."""
        cameras = {name: part for name, part in self._cameras.items() if self._options.takes(name)}
        if unknown := sorted(set(self._options.cameras or ()) - set(self._cameras)):
            have = _listed(sorted(self._cameras)) or "none"
            self._problems.append(f"--camera {unknown[0]}: no such camera, there are {have}")
        if unknown := sorted(set(self._options.without_cameras) - set(self._cameras) - self._dropped):
            self._notes.append(f"no camera {_listed(unknown)} to leave out")
        action = ""
        if self._options.action and ACTION not in self._columns:
            action = own_name(self._options.action.removeprefix(NEXT))
            named = next((part.name for part in self._columns.values() if part.parts == (action,)), action)
            if named not in self._columns:
                self._problems.append(f"--action {NEXT}{action}: no such column, there are {self._candidates()}")
            action = named
            self._notes.append(f"action is {named} at the next step")
        return ColumnPlan(
            columns=tuple(self._columns[name] for name in sorted(self._columns)),
            cameras=tuple(cameras[name] for name in sorted(cameras)),
            texts=tuple(key for key in self._info.features if self._is_text(key)),
            action=action if action in self._columns else "",
            notes=tuple(self._notes),
            problems=tuple(self._problems),
        )

    def _take(self, ours: str, parts: tuple[str, ...]) -> None:
        names = [name for part in parts for name in dimension_names(self._info.features[part], part, self._dims[part])]
        if parts == (LEROBOT_STATE,) and ours == STATE:  # Its dimensions without names are "state_0" and so on.
            names = list(dimension_names(self._info.features[parts[0]], STATE, self._dims[parts[0]]))
        self._columns[ours] = ColumnPart(name=ours, parts=parts, names=tuple(names))
        self._used.update(parts)

    def _take_camera(self, ours: str, key: str) -> None:
        feature = self._info.features[key]
        kept = Kept.VIDEO if feature.dtype == _VIDEO else Kept.PARQUET
        if kept is Kept.PARQUET and self._kinds and key not in self._kinds:
            kept = Kept.FILES
        height, width = said_size(feature)
        self._cameras[ours] = LeRobotCamera(name=ours, key=key, kept=kept, height=height, width=width)
        self._used.add(key)

    def _free(self) -> list[str]:
        return [key for key in self._dims if key not in self._used and key not in BOOKKEEPING]

    def _dimensions(self, key: str) -> int:
        """Returns how many numbers a column has at each step; 0 when it is no column of numbers, or not there."""
        feature = self._info.features[key]
        if not _NUMBERS.fullmatch(feature.dtype) or (self._kinds and key not in self._kinds):
            return 0
        shape = feature.shape if feature.shape is not None else _shape_of(self._kinds.get(key))
        dims = math.prod(shape or ())
        return dims if dims <= DIMS_MAX else 0

    def _is_text(self, key: str) -> bool:
        return self._info.features[key].dtype in _TEXTS and (not self._kinds or key in self._kinds)

    def _missing(self, ours: str, plain: str, likely: list[str]) -> str:
        among = likely or sorted(self._free(), key=lambda key: (not _LIKELY[ours].search(key), self._dims[key] < 2))
        if likely or any(_LIKELY[ours].search(key) and self._dims[key] > 1 for key in among):
            return f"no {plain}: --map {plain}={among[0]} takes it, of {self._candidates(among)}"
        if ours == ACTION and STATE in self._columns:
            return f"no {plain}: --action {NEXT}{LEROBOT_STATE} takes the next step's state for it"
        return f"no {plain}: --map {plain}=COLUMN says which it is, of {self._candidates(among)}"

    def _candidates(self, keys: Sequence[str] = ()) -> str:
        found = [f"{key} ({self._dims[key]})" for key in keys or self._dims if key not in BOOKKEEPING]
        return _listed(found) or "no column of numbers"


def dimension_names(feature: Feature, prefix: str, dims: int) -> tuple[str, ...]:
    """Returns names of dimensions however they are nested: a list, one for each axis, or lists under a kind of motor.

    Args:
        feature: The column.
        prefix: What dimensions without names are called by, with their places.
        dims: How many they are.
    """
    shape = feature.shape or ()
    per_axis = [list(_flat_names(axis)) for axis in (feature.names if isinstance(feature.names, list) else [])]
    if len(shape) > 1 and [len(axis) for axis in per_axis] == list(shape):
        return tuple(".".join(parts)[:NAME_MAX] for parts in itertools.product(*per_axis))
    flat = list(_flat_names(feature.names))
    if len(flat) == dims:
        return tuple(flat)
    if len(shape) > 1:
        places = itertools.product(*(range(side) for side in shape))
        return tuple(f"{prefix}_{'_'.join(map(str, place))}" for place in places)
    return tuple(f"{prefix}_{dim}" for dim in range(dims))


def said_size(feature: Feature) -> tuple[int, int]:
    """Returns a camera's height and width as they are said, channels first or last; zeros where nothing is.

    Args:
        feature: The camera.
    """
    if feature.height and feature.width:
        return feature.height, feature.width
    shape = feature.shape or ()
    names = [str(name) for name in feature.names] if isinstance(feature.names, list) else []
    named = dict(zip(names, shape, strict=False))
    if named.get("height") and named.get("width"):
        return named["height"], named["width"]
    if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        return shape[1], shape[2]
    return (shape[0], shape[1]) if len(shape) in (2, 3) else (0, 0)


def _flat_names(names: object) -> Iterator[str]:
    pending = [names]
    while pending:
        first = pending.pop(0)
        if isinstance(first, str):
            yield first[:NAME_MAX]
        elif isinstance(first, (list, Mapping)):
            pending[:0] = list(first.values() if isinstance(first, Mapping) else first)


def _shape_of(kind: pa.DataType | None) -> tuple[int, ...]:
    """Returns the shape of a column's cells as far as its type tells."""
    sides: list[int] = []
    while kind is not None and pa.types.is_fixed_size_list(kind):
        sides.append(kind.list_size)
        kind = kind.value_type
    return tuple(sides)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def checked(plan: ColumnPlan, root: str) -> ColumnPlan:
    """Returns a plan by which episodes can be read.

    Args:
        plan: The plan.
        root: Of the dataset, for messages.

    Raises:
        InvalidInput: It has problems: all of them are told.
    """
    if plan.problems:
        raise InvalidInput(
            "read a LeRobot dataset", on=root, got="; ".join(plan.problems), wanted="a state and an action"
        )
    return plan
