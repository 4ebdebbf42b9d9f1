"""One `NewType` per kind of id, the pattern names must match, and how an id is drawn from dice."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NewType

from mainspring.domain.errors import InvalidInput

if TYPE_CHECKING:
    from mainspring.domain.ports import Dice

JobId = NewType("JobId", str)
NO_JOB = JobId("")
AttemptId = NewType("AttemptId", str)
AllocationId = NewType("AllocationId", str)
ClusterName = NewType("ClusterName", str)
NodeName = NewType("NodeName", str)
RoleName = NewType("RoleName", str)
ChipName = NewType("ChipName", str)
TeamName = NewType("TeamName", str)
SecretName = NewType("SecretName", str)
EpisodeId = NewType("EpisodeId", str)
VersionId = NewType("VersionId", str)

NAME_LENGTH_MAX = 63  # A DNS label (RFC 1123), so that names survive Kubernetes and host names.
SECRET_NAME_LENGTH_MAX = 64
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_NAMES_KEPT = 16_384  # Names looked at lately: thousands of messages a second speak of the same nodes.
_HOLDER = re.compile(
    r"[a-z0-9]([a-z0-9._+@-]*[a-z0-9])?"
)  # An address of mail too, as providers of identities name people.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # POSIX: what every shell can name.
_OURS = "MAINSPRING_"  # What programs are told by us.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letters that look like digits.
_ID_LETTERS = 12  # 60 bits: a collision among 10^6 ids has odds of about 4e-7.
_SHIFTS = range(0, 5 * _ID_LETTERS, 5)


@lru_cache(maxsize=_NAMES_KEPT)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked_name(name: str, what: str) -> str:
    """Returns `name`, or raises `InvalidInput` naming `what` it was for.

    Args:
        name: Lower-case letters, digits, dots, dashes, underscores; at most `NAME_LENGTH_MAX`.
        what: The field the name is for, used in the message.

    Raises:
        InvalidInput: The name is empty, too long, or holds other characters.
    """
    if len(name) > NAME_LENGTH_MAX or not _is_name(name):
        raise InvalidInput(
            f"accept a name for {what}",
            got=repr(name[:80]),
            wanted=f"1 to {NAME_LENGTH_MAX} of a-z, 0-9, '.', '_', '-', starting and ending with a letter or digit",
        )
    return name


def checked_holder(name: str) -> str:
    """Returns the name of a person or a machine account.

    Args:
        name: As other names, or an address of mail in lower case; at most `NAME_LENGTH_MAX`.

    Raises:
        InvalidInput: The name is empty, too long, or holds other characters.
    """
    if len(name) > NAME_LENGTH_MAX or not _HOLDER.fullmatch(name):
        raise InvalidInput(
            "accept a name for a token's holder",
            got=repr(name[:80]),
            wanted=f"1 to {NAME_LENGTH_MAX} of a-z, 0-9 and '._-+@', starting and ending with a letter or digit",
        )
    return name


def checked_secret_name(name: str) -> str:
    """Returns the name of a secret, which is that of the variable a program finds it in.

    Args:
        name: Letters, digits and underscores, no digit first; at most `SECRET_NAME_LENGTH_MAX`.

    Raises:
        InvalidInput: The name is empty, too long, holds other characters, or is one of ours.
    """
    if len(name) > SECRET_NAME_LENGTH_MAX or not _VARIABLE.fullmatch(name) or name.upper().startswith(_OURS):
        raise InvalidInput(
            "accept a name for a secret",
            got=repr(name[:80]),
            wanted=f"1 to {SECRET_NAME_LENGTH_MAX} of A-Z, a-z, 0-9 and '_', no digit first, not {_OURS}...",
        )
    return name


def draw_id(prefix: str, dice: Dice) -> str:
    """Returns a fresh id such as `job-4t9x0c2m8kzq`.

    Args:
        prefix: What the id is of.
        dice: Where its 60 bits come from.
    """
    bits = dice.bits(5 * _ID_LETTERS)
    return f"{prefix}-" + "".join([_ALPHABET[(bits >> shift) & 31] for shift in _SHIFTS])
