"""Weights through the files that their owners' own libraries write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.checkpoint.orbax import OrbaxSource
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.train.layouts.files import read_arrays
from mainspring.train.layouts.openpi import openpi_arrays, openpi_layout
from mainspring.train.layouts.rows import weights_from, weights_to
from mainspring.train.layouts.transformers import lerobot_layout
from mainspring.train.models.vla import fresh_vla
from tests.train.models.plain import small_params
from tests.train.models.test_vla import small

ocp = pytest.importorskip("orbax.checkpoint")
safetensors = pytest.importorskip("safetensors.numpy")


def nested(params: dict[str, Any], leaf: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, array in params.items():
        *folders, last = [*path.split("/"), *([leaf] if leaf else [])]
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = array
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("leaf", ["", "value"], ids=["released", "trained"])
def test_weights_that_orbax_wrote_as_openpi_has_them_are_read(tmp_path: Path, leaf: str) -> None:
    params, policy = small_params(kind="pi05", heads=4, kv_heads=1), small("pi05")
    ocp.PyTreeCheckpointer().save(tmp_path / "params", {"params": nested(params, leaf)})
    arrays = openpi_arrays(read_arrays(OrbaxSource(tmp_path / "params")))
    read, given = (weights_from(openpi_layout(policy), each, fresh_vla(policy)) for each in (arrays, params))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), read, given)))


def test_weights_that_safetensors_wrote_as_lerobot_has_them_are_read(tmp_path: Path) -> None:
    params, policy = small_params(kind="pi0", heads=4, kv_heads=1), small("pi0")
    given = weights_from(openpi_layout(policy), params, fresh_vla(policy))
    arrays = {name: np.ascontiguousarray(array) for name, array in weights_to(lerobot_layout(policy), given).items()}
    safetensors.save_file(arrays, tmp_path / "model.safetensors")
    stored = read_arrays(SafetensorsSource(tmp_path / "model.safetensors"))
    read = weights_from(lerobot_layout(policy), stored, fresh_vla(policy))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), read, given)))
