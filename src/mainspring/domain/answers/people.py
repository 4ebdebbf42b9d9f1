"""Tokens and secrets as people make and see them, and how they log in. Values of secrets are told by people alone."""

from __future__ import annotations

from dataclasses import field

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NAME_LENGTH_MAX, SecretName, TeamName, checked_holder, checked_name
from mainspring.domain.job import LAB
from mainspring.domain.team import LAB_WIDE, TeamRole

DAYS_MAX = 3_660.0
ID_TOKEN_LENGTH_MAX = 16_384  # Four times what fits into a cookie: a person may be in hundreds of groups.
NONCE_LENGTH_MAX = 128
VALUE_BYTES_MIN = 6  # Shorter ones could not be masked in output without masking ordinary words.
VALUE_BYTES_MAX = 64 << 10  # Half of what Linux takes as one variable.
VALUE_LINES_MAX = 256  # A chain of certificates with its key; each line is looked for in every rank's output.


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


@message("NewSecret")
class NewSecret:
    """The value of a secret: text of `VALUE_BYTES_MIN` to `VALUE_BYTES_MAX` bytes. Errors do not quote it."""

    value: str = field(repr=False)

    def __post_init__(self) -> None:
        """Checks the value.

        Raises:
            InvalidInput: It is too short, too long, of too many lines, or holds what no variable can.
        """
        size, lines = len(self.value.encode(errors="replace")), self.value.count("\n") + 1
        short = len(self.value.strip().encode(errors="replace")) < VALUE_BYTES_MIN
        bounds = f"{VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} bytes"
        wrong = {
            f"{size} bytes": (short or size > VALUE_BYTES_MAX, bounds),
            f"{lines} lines": (lines > VALUE_LINES_MAX, f"at most {VALUE_LINES_MAX} lines"),
            "control characters": (any(_controls(letter) for letter in self.value), "text; bytes as base64"),
        }
        for got, (bad, wanted) in wrong.items():
            if bad:
                raise InvalidInput("accept a secret", got=got, wanted=wanted)


def _controls(letter: str) -> bool:
    return (ord(letter) < 32 and letter not in "\t\n\r") or ord(letter) == 127


@message("SecretView")
class SecretView:
    """One secret, without its value; `version` counts its values, and `maker` set this one."""

    team: TeamName
    name: SecretName
    version: int
    maker: str
    made_s: float


@message("SecretsRotated")
class SecretsRotated:
    """How many secrets are kept under a new key now, and none under an older one."""

    count: int
