"""Whether a step fits a chip, how long it takes at best, and the smallest change with which it would fit.

A step is as long as what takes longest of it: operations, bytes to and from memory, or bytes over the links, each at
what the chip can do at most (a roofline). So times are the least that is possible, and shares of them the most.
Source: Williams, Waterman and Patterson, "Roofline", 2009; Chowdhery et al., "PaLM", 2022, appendix B (MFU).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import PolicyRecipe, Remat, Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.chips import ChipFigures, figures_of
from mainspring.train.plan.figures import StepFigures
from mainspring.train.plan.formulas.sharing import DeviceShare
from mainspring.train.plan.formulas.work import model_flops
from mainspring.train.plan.targets import GPUS_PER_NODE, Target
from mainspring.train.recipe import Recipe
from mainspring.train.state.splitting import sizes_of

COMPUTE, MEMORY = "compute", "memory"
PARTS_MAX = 64  # More parts of a batch than this help no memory that the model sees.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A recipe on some chips: what a step takes, and what it comes to.

    Args:
        figures: What it takes of each device.
        usable: Bytes of a device that a program may fill.
        seconds: Of `compute`, of `memory`, and of each axis of the mesh over its links, each alone.
        step_s: Of a step, at best.
        binds: What takes longest.
        mfu: Share of what the chips can compute that learning needs, 0 to 1, at best.
        dollars_per_1000_steps: None where nobody named a price.
    """

    recipe: Recipe
    target: Target
    figures: StepFigures
    usable: int
    seconds: Mapping[str, float]
    step_s: float
    binds: str
    mfu: float
    dollars_per_1000_steps: float | None = None

    @property
    def fits(self) -> bool:
        """Returns whether the peak is within what is usable."""
        return self.figures.memory.peak <= self.usable

    @property
    def samples_per_s(self) -> float:
        """Returns samples a second over all devices, at best."""
        return self.recipe.batch_size / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Fields of a recipe with other values.

    Args:
        fields: As `--set` takes them.
        recipe: The recipe with them.
    """

    fields: Mapping[str, object]
    recipe: Recipe


def estimated(
    recipe: Recipe,
    signature: Signature,
    target: Target,
    figures: StepFigures,
    *,
    dollars_per_chip_hour: float | None = None,
) -> Estimate:
    """Returns what a step's figures come to on some chips.

    Args:
        signature: What the data decides.
        figures: Of that recipe on that target.
        dollars_per_chip_hour: None where nobody named a price.

    Raises:
        NotFound: Nothing is known of the chip.
    """
    chip = figures_of(target.chip)
    seconds = {
        COMPUTE: figures.flops / chip.flops,
        MEMORY: figures.memory_traffic / chip.memory_bandwidth,
        **_axis_seconds(recipe, target, chip, figures.bytes_by_axis),
    }
    near = sum(seconds[axis] for axis in figures.bytes_by_axis if not _is_far(recipe, target, axis))
    far = sum(seconds[axis] for axis in figures.bytes_by_axis if _is_far(recipe, target, axis))
    step_s = max(seconds[COMPUTE], seconds[MEMORY], near, far)
    share = DeviceShare(recipe=recipe, signature=signature, chip=chip, devices=target.devices)
    dollars = None
    if dollars_per_chip_hour is not None:
        dollars = dollars_per_chip_hour * target.devices / chip.devices * step_s / 3_600 * 1_000
    return Estimate(
        recipe=recipe,
        target=target,
        figures=figures,
        usable=chip.usable,
        seconds=seconds,
        step_s=step_s,
        binds=_binding(seconds, near=near, far=far, recipe=recipe, target=target),
        mfu=model_flops(share) / (step_s * chip.flops * target.devices),
        dollars_per_1000_steps=dollars,
    )


def _binding(seconds: Mapping[str, float], *, near: float, far: float, recipe: Recipe, target: Target) -> str:
    alone = {COMPUTE: seconds[COMPUTE], MEMORY: seconds[MEMORY], "near": near, "far": far}
    binds = max(alone, key=lambda name: alone[name])
    if binds in (COMPUTE, MEMORY):
        return binds
    axes = [name for name in seconds if name not in (COMPUTE, MEMORY)]
    same = [axis for axis in axes if _is_far(recipe, target, axis) == (binds == "far")]
    return max(same, key=lambda axis: seconds[axis])


def _axis_seconds(
    recipe: Recipe, target: Target, chip: ChipFigures, bytes_by_axis: Mapping[str, float]
) -> dict[str, float]:
    """Returns how long each axis sends; of one that reaches far, those that are near to each other share the way."""
    sizes, near = sizes_of(recipe.mesh, target.devices), near_devices(target)
    found = {}
    for axis, sent in bytes_by_axis.items():
        found[axis] = sent / chip.near
        if _is_far(recipe, target, axis):
            names = list(sizes)
            inner = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
            found[axis] = max(found[axis], sent / max(1, near // inner) / chip.far)
    return found


def near_devices(target: Target) -> int:
    """Returns how many devices are near to each other: a slice of TPUs, a node of GPUs."""
    return target.devices // target.slices if figures_of(target.chip).is_tpu else GPUS_PER_NODE


def _is_far(recipe: Recipe, target: Target, axis: str) -> bool:
    """Returns whether an axis reaches beyond what is near."""
    sizes = sizes_of(recipe.mesh, target.devices)
    names = list(sizes)
    extent = math.prod(sizes[name] for name in names[names.index(axis) :])  # The last axis lies closest.
    return extent > near_devices(target)


def smallest_change(
    recipe: Recipe, signature: Signature, target: Target, *, figures: StepFigures | None = None
) -> Change | None:
    """Returns the first change that makes a step fit, of those that cost least; None where none of them does.

    In this order: share the state (`mesh.data`), compute again (`policy.compute.remat`), work in parts (`accumulate`),
    then a smaller batch; each alone, then all before it with it.

    Args:
        signature: What the data decides.
        figures: What the compiler said of the recipe as it is: what formulas miss there is added to each try.
    """
    usable, missed = figures_of(target.chip).usable, 0
    if figures is not None:
        missed = max(0, figures.memory.peak - analytic_figures(recipe, signature, target).memory.peak)
    for fields in _changes(recipe, target):
        other = with_fields(recipe, fields)
        try:
            need = analytic_figures(other, signature, target).memory.peak + missed
        except InvalidInput:
            continue  # These devices cannot share it so.
        if need <= usable:
            return Change(fields=fields, recipe=other)
    return None


def _changes(recipe: Recipe, target: Target) -> Iterator[dict[str, object]]:
    """Yields fields to try, those that cost least first."""
    sizes = sizes_of(recipe.mesh, target.devices)
    shared, remats, parts = _more_data(sizes), _more_remat(recipe), _more_parts(recipe, sizes)
    yield from shared
    yield from remats
    both = {**(shared[-1] if shared else {}), **(remats[-1] if remats else {})}
    if shared and remats:
        yield both
    yield from parts
    for each in parts if both else []:
        yield {**both, **each}
    batch = recipe.batch_size // 2
    while batch >= sizes["replica"] * sizes["data"]:
        yield {**both, "batch_size": batch, "accumulate": 1}
        batch //= 2


def _more_data(sizes: Mapping[str, int]) -> list[dict[str, object]]:
    """Returns layouts that share the state over more devices."""
    replica, data, found = sizes["replica"], sizes["data"], list[dict[str, object]]()
    for factor in range(2, replica + 1):
        if replica % factor == 0:
            found.append({"mesh.replica": replica // factor, "mesh.data": data * factor})
    return found


def _more_remat(recipe: Recipe) -> list[dict[str, object]]:
    if isinstance(recipe.policy, PolicyRecipe):
        return []
    order = list(Remat)
    return [{"policy.compute.remat": kind.value} for kind in order[order.index(recipe.policy.compute.remat) + 1 :]]


def _more_parts(recipe: Recipe, sizes: Mapping[str, int]) -> list[dict[str, object]]:
    rows = recipe.batch_size // (sizes["replica"] * sizes["data"])
    most = min(rows, PARTS_MAX)
    return [{"accumulate": parts} for parts in range(recipe.accumulate + 1, most + 1) if rows % parts == 0]


def with_fields(recipe: Recipe, fields: Mapping[str, object]) -> Recipe:
    """Returns a recipe with some fields replaced.

    Args:
        fields: By dotted paths, as `--set` takes them; those of `mesh`, `policy.compute` and the recipe's own.
    """
    mesh = {name.removeprefix("mesh."): value for name, value in fields.items() if name.startswith("mesh.")}
    own = {name: value for name, value in fields.items() if "." not in name}
    remat = fields.get("policy.compute.remat")
    policy = recipe.policy
    if remat is not None and not isinstance(policy, PolicyRecipe):
        policy = replace(policy, compute=replace(policy.compute, remat=Remat(remat)))
    return replace(recipe, mesh=replace(recipe.mesh, **mesh), policy=policy, **own)  # type: ignore[arg-type]
