"""People: who calls, by their tokens, and the teams they are in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import final

import sqlalchemy as sa

from mainspring.control.service.limits import require_room_for_bytes, waiting_of_person, waiting_of_teams
from mainspring.control.service.notices.places import NoticePlaces
from mainspring.control.service.planning import team_uses
from mainspring.control.service.robots.limits import DeviceLimits
from mainspring.control.service.secrets import Secrets
from mainspring.control.state.fleet import read_holds
from mainspring.control.state.latest_plan import LatestPlans
from mainspring.control.store import tokens
from mainspring.control.store.audit import Outcome, audit_since, note
from mainspring.control.store.records import TEAMS_MAX, tenants, text_of
from mainspring.control.store.schema import teams
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, OIDC, Caller, TokenRecord, covered
from mainspring.domain.answers import (
    AuditLine,
    Blocked,
    NewToken,
    Person,
    RecordingClaim,
    TeamView,
    TokenMade,
    TokenView,
)
from mainspring.domain.codec import alike
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotAllowed, NotFound
from mainspring.domain.ids import TeamName, checked_holder, checked_name, draw_id
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import RIGHTS, Right, Team, TeamRole, Whose, user_of, with_those_above
from mainspring.planner import SnapshotBuilder

TOKENS_MAX = 10_000
LOGINS_MAX = 32  # Of one person at once: more machines than anybody works on.
REFUSED_S = 10.0  # How often the log tells that one token was refused one thing.
_DAY_S = 86_400.0
_SUBMITTERS = RIGHTS[Right.SUBMIT_JOBS, Whose.TEAM]


@final
class People:
    """Tokens, teams and their secrets, of one controller. Used by many threads.

    Args:
        keys: What secrets are kept under.
        changed: Called when the teams have changed.
        settings: Whether those whose jobs run under one account are to be in one line of the tenant tree, and which
            those are; see `_require_one_line`.
    """

    def __init__(
        self,
        store: Store,
        pictures: LatestPlans,
        clock: Clock,
        dice: Dice,
        keys: SecretKeys,
        changed: Callable[[], None],
        *,
        settings: Settings,
    ) -> None:
        self.secrets = Secrets(store, keys, clock)
        self.device_limits = DeviceLimits()
        self.notices = NoticePlaces(store, self.secrets, clock, settings.notices)
        self._store = store
        self._pictures = pictures
        self._clock = clock
        self._dice = dice
        self._changed = changed
        self._one_line = settings.one_line
        self._run_as = settings.run_as
        self._limits = settings.limits
        self._tried_s: dict[tuple[str, str], float] = {}
        self._uses = tokens.TokenUses()

    # ---------------------------------------------------------------- tokens

    def caller(self, secret: str, *, address: str = "", vouched: Caller | None = None) -> Caller:
        """Returns whom a secret stands for.

        Args:
            secret: What the caller showed.
            address: Where the call came from.
            vouched: Whom it stands for where the store does not know it.

        Raises:
            NotAllowed: Nobody, or no longer.
        """
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            found = tokens.find_token(connection, secret)
        if found is None and vouched is not None:
            return vouched
        if found is None:
            error = NotAllowed(
                "enter",
                got="a token nobody holds" if secret else "no token",
                wanted="a bearer token",
                next_step="ask an admin of your team for one: ms token new",
            )
            if secret:  # Who shows none, as a browser or a probe may, tries nothing.
                self.refused(Caller(role=TeamRole.ATTEMPT, team=LAB, holder="nobody", address=address), str(error))
            raise error
        if found.expires_s is not None and found.expires_s <= now_s:
            error = NotAllowed(
                "enter",
                on=found.id,
                got=f"a token that ended {(now_s - found.expires_s) / _DAY_S:.1f} days ago",
                wanted="one that is good",
                next_step="ask an admin of your team for another: ms token new",
            )
            self.refused(replace(tokens.caller_of(found), address=address), str(error))
            raise error
        self._uses.note(found, now_s)
        return replace(tokens.caller_of(found), address=address)

    def is_known(self, caller: Caller) -> bool:
        """Returns whether the token that somebody entered by is still good."""
        with self._store.read() as connection:
            return tokens.is_good(connection, caller.token, self._clock.now_s())

    def write_uses(self) -> None:
        """Writes which tokens were used since the last time: calls do not wait for it, and a crash may lose it.

        Raises:
            MainspringError: The store takes nothing now; then they are written the next time.
        """
        used_s = self._uses.take()
        if not used_s:
            return
        try:
            with self._store.write() as connection:
                tokens.write_uses(connection, used_s)
        except BaseException:
            self._uses.put_back(used_s)
            raise

    def whoami(self, caller: Caller = LAB_ITSELF, *, claimed: Sequence[RecordingClaim] = ()) -> Person:
        """Returns whom the caller's token stands for.

        Args:
            claimed: Recordings that are in no dataset yet.
        """
        with self._store.read() as connection:
            waiting = waiting_of_person(connection, self._limits, caller.holder, claimed)
        return Person(**alike(Person, caller), waiting=waiting)

    def admit(self, caller: Caller, claimed: Sequence[RecordingClaim], size_bytes: int) -> None:
        """Refuses a recording that would be too much.

        Args:
            claimed: Recordings that are in no dataset yet.
            size_bytes: Of this one.

        Raises:
            LimitReached: The caller, or a team of theirs, would have too many bytes waiting.
        """
        with self._store.read() as connection:
            require_room_for_bytes(connection, self._limits, caller, claimed, size_bytes)

    def new_token(self, asked: NewToken, caller: Caller = LAB_ITSELF) -> TokenMade:
        """Returns a new token with its secret, of which only a hash is kept.

        Raises:
            NotAllowed: The caller is no admin of its team, or of one above; or its holder is kept out of it.
            NotFound: There is no such team.
            InvalidInput: There are too many tokens.
            Conflict: Its team would be a second one that submits, where all jobs run under one account.
        """
        with self._store.write() as connection:
            caller.require(connection, Right.MAKE_TOKENS, asked.team)
            return self._make(connection, asked, caller, "make a token", maker=str(caller))

    def let_in(self, asked: NewToken, *, address: str) -> TokenMade:
        """Returns a new token for somebody whom the lab's provider of identities vouches for.

        Args:
            address: Where they are.

        Raises:
            NotAllowed: They are kept out of the team.
            MainspringError: See `new_token`.
        """
        caller = Caller(role=asked.role, team=asked.team, holder=asked.holder, address=address)
        with self._store.write() as connection:
            tokens.tidy_logins(connection, asked.holder, LOGINS_MAX - 1, self._clock.now_s())
            return self._make(connection, asked, caller, "log in", maker=OIDC)

    def _make(
        self, connection: sa.Connection, asked: NewToken, caller: Caller, attempted: str, *, maker: str
    ) -> TokenMade:
        now_s, secret = self._clock.now_s(), tokens.draw_secret(self._dice)
        made = TokenRecord(
            id=draw_id("token", self._dice),
            holder=asked.holder,
            team=asked.team,
            role=asked.role,
            maker=maker,
            made_s=now_s,
            expires_s=None if asked.days is None else now_s + asked.days * _DAY_S,
        )
        tree = tenants(connection)
        if asked.team not in {LAB, *(team.name for team in tree)}:
            raise NotFound(attempted, on=f"team {asked.team!r}", next_step=f"ms team set {asked.team}")
        _require_let_in(connection, attempted, asked.holder, {LAB, *with_those_above(tree, asked.team)})
        count = len(tokens.people_tokens(connection))
        if count >= TOKENS_MAX:
            raise InvalidInput(attempted, got=f"{count} tokens", wanted="fewer", next_step="ms token rm")
        tokens.save_token(connection, secret, made)
        if self._one_line and made.role in _SUBMITTERS:
            _require_one_line(connection, attempted, made.team, now_s, self._run_as)
        told = f"{made.id}: {asked.role.value} {asked.holder}"
        note(connection, caller, attempted, told, team=asked.team, now_s=now_s)
        return TokenMade(token=TokenView(**alike(TokenView, made)), secret=secret)

    def tokens(self, caller: Caller = LAB_ITSELF) -> tuple[TokenView, ...]:
        """Returns the tokens that somebody may remove, newest first."""
        with self._store.read() as connection:
            return tuple(
                TokenView(**alike(TokenView, self._uses.shown(token)))
                for token in tokens.people_tokens(connection)
                if _manages(connection, caller, token)
            )

    def remove_token(self, token: str, caller: Caller = LAB_ITSELF) -> TokenView:
        """Forgets a token, which lets nobody in from then on, and returns it.

        Args:
            token: What it is called.

        Raises:
            NotFound: No such token, or none that the caller may remove.
        """
        with self._store.write() as connection:
            found = next((one for one in tokens.people_tokens(connection) if one.id == token), None)
            if found is None or not _manages(connection, caller, found):
                raise NotFound("remove a token", on=repr(token[:80]), next_step="ms token ls")
            tokens.remove_token(connection, found.id)
            told = f"{found.id}: {found.role.value} {found.holder}"
            note(connection, caller, "remove a token", told, team=found.team, now_s=self._clock.now_s())
        return TokenView(**alike(TokenView, found))

    def block(self, team: str, holder: str, caller: Caller = LAB_ITSELF) -> Blocked:
        """Keeps somebody out of a team and those below it, and returns that: their tokens there are removed, and they
        get no other, by logging in or from an admin.

        Args:
            team: LAB keeps them out of all.

        Raises:
            NotAllowed: The caller is no admin of the team, or of one above.
            InvalidInput: Nobody can be called so, or too many are kept out.
        """
        attempted, now_s = "block somebody", self._clock.now_s()
        name = TeamName(checked_name(team, "team"))
        made = Blocked(holder=checked_holder(holder), team=name, maker=str(caller), made_s=now_s)
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_TOKENS, name)
            if len(tokens.blocks_of(connection)) >= TOKENS_MAX:
                raise InvalidInput(attempted, on=holder, got=f"{TOKENS_MAX} blocked", next_step="ms token unblock")
            tokens.save_block(connection, made)
            seen = covered(connection, Caller(role=TeamRole.ADMIN, team=name))
            for one in tokens.people_tokens(connection):
                if one.holder == holder and (seen is None or one.team in seen):
                    tokens.remove_token(connection, one.id)
            note(connection, caller, attempted, holder, team=name, now_s=now_s)
        return made

    def unblock(self, team: str, holder: str, caller: Caller = LAB_ITSELF) -> Blocked:
        """Keeps somebody out no longer, and returns what did; tokens that went stay gone.

        Raises:
            NotFound: They are not kept out of that team, or the caller is no admin of it.
        """
        with self._store.write() as connection:
            blocked = tokens.blocks_of(connection, holder)
            found = next((one for one in blocked if one.team == team and _manages(connection, caller, one)), None)
            if found is None:
                raise NotFound("unblock somebody", on=repr(holder[:80]), next_step="ms token blocked")
            tokens.remove_block(connection, found)
            note(connection, caller, "unblock somebody", holder, team=found.team, now_s=self._clock.now_s())
        return found

    def blocked(self, caller: Caller = LAB_ITSELF) -> tuple[Blocked, ...]:
        """Returns who is kept out of the teams that somebody administers, in order of name."""
        with self._store.read() as connection:
            return tuple(one for one in tokens.blocks_of(connection) if _manages(connection, caller, one))

    # ---------------------------------------------------------------- the audit log

    def did(self, caller: Caller, action: str, target: str) -> None:
        """Notes what somebody did that the store knows nothing else of.

        Args:
            action: What they did.
            target: To what.
        """
        with self._store.write() as connection:
            note(connection, caller, action, target, team=caller.team, now_s=self._clock.now_s())

    def refused(self, caller: Caller, reason: str, *, action: str = "enter", target: str = "") -> None:
        """Notes that somebody was refused something; of one who keeps trying, once in a while.

        Args:
            reason: Why it was refused.
            action: What they wanted to do.
            target: To what.
        """
        now_s, tried = self._clock.monotonic_s(), (caller.token or caller.holder, action)
        if now_s - self._tried_s.get(tried, -inf) < REFUSED_S:
            return
        if len(self._tried_s) >= TOKENS_MAX:
            self._tried_s.clear()
        self._tried_s[tried] = now_s
        with suppress(MainspringError), self._store.write() as connection:
            note(
                connection,
                caller,
                action,
                target,
                now_s=self._clock.now_s(),
                team=caller.team,
                outcome=Outcome.REFUSED,
                reason=reason,
            )

    def audit(
        self, caller: Caller = LAB_ITSELF, *, since: int = 0, limit: int = LIST_MAX, newest: bool = False
    ) -> tuple[AuditLine, ...]:
        """Returns what people did and were refused, oldest first: what concerns the caller's teams.

        Args:
            since: The last sequence the caller has seen.
            limit: The most to return, up to `LIST_MAX`.
            newest: Whether to leave out the oldest where there are more, and not the newest.
        """
        caller.require_some(Right.READ_AUDIT)
        with self._store.read() as connection:
            seen = covered(connection, caller)
            return audit_since(connection, since=since, limit=limit, seen=seen, newest=newest)

    # ---------------------------------------------------------------- teams

    def set_team(self, team: Team, caller: Caller = LAB_ITSELF) -> Team:
        """Places a team in the tenant tree, or changes it, and returns it.

        Args:
            team: The team as it shall be.

        Raises:
            NotAllowed: The caller is no admin above it, where it is and where it shall be.
            InvalidInput: Its parent is unknown or below it, or there are too many teams.
            Conflict: It would take two teams that submit apart, where all jobs run under one account.
        """
        with self._store.write() as connection:
            tree = {one.name: one for one in tenants(connection)}
            before = tree.get(team.name, team)
            for above in sorted({team.parent or LAB, before.parent or LAB}):
                caller.require(connection, Right.SET_TEAMS, above)
            others = [one for one in tree.values() if one.name != team.name]
            if len(others) >= TEAMS_MAX:
                raise InvalidInput("add a team", on=team.name, got=f"{len(others)} teams", wanted="fewer")
            SnapshotBuilder().set_teams([*others, team])
            connection.execute(sa.delete(teams).where(teams.c.name == team.name))
            connection.execute(sa.insert(teams).values(name=team.name, facts=text_of(team)))
            if self._one_line and (before.parent != team.parent or self._run_as):
                attempted = "add a team" if team.name not in tree else "move a team"
                _require_one_line(connection, attempted, team.name, self._clock.now_s(), self._run_as)
            note(connection, caller, "set a team", text_of(team), team=team.name, now_s=self._clock.now_s())
        self._changed()
        return team

    def teams(self, caller: Caller = LAB_ITSELF, *, claimed: Sequence[RecordingClaim] = ()) -> tuple[TeamView, ...]:
        """Returns the tenant tree with what each team holds, in order of name: all of it, for anybody.

        Args:
            claimed: Recordings that are in no dataset yet.
        """
        with self._store.read() as connection:
            tree, held = tenants(connection), read_holds(connection).teams
            waiting = waiting_of_teams(connection, self._limits, tree, claimed)
        picture = self._pictures.newest
        uses = team_uses(picture) if picture is not None else {}
        return tuple(
            TeamView(team=team, use=uses.get(team.name), waiting=waiting[team.name], hold=held.get(team.name))
            for team in tree
        )


def _require_one_line(
    connection: sa.Connection, attempted: str, on: TeamName, now_s: float, run_as: Mapping[str, str]
) -> None:
    """Returns if of any two teams that people may submit for, one is above the other, or no account runs jobs of both.

    Jobs that run under one account can take what other jobs of that account have, so a second team's people would be
    let in to the first's.

    Args:
        on: The team it is about.
        run_as: The users that jobs run as, by team.
    """
    living = [one for one in tokens.people_tokens(connection) if one.expires_s is None or one.expires_s > now_s]
    submitting = sorted({one.team for one in living if one.role in _SUBMITTERS})
    admins = {team: Caller(role=TeamRole.ADMIN, team=team) for team in submitting}
    below = {team: covered(connection, admins[team]) for team in submitting}
    tree = tenants(connection)
    users = {
        team: {user_of(run_as, with_those_above(tree, each)) for each in seen or ()} - ({""} if run_as else set())
        for team, seen in below.items()
    }
    for one, other in combinations(submitting, 2):
        in_line = any(seen is None or team in seen for seen, team in ((below[one], other), (below[other], one)))
        if not in_line and users[one] & users[other]:
            raise Conflict(
                attempted,
                on=f"team {on!r}",
                got=f"people of teams {one!r} and {other!r}, whose jobs would run under one account",
                wanted="jobs of one team and those above and below it: they can read each other's files and tokens",
                next_step="ms up --shared-account, if these teams trust each other so far; else run_as in config.yaml",
            )


def _require_let_in(connection: sa.Connection, attempted: str, holder: str, teams_above: Collection[str]) -> None:
    """Returns if nobody keeps somebody out of a team.

    Args:
        teams_above: The team, and those above it.
    """
    for block in tokens.blocks_of(connection, holder):
        if block.team in teams_above:
            raise NotAllowed(
                attempted,
                on=holder,
                got=f"somebody blocked in team {block.team} by {block.maker}",
                next_step=f"an admin of team {block.team}: ms token unblock {holder} --team {block.team}",
            )


def _manages(connection: sa.Connection, caller: Caller, of: TokenRecord | Blocked) -> bool:
    own = of.holder if isinstance(of, TokenRecord) else None  # Nobody lifts what keeps them out.
    try:
        caller.require(connection, Right.MANAGE_TOKENS, of.team, owner=own)
    except NotAllowed:
        return False
    return True
