"""What others normalised by, beside their weights: openpi's `norm_stats.json`, and LeRobot's files.

LeRobot has them in a dataset's `meta/stats.json`, in the safetensors of its normaliser, and once had them among the
weights.
Source: openpi, `shared/normalize.py`; LeRobot, `policies/normalize.py` and `processor/normalize_processor.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.files import json_file
from mainspring.checkpoint.interop import Selected
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.train.layouts.files import read_arrays

FILE = "norm_stats.json"
WHAT = {  # By our names, what others call it.
    "state": r"state|observation\.state|normalize_inputs\.buffer_observation_state",
    "actions": r"actions?|normalize_targets\.buffer_action",
}
NUMBERS = ("mean", "std", "q01", "q99")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenStatistics:
    """Numbers of each dimension, by `mean`, `std`, `q01` and `q99`; some may be missing.

    Args:
        path: Where they were.
        state: Of states.
        actions: Of all steps of chunks.
    """

    path: str
    state: Mapping[str, NDArray[np.float64]]
    actions: Mapping[str, NDArray[np.float64]]


def read_statistics(path: Path) -> GivenStatistics:
    """Returns what a file, or the `norm_stats.json` of a folder, says of states and actions.

    Args:
        path: A JSON or safetensors file, or a folder.

    Raises:
        NotFound: There is no such file.
        InvalidInput: It says nothing of states or of actions, or no numbers.
        DamagedData: Its bytes are not what they should be.
    """
    file = path / FILE if path.is_dir() and (path / FILE).exists() else path
    if not file.exists():
        raise NotFound("read statistics", on=str(file), got="no such file")
    found: dict[str, dict[str, NDArray[np.float64]]] = {what: {} for what in WHAT}
    for name, number, value in _rows(file):
        for what, names in WHAT.items():
            if number in NUMBERS and re.fullmatch(names, name):
                found[what][number] = _vector(value, f"{name} {number} of {file}")
    for what, numbers in found.items():
        if not numbers:
            raise InvalidInput(
                "read statistics",
                on=str(file),
                got=f"none of {what}",
                wanted="openpi's norm_stats.json, or LeRobot's stats.json or safetensors",
            )
    return GivenStatistics(path=str(file), **found)


def _rows(file: Path) -> list[tuple[str, str, Any]]:
    """Returns what is measured, which number of it, and its value."""
    rows: list[tuple[str, str, Any]] = []
    if file.is_dir() or file.suffix == ".safetensors":
        source = SafetensorsSource(file)
        chosen = {array: array for array in source.arrays if array.path.endswith(NUMBERS)}
        for path, value in read_arrays(Selected(source, chosen)).items():
            name, _, number = path.replace("/", ".").rpartition(".")
            rows.append((name, number, value))
        return rows
    plain = json_file(file)
    inside = plain.get("norm_stats", plain)
    for name, numbers in inside.items() if isinstance(inside, dict) else ():
        if isinstance(numbers, dict):
            rows += [(name, number, value) for number, value in numbers.items() if value is not None]
    return rows


def _vector(value: Any, on: str) -> NDArray[np.float64]:
    try:
        vector = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("read statistics", on=on, got=str(error), wanted="a list of numbers") from error
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InvalidInput("read statistics", on=on, got=f"shape {vector.shape}", wanted="a list of finite numbers")
    return vector
