"""Secrets of teams: people set, list, remove and rotate them, and no call returns a value; jobs are given theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import sqlalchemy as sa

from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import attempt_by_id, jobs_by_id, tenants
from mainspring.control.store.secrets import (
    SecretKeys,
    SecretRecord,
    check_room,
    every_secret,
    find_secret,
    for_jobs_of,
    remove_secret,
    save_secret,
    secrets_of,
    teams_above,
    values_for,
)
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, calls_secret, covered
from mainspring.domain.answers import NewSecret, SecretsRotated, SecretView
from mainspring.domain.codec import alike
from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable
from mainspring.domain.ids import RoleName, SecretName, TeamName, checked_secret_name
from mainspring.domain.job import LAB
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right
from mainspring.domain.wire import Orders, Register
from mainspring.domain.wire.tickets import SERVICE_SECRET

TEAM_SECRETS_MAX = 100  # A few for each service that a team's jobs speak to.
LAB_SECRETS_MAX = 10_000  # At their longest 640 MiB, which a rotation reads once.


@final
class Secrets:
    """Secrets of one controller's teams. Used by many threads.

    Args:
        keys: What they are kept under.
    """

    def __init__(self, store: Store, keys: SecretKeys, clock: Clock) -> None:
        self.keys = keys
        self._store = store
        self._clock = clock

    def keep(self, team: str, name: str, secret: NewSecret, caller: Caller = LAB_ITSELF) -> SecretView:
        """Keeps a team's secret and returns it; one of the same value stays as it is.

        Raises:
            NotAllowed: The caller is no admin of the team.
            NotFound: There is no such team.
            InvalidInput: The name cannot be one, or the team has too many secrets.
            Unavailable: The file of keys is gone, or is none.
        """
        whose, called = TeamName(team), SecretName(checked_secret_name(name))
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_SECRETS, whose)
            return self.put(connection, whose, called, secret, caller)

    def put(
        self, connection: sa.Connection, whose: TeamName, called: SecretName, secret: NewSecret, caller: Caller
    ) -> SecretView:
        """Keeps a team's secret, for a caller who may have it kept, as `keep` does.

        Args:
            connection: From `Store.write`.
        """
        now_s = self._clock.now_s()
        if whose not in {LAB, *(one.name for one in tenants(connection))}:
            raise NotFound("keep a secret", on=f"team {whose[:80]!r}", next_step="ms team ls")
        before, key = find_secret(connection, whose, called), self.keys.newest(connection)
        if before is None:
            check_room(connection, whose, team_max=TEAM_SECRETS_MAX, lab_max=LAB_SECRETS_MAX)
        elif self._is(before, secret.value):
            return SecretView(**alike(SecretView, before))
        made = SecretRecord(
            team=whose,
            name=called,
            ciphertext=key.sealed(whose, called, secret.value, now_s=now_s),
            key_id=key.id,
            version=1 if before is None else before.version + 1,
            maker=str(caller),
            made_s=now_s,
        )
        save_secret(connection, made)
        note(connection, caller, "set a secret", f"{called}: version {made.version}", team=whose, now_s=now_s)
        return SecretView(**alike(SecretView, made))

    def _is(self, record: SecretRecord, value: str) -> bool:
        try:
            return self.keys.value(record) == value
        except MainspringError:
            return False  # It can be set anew, whatever became of its key.

    def known(self, caller: Caller = LAB_ITSELF, *, team: TeamName | None = None) -> tuple[SecretView, ...]:
        """Returns secrets without their values, in order of team and name.

        Those of the caller's team and of all below, which it covers, and of all above, which its jobs may name.

        Args:
            team: Those that jobs of this team mean by their names, in order of name.

        Raises:
            NotAllowed: The caller may not look at that team.
        """
        caller.require_some(Right.LIST_SECRETS)
        with self._store.read() as connection:
            if team is not None:
                caller.require(connection, Right.LIST_SECRETS, team)
                found = for_jobs_of(connection, team)
                return tuple(SecretView(**alike(SecretView, found[name])) for name in sorted(found))
            own = covered(connection, caller)
            if own is None:
                return tuple(SecretView(**alike(SecretView, one)) for one in every_secret(connection))
            seen = own | set(teams_above(connection, caller.team))
            return tuple(SecretView(**alike(SecretView, one)) for one in secrets_of(connection, seen))

    def remove(self, team: str, name: str, caller: Caller = LAB_ITSELF) -> SecretView:
        """Forgets a team's secret and returns what it was; jobs that run keep it, a job that waits for it will fail.

        Raises:
            NotAllowed: The caller is no admin of the team.
            NotFound: The team has no such secret.
        """
        whose = TeamName(team)
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_SECRETS, whose)
            found = find_secret(connection, whose, SecretName(name))
            if found is None:
                raise NotFound("remove a secret", on=f"{name[:80]} of team {team[:80]}", next_step="ms secret ls")
            remove_secret(connection, found)
            note(connection, caller, "remove a secret", name, team=whose, now_s=self._clock.now_s())
        return SecretView(**alike(SecretView, found))

    def rotate(self, caller: Caller = LAB_ITSELF) -> SecretsRotated:
        """Encrypts every secret under a new key, forgets the older keys, and returns how many there were.

        A controller that dies in between has both keys in its file, and what it kept is read with either.

        Raises:
            NotAllowed: The caller is no admin of the lab.
            Unavailable: A secret is kept under a key that is not there: remove it, or put the key back.
        """
        count, used, now_s = 0, set[str](), self._clock.now_s()
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_SECRETS, LAB)
            before, fresh = self.keys.read(), self.keys.draw()
            for one in every_secret(connection):
                sealed = fresh.sealed(one.team, one.name, self.keys.value(one), now_s=now_s)
                row = alike(SecretRecord, one) | {"ciphertext": sealed, "key_id": fresh.id}
                save_secret(connection, SecretRecord(**row))
                count, used = count + 1, used | {one.key_id}
            note(connection, caller, "rotate secrets", f"{count} secrets, key {fresh.id}", team=LAB, now_s=now_s)
            self.keys.write((fresh, *(key for key in before if key.id in used)))
        self.keys.write((fresh,))
        return SecretsRotated(count=count)


# ---------------------------------------------------------------- what jobs are given


def secrets_named(orders: Orders, role: RoleName) -> tuple[SecretName, ...]:
    """Returns the names of all that a role is given."""
    return tuple(name for one in orders.roles if one.role == role for name in (*one.secrets, *one.secret_files))


def with_secrets(
    connection: sa.Connection,
    keys: SecretKeys,
    orders: Orders,
    names: Sequence[SecretName],
    call: Register,
    *,
    key: str,
    now_s: float,
    known: bool,
) -> Orders | None:
    """Returns orders with the values that an agent's own role is given; while they are not ready, with none.

    Where one is gone, the attempt that was to begin fails; an agent that has begun goes on with those it has.

    Args:
        connection: See `register`.
        keys: What teams' secrets are kept under.
        names: From `secrets_named`.
        call: What the agent said.
        key: The controller's own, from which a replica of a service has its secret.
        known: See `register`.
    """
    attempt, (job,) = attempt_by_id(connection, orders.attempt), jobs_by_id(connection, [orders.job]).values()
    assert attempt is not None
    teams = [name for name in names if name != SERVICE_SECRET]
    own = {SERVICE_SECRET: calls_secret(key, attempt.id)} if SERVICE_SECRET in names else {}
    try:
        return replace(orders, secrets={**values_for(connection, keys, job.team, teams), **own})
    except (NotFound, Unavailable) as error:
        if known:
            return None  # To be looked at once more by one who may write.
        if call.lost_epoch > 0:
            return orders
        if attempt.state is not AttemptState.GRANTED:
            raise Conflict("register an agent", on=call.allocation, got=str(error)) from error
        StateWriter(connection, now_s).stop_attempt(attempt, StopCause.REFUSED, str(error))
        return replace(orders, ready=False, roles=(), ranks=())
