"""Formulas beside the compiler: of policies cut down, each with something that a plain one on one axis has not.

Peaks of programs this small are a few percent of what a real one has, and what the compiler keeps twice counts more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.compiled import compiled_figures
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import changed, recipe_named

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_spec("libtpu") is None, reason="no compiler for TPUs"),
]
SEEING = Signature(state_dim=14, action_dim=14, image_views=2, image_height=96, image_width=96)
NOTHING = Signature(state_dim=0, action_dim=0)
LANGUAGE = {"width": 256, "mlp": 1024, "depth": 4, "heads": 4, "kv_heads": 1, "head_dim": 64, "vocabulary": 2048}
VLA: dict[str, Any] = {
    "language": LANGUAGE,
    "expert_width": 128,
    "expert_mlp": 512,
    "image": {"size": 96, "patch": 12, "width": 192, "mlp": 768, "depth": 4, "heads": 4},
    "compute": {"numbers": "bfloat16"},
}
WORDS = {"language": {**LANGUAGE, "vocabulary": 32_768}, "horizon": 256}
ACT: dict[str, Any] = {
    "width": 128,
    "mlp": 512,
    "encoder_layers": 3,
    "style_layers": 2,
    "image": {"channels": [16, 32, 64, 128]},
}
SHARED = {"replica": 1, "data": 8}


@dataclass(frozen=True, kw_only=True)
class CutDown:
    """A policy cut down, and how far its peak may be off."""

    recipe: str
    changes: Mapping[str, Any]
    signature: Signature = SEEING
    chips: str = "v5p:2x2x2"
    slices: int = 1
    peak: float = 0.15


CASES = {
    "pi05": CutDown(
        recipe="vla_tiny",
        changes={"batch_size": 128, "mesh": SHARED, "policy": {**VLA, "kind": "pi05", "prompt_length": 64}},
    ),
    "accumulate": CutDown(
        recipe="vla_tiny", changes={"batch_size": 256, "mesh": SHARED, "accumulate": 4, "policy": VLA}
    ),
    "sequence": CutDown(
        recipe="vla_tiny",
        changes={"batch_size": 128, "mesh": {"replica": 1, "data": 4, "sequence": 2}, "policy": VLA},
    ),
    "slices": CutDown(
        recipe="vla_tiny",
        changes={"batch_size": 128, "mesh": {"replica": 2, "data": 4}, "policy": VLA},
        chips="v5p:2x2x1",
        slices=2,
    ),
    # Without recomputation, and with maps of convolutions, more depends on what the compiler keeps twice.
    "act": CutDown(recipe="act", changes={"batch_size": 64, "mesh": SHARED, "policy": ACT}, peak=0.25),
    "words": CutDown(recipe="gemma_2b", changes={"batch_size": 32, "mesh": SHARED, "policy": WORDS}, signature=NOTHING),
    "words by sequence": CutDown(
        recipe="gemma_2b",
        changes={"batch_size": 32, "mesh": {"replica": 2, "data": 2, "sequence": 2}, "policy": WORDS},
        signature=NOTHING,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_formulas_are_near_the_compiler(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    recipe = changed(recipe_named(case.recipe), case.changes)
    target = parsed_target(case.chips, slices=case.slices)
    said = compiled_figures(recipe, case.signature, target, cache=tmp_path)
    found = analytic_figures(recipe, case.signature, target)
    assert found.memory.peak == pytest.approx(said.memory.peak, rel=case.peak)
    assert found.memory.arguments == pytest.approx(said.memory.arguments, rel=0.01)
    assert found.flops == pytest.approx(said.flops, rel=0.02)
    assert found.bytes_by_axis == pytest.approx(said.bytes_by_axis, rel=0.05)
