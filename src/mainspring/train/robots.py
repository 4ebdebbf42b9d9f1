"""What a run learns from: which data, how often each, of which robots, and what of these a policy gets.

Nothing here needs JAX, and nothing is opened. A policy sees all its robots in one width: a robot of fewer dimensions
leaves the rest at zero, and one of fewer cameras leaves views masked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.domain.errors import DamagedData, InvalidInput, nearest

# Tokenizers that need no file: every byte of a text is a word of the model's, or each word is one by its hash.
BYTES, WORDS = "bytes", "words"
DIMS_MAX = 1024
SOURCES_MAX = 1_000  # As of a mixture in the catalog.


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotRecipe:
    """A kind of robot, whose data is normalised by numbers of its own, kept with the weights.

    Args:
        name: What sources call it.
        cameras: For each of the policy's views the camera it shows, "" for one that the robot lacks and that is masked;
            None for all cameras of the data, in their order.
        absolute: Dimensions of the action that are learned as they are where the policy learns relative actions, such
            as grippers.
    """

    name: str = ""
    cameras: tuple[str, ...] | None = None
    absolute: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A camera comes twice, or a dimension is none.
        """
        named = [camera for camera in self.cameras or () if camera]
        if len(named) != len(set(named)):
            raise InvalidInput("accept a robot", on=self.name, got=f"cameras {', '.join(named)}", wanted="each once")
        if not all(0 <= dim < DIMS_MAX for dim in self.absolute):
            raise InvalidInput(
                "accept a robot", on=self.name, got=f"absolute {self.absolute}", wanted=f"dimensions below {DIMS_MAX}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecipe:
    """One view of a mixture. Which one that is, is said where the run starts: `--view NAME=ID`.

    Args:
        name: What it is called there, and in metrics.
        weight: How often a sample is of it; any scale, the same for all.
        robot: Whose data it is.
    """

    name: str = ""
    weight: float = 1.0
    robot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecipe:
    """What a run learns from.

    Args:
        sources: What is mixed; the one that there is, by default.
        robots: Whose data this is.
        tokenizer: Makes words of tasks: a SentencePiece file, `bytes` or `words`; "" for the policy's own prompt
            whatever the task. The prompts of pi0.5, which tell the state, need one.
    """

    sources: tuple[SourceRecipe, ...] = (SourceRecipe(),)
    robots: tuple[RobotRecipe, ...] = (RobotRecipe(),)
    tokenizer: str = ""

    def __post_init__(self) -> None:
        """Checks that sources and robots fit together.

        Raises:
            InvalidInput: A name comes twice, or a source is of a robot that is not described.
        """
        for what, names in {
            "source": [source.name for source in self.sources],
            "robot": [robot.name for robot in self.robots],
        }.items():
            if not 1 <= len(names) <= SOURCES_MAX or len(set(names)) != len(names):
                raise InvalidInput(f"accept a recipe's {what}s", got=str(names)[:200], wanted="at least one, each once")
        known = [robot.name for robot in self.robots]
        for source in self.sources:
            if source.robot not in known:
                raise InvalidInput(
                    "accept a recipe's source", on=repr(source.name), got=f"robot {source.robot!r}",
                    wanted=nearest(source.robot, known), next_step="describe it in data.robots",
                )  # fmt: skip
        views = {len(robot.cameras) for robot in self.robots if robot.cameras is not None}
        if len(views) > 1:
            raise InvalidInput(
                "accept a recipe's robots",
                got=f"{' and '.join(map(str, sorted(views)))} views",
                wanted="as many for each",
                next_step='write "" for a camera that a robot lacks',
            )

    @property
    def masked(self) -> bool:
        """Returns whether some robot lacks a camera."""
        return any("" in (robot.cameras or ()) for robot in self.robots)

    @property
    def partly_absolute(self) -> bool:
        """Returns whether some dimensions of actions are learned as they are."""
        return any(robot.absolute for robot in self.robots)

    def robot_of(self, source: SourceRecipe) -> int:
        """Returns the number of a source's robot."""
        return [robot.name for robot in self.robots].index(source.robot)


ONE_ROBOT = DataRecipe()
"""One source, of one robot, all of whose cameras are seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRobot:
    """A kind of robot that a trained policy knows, as its data had it.

    Args:
        name: What its recipe calls it.
        number: Its place among the recipe's robots.
        state_dim: Dimensions of its own state; the policy may be wider.
        action_dim: Of its own action.
        cameras: At each of the policy's views, "" for one that it lacks; None where the recipe names none, and the
            first cameras there are will do.
    """

    name: str
    number: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...] | None = None


def robots_told(robots: Sequence[KnownRobot]) -> str:
    """Returns what a checkpoint's facts tell of the robots that its policy knows, as JSON. See `known_robots`."""
    return json.dumps(
        {each.name: {"state": each.state_dim, "action": each.action_dim, "cameras": each.cameras} for each in robots}
    )


def known_robots(
    told: object, data: DataRecipe, *, state_dim: int, action_dim: int, views: int
) -> tuple[KnownRobot, ...]:
    """Returns the robots that a trained policy knows, in the recipe's order.

    Args:
        told: From `robots_told`; None where nothing was told: then they are as wide as the policy.
        data: Of the policy's recipe.
        state_dim: The policy's own; 0 of a language model.
        action_dim: Likewise.
        views: How many cameras the policy sees.

    Raises:
        DamagedData: What was told cannot be read, or does not fit the policy.
    """
    attempted = "read which robots a policy knows"
    try:
        facts = {} if told is None else json.loads(str(told))
        found = []
        for number, kind in enumerate(data.robots):
            own = facts.get(kind.name, {})
            found.append(
                KnownRobot(
                    name=kind.name,
                    number=number,
                    state_dim=int(own.get("state", state_dim)),
                    action_dim=int(own.get("action", action_dim)),
                    cameras=None if kind.cameras is None else tuple(map(str, own.get("cameras", kind.cameras))),
                )
            )
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedData(attempted, got=str(told)[:200], wanted="JSON of each") from error
    for robot in (robot for robot in found if robot.name in facts):
        dims = ((robot.state_dim, state_dim), (robot.action_dim, action_dim))
        seen = views if robot.cameras is None else len(robot.cameras)
        if seen != views or not all(1 <= own <= most or not most for own, most in dims):
            wanted = f"1 to {state_dim} numbers of state, 1 to {action_dim} of action, {views} cameras"
            raise DamagedData(attempted, on=repr(robot.name), got=str(told)[:200], wanted=wanted)
    return tuple(found)
