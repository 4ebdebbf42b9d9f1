"""What a job's recipe needs of the chips that its spec accepts, told before it is submitted: where the recipe is, here.

A role whose command is `... mainspring train ... --recipe NAME` names a recipe; of others nothing is known. The
compiler's word is taken where `ms recipe plan` has asked it before, else that of formulas, which takes milliseconds.
What the compiler says does not fit is refused; what formulas say is only told.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mainspring.app.base.home import Home
from mainspring.app.sdk.recipes import SIGNATURE_FORM, signature_for
from mainspring.domain.errors import InvalidInput, InvalidSpec, MainspringError
from mainspring.domain.hardware.chips import published_memory_gib
from mainspring.domain.job import JobSpec, Option
from mainspring.train.models.shapes import LanguageRecipe
from mainspring.train.naming import find_recipe
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.chips import ALIASES, GIB, figures_of
from mainspring.train.plan.compiled import kept_figures
from mainspring.train.plan.estimate import Estimate, estimated, smallest_change
from mainspring.train.plan.figures import FiguresFrom
from mainspring.train.plan.targets import CHIPS, FLAT, OTHER_NAMES, SMALL_3D, Target
from mainspring.train.recipe import Recipe, changed

PROGRAM = ("mainspring", "train")
NAMES = {**OTHER_NAMES, **ALIASES}  # Of chips, as fleets name them.
SAID_BY = {FiguresFrom.ANALYTIC: "formulas", FiguresFrom.COMPILED: "the compiler"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSpec:
    """A spec with what plans of its recipes say.

    Args:
        spec: Options that named no memory of a chip have what their plan needs, those that named no speed its speed.
        told: A line for each option that was planned: who says what.
        doubts: Why some may not run; a job is submitted all the same.
    """

    spec: JobSpec
    told: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def planned(spec: JobSpec, home: Home) -> PlannedSpec:
    """Returns a spec with what is known of its recipes on the chips it accepts.

    Args:
        spec: What somebody wants run.
        home: Its cache has what the compiler said.

    Raises:
        InvalidSpec: The compiler said that a recipe does not fit one of its options.
    """
    roles, told, doubts = [], list[str](), list[str]()
    for role in spec.roles:
        try:
            recipe = recipe_in(role.command)
        except MainspringError as error:
            doubts.append(f"{role.name} was not planned: {error}")
            recipe = None
        if recipe is None:
            roles.append(role)
            continue
        found = _Plans(recipe, home)
        options = tuple(found.planned(option, role.spares) for option in role.options)
        roles.append(replace(role, options=found.with_speeds(options)))
        told += found.told
        doubts += found.doubts
    return PlannedSpec(spec=replace(spec, roles=tuple(roles)), told=tuple(told), doubts=tuple(doubts))


def recipe_in(command: Sequence[str]) -> Recipe | None:
    """Returns the recipe that a command of our training program names, as that reads it; None for other programs.

    Args:
        command: Program and arguments.

    Raises:
        NotFound: There is no such recipe.
        InvalidInput: Its changes are not what fields take.
    """
    places = [place for place in range(len(command) - 1) if tuple(command[place : place + 2]) == PROGRAM]
    if not places:
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--recipe", default="")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--changes", type=json.loads, default={})
    try:
        words, _ = parser.parse_known_args(list(command[places[0] + 2 :]))
    except argparse.ArgumentError as error:
        raise InvalidInput("read the recipe of a command", got=str(error), wanted="--recipe NAME") from error
    if not words.recipe:
        return None
    if not isinstance(words.changes, dict):
        raise InvalidInput("read the recipe of a command", got="--changes of no fields", wanted="fields, as JSON")
    return changed(find_recipe(words.recipe), {**words.changes, **({"steps": words.steps} if words.steps else {})})


def target_of(option: Option, spares: int) -> Target | None:
    """Returns the chips that an option asks for, None where a plan knows nothing of them.

    Args:
        option: Of a role.
        spares: How many of its replicas stand by.
    """
    chip, chips = NAMES.get(option.chip, option.chip), option.chips * (option.replicas - spares)
    if chip not in CHIPS or option.chips % 1 or chips < 1:
        return None
    count = int(chips)
    shapes: list[tuple[int, ...]] = [(count,)]
    if option.slice:
        shapes = [tuple(int(edge) for edge in option.slice.split("x") if edge.isdecimal())]
    elif CHIPS[chip].tpu:
        shapes = [*FLAT, *SMALL_3D, *_cubes(count)]
    for shape in shapes:
        size: int = math.prod(shape)
        slices, rest = divmod(count, size) if size else (0, 1)
        whole = not rest and (slices == 1 or bool(option.slice))
        if whole and CHIPS[chip].exists(shape):
            try:
                return Target(chip=chip, topology=shape, slices=slices)
            except InvalidInput:
                return None
    return None


def _cubes(count: int) -> list[tuple[int, ...]]:
    """Returns shapes of so many chips in three dimensions, the most compact first."""
    edges = [edge for edge in range(4, count + 1, 4) if count % edge == 0]
    found = [(a, b, count // a // b) for a in edges for b in edges if a <= b and count % (a * b) == 0]
    return sorted((shape for shape in found if shape[2] >= shape[1]), key=sum)


class _Plans:
    """What is said of one recipe on some options."""

    def __init__(self, recipe: Recipe, home: Home) -> None:
        self._recipe, self._cache = recipe, home.cache / "plans"
        self._signature = signature_for(recipe)
        self._speeds: list[float | None] = []
        self.told: list[str] = []
        self.doubts: list[str] = []

    def planned(self, option: Option, spares: int) -> Option:
        """Returns an option with the memory that each of its chips must have.

        Raises:
            InvalidSpec: The compiler said that the recipe does not fit it.
        """
        self._speeds.append(None)
        target = target_of(option, spares)
        if target is None:
            return option
        name = f"{self._recipe.name} on {target.name}{f' x {target.slices}' if target.slices > 1 else ''}"
        try:
            figures = kept_figures(self._recipe, self._signature, target, cache=self._cache)
        except InvalidInput as error:
            raise self._refused(name, target, error.got) from error
        try:
            known = figures or analytic_figures(self._recipe, self._signature, target)
            found = estimated(self._recipe, self._signature, target, known)
        except MainspringError as error:
            self.doubts.append(f"{name} cannot run as it is: {error}")
            return option
        short = (known.memory.peak - found.usable) / GIB
        if short > 0 and figures is not None:
            raise self._refused(name, target, f"short by {short:.1f} GiB a chip")
        self._tell(name, found)
        if short > 0:
            self.doubts.append(f"{name} may be short by {short:.1f} GiB a chip; {self._helps(target)}")
            return option
        self._speeds[-1] = found.samples_per_s / (target.devices // CHIPS[target.chip].devices_per_chip)
        return option if option.chip_memory_gib else replace(option, chip_memory_gib=_asked_gib(found))

    def with_speeds(self, options: tuple[Option, ...]) -> tuple[Option, ...]:
        """Returns options with the plan's relative speeds, where nobody named any and all are known."""
        speeds = [speed for speed in self._speeds if speed is not None]
        if len(speeds) < len(options) or any(option.speed != 1.0 for option in options):
            return options
        best = max(speeds)
        return tuple(
            replace(option, speed=round(speed / best, 3)) for option, speed in zip(options, speeds, strict=True)
        )

    def _tell(self, name: str, found: Estimate) -> None:
        memory = f"{found.figures.memory.peak / GIB:.1f} of {found.usable / GIB:.1f} GiB a chip"
        self.told.append(
            f"{name}: {memory}, at best {found.samples_per_s:,.0f} samples a second, by "
            f"{SAID_BY[found.figures.said_by]}{self._robot}"
        )

    @property
    def _robot(self) -> str:
        return "" if isinstance(self._recipe.policy, LanguageRecipe) else f", of data as {SIGNATURE_FORM}"

    def _refused(self, name: str, target: Target, got: str) -> InvalidSpec:
        return InvalidSpec(
            "submit a job",
            on=name,
            got=f"{got}, by the compiler{self._robot}",
            wanted="a step that fits",
            next_step=f"{self._helps(target)}; or submit it as it is with --no-plan",
        )

    def _helps(self, target: Target) -> str:
        change = smallest_change(self._recipe, self._signature, target)
        if change is None:
            return "it needs more or larger chips"
        return "it fits with " + " ".join(f"{name}={value}" for name, value in change.fields.items())


def _asked_gib(found: Estimate) -> float:
    """Returns the memory that a chip must have, rounded up; never more than is published of it."""
    needed_gib = math.ceil(found.figures.memory.peak * figures_of(found.target.chip).devices / GIB * 10) / 10
    return min(needed_gib, published_memory_gib(found.target.chip) or needed_gib)
