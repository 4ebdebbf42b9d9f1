"""Secrets of teams: rows that hold no value in the clear, and the file of the keys they are kept under.

Decides how a value is encrypted and which team's is meant; who may do what with it is left to `service.secrets`.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import sqlalchemy as sa
from cryptography.fernet import Fernet, InvalidToken

from mainspring.control.store.records import chunks, read_text, tenants, text_of
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import secrets
from mainspring.domain.codec import alike
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound, StorageFull, Unavailable, nearest
from mainspring.domain.ids import SecretName, TeamName
from mainspring.domain.ports import Dice

KEYS_MAX = 16  # In the file: a rotation that was cut short leaves two, people may put back a few.
_KEY_BYTES = 32  # Source: the Fernet specification, version 0x80: 16 to sign, 16 to encrypt.
_NAME_LETTERS = 12  # Of a key's hash: enough to tell a few keys apart.
_OWNERS = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """One secret as it is kept; `key_id` names the key it is kept under, `version` counts its values."""

    team: TeamName
    name: SecretName
    ciphertext: str
    key_id: str
    version: int
    maker: str
    made_s: float


_ROWS = RowMapping(SecretRecord, secrets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What is encrypted: with the value whose it is, so that no row's text serves another."""

    team: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, as a line of the file; `id` names it where it must not be shown."""

    line: str

    @property
    def id(self) -> str:
        """Returns the front of its hash."""
        return hashlib.sha256(self.line.encode()).hexdigest()[:_NAME_LETTERS]

    def sealed(self, team: TeamName, name: SecretName, value: str, *, now_s: float) -> str:
        """Returns a value encrypted and signed."""
        plain = text_of(_Kept(team=team, name=name, value=value)).encode()
        return Fernet(self.line).encrypt_at_time(plain, int(now_s)).decode()


@final
class SecretKeys:
    """The keys in their file, the newest first. For any thread.

    The file is read whenever a key is needed: another controller of the lab, or an operator, may have changed it.

    Args:
        path: The file, a key a line; None where no secrets are kept.
        dice: Draws keys.
    """

    def __init__(self, path: Path | None, dice: Dice) -> None:
        self._path = path
        self._dice = dice

    def read(self) -> tuple[Key, ...]:
        """Returns the keys, newest first; none where there is no file.

        Raises:
            Unavailable: The file cannot be read, or is no file of keys.
        """
        if self._path is None:
            return ()
        try:
            lines = self._path.read_text().split()
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise self._wrong(str(error)) from error
        if not 0 < len(lines) <= KEYS_MAX:
            raise self._wrong(f"{len(lines)} lines")
        for number, line in enumerate(lines, 1):
            try:
                Fernet(line)
            except ValueError as error:
                raise self._wrong(f"line {number}, which is no key") from error
        return tuple(Key(line=line) for line in lines)

    def newest(self, connection: sa.Connection) -> Key:
        """Returns the key for what is written now; the first one is drawn here.

        Args:
            connection: From `Store.write`: writers take turns.

        Raises:
            Unavailable: There is no file any more, and there are secrets that were kept under its keys.
        """
        known = self.read()
        if not known:
            if _count(connection):
                raise self._wrong("no such file, while there are secrets kept under its keys")
            known = (self.draw(),)
            self.write(known)
        return known[0]

    def draw(self) -> Key:
        """Returns a fresh key."""
        drawn = self._dice.bits(8 * _KEY_BYTES).to_bytes(_KEY_BYTES, "big")
        return Key(line=base64.urlsafe_b64encode(drawn).decode())

    def write(self, keys: Sequence[Key]) -> None:
        """Keeps these keys and no others, on the disk before it returns: what is lost with them is lost for good.

        Raises:
            NotFound: This controller keeps no secrets.
            StorageFull: The file cannot be written.
        """
        if self._path is None:
            raise NotFound("keep a secret", got="a controller without a file of keys", wanted="one started by ms up")
        target = self._path.resolve()  # A link that people made stays one.
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNERS), "w") as file:
                file.writelines(f"{key.line}\n" for key in keys)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(target)
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageFull("keep the keys of secrets", on=str(self._path), got=str(error)) from error

    def value(self, record: SecretRecord) -> str:
        """Returns what a row holds.

        Raises:
            Unavailable: It is kept under a key that is not in the file, or is not what was written.
        """
        key = next((key for key in self.read() if key.id == record.key_id), None)
        try:
            kept = None if key is None else read_text(_Kept, Fernet(key.line).decrypt(record.ciphertext).decode())
        except (InvalidToken, MainspringError):
            kept = None
        if kept is None or (kept.team, kept.name) != (record.team, record.name):
            got = "what was not kept under it" if key else f"none of its key, {record.key_id}, in {self._path}"
            raise Unavailable(
                "read a secret",
                on=f"{record.name} of team {record.team}",
                got=got,
                wanted="the file of keys that it was kept under",
                next_step=f"put the file back, or ms secret set {record.name} --team {record.team}",
            )
        return kept.value

    def _wrong(self, got: str) -> Unavailable:
        return Unavailable(
            "read the keys of secrets",
            on=str(self._path),
            got=got,
            wanted=f"1 to {KEYS_MAX} lines, a key each (32 bytes, URL-safe base64), the newest first",
            next_step="put a copy of the file back",
        )


# ---------------------------------------------------------------- rows


def save_secret(connection: sa.Connection, record: SecretRecord) -> None:
    """Keeps a secret in place of the one of its name.

    Args:
        connection: From `Store.write`.
    """
    remove_secret(connection, record)
    connection.execute(sa.insert(secrets).values(**_ROWS.row(alike(SecretRecord, record))))


def remove_secret(connection: sa.Connection, record: SecretRecord) -> None:
    """Forgets a secret.

    Args:
        connection: From `Store.write`.
    """
    own = (secrets.c.team == record.team, secrets.c.name == record.name)
    connection.execute(sa.delete(secrets).where(*own))


def find_secret(connection: sa.Connection, team: TeamName, name: SecretName) -> SecretRecord | None:
    """Returns a team's own secret, or None."""
    return next((one for one in secrets_of(connection, [team], [name])), None)


def secrets_of(
    connection: sa.Connection, teams: Iterable[TeamName], names: Iterable[SecretName] | None = None
) -> tuple[SecretRecord, ...]:
    """Returns the secrets of some teams, in order of team and name.

    Args:
        names: Only those of these names, unless None.
    """
    found: list[SecretRecord] = []
    for some in chunks(sorted(teams)):
        query = _ROWS.select.where(secrets.c.team.in_(some)).order_by(secrets.c.team, secrets.c.name)
        found += _ROWS.read(connection, query if names is None else query.where(secrets.c.name.in_(list(names))))
    return tuple(found)


def every_secret(connection: sa.Connection) -> Iterator[SecretRecord]:
    """Yields every secret of the lab, in order, one team's at a time."""
    for team in connection.execute(sa.select(secrets.c.team).distinct().order_by(secrets.c.team)).scalars().all():
        yield from secrets_of(connection, [team])


def _count(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(secrets)).scalar_one())


def teams_above(connection: sa.Connection, team: TeamName) -> tuple[TeamName, ...]:
    """Returns a team and those above it, the nearest first."""
    parents = {one.name: one.parent for one in tenants(connection)}
    above = [team]
    while (parent := parents.get(above[-1])) is not None and parent not in above:
        above.append(parent)
    return tuple(above)


def for_jobs_of(
    connection: sa.Connection, team: TeamName, names: Iterable[SecretName] | None = None
) -> Mapping[SecretName, SecretRecord]:
    """Returns what jobs of a team mean by names of secrets: the team's own, else that of the nearest team above.

    Args:
        names: Only these, unless None.
    """
    above = teams_above(connection, team)
    found = sorted(secrets_of(connection, above, names), key=lambda one: above.index(one.team), reverse=True)
    return {one.name: one for one in found}


def values_for(
    connection: sa.Connection, keys: SecretKeys, team: TeamName, names: Sequence[SecretName]
) -> Mapping[SecretName, str]:
    """Returns the values that a job of a team is given.

    Args:
        names: Of secrets, as its roles name them.

    Raises:
        NotFound: Neither its team nor one above has one of them.
        Unavailable: One is kept under a key that is not there.
    """
    if not names:
        return {}
    known = for_jobs_of(connection, team, names)
    for name in names:
        if name not in known:
            others = for_jobs_of(connection, team)
            raise NotFound(
                "find a secret",
                on=f"{name} of team {team}, or of one above",
                wanted=nearest(name, others) if others else "",
                next_step=f"an admin of the team: ms secret set {name} --team {team}",
            )
    return {name: keys.value(known[name]) for name in names}


def check_room(connection: sa.Connection, team: TeamName, *, team_max: int, lab_max: int) -> None:
    """Refuses one secret more than a team, or the lab, may have.

    Raises:
        InvalidInput: There are as many already.
    """
    own, every = len(secrets_of(connection, [team])), _count(connection)
    for on, count, most in ((f"team {team}", own, team_max), ("the lab", every, lab_max)):
        if count >= most:
            raise InvalidInput("keep a secret", on=on, got=f"{count} secrets", wanted="fewer", next_step="ms secret rm")
