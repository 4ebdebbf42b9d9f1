"""Weights that a run begins with: from files, in one of the layouts that are known."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.orbax import OrbaxSource
from mainspring.checkpoint.safetensors import SafetensorsSource, is_safetensors
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.train.layouts.files import read_arrays
from mainspring.train.layouts.openpi import big_vision_layout, openpi_arrays, openpi_layout
from mainspring.train.layouts.rows import Layout, LayoutRow, arrays_found
from mainspring.train.layouts.transformers import gemma_layout, lerobot_arrays, lerobot_layout, paligemma_layout
from mainspring.train.models.shapes import LanguageRecipe, Policy, VlaRecipe
from mainspring.train.recipe import InitRecipe, LayoutName

MEAN = "ema/"  # Where mean weights are, which are those in use where a run has them.
OWN = "weights/"  # Where the weights are in the trainer's state, and so in its checkpoints and their exports.


def arrays_to_begin_with(init: InitRecipe, policy: Policy, ours: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Returns the weights that a run begins with, float32, by our paths; what stays fresh is not among them.

    Args:
        init: Where they are, and in whose layout.
        policy: The policy that they are for.
        ours: Shapes of its weights, by path.

    Raises:
        NotFound: There is no such file or folder.
        InvalidInput: It holds weights of another model, or the policy has no such layout.
        DamagedData: Its bytes are not what they should be.
        Unavailable: The disk does not answer.
    """
    arrays = _arrays(Path(init.path))
    name = init.layout or layout_of(arrays, init.path)
    layout = _layout(name, policy, ours)
    match name:
        case LayoutName.OPENPI:
            arrays = openpi_arrays(arrays)
        case LayoutName.MAINSPRING:  # Of a whole state's export, the optimizer is not of use.
            mean = {f"{OWN}{path.removeprefix(MEAN)}": arrays[path] for path in arrays if path.startswith(MEAN)}
            arrays = mean or {path: array for path, array in arrays.items() if path.startswith(OWN)}
        case LayoutName.LEROBOT:
            arrays = lerobot_arrays(arrays)
        case LayoutName.PALIGEMMA | LayoutName.BIG_VISION | LayoutName.GEMMA:
            pass
    return arrays_found(layout, arrays, ours, keep=init.keep)


NAMES = (  # What some array of each layout is called, the most telling first.
    (LayoutName.MAINSPRING, OWN),
    (LayoutName.OPENPI, "(params/)?PaliGemma/"),
    (LayoutName.LEROBOT, r"(model\.)?paligemma_with_expert\."),
    (LayoutName.BIG_VISION, "params/(llm|img)/"),
    (LayoutName.PALIGEMMA, r"(language_model|vision_tower)\."),
    (LayoutName.GEMMA, r"model\.(embed_tokens|layers)\."),
)


def layout_of(paths: Iterable[str], on: str) -> LayoutName:
    """Returns whose names arrays have.

    Args:
        paths: All of a checkpoint's.
        on: Where it is, for messages.

    Raises:
        InvalidInput: They are nobody's that is known.
    """
    known = list(paths)
    for name, pattern in NAMES:
        if any(re.match(pattern, path) for path in known):
            return name
    raise InvalidInput(
        "see whose weights these are",
        on=on,
        got=f"arrays such as {', '.join(known[:3]) or 'none'}"[:300],
        wanted=f"the names of {', '.join(name.value for name, _ in NAMES)}",
        next_step="set init.layout",
    )


def _layout(name: LayoutName, policy: Policy, ours: Mapping[str, Any]) -> Layout:
    if name is LayoutName.MAINSPRING:
        return Layout(rows=tuple(LayoutRow(theirs=f"{OWN}{path}", ours=(path,)) for path in ours))
    if name is LayoutName.GEMMA and isinstance(policy, LanguageRecipe):
        return gemma_layout()
    if name is LayoutName.GEMMA or not isinstance(policy, VlaRecipe):
        own = f" or {LayoutName.GEMMA.value}" if isinstance(policy, LanguageRecipe) else ""
        kind = "language model" if name is LayoutName.GEMMA else "VLA"
        raise InvalidInput(
            "begin with given weights",
            got=f"layout {name.value} for a policy that is no {kind}",
            wanted=f"layout {LayoutName.MAINSPRING.value}{own}",
        )
    match name:
        case LayoutName.OPENPI:
            return openpi_layout(policy)
        case LayoutName.LEROBOT:
            return lerobot_layout(policy)
        case LayoutName.PALIGEMMA:
            return paligemma_layout(policy)
        case LayoutName.BIG_VISION:
            return big_vision_layout(policy)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.exists():
        raise NotFound("begin with given weights", on=str(path), got="no such file or folder")
    if path.suffix != ".npz":
        return read_arrays(SafetensorsSource(path) if is_safetensors(path) else OrbaxSource(path))
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DamagedData("read weights", on=str(path), got=str(error), wanted="an .npz file of arrays") from error
