"""Authorization: bearer tokens, stored as hashes, with a role in a team or the scope of one attempt."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from mainspring.control.store.records import tenants
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import tokens
from mainspring.domain.codec import alike
from mainspring.domain.errors import NotAllowed
from mainspring.domain.ids import AttemptId, TeamName
from mainspring.domain.ports import Dice

_SECRET_BITS = 256  # As long as the hash that keeps it: a plain hash is enough, since nobody can guess it.


class TokenRole(str, Enum):
    """What a token's holder may do; each role may also do what those before it may."""

    ATTEMPT = "attempt"
    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Returns 0 for the weakest role."""
        return list(TokenRole).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: a person or tool of a team, or the agents of one attempt."""

    role: TokenRole
    team: TeamName
    attempt: AttemptId | None = None

    def require(self, role: TokenRole, attempted: str) -> None:
        """Returns if the caller has at least `role`.

        Args:
            role: The weakest that may do it.
            attempted: What the caller wants to do, as a clause.

        Raises:
            NotAllowed: The caller's role is weaker.
        """
        if self.role.rank < role.rank:
            raise NotAllowed(attempted, got=f"a token of a {self.role.value}", wanted=f"one of a {role.value}")

    def require_attempt(self, attempt: AttemptId, attempted: str) -> None:
        """Returns if the caller is an agent of `attempt`.

        Args:
            attempt: The attempt spoken of.
            attempted: What the caller wants to do, as a clause.

        Raises:
            NotAllowed: The token belongs to people, or to another attempt.
        """
        if self.attempt != attempt:
            raise NotAllowed(attempted, on=attempt, got="another token", wanted="the attempt's own token")

    def require_team(self, connection: sa.Connection, team: TeamName, attempted: str) -> None:
        """Returns if the caller is a member of `team` or of one above it.

        Args:
            connection: Where the tenant tree is.
            team: The team whose jobs would change.
            attempted: What the caller wants to do, as a clause.

        Raises:
            NotAllowed: The caller is only a viewer, or belongs elsewhere in the tree.
        """
        self.require(TokenRole.MEMBER, attempted)
        parents = {node.name: node.parent for node in tenants(connection)}
        above: TeamName | None = team
        for _ in range(len(parents) + 1):
            if above == self.team or above is None:
                break
            above = parents.get(above)
        # A team that nobody has placed in the tree belongs to whoever administers the lab.
        if above != self.team and self.role is not TokenRole.ADMIN:
            raise NotAllowed(attempted, on=f"team {team}", got=f"a token of team {self.team}", wanted=f"one of {team}")


_ROWS = RowMapping(Caller, tokens)


def draw_secret(dice: Dice) -> str:
    """Returns a fresh secret.

    Args:
        dice: Where its bits come from.
    """
    return f"ms_{dice.bits(_SECRET_BITS):064x}"


def attempt_secret(key: str, attempt: AttemptId) -> str:
    """Returns the secret of an attempt: the same each time, and nobody's guess without the key.

    Source: HMAC, RFC 2104, with SHA-256.

    Args:
        key: The controller's own secret.
    """
    return f"ms_{hmac.new(key.encode(), attempt.encode(), hashlib.sha256).hexdigest()}"


def save_token(connection: sa.Connection, secret: str, caller: Caller, *, now_s: float) -> None:
    """Stores the hash of a secret and what it lets its holder do; one that is known already is left as it is.

    Args:
        connection: From `Store.write`.
        secret: The token itself, which is not stored.
        caller: Whom it stands for.
    """
    if find_caller(connection, secret) is None:
        columns = _ROWS.row(alike(Caller, caller))
        connection.execute(sa.insert(tokens).values(sha256=_hash(secret), made_s=now_s, **columns))


def find_caller(connection: sa.Connection, secret: str) -> Caller | None:
    """Returns whom a secret stands for, or None.

    Args:
        secret: What the caller showed.
    """
    return next(iter(_ROWS.read(connection, _ROWS.select.where(tokens.c.sha256 == _hash(secret)))), None)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
