"""Teams: the tenant tree, what each of them is promised and allowed, and what its people may do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import ChipName, TeamName, checked_name

CHIPS_MAX = 1e9
EVERY_TEAM = "*"


class TeamOrder(str, Enum):
    """In which order a team's own jobs of one tier are taken."""

    AGE = "age"  # Oldest first.
    ATTAINED = "attained"  # Those that have had the least chip-time first; the young displace the old, in levels.


@message("Team")
class Team:
    """One node of the tenant tree.

    Args:
        name: The team.
        parent: The team above, or None at the top.
        chips_max: The most chips the team and those below it may hold together, or None for no limit.
        guarantee: Chips of each type the team and those below it can always have.
        borrow_max: The most chips of each type they may hold beyond the guarantee; no limit for a type not named.
        lend_max: The most of the guarantee that others may use while it is idle; all of it for a type not named.
        weight: Its part of what is borrowed, relative to its siblings.
        dollars_max: The most it may spend in `budget_days`, or None for no limit.
        budget_days: Length of the budget's sliding window.
        order: In which order its own jobs are taken.
        open: Whether whoever may read anything may read its jobs.
    """

    name: TeamName
    parent: TeamName | None = None
    chips_max: float | None = None
    guarantee: Mapping[ChipName, float] = field(default_factory=dict)
    borrow_max: Mapping[ChipName, float] = field(default_factory=dict)
    lend_max: Mapping[ChipName, float] = field(default_factory=dict)
    weight: float = 1.0
    dollars_max: float | None = None
    budget_days: float = 30.0
    order: TeamOrder = TeamOrder.AGE
    open: bool = False

    def __post_init__(self) -> None:
        """Checks the name and the numbers.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "team")
        if self.parent is not None:
            checked_name(self.parent, "parent team")
        self._check("chips_max", self.chips_max, 0.0, CHIPS_MAX)
        self._check("weight", self.weight, 1e-6, 1e6)
        self._check("dollars_max", self.dollars_max, 0.0, 1e12)
        self._check("budget_days", self.budget_days, 1e-3, 3_660.0)
        for what in ("guarantee", "borrow_max", "lend_max"):
            for chip, chips in getattr(self, what).items():
                checked_name(chip, "chip")
                self._check(f"{what} of {chip}", chips, 0.0, CHIPS_MAX)

    def _check(self, what: str, number: float | None, least: float, most: float) -> None:
        if number is not None and not least <= number <= most:
            raise InvalidInput("accept a team", on=self.name, got=f"{what} {number:g}", wanted=f"{least:g} to {most:g}")


def with_those_above(tree: Iterable[Team], team: TeamName) -> tuple[TeamName, ...]:
    """Returns a team and the teams above it, nearest first."""
    above = {known.name: known.parent for known in tree}
    line = [team]
    while (parent := above.get(line[-1])) is not None and parent not in line:
        line.append(parent)
    return tuple(line)


def user_of(run_as: Mapping[str, str], line: Iterable[TeamName]) -> str:
    """Returns the user that jobs of a team run as, "" where nobody is named.

    Args:
        run_as: Users by team; `EVERY_TEAM` stands for all teams that have none, nor any above them.
        line: The team, and those above it, nearest first.
    """
    return next((run_as[team] for team in line if team in run_as), run_as.get(EVERY_TEAM, ""))


class TeamRole(str, Enum):
    """What somebody is in a team and all below it; an attempt's agents are nobody there."""

    ATTEMPT = "attempt"
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"
    OPERATOR = "operator"  # Of the whole fleet.
    AUDITOR = "auditor"  # Of the whole lab.


class Right(str, Enum):
    """What can be done, to what."""

    READ_LAB = "read the fleet, plans and teams"
    READ_JOBS = "read jobs, their events and output"
    SUBMIT_JOBS = "submit jobs"
    STOP_JOBS = "stop jobs"
    READ_RECORDINGS = "see what recordings arrived"
    SEND_RECORDINGS = "send recordings"
    SET_TEAMS = "place a team, or change it"
    USE_SECRETS = "give jobs secrets of their team, or of one above"
    LIST_SECRETS = "list names of secrets"
    MANAGE_SECRETS = "set, remove and rotate secrets"
    MANAGE_TOKENS = "make, list and remove tokens"
    READ_AUDIT = "read the audit log"


class Whose(str, Enum):
    """Whose a thing is, as seen by who asks for it."""

    OWN = "one's own"
    TEAM = "the team's, or of one below"
    ANY = "anybody's"


EVERYBODY = frozenset(TeamRole) - {TeamRole.ATTEMPT}
LAB_WIDE = frozenset((TeamRole.OPERATOR, TeamRole.AUDITOR))
# Who may do what to whose things; what is not in here nobody may.
RIGHTS: Mapping[tuple[Right, Whose], frozenset[TeamRole]] = {
    (Right.READ_LAB, Whose.ANY): EVERYBODY,
    (Right.READ_JOBS, Whose.TEAM): EVERYBODY,
    (Right.SUBMIT_JOBS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.STOP_JOBS, Whose.OWN): frozenset((TeamRole.MEMBER, TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.STOP_JOBS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.READ_RECORDINGS, Whose.ANY): EVERYBODY,
    (Right.SEND_RECORDINGS, Whose.ANY): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.SET_TEAMS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.USE_SECRETS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.LIST_SECRETS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN, TeamRole.AUDITOR)),
    (Right.MANAGE_SECRETS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.MANAGE_TOKENS, Whose.OWN): EVERYBODY,
    (Right.MANAGE_TOKENS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.READ_AUDIT, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.AUDITOR)),
}
