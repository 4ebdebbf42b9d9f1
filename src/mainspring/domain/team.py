"""Teams: the tenant tree, what each of them is promised and allowed, what its people may do, and who they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput, InvalidSpec
from mainspring.domain.ids import ChipName, TeamName, checked_name
from mainspring.domain.job import LAB
from mainspring.domain.wire.trust import is_private

CHIPS_MAX = 1e9
BYTES_MAX = 1 << 60
EVERY_TEAM = "*"
GROUPS_MAX = 1_000  # Of a lab's list; a person writes it.
HOSTS_MAX = 100  # That notices may be sent to; a person writes the list.
MAILBOX = re.compile(r"[A-Za-z0-9._+=-]{1,64}@([A-Za-z0-9][A-Za-z0-9.-]{0,252})")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?")
HOURS_MAX = 720.0  # A month: what is good for longer is a token, not a login.


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
        open: Whether whoever may read anything may read its jobs and datasets.
        jobs_max: The most jobs that have not ended of the team and those below it, or None for the lab's default.
        bytes_max: The most bytes of recordings that its people and those below have sent and that are in no dataset
            yet, or None for the lab's default.
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
    jobs_max: int | None = None
    bytes_max: int | None = None

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
        self._check("jobs_max", self.jobs_max, 0, CHIPS_MAX)
        self._check("bytes_max", self.bytes_max, 0, BYTES_MAX)
        self._check("budget_days", self.budget_days, 1e-3, 3_660.0)
        for what in ("guarantee", "borrow_max", "lend_max"):
            for chip, chips in getattr(self, what).items():
                checked_name(chip, "chip")
                self._check(f"{what} of {chip}", chips, 0.0, CHIPS_MAX)

    def _check(self, what: str, number: float | None, least: float, most: float) -> None:
        if number is not None and not least <= number <= most:
            raise InvalidInput("accept a team", on=self.name, got=f"{what} {number:g}", wanted=f"{least:g} to {most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLimits:
    """What may wait here: jobs that have not ended, and bytes of recordings that are in no dataset yet.

    Args:
        person_jobs: Of one person, in all teams; two whole batches.
        person_bytes: Of one person, or of one robot that has a token of its own; four of the longest recordings.
        team_jobs: Of a team and those below it, where the team has no limit of its own; the top of the tree has only
            such a limit.
        team_bytes: The same, in bytes.
    """

    person_jobs: int = 20_000
    person_bytes: int = 1 << 40
    team_jobs: int = 100_000
    team_bytes: int = 16 << 40

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is out of its range.
        """
        for name, number in dataclasses.asdict(self).items():
            if not 0 <= number <= BYTES_MAX:
                raise InvalidInput("accept limits", on=name, got=str(number), wanted=f"0 to {BYTES_MAX}")

    def jobs_of(self, team: Team) -> int | None:
        """Returns the most jobs of a team and those below it, None for no limit of theirs."""
        return self.team_jobs if team.jobs_max is None and team.parent is not None else team.jobs_max

    def bytes_of(self, team: Team) -> int | None:
        """Returns the most bytes of a team and those below it, None for no limit of theirs."""
        return self.team_bytes if team.bytes_max is None and team.parent is not None else team.bytes_max


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
    WATCHER = "watcher"  # A program that tells how machines are, and may do and read nothing else.


class Right(str, Enum):
    """What can be done, to what."""

    READ_LAB = "read the fleet, plans and teams"
    READ_JOBS = "read jobs, their events and output"
    SUBMIT_JOBS = "submit jobs"
    STOP_JOBS = "stop jobs"
    STEER_JOBS = "pause, resume, requeue and resize jobs"
    CALL_SERVICES = "call services"
    RANK_JOBS = "change the priority of jobs"
    HOLD_TEAMS = "pause and resume teams"
    HOLD_FLEET = "pause and resume clusters, close and open nodes"
    READ_RECORDINGS = "see datasets, and what recordings arrived"
    SEND_RECORDINGS = "send recordings, begin datasets"
    GIVE_DATASETS = "give datasets to a team, or to everybody"
    SET_TEAMS = "place a team, or change it"
    USE_SECRETS = "give jobs secrets of their team, or of one above"
    LIST_SECRETS = "list names of secrets"
    MANAGE_SECRETS = "set, remove and rotate secrets"
    MANAGE_NOTICES = "say where a team is told of its jobs"
    MAKE_TOKENS = "make tokens"
    MANAGE_TOKENS = "list and remove tokens"
    READ_AUDIT = "read the audit log"
    READ_METRICS = "read metrics of the whole lab"
    KEEP_STORE = "archive and remove what is over"
    TELL_HEALTH = "tell how any machine is"
    RULE_HEALTH = "let rules of health act, reset breakers"
    READ_RELEASES = "see releases"
    MAKE_RELEASES = "make and revoke releases, hand in signatures"
    SET_TRUST = "say whose keys releases are trusted by"
    READ_ROBOTS = "see robots and rollouts"
    MANAGE_ROBOTS = "enrol, label and revoke robots"
    ROLL_OUT = "roll releases out to robots"


class Whose(str, Enum):
    """Whose a thing is, as seen by who asks for it."""

    OWN = "one's own"
    TEAM = "the team's, or of one below"
    LAB = "the lab's"
    ANY = "anybody's"


EVERYBODY = frozenset(TeamRole) - {TeamRole.ATTEMPT, TeamRole.WATCHER}
LAB_WIDE = frozenset((TeamRole.OPERATOR, TeamRole.AUDITOR, TeamRole.WATCHER))
# Who may do what to whose things; what is not in here nobody may.
RIGHTS: Mapping[tuple[Right, Whose], frozenset[TeamRole]] = {
    (Right.READ_LAB, Whose.ANY): EVERYBODY,
    (Right.READ_JOBS, Whose.TEAM): EVERYBODY,
    (Right.SUBMIT_JOBS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.STOP_JOBS, Whose.OWN): frozenset((TeamRole.MEMBER, TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.STOP_JOBS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.STEER_JOBS, Whose.OWN): frozenset((TeamRole.MEMBER, TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.STEER_JOBS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.CALL_SERVICES, Whose.TEAM): frozenset((TeamRole.VIEWER, TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.RANK_JOBS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.HOLD_TEAMS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.HOLD_FLEET, Whose.LAB): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.READ_RECORDINGS, Whose.TEAM): EVERYBODY,
    (Right.SEND_RECORDINGS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.GIVE_DATASETS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.SET_TEAMS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.USE_SECRETS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.LIST_SECRETS, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN, TeamRole.AUDITOR)),
    (Right.MANAGE_SECRETS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.MANAGE_NOTICES, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.MAKE_TOKENS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.MANAGE_TOKENS, Whose.OWN): EVERYBODY,
    (Right.MANAGE_TOKENS, Whose.TEAM): frozenset((TeamRole.ADMIN,)),
    (Right.READ_AUDIT, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.AUDITOR)),
    (Right.READ_METRICS, Whose.LAB): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR, TeamRole.AUDITOR)),
    (Right.KEEP_STORE, Whose.LAB): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.TELL_HEALTH, Whose.LAB): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR, TeamRole.WATCHER)),
    (Right.RULE_HEALTH, Whose.LAB): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.READ_RELEASES, Whose.ANY): EVERYBODY,
    (Right.MAKE_RELEASES, Whose.TEAM): frozenset((TeamRole.MEMBER, TeamRole.ADMIN)),
    (Right.SET_TRUST, Whose.LAB): frozenset((TeamRole.ADMIN,)),
    (Right.READ_ROBOTS, Whose.ANY): EVERYBODY,
    (Right.MANAGE_ROBOTS, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
    (Right.ROLL_OUT, Whose.TEAM): frozenset((TeamRole.ADMIN, TeamRole.OPERATOR)),
}


class NoticeForm(str, Enum):
    """What a notice is written as."""

    JSON = "json"
    SLACK = "slack"
    EMAIL = "email"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRules:
    """Where notices may be sent, by the server's operator: nowhere unless hosts are named.

    Args:
        hosts: "HOST" or "HOST:PORT" of addresses that teams may name; of e-mail what follows the "@".
        smtp: "HOST:PORT" of the server that takes e-mail, "" for no e-mail.
        sender: Whom e-mail is from.
        hours: For how long delivery is tried.
    """

    hosts: tuple[str, ...] = ()
    smtp: str = ""
    sender: str = ""
    hours: float = 24.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        bad = [host for host in self.hosts if not _HOST.fullmatch(host)]
        smtp = bool(_HOST.fullmatch(self.smtp)) and ":" in self.smtp and bool(MAILBOX.fullmatch(self.sender))
        wrong = {
            "hosts": (bool(bad) or len(self.hosts) > HOSTS_MAX, ", ".join(map(repr, bad))[:200], "HOST or HOST:PORT"),
            "smtp": (
                not smtp and bool(self.smtp or self.sender),
                repr(self.smtp),
                "HOST:PORT, and a sender: NAME@HOST",
            ),
            "hours": (not 0 < self.hours <= HOURS_MAX, f"{self.hours:g}", f"over 0, to {HOURS_MAX:g}"),
        }
        for name, (is_bad, got, wanted) in wrong.items():
            if is_bad:
                raise InvalidSpec("accept a configuration", on=f"field 'notices.{name}'", got=got, wanted=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRole:
    """What people of one of the provider's groups are in the lab.

    Args:
        group: As the provider calls it.
        team: Where their role counts, there and below.
    """

    group: str
    team: TeamName = LAB
    role: TeamRole = TeamRole.MEMBER

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: The team is no name, or the role none that people have there.
        """
        checked_name(self.team, "team")
        attempted, on = "accept a role of a group", f"group {self.group!r}"
        if self.role is TeamRole.ATTEMPT:
            raise InvalidInput(attempted, on=on, got=f"role {self.role.value}", wanted="a role of people")
        if self.role in LAB_WIDE and self.team != LAB:
            raise InvalidInput(attempted, on=on, got=f"{self.role.value} of team {self.team}", wanted=f"team {LAB}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """How people log in by the lab's provider of identities, and what they are then.

    Source: OpenID Connect Core 1.0.

    Args:
        issuer: The provider, as its ID tokens name it.
        client_id: What the lab is called there.
        client_secret: Where the provider asks one of programs on people's machines; everybody is told it.
        scopes: What to ask the provider for: `offline_access` has people stay logged in without a browser.
        holder_claim: What of an ID token names a person here: what nobody may choose or change for themselves. Of
            `email`, one that the provider has verified.
        groups_claim: What of it lists the groups they are in; a single word counts as a group.
        hours: How long one is in before the provider is asked again.
        roles: What people of a group are here: of those that somebody is in, the first in this list counts.
    """

    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email", "groups", "offline_access")
    holder_claim: str = "email"
    groups_claim: str = "groups"
    hours: float = 8.0
    roles: tuple[GroupRole, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        wrong = {
            "issuer": (not is_private(self.issuer), repr(self.issuer), "https://host/path; http on loopback alone"),
            "client_id": (not self.client_id, "none", "what the lab is called at the provider"),
            "scopes": ("openid" not in self.scopes, " ".join(self.scopes), "openid among them"),
            "hours": (not 0 < self.hours <= HOURS_MAX, f"{self.hours:g}", f"over 0, to {HOURS_MAX:g}"),
            "roles": (
                not 0 < len(self.roles) <= GROUPS_MAX,
                f"{len(self.roles)} groups",
                f"1 to {GROUPS_MAX}: nobody of no group is let in",
            ),
        }
        for name, (bad, got, wanted) in wrong.items():
            if bad:
                raise InvalidSpec("accept a provider of identities", on=f"field 'oidc.{name}'", got=got, wanted=wanted)
