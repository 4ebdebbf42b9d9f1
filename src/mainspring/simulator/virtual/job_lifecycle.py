"""Jobs and their attempts in virtual time: queued, started, displaced, lost, resized, settled.

States move along the tables of `domain.life`; what an attempt's end means is decided by control's own pure `conclude`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from mainspring.control.state.dependencies import verdict
from mainspring.control.store.ledger import StopCause, conclude
from mainspring.domain.errors import InvalidInput
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.job import MILLI
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Evict, Resize, Start
from mainspring.planner.facts.builder import SnapshotBuilder
from mainspring.planner.facts.snapshot import LiveAttempt, PendingJob
from mainspring.simulator.inputs.workload import ReplayOptions
from mainspring.simulator.virtual.attempts import AttemptRun, Course, JobRun, rate_of
from mainspring.simulator.virtual.event_emitter import EventEmitter
from mainspring.simulator.virtual.machines import Machines
from mainspring.simulator.virtual.record import Record
from mainspring.simulator.virtual.timeline import Timeline


class JobLifecycle:
    """Every job of the workload, and the attempts that live.

    Args:
        builder: Is told of every job that waits and every attempt that lives.
        record: Writes down what happens.
        options: How the replay runs.

    Raises:
        InvalidInput: A job comes after one that is not in the workload.
    """

    def __init__(
        self,
        timeline: Timeline,
        machines: Machines,
        builder: SnapshotBuilder,
        record: Record,
        story: EventEmitter,
        options: ReplayOptions,
    ) -> None:
        self.timeline = timeline
        self.machines = machines
        self.builder = builder
        self.record = record
        self.story = story
        self.options = options
        self.jobs = record.job_runs()
        self.runs: dict[AttemptId, AttemptRun] = {}
        self.waiting = 0
        self.elastic = 0
        self._by_id = {job.trace.job: job for job in self.jobs}
        self._submitted = 0
        for job in self.jobs:
            for name in job.trace.spec.after:
                if name not in self._by_id:
                    raise InvalidInput(
                        "replay a workload", on=job.trace.job, got=f"after {name}", wanted="a job of the workload"
                    )
                self._by_id[name].followers.append(job)

    # ---------------------------------------------------------------- jobs

    @property
    def submit_s(self) -> float:
        """Returns when the next job is submitted, infinity when all were."""
        return self.jobs[self._submitted].trace.submit_s if self._submitted < len(self.jobs) else inf

    def submit(self) -> None:
        """Submits every job that is due now."""
        while self.submit_s <= self.timeline.now_s:
            job = self.jobs[self._submitted]
            self._submitted += 1
            self.story.submitted(self.timeline.now_s, job)
            self._queue_or_doom(job)

    def _queue_or_doom(self, job: JobRun) -> None:
        after = job.trace.spec.after
        found = verdict(after, {name: self._by_id[name].state for name in after})
        if found.doomed:
            self._end_job(job, JobState.FAILED, found.doomed)
        else:
            job.blocked = found.blocked
            self._queue(job)

    def _queue(self, job: JobRun) -> None:
        trace = job.trace
        self.builder.add_pending(
            PendingJob(
                job=trace.job,
                spec=trace.spec,
                submitted_s=trace.submit_s,
                attained_chip_s=job.attained_chip_s,
                evicted_s=job.evicted_s,
                blocked=job.blocked,
            )
        )
        self.waiting += 1
        if not job.blocked:
            self.record.want(self.timeline.now_s, job, 1)
        self.timeline.change()

    def _unqueue(self, job: JobRun) -> None:
        self.builder.remove_pending(job.trace.job)
        self.waiting -= 1
        self.record.want(self.timeline.now_s, job, -1)

    def _end_job(self, job: JobRun, after: JobState, reason: str) -> None:
        self.story.move(self.timeline.now_s, job, after, reason)
        job.end_s = self.timeline.now_s
        self.record.tally.ended += 1
        for follower in job.followers:
            if follower.row < self._submitted and follower.state is JobState.QUEUED:
                self._unqueue(follower)
                self._queue_or_doom(follower)

    def refuse(self, name: JobId, reason: str) -> None:
        """Ends a job that no machine here could ever run."""
        job = self._by_id[name]
        self._unqueue(job)
        self.record.tally.refused += 1
        self._end_job(job, JobState.FAILED, reason)

    # ---------------------------------------------------------------- attempts

    def start(self, start: Start, plan: int) -> None:
        """Starts a job as a plan says.

        Args:
            start: What the plan says.
            plan: The plan's number.
        """
        job = self._by_id[start.job]
        self._unqueue(job)
        for grant in start.grants:
            self.machines.take(grant)
        again = job.attempts > 0
        job.attempts += 1
        job.start_s = min(job.start_s, self.timeline.now_s)
        rate = rate_of(job.trace.spec, start.grants)
        repeats = int(job.furthest_s) > int(job.work_s)  # Less than a step lost is nothing lost.
        run = AttemptRun(
            attempt=AttemptId(f"{job.trace.job}.{job.attempts}"),
            job=job,
            grants=start.grants,
            course=Course(
                from_s=self.timeline.now_s,
                steps_s=self.timeline.now_s + (self.options.restart_s if again else 0.0),
                work_s=job.work_s,
                furthest_s=job.furthest_s if repeats else job.work_s,
                rate=rate,
                checkpoint_s=self.options.checkpoint_s,
            ),
            dollars_per_hour=0.0,
            paid_s=self.timeline.now_s,
            uses=(),
            chips=0.0,
            granted_s=self.timeline.now_s,
            number=job.attempts,
        )
        job.run = self.runs[run.attempt] = run
        self._hold(run)
        self.elastic += _is_elastic(run)
        self.story.granted(self.timeline.now_s, run, plan)
        self.story.move(self.timeline.now_s, job, JobState.STARTING, "granted")
        self.story.move(self.timeline.now_s, job, JobState.RUNNING, "runs")
        self._schedule(run)

    def _hold(self, run: AttemptRun) -> None:
        """Counts what a run holds from now on, and tells the planner."""
        uses: dict[int, float] = {}
        options = {role.name: role.options for role in run.job.trace.spec.roles}
        for grant in run.grants:
            for pool, amount in self.machines.use(grant, options[grant.role][grant.option]):
                uses[pool] = uses.get(pool, 0.0) + amount
        run.uses = tuple(sorted(uses.items()))
        run.chips = sum(sum(grant.chip_milli) for grant in run.grants) / MILLI
        run.dollars_per_hour = sum(map(self.machines.dollars_per_hour, run.grants))
        self.record.use(self.timeline.now_s, run, 1)
        self._tell_live(run)

    def _tell_live(self, run: AttemptRun) -> None:
        job = run.job
        self.builder.add_live(
            LiveAttempt(
                attempt=run.attempt,
                job=job.trace.job,
                spec=job.trace.spec,
                grants=run.grants,
                submitted_s=job.trace.submit_s,
                granted_s=run.granted_s,
                resized_s=run.course.from_s,
                attained_chip_s=job.attained_chip_s,
                durable_s=run.course.steps_s,  # `_snapshot` counts checkpoints from here.
                evicted_s=job.evicted_s,
                stopping=run.stopping,
            )
        )

    def _schedule(self, run: AttemptRun) -> None:
        """Lets a run's course take place, unless it changes before."""
        course = run.course

        def unless_changed(happens: Callable[[], None]) -> Callable[[], None]:
            return lambda: happens() if run.course is course and not run.stopping else None

        if self.story.listened_to:
            steps = unless_changed(lambda: self.story.stepping(self.timeline.now_s, run))
            caught_up = unless_changed(lambda: self.story.caught_up(self.timeline.now_s, run))
            self.timeline.at(course.steps_s, steps)
            if course.furthest_s > course.work_s:
                self.timeline.at(course.reaches_s(course.furthest_s), caught_up)
        self.timeline.at(course.reaches_s(run.job.trace.duration_s), unless_changed(lambda: self._succeed(run)))

    def _succeed(self, run: AttemptRun) -> None:
        self.story.lead_ended(self.timeline.now_s, run, AttemptState.SUCCEEDED, "ended well")
        self._leave_course(run)
        self._settle(run, AttemptState.SUCCEEDED, StopCause.OUTCOME, "ended well")

    def evict(self, evict: Evict) -> None:
        """Asks an attempt to end as a plan says; it holds its nodes for the grace.

        Args:
            evict: What the plan says.
        """
        run = self.runs[evict.attempt]
        assert not run.stopping
        self.story.stop_requested(self.timeline.now_s, run, evict.reason)
        self._leave_course(run)
        run.stopping = True
        run.job.displaced += 1
        run.job.evicted_s = self.timeline.now_s
        self.record.tally.evicts[evict.cause] += 1
        self._tell_live(run)
        self.timeline.at(
            self.timeline.now_s + self.options.grace_s,
            lambda: self._settle(run, None, StopCause.EVICT, evict.reason) if run.attempt in self.runs else None,
        )

    def lose(self, run: AttemptRun, reason: str) -> None:
        """Ends an attempt that lost a node under it."""
        if run.stopping:
            self._settle(run, None, StopCause.EVICT, reason)
            return
        self.story.failed(self.timeline.now_s, run, reason)
        self._leave_course(run)
        self._settle(run, None, StopCause.LOST, reason)

    def _leave_course(self, run: AttemptRun) -> None:
        """Counts where a run's time went until now, and what it did; it does nothing more."""
        course, job = run.course, run.job
        for phase, seconds in course.spent(self.timeline.now_s):
            self.record.spend(phase, seconds, run)
        job.furthest_s = max(job.furthest_s, course.work_at(self.timeline.now_s))
        job.work_s = course.durable_at(self.timeline.now_s)
        run.course = replace(course, from_s=self.timeline.now_s, steps_s=inf)

    def _settle(self, run: AttemptRun, outcome: AttemptState | None, cause: StopCause, reason: str) -> None:
        job = run.job
        self.record.spend(TimeUse.WINDDOWN, self.timeline.now_s - run.course.from_s, run)
        self.record.pay(run, self.timeline.now_s)
        self.record.use(self.timeline.now_s, run, -1)
        for grant in run.grants:
            self.machines.give(grant)
        held_s = self.timeline.now_s - run.granted_s
        job.attained_chip_s += held_s * run.chips
        job.held_s += held_s
        job.run = None
        del self.runs[run.attempt]
        self.builder.remove_live(run.attempt)
        self.elastic -= _is_elastic(run)
        end = conclude(
            job=job.state,
            outcome=outcome,
            cause=cause,
            lost_before=job.lost,
            attempts_max=job.trace.spec.attempts_max,
        )
        job.lost += end.attempt is AttemptState.LOST
        self.story.ended(self.timeline.now_s, run, end.attempt, reason)
        if end.job is JobState.QUEUED:
            self.story.move(self.timeline.now_s, job, JobState.QUEUED, reason)
            self._queue(job)
        else:
            self._end_job(job, end.job, reason)
        if end.job is JobState.SUCCEEDED and self.options.learn:
            self.builder.durations.observe(job.trace.spec, job.held_s)
        self.timeline.change()

    def resize(self, resize: Resize) -> None:
        """Lets an elastic attempt grow or shrink as a plan says.

        Args:
            resize: What the plan says.
        """
        run = self.runs[resize.attempt]
        self.elastic -= _is_elastic(run)
        old = run.course
        for phase, seconds in old.spent(self.timeline.now_s):
            self.record.spend(phase, seconds, run)
        self.record.pay(run, self.timeline.now_s)
        self.record.use(self.timeline.now_s, run, -1)
        chips = run.chips
        for grant in [grant for grant in run.grants if grant.role == resize.role]:
            self.machines.give(grant)
        self.machines.take(resize.grant)
        run.grants = tuple(resize.grant if grant.role == resize.role else grant for grant in run.grants)
        run.generation += 1
        run.course = Course(
            from_s=self.timeline.now_s,
            steps_s=max(old.steps_s, self.timeline.now_s + self.options.resize_s),
            work_s=old.work_at(self.timeline.now_s),
            furthest_s=max(old.furthest_s, old.work_at(self.timeline.now_s)),
            rate=rate_of(run.job.trace.spec, run.grants),
            checkpoint_s=old.checkpoint_s,
            before=TimeUse.RECOVERY if self.timeline.now_s >= old.steps_s else old.before,
        )
        held = sum(sum(grant.chip_milli) for grant in run.grants) / MILLI
        # What is held now counts from the grant on: the difference until now is settled here.
        run.job.attained_chip_s += (self.timeline.now_s - run.granted_s) * (chips - held)
        self._hold(run)
        self.elastic += _is_elastic(run)
        self.record.tally.resizes += 1
        self.story.resized(self.timeline.now_s, run, resize.reason)
        self._schedule(run)

    def finish(self) -> None:
        """Counts what live attempts had until now: the replay is over."""
        for run in self.runs.values():
            if not run.stopping:
                self._leave_course(run)
            self.record.pay(run, self.timeline.now_s)


def _is_elastic(run: AttemptRun) -> bool:
    roles = {role.name: role.options for role in run.job.trace.spec.roles}
    had = (roles[grant.role][grant.option] for grant in run.grants)
    return any(option.replicas_min < option.replicas for option in had)
