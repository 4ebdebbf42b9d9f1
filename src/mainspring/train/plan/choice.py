"""Which layout of a recipe is best on some chips: tried on formulas, the few best confirmed by the compiler.

Every way to share the devices among the axes of a mesh is tried with each kind of recomputation, in the fewest parts
of a batch with which it fits. Of what fits, those stay that no other beats in both step time and memory. The
compiler's word replaces the formulas' for the fastest of them, one at a time; what it said once is kept, so a choice
that was broken off goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.train.models.shapes import PolicyRecipe, Remat, Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.estimate import Estimate, estimated, near_devices
from mainspring.train.plan.figures import StepFigures
from mainspring.train.plan.targets import Target
from mainspring.train.recipe import MeshRecipe, Recipe

CONFIRMED_MAX = 3
TENSOR_MAX = 16  # Heads and hidden features of today's policies are worth no more parts.
SEQUENCE_MAX = 8
PARTS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The layouts worth having on some chips.

    Args:
        front: What no other beats in both step time and memory, the fastest first; empty where nothing fits.
        tried: How many layouts were tried on formulas.
        said: Why the compiler did not confirm some of them, "" where it did or was not asked.
    """

    front: tuple[Estimate, ...]
    tried: int
    said: str = ""


def best_layouts(
    recipe: Recipe,
    signature: Signature,
    target: Target,
    *,
    confirm: Callable[[Recipe], StepFigures] | None = None,
    dollars_per_chip_hour: float | None = None,
) -> Choice:
    """Returns the layouts of a recipe that are worth having.

    Args:
        recipe: Its mesh, its parts of a batch and what it computes again are chosen; all else stays.
        signature: What the data decides.
        confirm: Asks the compiler, at most `CONFIRMED_MAX` times; None to believe the formulas.
        dollars_per_chip_hour: None where nobody named a price.

    Raises:
        NotFound: Nothing is known of the chip.
    """
    tried, fitting = 0, []
    for one in _layouts(recipe, target):
        found = None
        for parts in _parts(recipe, one.mesh):
            tried += 1
            try:
                figures = analytic_figures(replace(one, accumulate=parts), signature, target)
            except InvalidInput:
                continue  # These axes do not divide the batch, or an array.
            found = estimated(
                replace(one, accumulate=parts),
                signature,
                target,
                figures,
                dollars_per_chip_hour=dollars_per_chip_hour,
            )
            if found.fits:
                fitting.append(found)
                break
    front = pareto_front(fitting)
    if confirm is None:
        return Choice(front=front, tried=tried)
    asked, sound, said = 0, list[Estimate](), ""
    for each in front[:CONFIRMED_MAX]:
        try:
            figures = confirm(each.recipe)
        except InvalidInput as error:
            said = str(error)  # The compiler refuses it: its program is larger than the chip.
        except MainspringError as error:
            said = str(error)
            break
        else:
            sound.append(
                estimated(each.recipe, signature, target, figures, dollars_per_chip_hour=dollars_per_chip_hour)
            )
        asked += 1
    best = pareto_front([each for each in sound if each.fits])
    return Choice(front=(*best, *front[asked:]), tried=tried, said=said)


def pareto_front(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Returns those that no other beats in both step time and memory, the fastest first."""
    front: list[Estimate] = []
    for each in sorted(estimates, key=lambda each: (each.step_s, each.figures.memory.peak)):
        if not front or each.figures.memory.peak < front[-1].figures.memory.peak:
            front.append(each)
    return tuple(front)


def _layouts(recipe: Recipe, target: Target) -> Iterator[Recipe]:
    """Yields the recipe on every mesh of the target's devices, with each kind of recomputation."""
    for mesh in _meshes(recipe.mesh, target):
        one = replace(recipe, mesh=mesh, accumulate=1)
        if isinstance(one.policy, PolicyRecipe):
            yield one
            continue
        for remat in Remat:
            yield replace(one, policy=replace(one.policy, compute=replace(one.policy.compute, remat=remat)))


def _meshes(own: MeshRecipe, target: Target) -> Iterator[MeshRecipe]:
    devices, near = target.devices, near_devices(target)
    for tensor in _divisors(devices, most=min(TENSOR_MAX, near)):
        for sequence in _divisors(devices // tensor, most=SEQUENCE_MAX):
            left = devices // tensor // sequence
            for data in _divisors(left, most=left):
                yield replace(own, replica=left // data, data=data, sequence=sequence, tensor=tensor)


def _divisors(number: int, *, most: int) -> Iterator[int]:
    return (each for each in range(1, min(number, most) + 1) if number % each == 0)


def _parts(recipe: Recipe, mesh: MeshRecipe) -> Iterator[int]:
    rows = recipe.batch_size // (mesh.replica * mesh.data)
    return (parts for parts in range(1, min(rows, PARTS_MAX) + 1) if rows % parts == 0 and parts & (parts - 1) == 0)
