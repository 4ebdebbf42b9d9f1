"""The controller's whole offer behind one class: what the API serves and what the embedded SDK may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event as Signal
from threading import Lock

import sqlalchemy as sa

from mainspring.control import agents
from mainspring.control.fleet import Fleet
from mainspring.control.ledger import Ledger, StopCause
from mainspring.control.loop import Loop
from mainspring.control.records import ACTIVE_MAX, JOB_LIVE, attempts_of, events_since, quotas, specs
from mainspring.control.schema import KEY_LENGTH_MAX, jobs, teams
from mainspring.control.settings import Settings
from mainspring.control.store import Store
from mainspring.control.tokens import Caller, TokenRole, draw_secret, find_caller, save_token
from mainspring.control.views import find_job, list_jobs, view_clusters, view_job, view_why
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound, nearest
from mainspring.domain.fleet import LogChunk
from mainspring.domain.ids import ClusterName, JobId, TeamName, draw_id
from mainspring.domain.job import LAB, MILLI
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.ports import Clock, Dice, Engine
from mainspring.domain.wire import (
    ClusterView,
    Event,
    EventKind,
    Heartbeat,
    HeartbeatReply,
    JobView,
    Orders,
    Register,
    Submit,
    Why,
)
from mainspring.planner import Snapshot, SnapshotBuilder, TeamQuota, feasible

LIST_MAX = 1_000
LOG_BYTES_MAX = 1 << 20
TEAMS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is: its state, and the state of each of its attempts, in order of number."""

    job: JobId
    state: JobState
    attempts: tuple[AttemptState, ...]

    @property
    def ended(self) -> bool:
        """Returns whether nothing more will come."""
        return ended(self.state)


class Control:
    """One controller: its store, its loop, and every call that people, tools and agents make. Used by many threads.

    Args:
        store: From `open_store`.
        engines: The clusters, by name.
        clock: Time.
        dice: Draws ids and tokens; called from many threads.
        controller_url: Where agents reach this controller.
        objects_url: Where code snapshots and checkpoints are, as agents reach it.
        settings: Bounds.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Mapping[ClusterName, Engine],
        clock: Clock,
        dice: Dice,
        controller_url: str,
        objects_url: str,
        settings: Settings | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings or Settings()
        self.fleet = Fleet()
        self.wake = Signal()
        self._engines = dict(engines)
        self._dice = dice
        self._controller_url = controller_url
        self._objects_url = objects_url
        self._machines_lock = Lock()
        self._machines_version = -1
        self._machines: Snapshot | None = None

    def new_loop(self) -> Loop:
        """Returns a loop over this controller's store and engines; one thread runs it."""
        return Loop(
            store=self.store,
            engines=self._engines,
            clock=self.clock,
            dice=self._dice,
            fleet=self.fleet,
            controller_url=self._controller_url,
            settings=self.settings,
        )

    # ---------------------------------------------------------------- tokens and teams

    def issue_token(self, *, role: TokenRole, team: TeamName) -> str:
        """Returns a new secret for somebody of a team; only its hash is kept.

        Args:
            role: What its holder may do.
            team: Where.
        """
        assert role is not TokenRole.ATTEMPT
        secret = draw_secret(self._dice)
        with self.store.write() as connection:
            save_token(connection, secret, Caller(role=role, team=team), now_s=self.clock.now_s())
        return secret

    def caller(self, secret: str) -> Caller:
        """Returns whom a secret stands for.

        Args:
            secret: What the caller showed.

        Raises:
            NotAllowed: Nobody.
        """
        with self.store.read() as connection:
            found = find_caller(connection, secret)
        if found is None:
            raise NotAllowed("enter", got="a token nobody holds" if secret else "no token", wanted="a bearer token")
        return found

    def set_team(self, quota: TeamQuota, caller: Caller) -> TeamQuota:
        """Places a team in the tenant tree, or changes its quota, and returns it.

        Args:
            quota: The team as it shall be.
            caller: An administrator.

        Raises:
            NotAllowed: The caller is not.
            InvalidInput: Its parent is unknown or below it, or there are too many teams.
        """
        caller.require(TokenRole.ADMIN, "change a team")
        with self.store.write() as connection:
            others = [team for team in quotas(connection) if team.name != quota.name]
            if len(others) >= TEAMS_MAX:
                raise InvalidInput("add a team", on=quota.name, got=f"{len(others)} teams", wanted="fewer")
            SnapshotBuilder().set_teams([*others, quota])
            connection.execute(sa.delete(teams).where(teams.c.name == quota.name))
            limit = None if quota.chips_max is None else round(quota.chips_max * MILLI)
            connection.execute(sa.insert(teams).values(name=quota.name, parent=quota.parent, chip_milli_max=limit))
        self.wake.set()
        return quota

    def teams(self) -> tuple[TeamQuota, ...]:
        """Returns the tenant tree, in order of name."""
        with self.store.read() as connection:
            return tuple(sorted(quotas(connection), key=lambda quota: quota.name))

    # ---------------------------------------------------------------- jobs

    def submit(self, submit: Submit, caller: Caller) -> JobView:
        """Returns the job made of a spec, or the one that the same key made before.

        Args:
            submit: The spec, and the key that makes repeats harmless.
            caller: A member of the spec's team.

        Raises:
            NotAllowed: The caller is not.
            NotFound: There is no such team.
            ImpossibleJob: No cluster could ever run it.
            Conflict: The key made a job of another spec.
            InvalidInput: The key is too long, or too many jobs wait.
        """
        if len(submit.key) > KEY_LENGTH_MAX:
            raise InvalidInput("submit a job", on="field 'key'", wanted=f"at most {KEY_LENGTH_MAX} letters")
        with self.store.read() as connection:
            _require_known(connection, submit.spec.team)
            caller.require_team(connection, submit.spec.team, "submit a job")
            made = _made_before(connection, submit)
        if made is not None:
            return self.job(made)
        machines = self._known_machines()
        impossible = feasible(machines, submit.spec) if machines else None
        if impossible is not None:
            raise impossible
        with self.store.write() as connection:
            made = _made_before(connection, submit)
            if made is None:
                _require_room(connection)
                made = JobId(draw_id("job", self._dice))
                Ledger(connection, self.clock.now_s()).submit(made, submit)
        self.wake.set()
        return self.job(made)

    def job(self, reference: str) -> JobView:
        """Returns one job.

        Args:
            reference: Its id, or a name; of several with one name, the newest.

        Raises:
            NotFound: No such job.
        """
        with self.store.read() as connection:
            return view_job(connection, find_job(connection, reference), self.clock.now_s())

    def jobs(
        self, *, state: JobState | None = None, team: TeamName | None = None, limit: int = 50
    ) -> tuple[JobView, ...]:
        """Returns the newest jobs, newest first, without ranks and goodput.

        Args:
            state: Only those in this state, unless None.
            team: Only this team's, unless None.
            limit: The most to return, up to `LIST_MAX`.
        """
        assert 1 <= limit <= LIST_MAX
        with self.store.read() as connection:
            return list_jobs(connection, state=state, team=team, limit=limit, now_s=self.clock.now_s())

    def stop(self, reference: str, caller: Caller) -> JobView:
        """Asks a job to end, and returns it as it is then; one that ends or has ended stays as it is.

        Args:
            reference: Its id or name.
            caller: A member of the job's team.

        Raises:
            NotFound: No such job.
            NotAllowed: The caller is not a member.
        """
        by = f"{caller.role.value} of team {caller.team}"
        with self.store.write() as connection:
            job = find_job(connection, reference)
            caller.require_team(connection, job.team, "stop a job")
            ledger = Ledger(connection, self.clock.now_s())
            if job.state is JobState.QUEUED:
                ledger.event(EventKind.STOP_REQUESTED, job=job.id, detail={"by": by})
                ledger.move_job(job, JobState.CANCELLED, f"cancelled by {by}")
            elif job.state in (JobState.STARTING, JobState.RUNNING):
                ledger.move_job(job, JobState.STOPPING, f"cancelled by {by}")
                attempt = attempts_of(connection, [job.id])[job.id][-1]
                ledger.stop_attempt(attempt, StopCause.CANCEL, f"cancelled by {by}")
        self.wake.set()
        return self.job(job.id)

    def why(self, reference: str) -> Why:
        """Returns why a job is where it is, or waits.

        Args:
            reference: Its id or name.

        Raises:
            NotFound: No such job.
        """
        with self.store.read() as connection:
            return view_why(connection, find_job(connection, reference))

    def events(self, *, reference: str | None = None, since: int = 0, limit: int = LIST_MAX) -> tuple[Event, ...]:
        """Returns events, oldest first.

        Args:
            reference: Only of this job, unless None.
            since: The last sequence the caller has seen.
            limit: The most to return, up to `LIST_MAX`.

        Raises:
            NotFound: No such job.
        """
        assert 1 <= limit <= LIST_MAX
        with self.store.read() as connection:
            job = None if reference is None else find_job(connection, reference).id
            return events_since(connection, since=since, limit=limit, job=job)

    def logs(
        self, reference: str, *, rank: int = 0, since: int = 0, attempt: int | None = None, limit: int = LOG_BYTES_MAX
    ) -> LogChunk:
        """Returns a piece of one rank's output; an empty one while there is none.

        Args:
            reference: The job's id or name.
            rank: Which rank.
            since: Byte offset to start from.
            attempt: Number of the attempt; the newest when None.
            limit: Most bytes, up to `LOG_BYTES_MAX`.

        Raises:
            NotFound: No such job, attempt or rank.
            Unavailable: The cluster does not answer.
        """
        assert 0 < limit <= LOG_BYTES_MAX
        nothing = LogChunk(data=b"", next_offset=since)
        with self.store.read() as connection:
            job = find_job(connection, reference)
            own = attempts_of(connection, [job.id]).get(job.id, [])
            if attempt is None and not own:
                return nothing
            chosen = [one for one in own if attempt in (None, one.number)][-1:]
            if not chosen:
                raise NotFound("read logs", on=job.id, got=f"attempt {attempt}", wanted=f"1 to {len(own)}")
            allocation = agents.allocation_of_rank(connection, chosen[0], rank)
        engine = self._engines.get(allocation.cluster)
        if engine is None:
            raise NotFound("read logs", on=job.id, got=f"cluster {allocation.cluster}, which is no longer connected")
        try:
            return engine.logs(allocation.id, rank=rank, since=since, limit=limit)
        except NotFound:
            return nothing

    def progress(self, reference: str) -> Progress:
        """Returns how far a job is; cheaper than `job`.

        Args:
            reference: Its id or name.

        Raises:
            NotFound: No such job.
        """
        with self.store.read() as connection:
            job = find_job(connection, reference)
            own = attempts_of(connection, [job.id]).get(job.id, [])
        return Progress(job=job.id, state=job.state, attempts=tuple(attempt.state for attempt in own))

    def clusters(self) -> tuple[ClusterView, ...]:
        """Returns every cluster that ever answered, in order of name."""
        with self.store.read() as connection:
            return view_clusters(connection, self.fleet)

    # ---------------------------------------------------------------- agents

    def register(self, call: Register, caller: Caller) -> Orders:
        """Returns an agent's orders.

        Args:
            call: What the agent says.
            caller: The attempt's own token.

        Raises:
            NotFound: No such allocation, or the node is not in it.
            NotAllowed: The token is not the attempt's.
            Conflict: The allocation is stopping or gone.
        """
        with self.store.read() as connection:
            attempt = agents.posting(connection, call.allocation).attempt
            caller.require_attempt(attempt.id, "register an agent")
            orders = agents.register(
                connection, call, settings=self.settings, objects_url=self._objects_url, known=True
            )
        if orders is None:
            with self.store.write() as connection:
                orders = agents.register(connection, call, settings=self.settings, objects_url=self._objects_url)
        assert orders is not None
        return orders

    def heartbeat(self, beat: Heartbeat, caller: Caller) -> HeartbeatReply:
        """Takes a lead's report and returns what it need not repeat.

        Args:
            beat: The report.
            caller: The attempt's own token.

        Raises:
            NotAllowed: The token is not the attempt's.
        """
        caller.require_attempt(beat.attempt, "report on an attempt")
        with self.store.write() as connection:
            reply = agents.heartbeat(connection, beat, self.clock.now_s())
        if beat.outcome is not None:
            self.wake.set()
        return reply

    def _known_machines(self) -> Snapshot | None:
        """Returns the fleet as the planner reads it, None before any cluster has answered."""
        with self._machines_lock:
            if self._machines_version != self.fleet.version:
                self._machines_version = self.fleet.version
                builder = SnapshotBuilder()
                for seen in self.fleet.seen().values():
                    builder.set_inventory(seen.inventory, answering=seen.answering)
                self._machines = builder.build()
            return self._machines if self.fleet.seen() else None


def _require_known(connection: sa.Connection, team: TeamName) -> None:
    """Refuses a team that nobody placed in the tree: most likely a slip of the pen, which no quota would bind."""
    known = {LAB, *(quota.name for quota in quotas(connection))}
    if team not in known:
        raise NotFound(
            "submit a job", on=f"team {team!r}", wanted=nearest(team, known), next_step=f"ms team set {team}"
        )


def _made_before(connection: sa.Connection, submit: Submit) -> JobId | None:
    if not submit.key:
        return None
    query = sa.select(jobs.c.id).where(jobs.c.team == submit.spec.team, jobs.c.submit_key == submit.key)
    made = connection.execute(query).scalar_one_or_none()
    if made is None:
        return None
    if specs(connection, [JobId(made)])[JobId(made)] != submit.spec:
        raise Conflict(
            "submit a job",
            on=f"key {submit.key!r}",
            got=f"another spec than the one that made {made}",
            next_step="submit it under a key of its own",
        )
    return JobId(made)


def _require_room(connection: sa.Connection) -> None:
    live = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state.in_(JOB_LIVE))
    count = connection.execute(live).scalar_one()
    if count >= ACTIVE_MAX:
        raise InvalidInput("submit a job", got=f"{count} jobs that have not ended", wanted=f"fewer than {ACTIVE_MAX}")
