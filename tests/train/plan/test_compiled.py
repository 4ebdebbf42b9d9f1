"""The compiler's word: of a model of two layers for eight TPUs that are not there."""

from __future__ import annotations

import fcntl
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mainspring.domain.errors import Busy, InvalidInput, Unavailable
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.compiled import compiled_figures, kept_figures
from mainspring.train.plan.figures import FiguresFrom, StepFigures
from mainspring.train.plan.targets import Target, parsed_target
from mainspring.train.recipe import Recipe, changed, recipe_named
from tests.train.layouts_of_mesh import LAYOUTS, SIGNATURE, recipe_with
from tests.train.sent_of_mesh import MESHES, least_sent

INSTALL = "no compiler for TPUs: python -m pip install --require-hashes -r locked/tpu-plan.txt"
needs_compiler = pytest.mark.skipif(find_spec("libtpu") is None, reason=INSTALL)
CHIPS = parsed_target("v5p:2x2x2")


def refusing(progress: float) -> None:
    raise AssertionError(f"something is compiled for {progress} s")


def asked(layout: str, cache: Path, *, target: Target = CHIPS, **more: Any) -> StepFigures:
    return compiled_figures(recipe_with(LAYOUTS[layout]), SIGNATURE, target, cache=cache, **more)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@needs_compiler
@pytest.mark.slow
def test_compiler_says_what_a_step_takes_and_is_asked_once(cache: Path) -> None:
    passed: list[float] = []
    figures = asked("fsdp", cache, progress=passed.append)
    assert passed == sorted(passed)
    assert figures.said_by is FiguresFrom.COMPILED
    # 226,192 numbers of 4 bytes in eight parts, but for three biases of 96, which eight does not divide.
    assert figures.memory.parameters == 904_768 // 8 + 3 * 96 * 4 * 7 // 8
    assert figures.memory.optimizer == 2 * figures.memory.parameters + 8  # Two moments of each, and two counts.
    assert figures.memory.aliased >= figures.memory.parameters + figures.memory.optimizer
    assert 0 < figures.memory.temporaries < 64 << 20
    assert figures.bytes_by_axis == pytest.approx(least_sent(MESHES["fsdp"]), rel=0.05)
    assert figures.flops == pytest.approx(40_947_712, rel=0.01)  # As XLA's program for CPUs has it.
    sizes = [each.size for each in figures.largest]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)
    assert (
        sum(each.source.partition(":")[0] in {"arrays.py", "transformer.py", "siglip.py"} for each in figures.largest)
        >= 4  # The rest are the compiler's own: among them what a step keeps until it is known to be good.
    )
    (said,) = cache.glob("*.log")
    assert "rematerialization" not in said.read_text()  # An array gathered, because the compiler could not cut it.
    assert asked("fsdp", cache, progress=refusing, deadline_s=0.5) == figures
    assert kept_figures(recipe_with(LAYOUTS["fsdp"]), SIGNATURE, CHIPS, cache=cache) == figures
    assert kept_figures(recipe_with(LAYOUTS["tensor"]), SIGNATURE, CHIPS, cache=cache) is None


def test_gpus_are_not_compiled_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"h100:8; wanted TPUs.*next: take the formulas' word for GPUs"):
        asked("fsdp", tmp_path / "cache", target=parsed_target("h100:8"))
    assert not list(tmp_path.iterdir())


@needs_compiler
@pytest.mark.slow
def test_compile_that_passes_its_deadline_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"compile a step; on v5p:2x2x2; got no answer after 1 s.*allow more time"):
        asked("fsdp", tmp_path, deadline_s=1.0)
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".log"}
    assert not list(tmp_path.glob("compile-*"))


@needs_compiler
@pytest.mark.slow
def test_compile_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"got 0\.\d GiB of this machine's memory; wanted at most 0\.05 GiB"):
        asked("fsdp", tmp_path, memory_gib_max=0.05)


@needs_compiler
@pytest.mark.slow
def test_compile_waits_for_another_and_says_so_at_its_deadline(tmp_path: Path) -> None:
    passed: list[float] = []
    with (tmp_path / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Busy, match="got another compile for 1 s"):
            asked("fsdp", tmp_path, deadline_s=1.0, progress=passed.append)
    assert passed == [0.5, 1.0]


@needs_compiler
@pytest.mark.slow
def test_recipe_that_does_not_fit_the_chips_is_refused_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"lay out a mesh; got 16 devices for replica=1 data=8"):
        asked("fsdp", tmp_path, target=parsed_target("v5p:2x2x4"))
    assert not list(tmp_path.glob("*.json"))


@needs_compiler
@pytest.mark.slow
def test_step_that_does_not_fit_a_chip_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    recipe = changed(recipe_with(LAYOUTS["one device"]), {"batch_size": 1 << 20})
    refused = r"got [\d.]+G of a device's memory needed at once; wanted at most 3\d\.\d*G"
    with pytest.raises(InvalidInput, match=refused):
        compiled_figures(recipe, SIGNATURE, parsed_target("v6e:1x1"), cache=tmp_path)
    with pytest.raises(InvalidInput, match=refused):
        kept_figures(recipe, SIGNATURE, parsed_target("v6e:1x1"), cache=tmp_path)


@needs_compiler
@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_pi0_fits_chips_that_its_weights_alone_would_fill(tmp_path: Path) -> None:
    recipe: Recipe = changed(recipe_named("pi0"), {"batch_size": 64, "mesh": {"replica": 1, "data": 64}})
    signature = Signature(state_dim=14, action_dim=14, image_views=3, image_height=224, image_width=224)
    # Six minutes of a core by itself; of one that all of `make soak` shares, an hour has not been enough.
    figures = compiled_figures(recipe, signature, parsed_target("v5p:4x4x4"), cache=tmp_path, deadline_s=3.5 * 3600)
    assert figures.memory.peak < 16 << 30
    assert figures.bytes_by_axis.keys() == {"data"}
