"""Tokens: bearer secrets, stored as hashes, and whom they stand for: somebody of a team, or an attempt's agents."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import final

import sqlalchemy as sa

from mainspring.control.store.records import chunks, tenants
from mainspring.control.store.rows import Prepared, RowMapping
from mainspring.control.store.schema import blocks, tokens
from mainspring.domain.answers import Blocked
from mainspring.domain.codec import alike
from mainspring.domain.errors import NotAllowed
from mainspring.domain.ids import AttemptId, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.ports import Dice
from mainspring.domain.team import LAB_WIDE, RIGHTS, Right, Team, TeamRole, Whose

_SECRET_BITS = 256  # As long as the hash that keeps it: a plain hash is enough, since nobody can guess it.
_USED_S = 60.0  # How exactly it is known when a token was last used.
USES_MAX = 20_000  # Kept until they are written: twice as many as there are tokens of people.


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: somebody of a team, or the agents of one attempt.

    Args:
        holder: The person's or machine's name, "" where nobody knows it.
        token: What the token is called that was shown, "" for none.
        address: Where the call came from, "" where it came from within.
        expires_s: When that token ends, None for never.
    """

    role: TeamRole
    team: TeamName
    attempt: AttemptId | None = None
    holder: str = ""
    token: str = ""
    address: str = ""
    expires_s: float | None = None

    def __str__(self) -> str:
        return self.holder or f"{self.role.value} of team {self.team}"

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

    def require_some(self, right: Right) -> None:
        """Returns if the caller has a right to some things at least, whosever they are.

        Raises:
            NotAllowed: To nothing at all.
        """
        roles = {role for (each, _), some in RIGHTS.items() if each is right for role in some}
        if self.role not in roles:
            raise _refused(right, self, roles)

    def require(self, connection: sa.Connection, right: Right, team: TeamName, *, owner: str | None = None) -> None:
        """Returns if the caller has a right to a thing.

        Args:
            connection: Where the tenant tree is.
            team: Whose it is.
            owner: Which of the team's people it belongs to, None for what belongs to the team.

        Raises:
            NotAllowed: The caller has not.
        """
        whose = [Whose.ANY]
        if self.covers(connection, team):
            whose += [Whose.TEAM, *([Whose.OWN] if owner and owner == self.holder else ())]
            whose += [Whose.LAB] if team == LAB else []
        roles = {role for each in whose for role in RIGHTS.get((right, each), ())}
        if self.role not in roles:
            wanted = {role for each in (Whose.ANY, Whose.LAB, Whose.TEAM) for role in RIGHTS.get((right, each), ())}
            raise _refused(right, self, wanted, team)

    def covers(self, connection: sa.Connection, team: TeamName) -> bool:
        """Returns whether a team is the caller's, or below it; one that nobody has placed is below the lab."""
        if _covers_all(self):
            return True
        parents = {node.name: node.parent for node in tenants(connection)}
        above: TeamName | None = team
        for _ in range(len(parents) + 1):
            if above == self.team or above is None:
                break
            above = parents.get(above)
        return above == self.team


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody may read.

    Args:
        teams: Whose jobs, None for all.
    """

    teams: frozenset[TeamName] | None


LAB_ITSELF = Caller(role=TeamRole.ADMIN, team=LAB)  # Whoever calls from within the controller's own process.


def sight(connection: sa.Connection, caller: Caller) -> frozenset[TeamName] | None:
    """Returns the teams whose jobs a caller may read, None for all: those it covers, and those that are open.

    Args:
        connection: Where the tenant tree is.
        caller: Who asks.
    """
    if _covers_all(caller):
        return None
    tree = tenants(connection)
    own = _below(tree, caller.team)
    seen = own | {one.name for one in tree if one.open}
    return None if seen >= {LAB, *(one.name for one in tree)} else seen


def covered(connection: sa.Connection, caller: Caller) -> frozenset[TeamName] | None:
    """Returns a caller's team and all below it, None for all there are.

    Args:
        connection: Where the tenant tree is.
        caller: Who asks.
    """
    return None if _covers_all(caller) else _below(tenants(connection), caller.team)


def _covers_all(caller: Caller) -> bool:
    return caller.team == LAB and caller.role in (*LAB_WIDE, TeamRole.ADMIN)


def _below(tree: Collection[Team], team: TeamName) -> frozenset[TeamName]:
    """Returns a team and all below it."""
    seen = {team}
    for _ in tree:
        more = {one.name for one in tree if one.parent in seen} - seen
        if not more:
            break
        seen |= more
    return frozenset(seen)


def _refused(right: Right, caller: Caller, wanted: Collection[TeamRole], team: TeamName | None = None) -> NotAllowed:
    roles = " or ".join(role.value for role in TeamRole if role in wanted)
    return NotAllowed(
        right.value,
        on=f"team {team}" if team else "",
        got=f"a token of role {caller.role.value} in team {caller.team}",
        wanted=f"role {roles} in team {team}" if team else f"role {roles}",
        next_step="ask an admin of the team for a token: ms token new",
    )


# ---------------------------------------------------------------- the store


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """One token, without its secret.

    Args:
        id: What it is called.
        holder: Whose it is.
        attempt: The attempt whose agents hold it, None for people.
        maker: Who made it.
        expires_s: When it ends, None for never.
        used_s: When it was last used, to the minute; None for never.
    """

    id: str
    holder: str
    team: TeamName
    role: TeamRole
    attempt: AttemptId | None = None
    maker: str
    made_s: float
    expires_s: float | None = None
    used_s: float | None = None


OIDC = "OIDC"  # Who made the tokens of those who log in: no holder's name, which has no capitals.
_ROWS = RowMapping(TokenRecord, tokens)
_BLOCKS = RowMapping(Blocked, blocks)
_BY_HASH = Prepared(_ROWS.select.where(tokens.c.sha256 == sa.bindparam("sha256")))  # Every call asks it.


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


def agent_by_key(key: str, secret: str, attempt: AttemptId, *, address: str) -> Caller | None:
    """Returns an attempt's agent, where a secret is the attempt's by the key alone; None for anybody else.

    Args:
        key: The controller's own secret.
        secret: What the caller showed.
        attempt: Whose agent it says it is, "" for nobody's.
        address: Where the call came from.
    """
    if attempt and hmac.compare_digest(attempt_secret(key, attempt).encode(), secret.encode()):
        return Caller(role=TeamRole.ATTEMPT, team=LAB, attempt=attempt, address=address)
    return None


def peers_secret(key: str, attempt: AttemptId) -> str:
    """Returns the secret by which an attempt's agents know each other: not their token, and not to be told from it.

    Source: HMAC, RFC 2104, with SHA-256; a label keeps it apart from `attempt_secret`, since no id has a space.

    Args:
        key: The controller's own secret.
    """
    return hmac.new(key.encode(), f"peers of {attempt}".encode(), hashlib.sha256).hexdigest()


def calls_secret(key: str, attempt: AttemptId) -> str:
    """Returns the secret by which an attempt, a replica of a service, knows who may call it; see `peers_secret`."""
    return hmac.new(key.encode(), f"calls of {attempt}".encode(), hashlib.sha256).hexdigest()


def save_token(connection: sa.Connection, secret: str, token: TokenRecord) -> None:
    """Stores the hash of a secret and whom it stands for; one that is known already is left as it is.

    Args:
        connection: From `Store.write`.
        secret: The token itself, which is not stored.
    """
    if find_token(connection, secret) is None:
        connection.execute(sa.insert(tokens).values(sha256=_hash(secret), **_ROWS.row(alike(TokenRecord, token))))


def find_token(connection: sa.Connection, secret: str) -> TokenRecord | None:
    """Returns what a secret is, or None.

    Args:
        secret: What the caller showed.
    """
    return next(iter(_ROWS.read(connection, _BY_HASH, sha256=_hash(secret))), None)


def is_good(connection: sa.Connection, token: str, now_s: float) -> bool:
    """Returns whether a token is stored, and has not ended.

    Args:
        token: What it is called.
    """
    return token in good_tokens(connection, [token], now_s)


def good_tokens(connection: sa.Connection, wanted: Iterable[str], now_s: float) -> frozenset[str]:
    """Returns which of some tokens are stored, and have not ended.

    Args:
        wanted: What they are called.
    """
    found: list[str] = []
    for some in chunks(sorted(wanted)):
        good = (tokens.c.id.in_(some), sa.func.coalesce(tokens.c.expires_s, now_s + 1.0) > now_s)
        found += connection.execute(sa.select(tokens.c.id).where(*good)).scalars()
    return frozenset(found)


def caller_of(token: TokenRecord) -> Caller:
    """Returns whom a token stands for."""
    return Caller(**alike(Caller, token), token=token.id)


@final
class TokenUses:
    """When people's tokens were last used, as far as the store does not say so yet: no call waits until it is written.

    Used by many threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used_s: dict[str, float] = {}

    def note(self, token: TokenRecord, now_s: float) -> None:
        """Notes that a token is used, if it is a person's and that was not noted within the minute."""
        used_s = self._used_s.get(token.id, token.used_s)
        if token.attempt is None and (used_s is None or not 0 <= now_s - used_s < _USED_S):
            with self._lock:
                if token.id in self._used_s or len(self._used_s) < USES_MAX:
                    self._used_s[token.id] = now_s

    def shown(self, token: TokenRecord) -> TokenRecord:
        """Returns a token with its last use."""
        return replace(token, used_s=self._used_s.get(token.id, token.used_s))

    def take(self) -> Mapping[str, float]:
        """Returns the uses that are to be written, and forgets them."""
        with self._lock:
            taken, self._used_s = self._used_s, {}
        return taken

    def put_back(self, taken: Mapping[str, float]) -> None:
        """Keeps what could not be written, but for what was noted since."""
        with self._lock:
            self._used_s = {**taken, **self._used_s}


def write_uses(connection: sa.Connection, used_s: Mapping[str, float]) -> None:
    """Writes when tokens were last used; those that were removed since, or used later elsewhere, are passed over.

    Args:
        connection: From `Store.write`.
        used_s: By what they are called.
    """
    later = sa.func.coalesce(tokens.c.used_s, 0.0) < sa.bindparam("at_s")
    wanted = sa.update(tokens).where(tokens.c.id == sa.bindparam("which"), later).values(used_s=sa.bindparam("at_s"))
    connection.execute(wanted, [{"which": token, "at_s": at_s} for token, at_s in used_s.items()])


def people_tokens(connection: sa.Connection) -> tuple[TokenRecord, ...]:
    """Returns every token of people, newest first."""
    query = _ROWS.select.where(tokens.c.attempt_id.is_(None)).order_by(tokens.c.made_s.desc(), tokens.c.id)
    return _ROWS.read(connection, query)


def remove_token(connection: sa.Connection, token: str) -> None:
    """Forgets a token.

    Args:
        connection: From `Store.write`.
        token: What it is called.
    """
    connection.execute(sa.delete(tokens).where(tokens.c.id == token))


def tidy_logins(connection: sa.Connection, holder: str, most: int, now_s: float) -> None:
    """Forgets everybody's logins that have ended, and of one person's the oldest, beyond so many.

    Args:
        connection: From `Store.write`.
        most: How many of the holder's may stay.
    """
    logins = (tokens.c.maker == OIDC, tokens.c.attempt_id.is_(None))
    connection.execute(sa.delete(tokens).where(*logins, tokens.c.expires_s <= now_s))
    own = sa.select(tokens.c.id).where(*logins, tokens.c.holder == holder).order_by(tokens.c.made_s.desc(), tokens.c.id)
    old = [row.id for row in connection.execute(own)][most:]
    connection.execute(sa.delete(tokens).where(tokens.c.id.in_(old)))


# ---------------------------------------------------------------- who is kept out


def blocks_of(connection: sa.Connection, holder: str | None = None) -> tuple[Blocked, ...]:
    """Returns what keeps somebody out, or everybody who is kept out, in order of name.

    Args:
        holder: Whom, None for all.
    """
    query = _BLOCKS.select.order_by(blocks.c.holder, blocks.c.team)
    return _BLOCKS.read(connection, query if holder is None else query.where(blocks.c.holder == holder))


def save_block(connection: sa.Connection, block: Blocked) -> None:
    """Keeps somebody out of a team and those below it.

    Args:
        connection: From `Store.write`.
    """
    remove_block(connection, block)
    connection.execute(sa.insert(blocks).values(**_BLOCKS.row(alike(Blocked, block))))


def remove_block(connection: sa.Connection, block: Blocked) -> None:
    """Keeps somebody out no longer.

    Args:
        connection: From `Store.write`.
    """
    connection.execute(sa.delete(blocks).where(blocks.c.team == block.team, blocks.c.holder == block.holder))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
