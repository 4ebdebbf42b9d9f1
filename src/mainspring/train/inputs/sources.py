"""Sources of a run, opened: which data it learns from, and whether that is what its recipe wants.

It is asked here, once, before the first step, so that what is wrong is told by its name and not by a step that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mainspring.data import View
from mainspring.data.features import ACTION, STATE
from mainspring.data.loader.loader import Component, Fit, Loader, Sampling
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.train.feed import history_of
from mainspring.train.models.shapes import LanguageRecipe, Signature, VlaRecipe
from mainspring.train.models.vla import check_width
from mainspring.train.policy import check_relative
from mainspring.train.recipe import Recipe
from mainspring.train.robots import RobotRecipe, SourceRecipe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenView:
    """A view that a run learns from.

    Args:
        name: Which of the recipe's sources it is.
        view: What is learned from.
        held_out: Its other side, where there is one and its loss is wanted.
    """

    view: View
    name: str = ""
    held_out: View | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenSource:
    """A source beside what its recipe says of it.

    Args:
        robot: Whose data it is, by number.
        cameras: At each of the policy's views, "" for one that the robot lacks; () for a policy without eyes.
    """

    source: GivenView
    recipe: SourceRecipe
    kind: RobotRecipe
    robot: int
    cameras: tuple[str, ...]

    @property
    def view(self) -> View:
        """Returns what is learned from."""
        return self.source.view

    def dims(self, column: str) -> int:
        """Returns how many dimensions a column has."""
        return len(self.view.manifest.features.column(column).names)


class Sources:
    """All that a run learns from, checked.

    Args:
        recipe: Names them.
        given: A view, or a source for each that the recipe names.
        signature: Of a policy that is there already, and perhaps wider than these; None for what they have.

    Raises:
        InvalidInput: They are not those of the recipe, or not what its policy needs: see `docs/training.md`.
        NotFound: One of the recipe's is not given.
    """

    def __init__(self, recipe: Recipe, given: View | Sequence[GivenView], signature: Signature | None = None) -> None:
        sources = (GivenView(view=given),) if isinstance(given, View) else tuple(given)
        self.recipe = recipe
        self.opened = tuple(self._opened(named, sources) for named in recipe.data.sources)
        names = [named.name for named in recipe.data.sources]
        for source in sources:
            if source.name not in names:
                got = f"a source {source.name!r} that its recipe does not name"
                raise InvalidInput("open a run's sources", on=recipe.name, got=got, wanted=nearest(source.name, names))
        for one in self.opened:
            self._check(one)
        self.signature = self._signature() if signature is None else signature

    def _opened(self, named: SourceRecipe, given: Sequence[GivenView]) -> OpenSource:
        found = [source for source in given if source.name == named.name]
        if len(found) != 1:
            raise NotFound(
                "open a run's sources",
                on=self.recipe.name,
                got=f"{len(found)} views for the source {named.name!r}",
                wanted="one",
                next_step=f"give it as --view {named.name}{'=' if named.name else ''}ID",
            )
        number = self.recipe.data.robot_of(named)
        kind = self.recipe.data.robots[number]
        cameras: tuple[str, ...] = ()
        if self.recipe.policy.image is not None:
            view = found[0].view
            have = view.cameras if view.has_packets or view.has_images else ()
            cameras = have if kind.cameras is None else kind.cameras
            _check_cameras(self.recipe, named, have, cameras)
        return OpenSource(source=found[0], recipe=named, kind=kind, robot=number, cameras=cameras)

    def _check(self, one: OpenSource) -> None:
        policy, on = self.recipe.policy, f"source {one.recipe.name!r} ({one.view.manifest.id})"
        have = [column.name for column in one.view.manifest.features.columns]
        wanted = (ACTION,) if isinstance(policy, LanguageRecipe) else (STATE, ACTION)
        for column in wanted:
            if column not in have:
                raise InvalidInput(
                    "learn from a view", on=on, got=f"columns {', '.join(have)}"[:200], wanted=f"{column} among them"
                )
            statistics = one.view.manifest.statistics[column]
            if not np.isfinite([*statistics.mean, *statistics.std]).all():
                odd = np.flatnonzero(~np.isfinite(np.asarray(statistics.mean) + np.asarray(statistics.std)))
                raise InvalidInput(
                    "learn from a view",
                    on=f"{column} of {on}",
                    got=f"values that are no numbers, in dimensions {odd.tolist()}"[:200],
                    wanted="finite numbers",
                    next_step="build the view anew from episodes that the doctor has passed",
                )
        if isinstance(policy, LanguageRecipe):
            return
        out = [dim for dim in one.kind.absolute if dim >= one.dims(ACTION)]
        if out:
            got = f"absolute {out} of {one.dims(ACTION)} dimensions"
            raise InvalidInput("learn from a view", on=on, got=got, wanted="dimensions that the action has")
        if policy.relative_actions:
            check_relative(one.kind, one.dims(STATE), one.dims(ACTION))
        same = next(other for other in self.opened if other.robot == one.robot)
        for column in wanted:
            if one.dims(column) != same.dims(column):
                raise InvalidInput(
                    "learn from a view", on=on, got=f"{one.dims(column)} dimensions of {column}",
                    wanted=f"{same.dims(column)}, as {same.recipe.name!r} of the same robot has",
                    next_step="give it a robot of its own in data.robots",
                )  # fmt: skip

    def _signature(self) -> Signature:
        policy = self.recipe.policy
        if isinstance(policy, LanguageRecipe):
            return Signature(state_dim=0, action_dim=0)
        first = self.opened[0]
        views, size = len(first.cameras), first.view.manifest.recipe.image_size if first.cameras else 0
        signature = Signature(
            state_dim=max(one.dims(STATE) for one in self.opened),
            action_dim=max(one.dims(ACTION) for one in self.opened),
            image_views=views,
            image_height=size,
            image_width=size,
        )
        if isinstance(policy, VlaRecipe):
            check_width(policy, signature)
        return signature

    def components(self, robot: int | None = None) -> list[Component]:
        """Returns what a loader mixes.

        Args:
            robot: The one whose sources are read, None for all.
        """
        return [
            Component(view=one.view, weight=one.recipe.weight, cameras=one.cameras)
            for one in self.opened
            if robot is None or one.robot == robot
        ]

    def loader(self, *, rank: int, world_size: int, fit: Fit | None = None) -> Loader:
        """Returns a rank's share of the recipe's batches.

        Args:
            fit: Makes of a source's columns what the policy sees.

        Raises:
            InvalidInput: The batch cannot be shared equally, or the sources' pictures differ.
        """
        return Loader(self.components(), sampling_of(self.recipe), rank=rank, world_size=world_size, fit=fit)


def with_source(recipe: Recipe, name: str) -> Recipe:
    """Returns a recipe with one of its sources alone: to look at that side of a mixture.

    Args:
        recipe: The recipe.
        name: Of the source.

    Raises:
        NotFound: There is none of that name.
    """
    found = [source for source in recipe.data.sources if source.name == name]
    if not found:
        names = [source.name for source in recipe.data.sources]
        raise NotFound("find a source", on=recipe.name, got=repr(name), wanted=nearest(name, names))
    return replace(recipe, data=replace(recipe.data, sources=tuple(found)))


def sampling_of(recipe: Recipe) -> Sampling:
    """Returns what a sample is, and in which order samples come."""
    return Sampling(
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        horizon=recipe.policy.horizon,
        history=history_of(recipe.policy),
    )


def _check_cameras(recipe: Recipe, named: SourceRecipe, have: Sequence[str], cameras: Sequence[str]) -> None:
    on = f"source {named.name!r}"
    if not have:
        raise InvalidInput(
            "learn from images", on=on, got="a view without images", next_step="use a recipe without policy.image"
        )
    lacking = [name for name in cameras if name and name not in have]
    if lacking:
        raise InvalidInput(
            "learn from images",
            on=on,
            got=f"no camera {', '.join(lacking)}; the robot has {', '.join(have)}"[:300],
            wanted=f"the cameras that {recipe.name} needs",
            next_step='name others in data.robots[].cameras, or write "" for one that the robot lacks',
        )
    views = next((len(robot.cameras) for robot in recipe.data.robots if robot.cameras is not None), len(cameras))
    if not any(cameras) or len(cameras) != views:
        raise InvalidInput(
            "learn from images",
            on=on,
            got=f"{len(cameras)} cameras ({', '.join(cameras)})"[:300],
            wanted=f"{views}, as other robots of the recipe have, and one at least",
            next_step='name them in data.robots[].cameras, "" for one that the robot lacks',
        )
