"""Tokens as people make and see them, and how they log in."""

from __future__ import annotations

from dataclasses import field

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NAME_LENGTH_MAX, TeamName, checked_holder, checked_name
from mainspring.domain.job import LAB
from mainspring.domain.team import LAB_WIDE, TeamRole

DAYS_MAX = 3_660.0
ID_TOKEN_LENGTH_MAX = 16_384  # Four times what fits into a cookie: a person may be in hundreds of groups.
NONCE_LENGTH_MAX = 128


@message("WaitingUse")
class WaitingUse:
    """What waits here of a person, or of a team and those below it: jobs that have not ended, bytes of recordings that
    are in no dataset yet, and the most that may, None for no limit of theirs.
    """

    jobs: int
    jobs_max: int | None
    bytes: int
    bytes_max: int | None


@message("NewToken")
class NewToken:
    """A token to be made.

    Args:
        holder: Who it is for: a person, or a machine account.
        team: Where its role counts, there and below.
        role: What its holder is there.
        days: How long it is good for, None for ever.
    """

    holder: str
    team: TeamName = LAB
    role: TeamRole = TeamRole.MEMBER
    days: float | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_holder(self.holder)
        checked_name(self.team, "team")
        if self.days is not None and not 0 < self.days <= DAYS_MAX:
            raise InvalidInput("make a token", on="field 'days'", got=f"{self.days:g}", wanted=f"0 to {DAYS_MAX:g}")
        if self.role is TeamRole.ATTEMPT:
            raise InvalidInput("make a token", got=f"role {self.role.value}", wanted="a role of people")
        if self.role in LAB_WIDE and self.team != LAB:
            raise InvalidInput("make a token", on=f"role {self.role.value}", got=f"team {self.team}", wanted=LAB)


@message("Person")
class Person:
    """Whom a token stands for; `expires_s` is when it ends, None for never, `waiting` what its holder has waiting."""

    holder: str
    team: TeamName
    role: TeamRole
    expires_s: float | None
    waiting: WaitingUse | None = None


@message("TokenView")
class TokenView:
    """One token, without its secret; `used_s` is when it was last used, to the minute, None for never."""

    id: str
    holder: str
    team: TeamName
    role: TeamRole
    maker: str
    made_s: float
    expires_s: float | None
    used_s: float | None


@message("AuditLine")
class AuditLine:
    """One thing that somebody did (`done`), or was refused: who, by which token, from where, what, to what of whose."""

    sequence: int
    time_s: float
    holder: str
    token: str
    address: str
    action: str
    target: str
    team: str
    outcome: str
    reason: str


@message("TokenMade")
class TokenMade:
    """A token that was just made. Its secret is told this once."""

    token: TokenView
    secret: str


@message("LoginOffer")
class LoginOffer:
    """How people log in to a lab by its provider of identities (OpenID Connect).

    Args:
        issuer: The provider.
        client_id: What the lab is called there.
        client_secret: Where the provider asks one of programs on people's machines, "" where not: no secret then, as
            everybody is told it (RFC 8252, 8.5).
        scopes: What to ask it for.
    """

    issuer: str
    client_id: str
    client_secret: str
    scopes: tuple[str, ...]


@message("Login")
class Login:
    """Somebody who logs in by what the lab's provider of identities said of them.

    Args:
        id_token: What it said, signed: fresh, and made out to the lab.
        nonce: What it was to repeat, "" where nothing was.
        team: Of those they have a role in, the one to have it in; "" for the first that the lab lists.
    """

    id_token: str = field(repr=False)
    nonce: str = ""
    team: str = ""

    def __post_init__(self) -> None:
        """Checks every length.

        Raises:
            InvalidInput: A field is too long.
        """
        for name, most in (("id_token", ID_TOKEN_LENGTH_MAX), ("nonce", NONCE_LENGTH_MAX), ("team", NAME_LENGTH_MAX)):
            length = len(getattr(self, name))
            if length > most:
                raise InvalidInput("log in", on=f"field {name!r}", got=f"{length} characters", wanted=f"at most {most}")


@message("Blocked")
class Blocked:
    """Somebody who may not enter as one of a team, or of one below it; who said so, and when."""

    holder: str
    team: TeamName
    maker: str
    made_s: float
