"""What people say of jobs, teams, clusters and nodes that are there: hold, rank, resize; and what is held."""

from __future__ import annotations

from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import RoleName, checked_name
from mainspring.domain.job import MAIN, REPLICAS_MAX, Hold, Tier

REASON_MAX = 255  # Letters.


def check_reason(attempted: str, reason: str) -> None:
    """Returns if a reason is no longer than reasons may be.

    Args:
        attempted: What it is for, as a clause.
        reason: For people, "" for none.

    Raises:
        InvalidInput: It is.
    """
    if len(reason) > REASON_MAX:
        got, wanted = f"{len(reason)} letters", f"at most {REASON_MAX} letters"
        raise InvalidInput(attempted, on="field 'reason'", got=got, wanted=wanted)


@message("NewHold")
class NewHold:
    """That something is to be kept from starting.

    Args:
        reason: Why, for people.
        drain: Whether what runs there ends too, saved, and waits. What runs of a job that is paused, or on a node that
            is drained, always does.
    """

    reason: str = ""
    drain: bool = False

    def __post_init__(self) -> None:
        """Checks the reason.

        Raises:
            InvalidInput: It is too long.
        """
        check_reason("pause or drain", self.reason)


@message("HoldView")
class HoldView:
    """What keeps something from starting, None for nothing any more."""

    hold: Hold | None = None


class QueuePlace(str, Enum):
    """A waiting job's place among those of its team and tier."""

    FIRST = "first"
    LAST = "last"
    SUBMITTED = "submitted"  # By when it was submitted, as if nobody had said anything.


@message("NewPriority")
class NewPriority:
    """Another tier for a job, another place in its team's line, or both; what is None stays as it is."""

    tier: Tier | None = None
    place: QueuePlace | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        """Checks that it says something.

        Raises:
            InvalidInput: It does not, or its reason is too long.
        """
        check_reason("change a job's priority", self.reason)
        if self.tier is None and self.place is None:
            raise InvalidInput("change a job's priority", got="nothing to change", wanted="a tier, a place, or both")


@message("NewSize")
class NewSize:
    """How many replicas a role of a job is to have, at least and at most, from now on."""

    least: int
    most: int
    role: RoleName = MAIN
    reason: str = ""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is out of its range, or the reason is too long.
        """
        checked_name(self.role, "role")
        check_reason("resize a job", self.reason)
        if not 1 <= self.least <= self.most <= REPLICAS_MAX:
            got = f"{self.least} to {self.most} replicas"
            raise InvalidInput("resize a job", on=f"role {self.role}", got=got, wanted=f"1 to {REPLICAS_MAX}, rising")
