"""Feature schema: what each step of an episode holds, as named columns of numbers, and cameras."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.errors import InvalidInput

STATE = "state"  # What the robot senses of itself; LeRobot's "observation.state".
ACTION = "action"  # What it was told to do, and a policy learns to say.


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A vector at each step: its name, and one name for each of its dimensions."""

    name: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """One camera: its name and its frames' size in pixels."""

    name: str
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What each step holds; the same for every episode of a dataset.

    Args:
        columns: In name order.
        cameras: In name order.

    Raises:
        InvalidInput: A name is there twice, or the order is another.
    """

    columns: tuple[Column, ...]
    cameras: tuple[Camera, ...] = ()

    def __post_init__(self) -> None:
        """Checks the order."""
        for names in ([column.name for column in self.columns], [camera.name for camera in self.cameras]):
            if names != sorted(set(names)):
                raise InvalidInput("accept features", got=", ".join(names)[:300], wanted="each name once, in order")

    def column(self, name: str) -> Column:
        """Returns one column.

        Args:
            name: Its name.

        Raises:
            InvalidInput: There is none of that name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        have = ", ".join(column.name for column in self.columns)
        raise InvalidInput("find a column", got=repr(name[:80]), wanted=f"one of {have or 'none'}"[:400])

    def names(self, column: str) -> tuple[str, ...]:
        """Returns the names of a column's dimensions.

        Args:
            column: Its name.

        Raises:
            InvalidInput: There is none of that name.
        """
        return self.column(column).names

    def __str__(self) -> str:
        """Returns one clause for people."""
        columns = ", ".join(f"{column.name} {len(column.names)}" for column in self.columns)
        cameras = ", ".join(f"{camera.name} {camera.width}x{camera.height}" for camera in self.cameras)
        return f"{columns}, cameras {cameras or 'none'}"
