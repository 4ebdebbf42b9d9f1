"""Weights in the layouts of others, both ways, by tables: which of their arrays is which of ours, and how its axes lie.

A table's rows are data. `pattern` names axes by letters: `"(N H) D -> D N H"` says that theirs has two axes, the first
of which holds ours of N and H. What each letter measures follows from our own shapes, so that theirs are checked before
anything is moved. The table of each family of checkpoints is a file of its own.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.arrays import Weights, flattened, matching, with_given

_LOG = logging.getLogger(__name__)

PARTS = "P"  # The axis along which theirs holds several of ours.
LAYER = "L"
PADDING_MAX = (
    64  # Source: transformers, `convert_paligemma_weights_to_hf.py`: a word table's rows are a multiple of it.
)
NAMES_SHOWN = 8  # In an error: enough to see what kind of names they are.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """One kind of array.

    Args:
        theirs: Its path in their layout; with `{}` where a number of a layer stands, if each layer has its own.
        ours: Its path in our tree; several where theirs holds several of ours along axis `P`.
        pattern: Axes of theirs, `->`, axes of ours; empty where both lie alike.
        padded: Whether theirs may have up to `PADDING_MAX` rows more than ours, which are cut off when read, said in
            the log, and not written.
    """

    theirs: str
    ours: tuple[str, ...]
    pattern: str = ""
    padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All that a family of checkpoints may hold.

    Args:
        rows: What is read and written.
        instead: From names under which a checkpoint may hold an array once more, or alone, to the array's own.
        unused: Arrays that a checkpoint may hold and that no model reads; they are not written.
    """

    rows: tuple[LayoutRow, ...]
    instead: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """How one row's axes lie, with their sizes.

    Args:
        theirs: Shape of their array.
        apart: Shape of their array with no two axes in one.
        order: Axes of `apart` that make ours: that of the parts first, then ours in order.
        ours: Shape of the parts side by side, as ours.
        layers: How many of their arrays make one of ours; 0 where one does.
    """

    theirs: tuple[int, ...]
    apart: tuple[int, ...]
    order: tuple[int, ...]
    ours: tuple[int, ...]
    layers: int


def weights_from(layout: Layout, arrays: Mapping[str, Any], like: Weights, *, keep: Sequence[str] = ()) -> Weights:
    """Returns the weights in a checkpoint of another layout, float32.

    Args:
        layout: What its arrays are.
        arrays: The checkpoint's, by path.
        like: Arrays of the model that the weights are for; shapes do where none are kept.
        keep: Of what stays as it is in `like`, whatever the checkpoint holds: regular expressions, each of whole paths.

    Raises:
        InvalidInput: An array is missing, left over, or of another shape than the model needs; or a pattern keeps
            nothing.
    """
    return with_given(like, arrays_found(layout, arrays, flattened(like), keep=keep))


def arrays_found(
    layout: Layout, arrays: Mapping[str, Any], ours: Mapping[str, Any], *, keep: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Returns all that `weights_from` takes from a checkpoint, by our paths.

    Args:
        layout: As there.
        arrays: As there.
        ours: Arrays or shapes of the model, by path.
        keep: As there.

    Raises:
        InvalidInput: As there.
    """
    kept = matching(keep, ours, "keep weights")
    rows = [row for row in layout.rows if not kept >= set(row.ours)]
    _check_names([*kept, *(path for row in rows for path in row.ours)], ours, "fill a model from another layout")
    arrays = {**{own: arrays[name] for name, own in layout.instead.items() if name in arrays}, **arrays}
    needless = {*layout.instead, *layout.unused}.union(*(_names(row, ours) for row in layout.rows if row not in rows))
    _check_names([name for row in rows for name in _names(row, ours)], arrays.keys() - needless, "read weights")
    found: dict[str, NDArray[Any]] = {}
    for row in rows:
        axes = _axes(row, ours)
        stack = []
        for name in _names(row, ours):
            array = _cut(name, arrays[name], axes.theirs) if row.padded else np.asarray(arrays[name])
            if array.shape != axes.theirs:
                raise InvalidInput("read weights", on=name, got=f"shape {array.shape}", wanted=f"{axes.theirs}")
            stack.append(array.astype(np.float32).reshape(axes.apart))
        whole = np.stack(stack) if axes.layers else stack[0]
        parts = whole.transpose(axes.order).reshape(axes.ours)
        found.update(zip(row.ours, parts, strict=True))
    return {path: array for path, array in found.items() if path not in kept}


def weights_to(layout: Layout, weights: Weights) -> dict[str, NDArray[Any]]:
    """Returns our weights as arrays of another layout, by path.

    Args:
        layout: What its arrays are.
        weights: Ours.

    Raises:
        InvalidInput: The layout is that of another model.
    """
    ours = flattened(weights)
    _check_names([path for row in layout.rows for path in row.ours], ours, "write weights in another layout")
    arrays: dict[str, NDArray[Any]] = {}
    for row in layout.rows:
        axes = _axes(row, ours)
        parts = np.stack([np.asarray(ours[path]) for path in row.ours])
        stack = (axes.layers,) if axes.layers else ()
        apart = (*stack, *axes.apart)
        whole = parts.reshape([apart[axis] for axis in axes.order]).transpose(np.argsort(axes.order))
        theirs = whole.reshape((*stack, *axes.theirs))
        arrays.update(zip(_names(row, ours), theirs if axes.layers else [theirs], strict=True))
    return arrays


def _cut(name: str, given: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Returns an array without the rows that pad it, and says how many these are and whether they hold anything."""
    array: NDArray[Any] = np.asarray(given)
    more = len(array) - shape[0]
    if not 0 < more <= PADDING_MAX:
        return array
    level = logging.WARNING if array[shape[0] :].any() else logging.INFO
    kind = "numbers that no model here reads" if level == logging.WARNING else "zeros"
    _LOG.log(level, "%s: of %d rows the last %d are left out, %s", name, len(array), more, kind)
    return array[: shape[0]]


def _names(row: LayoutRow, ours: Mapping[str, Any]) -> list[str]:
    """Returns the paths of all of their arrays that a row speaks of."""
    if "{}" not in row.theirs or row.ours[0] not in ours:
        return [row.theirs]
    return [row.theirs.format(layer) for layer in range(ours[row.ours[0]].shape[0])]


def _axes(row: LayoutRow, ours: Mapping[str, Any]) -> _Axes:
    shape = tuple(ours[row.ours[0]].shape)
    own = [chr(ord("a") + axis) for axis in range(len(shape))]  # Where both lie alike, any letters do.
    left, right = row.pattern.split(" -> ") if row.pattern else (" ".join(own), " ".join(own))
    letters = right.split()
    assert len(letters) == len(shape), row
    size = {**dict(zip(letters, shape, strict=True)), PARTS: len(row.ours), "1": 1}
    groups = [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", left)]
    stacked = [LAYER] if "{}" in row.theirs else []
    apart = [letter for group in groups for letter in group]
    flat = [*stacked, *apart]
    order = [axis for axis, letter in enumerate(flat) if letter not in letters]  # Axes of one, and of the parts.
    order += [flat.index(letter) for letter in letters]
    return _Axes(
        theirs=tuple(math.prod(size[letter] for letter in group) for group in groups),
        apart=tuple(size[letter] for letter in apart),
        order=tuple(order),
        ours=(len(row.ours), *shape),
        layers=size[LAYER] if stacked else 0,
    )


def _check_names(wanted: Iterable[str], got: Iterable[str], action: str) -> None:
    missing, left = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    if missing or left:
        raise InvalidInput(
            action,
            got=f"{len(missing)} arrays missing ({_shown(missing)}), {len(left)} left over ({_shown(left)})",
            wanted="each array of the layout once",
            next_step="name the model that these weights are of",
        )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "") if names else "none"
