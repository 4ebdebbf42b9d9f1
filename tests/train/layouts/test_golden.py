"""What files of each layout hold, by lists written from their owners' code, which no table of ours made.

A line is a name and a shape; `{0,1}` stands for both blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mainspring.train.layouts.openpi import big_vision_layout, openpi_layout
from mainspring.train.layouts.rows import Layout, weights_from, weights_to
from mainspring.train.layouts.transformers import gemma_layout, lerobot_layout, paligemma_layout
from mainspring.train.models.arrays import drawn
from mainspring.train.models.shapes import GemmaRecipe, SiglipRecipe, VlaKind, VlaRecipe
from mainspring.train.models.vla import fresh_vla

GOLDEN = Path(__file__).parent / "golden"
BLOCKS = "{0,1}"


def policy(kind: VlaKind) -> VlaRecipe:
    """Returns a policy of which nearly no two sizes are alike."""
    return VlaRecipe(
        kind=kind,
        language=GemmaRecipe(width=10, mlp=28, depth=2, heads=4, kv_heads=2, head_dim=6, vocabulary=32),
        expert_width=8,
        expert_mlp=20,
        horizon=3,
        action_dim=5,
        prompt=(1,),
        prompt_length=4,
        image=SiglipRecipe(size=6, patch=3, width=12, mlp=18, depth=2, heads=3),
    )


PI0, PI05 = policy(VlaKind.PI0), policy(VlaKind.PI05)


def listed(name: str) -> dict[str, tuple[int, ...]]:
    lines = [line.split(": ") for line in (GOLDEN / f"{name}.txt").read_text().splitlines()]
    shapes = {path: tuple(int(size) for size in sizes.split()) for path, sizes in lines}
    return {path.replace(BLOCKS, block): shape for path, shape in shapes.items() for block in ("0", "1")}


def weights_of(kind: VlaKind, part: str) -> Any:
    shapes = jax.eval_shape(lambda: drawn(jax.random.key(0), fresh_vla(policy(kind))))
    weights = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    match part:
        case "all":
            return weights
        case "seeing":
            return {name: weights[name] for name in ("language", "image")}
        case _:
            return weights["language"]


@pytest.mark.parametrize(
    ("name", "layout", "kind", "part"),
    [
        ("openpi_pi0", openpi_layout(PI0), VlaKind.PI0, "all"),
        ("openpi_pi05", openpi_layout(PI05), VlaKind.PI05, "all"),
        ("lerobot_pi0", lerobot_layout(PI0), VlaKind.PI0, "all"),
        ("lerobot_pi05", lerobot_layout(PI05), VlaKind.PI05, "all"),
        ("big_vision", big_vision_layout(PI0), VlaKind.PI0, "seeing"),
        ("paligemma", paligemma_layout(PI0), VlaKind.PI0, "seeing"),
        ("gemma", gemma_layout(), VlaKind.PI0, "words"),
    ],
)
def test_arrays_of_a_layout_are_those_that_are_listed(name: str, layout: Layout, kind: VlaKind, part: str) -> None:
    weights = weights_of(kind, part)
    assert {path: array.shape for path, array in weights_to(layout, weights).items()} == listed(name)
    weights_from(layout, {path: np.zeros(shape) for path, shape in listed(name).items()}, weights)
