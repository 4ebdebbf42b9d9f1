"""The controller's whole offer behind one class: what the API serves and what the embedded SDK may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event as Signal
from typing import Any

from mainspring.control.loop.failover import Silence
from mainspring.control.loop.leadership import Leadership
from mainspring.control.loop.loop import Loop, new_writers
from mainspring.control.loop.plan_cycle import PlanCycle
from mainspring.control.service import agents
from mainspring.control.service.evaluations.rules import EvaluationRules
from mainspring.control.service.health import Pulse
from mainspring.control.service.lists import JobFilter, count_jobs
from mainspring.control.service.machines import KnownMachines
from mainspring.control.service.nodes.care import NodeCare
from mainspring.control.service.people import People
from mainspring.control.service.questions import Questions
from mainspring.control.service.releases.keeping import PolicyReleases
from mainspring.control.service.reports.accounts import Accounts
from mainspring.control.service.retention.sweeping import Keeping
from mainspring.control.service.robots.devices import Devices
from mainspring.control.service.robots.digests import Digests
from mainspring.control.service.robots.enrolling import Robots
from mainspring.control.service.robots.rollouts import Rollouts
from mainspring.control.service.serving.services import Services
from mainspring.control.service.steering.jobs import Steering
from mainspring.control.service.steering.pausing import Pauses
from mainspring.control.service.steering.profiling import Profiling
from mainspring.control.service.steering.repeats import Repeats
from mainspring.control.service.steering.restores import Restores
from mainspring.control.service.stored.access import granted
from mainspring.control.service.stored.clips import Clips
from mainspring.control.service.stored.datasets import Datasets
from mainspring.control.service.stored.owners import DatasetOwners
from mainspring.control.service.stored.samples import Samples
from mainspring.control.service.submits import SubmitChecks, Submits, array_of, view_new
from mainspring.control.service.views import Progress, find_job, list_jobs, progress_of, view_clusters, view_job
from mainspring.control.state.fleet import FleetView
from mainspring.control.state.latest_plan import LatestPlans
from mainspring.control.store.holdings import allocation_of_rank
from mainspring.control.store.records import attempts_of, events_since
from mainspring.control.store.restores.postings import posting
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import AgentAccess, Settings
from mainspring.control.store.store import Store, Together, each
from mainspring.control.store.tokens import LAB_ITSELF, Caller, Sight, agent_by_key, sight
from mainspring.domain.answers import (
    ClusterView,
    Event,
    Health,
    JobCounts,
    JobView,
    Submit,
    SubmitBatch,
    SubmittedBatch,
)
from mainspring.domain.errors import NotFound
from mainspring.domain.fleet import LogChunk
from mainspring.domain.ids import AttemptId, ClusterName, TeamName, draw_id
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.ports import Clock, Dice, Engine
from mainspring.domain.routes import LIST_MAX, LOG_BYTES_MAX
from mainspring.domain.wire import (
    CredentialsWanted,
    Heartbeat,
    HeartbeatReply,
    Orders,
    Register,
    StoreCredentials,
    ViewCredentialsWanted,
)
from mainspring.planner import Policy


class Control:
    """One controller: its store, its loop, and every call that people, tools and agents make. Used by many threads.

    Args:
        store: From `open_store`.
        engines: The clusters, by name.
        dice: Draws ids and tokens; called from many threads.
        access: How agents reach it.
        policy: What the lab decides about planning.
    """

    def __init__(
        self,
        *,
        store: Store,
        engines: Mapping[ClusterName, Engine],
        clock: Clock,
        dice: Dice,
        access: AgentAccess,
        settings: Settings | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings or Settings()
        self.policy = policy or Policy()
        self.fleet = FleetView()
        self.pictures = LatestPlans()
        self.wake = Signal()
        self._engines = dict(engines)
        self.dice = dice
        self._access = access
        self.questions = Questions(store, self.pictures, self.fleet, clock, self.wake.set, settings=self.settings)
        keys = SecretKeys(access.secret_keys, dice)
        owners = DatasetOwners(store, clock, access.objects_url)
        checks = SubmitChecks(KnownMachines(self.fleet, self._engines), keys, owners, access.grants)
        self._submits = Submits(store, checks, clock, dice, self.wake.set, settings=self.settings)
        self.people = People(store, self.pictures, clock, dice, keys, self.wake.set, settings=self.settings)
        self.pulse = Pulse(clock, self.fleet, self._engines)
        self._agents_say: Together[Callable[[Any], Any], Any] = Together(
            store, lambda connection, writes: [write(connection) for write in writes]
        )

    def new_loop(self) -> Loop:
        """Returns a loop over this controller's store and engines; one thread runs it."""
        silence, holder = Silence(), draw_id("controller", self.dice)
        writers = partial(
            new_writers,
            fleet=self.fleet,
            silence=silence,
            clock=self.clock,
            dice=self.dice,
            settings=self.settings,
            access=self._access,
            failover_s=self.policy.failover_s,
            fresh=self._submits.fresh,
        )
        return Loop(
            leadership=Leadership(self.store, self.clock, holder, self.settings.leader_lease_s),
            engines=self._engines,
            clock=self.clock,
            fleet=self.fleet,
            silence=silence,
            plans=PlanCycle(self.policy, self.pictures, self.settings.plan_s),
            writers=writers,
        )

    @property
    def steering(self) -> Steering:
        """Returns what may be said of jobs that are there."""
        return Steering(self.store, self.clock, self.job, self.wake.set, impossible=self._submits.machines.impossible)

    @property
    def services(self) -> Services:
        """Returns what may be said of services, and asked."""
        return Services(self.store, self._submits, self.clock, self.wake.set, self._access)

    @property
    def accounts(self) -> Accounts:
        """Returns what allocated time went into."""
        return Accounts(self.store, self.clock, self.settings, self.questions.shared)

    @property
    def retention(self) -> Keeping:
        """Returns what is kept of what is over, and where the rest went."""
        return Keeping(self.store, self.clock, self._access.objects_url, self.settings, self._engines)

    @property
    def samples(self) -> Samples:
        """Returns what ranks reported, step by step."""
        return Samples(self.store, self._access.objects_url)

    @property
    def datasets(self) -> Datasets:
        """Returns what is known of the lab's data."""
        return Datasets(self._submits.owners, self._access.objects_url)

    @property
    def clips(self) -> Clips:
        """Returns what is known of clips that robots have."""
        return Clips(self.store, self._submits.owners, self._access.objects_url, self.people.did)

    @property
    def pauses(self) -> Pauses:
        """Returns what may be said of teams, clusters and nodes."""
        return Pauses(self.store, self.fleet, self.clock, self.wake.set)

    @property
    def care(self) -> NodeCare:
        """Returns what may be told and said of nodes."""
        fresh = self._submits.fresh.samples
        return NodeCare(self.store, self.fleet, self.clock, self.wake.set, self._agents_say.ask, fresh)

    @property
    def evaluations(self) -> EvaluationRules:
        """Returns the rules by which checkpoints are evaluated."""
        return EvaluationRules(self.store, self.clock)

    @property
    def profiling(self) -> Profiling:
        """Returns what asks for profiles."""
        return Profiling(self.store, self.clock, self.dice)

    @property
    def releases(self) -> PolicyReleases:
        """Returns the releases of policies, and whose keys they are trusted by."""
        return PolicyReleases(self.store, self.clock, self._access.key, self._access.objects_url)

    @property
    def robots(self) -> Robots:
        """Returns what may be said of robots."""
        return Robots(self.store, self.clock, self.dice, self.releases, poll_s=self.settings.robot_poll_s)

    @property
    def rollouts(self) -> Rollouts:
        """Returns what may be said of rollouts."""
        return Rollouts(self.store, self.clock, self.releases, poll_s=self.settings.robot_poll_s)

    @property
    def digests(self) -> Digests:
        """Returns what is known of files of releases beside their names."""
        return Digests(self.store, self._access.objects_url)

    @property
    def devices(self) -> Devices:
        """Returns what robots call."""
        poll_s, limits = self.settings.robot_poll_s, self.people.device_limits
        return Devices(self.store, self.clock, self.releases, self.digests, limits, poll_s=poll_s)

    @property
    def restores(self) -> Restores:
        """Returns what may be said of what runs beyond what the store knows."""
        return Restores(self.store, self.clock, self.wake.set, self._engines, self.fleet, self._access.key)

    @property
    def repeats(self) -> Repeats:
        """Returns what was answered to calls under keys."""
        return Repeats(self.store, self.clock, self._access.key, self.wake.set)

    def health(self) -> Health:
        """Returns how this controller is, also while its store does not answer."""
        return self.pulse.health(self.store.leader, self.restores.waiting, self.care.open_breakers)

    # ---------------------------------------------------------------- jobs

    def submit(self, submit: Submit, caller: Caller = LAB_ITSELF) -> JobView:
        """Returns the job made of a spec, or the one that the same key made before; of an array, its first job.

        Args:
            submit: The spec, how many jobs to make of it, and the key that makes repeats harmless.

        Raises:
            MainspringError: See `Submits.submit`.
        """
        (answer,) = self.submit_each([(submit, caller)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit_each(self, calls: Sequence[tuple[Submit, Caller]]) -> Sequence[JobView | Exception]:
        """Returns the job that each of several calls made at one time, or why it made none: see `submit`."""
        told = self._submits.submit_each(([submit], caller) for submit, caller in calls)
        return each(
            lambda made: view_new(made[0]) if made[0].is_new else self._view(made[0].id, made[0].submit.spec), told
        )

    def submit_batch(self, batch: SubmitBatch, caller: Caller = LAB_ITSELF) -> SubmittedBatch:
        """Returns the jobs made of many requests, of which all are taken or none.

        Args:
            batch: Each with a key, if a repeat shall be harmless.

        Raises:
            MainspringError: See `submit`.
        """
        return SubmittedBatch(jobs=tuple(made.id for made in self._submits.submit(batch.submits, caller)))

    def job(self, reference: str, caller: Caller = LAB_ITSELF) -> JobView:
        """Returns one job, by its id, or the newest of a name; somebody else's is not found.

        Raises:
            NotFound: No such job.
        """
        return self._view(reference, None, caller)

    def _view(self, reference: str, spec: JobSpec | None, caller: Caller = LAB_ITSELF) -> JobView:
        with self.store.read() as connection:
            job = find_job(connection, reference, caller)
            return view_job(connection, job, now_s=self.clock.now_s(), settings=self.settings, spec=spec)

    def jobs(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        state: JobState | None = None,
        team: TeamName | None = None,
        owner: str | None = None,
        array: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[JobView, ...]:
        """Returns the newest jobs, newest first, without ranks and goodput; of each array one job that stands for all.

        Args:
            state: Only those in this state, unless None. So are team, and owner, who submitted it.
            array: Id or name of a job; then every job of its array, in order. None for all jobs.
            after: Id or name of the last job seen: the list goes on after it. None to begin.
            limit: At most `LIST_MAX`.

        Raises:
            NotFound: No such job, or it belongs to no array.
        """
        assert 1 <= limit <= LIST_MAX
        with self.store.read() as connection:
            wanted = JobFilter(
                state=state,
                team=team,
                owner=owner,
                array=None if array is None else array_of(find_job(connection, array, caller)),
                after=None if after is None else find_job(connection, after, caller),
                seen=sight(connection, caller),
            )
            return list_jobs(connection, wanted, limit=limit, now_s=self.clock.now_s())

    def job_counts(
        self, caller: Caller = LAB_ITSELF, *, team: TeamName | None = None, owner: str | None = None
    ) -> JobCounts:
        """Returns how many jobs are in each state; of those that ended, also how many were removed since.

        Args:
            owner: Only what this person submitted, unless None. So is team.
        """
        with self.store.read() as connection:
            return count_jobs(connection, JobFilter(team=team, owner=owner, seen=sight(connection, caller)))

    # ---------------------------------------------------------------- events, logs, progress

    def events(
        self,
        reference: str | None = None,
        caller: Caller = LAB_ITSELF,
        *,
        since: int = 0,
        limit: int = LIST_MAX,
        newest: bool = False,
    ) -> tuple[Event, ...]:
        """Returns events, oldest first.

        Args:
            reference: Only of this job, unless None.
            since: The last sequence the caller has seen.
            limit: The most to return, up to `LIST_MAX`.
            newest: Whether to leave out the oldest where there are more, and not the newest.

        Raises:
            NotFound: No such job.
        """
        assert 1 <= limit <= LIST_MAX
        with self.store.read() as connection:
            job = None if reference is None else find_job(connection, reference, caller).id
            seen = None if job is not None else sight(connection, caller)
            return events_since(connection, since=since, limit=limit, job=job, seen=seen, newest=newest)

    def may_follow(self, reference: str | None, caller: Caller) -> Sight | None:
        """Returns what somebody who has entered may still read; None where a job that is named is not part of it."""
        if not self.people.is_known(caller):
            return None
        with self.store.read() as connection:
            seen = sight(connection, caller)
            if reference is None or seen is None or find_job(connection, reference).team in seen:
                return Sight(seen)
        return None

    def logs(
        self,
        reference: str,
        caller: Caller = LAB_ITSELF,
        *,
        rank: int = 0,
        since: int = 0,
        attempt: int | None = None,
        limit: int = LOG_BYTES_MAX,
    ) -> LogChunk:
        """Returns a piece of one rank's output; an empty one while there is none.

        Args:
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
            job = find_job(connection, reference, caller)
            own = attempts_of(connection, [job.id]).get(job.id, [])
            if attempt is None and not own:
                return nothing
            chosen = [one for one in own if attempt in (None, one.number)][-1:]
            if not chosen:
                raise NotFound("read logs", on=job.id, got=f"attempt {attempt}", wanted=f"1 to {len(own)}")
            allocation = allocation_of_rank(connection, chosen[0].id, rank)
        engine = self._engines.get(allocation.cluster)
        if engine is None:
            raise NotFound("read logs", on=job.id, got=f"cluster {allocation.cluster}, which is no longer connected")
        try:
            return engine.logs(allocation.id, rank=rank, since=since, limit=limit)
        except NotFound:
            return nothing

    def progress(self, reference: str) -> Progress:
        """Returns how far a job is, by id or name; cheaper than `job`.

        Raises:
            NotFound: No such job.
        """
        with self.store.read() as connection:
            return progress_of(connection, reference)

    def clusters(self, caller: Caller = LAB_ITSELF) -> tuple[ClusterView, ...]:
        """Returns every cluster that ever answered, in order of name: all of them, for anybody."""
        with self.store.read() as connection:
            return view_clusters(connection, self.fleet, self.clock.now_s())

    # ---------------------------------------------------------------- agents

    def entered(self, secret: str, *, address: str = "", attempt: str = "") -> Caller:
        """Returns whom a secret stands for; agents are known by our key too, should the store have forgotten them.

        Args:
            secret: What the caller showed.
            address: Where the call came from.
            attempt: The attempt whose agent the caller says it is, "" for others.

        Raises:
            NotAllowed: Nobody, or no longer.
        """
        vouched = agent_by_key(self._access.key, secret, AttemptId(attempt), address=address)
        return self.people.caller(secret, address=address, vouched=vouched)

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
        rules = agents.Rules(
            settings=self.settings,
            objects_url=self._access.objects_url,
            environment_passed=self._access.environment_passed,
            key=self._access.key,
            now_s=self.clock.now_s(),
            listens_since_s=self.pulse.began_s,
            keys=self.people.secrets.keys,
            store_credentials=self._access.grants is not None,
        )
        with self.store.read() as connection:
            caller.require_attempt(posting(connection, call.allocation, caller).attempt.id, "register an agent")
            orders = agents.register(connection, call, caller, rules=rules, known=True)
        told = partial(agents.register, call=call, caller=caller, rules=rules)
        made: Orders = orders or self._agents_say.ask(told)
        return made

    def store_credentials(self, call: CredentialsWanted | ViewCredentialsWanted, caller: Caller) -> StoreCredentials:
        """Returns credentials for an attempt's part of the object store, or for a view that its job names.

        Raises:
            NotFound: No such allocation or view, or the server gives none.
            NotAllowed: The token is not the attempt's, the attempt is over, or the store refuses.
            Unavailable: The store does not give them now.
        """
        return granted(self.store, call, caller, grants=self._access.grants, owners=self._submits.owners)

    def heartbeat(self, beat: Heartbeat, caller: Caller, *, newer: bool = False) -> HeartbeatReply:
        """Takes a lead's report and returns what it need not repeat.

        Args:
            newer: Whether the lead is of a newer release, and may tell what is not known here.

        Raises:
            NotAllowed: The token is not the attempt's.
            InvalidMessage: It tells what is not known here, and is not newer.
        """
        caller.require_attempt(beat.attempt, "report on an attempt")
        known = replace(beat, events=tuple(each.known(newer=newer) for each in beat.events))
        reply: HeartbeatReply = self._agents_say.ask(partial(agents.heartbeat, beat=known, now_s=self.clock.now_s()))
        if beat.outcome is not None:
            self.wake.set()
        return reply
