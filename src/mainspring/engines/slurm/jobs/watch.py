"""Allocation watch: what a folder and Slurm's queue together mean, and what is to be done about it.

An allocation runs once some job has created `begun`, and is over once every agent has left word. Where one did not, it
is over when Slurm has ended the job and either every node of such an agent answers Slurm, which then has ended what it
started there, or `FENCE_S` has passed: an agent cut off from everybody ends by its lease.

The queue is read first, then the folder, so a job may begin in between. That it waits is therefore no news of a job
whose `begun` was not seen before the queue was asked; and what waited too long is cancelled once it cannot begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mainspring.domain.fleet import AgentExit, AllocationPhase, AllocationSeen
from mainspring.domain.ids import AllocationId
from mainspring.engines.common.records import Claim, Records
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.queue import (
    NODE_REASONS,
    STUCK,
    TAKEN,
    SlurmJob,
    SlurmQueue,
    Stage,
    state_words,
    waits_for,
)
from mainspring.engines.slurm.cluster.text import expand_hosts
from mainspring.engines.slurm.jobs.folder import WITHDRAWN, AllocationFiles, Asked, Gone, Over, Submitted

FENCE_S = 25.0  # Over an agent's lease of 15 s and the 5 s between two looks at the word by its task.
FORGOTTEN_S = 30.0  # How long Slurm may show nothing of a job it took: three looks of a controller that just restarted.
PINNED_WAIT_S_MAX = 60.0  # For nodes that a plan thought free: enough to clean up after the last job there.
FORCE_AFTER_S = 10.0  # From the word "kill" until Slurm is told to kill, and between two such orders.
LINGER_S = 30.0  # How long a job may go on after its last agent: its tasks tidy up.
WORDS_READ_MAX = 16  # Of agents that failed; the first counts.
KILL_ASKED = "kill asked"  # Since a stop was asked for.
KILL_LOST = "kill lost"  # Since its job is over.
REQUEUED = "REQUEUED"
FORGOTTEN = ""  # The state of a job Slurm knows nothing of.


@dataclass(slots=True)
class Watched:
    """What is remembered of one allocation between two looks; all of it can be read again, but for the times."""

    allocation: AllocationId
    place: AllocationFiles
    claim: Claim
    asked: Asked | None = None
    submitted: Submitted | None = None
    number: int | None = None
    begun_s: float | None = None
    holds: bool = False
    hosts: tuple[str, ...] = ()
    words: dict[int, AgentExit] = field(default_factory=dict)
    over: Over | None = None
    kill_at_s: float | None = None
    killed_s: float | None = None
    missing_s: float | None = None
    dead_s: float | None = None
    state: str | None = None
    answered: bool = False
    absent: frozenset[str] = frozenset()

    @property
    def machines(self) -> tuple[str, ...]:
        """Returns Slurm's names of its machines, in rank order; none where they are not known."""
        return self.hosts or (self.asked.hosts if self.asked and all(self.asked.hosts) else ())


@dataclass(slots=True)
class Deeds:
    """What a look found to be done. Slurm is told after the look; whatever fails is found again by the next one."""

    cancel: list[int] = field(default_factory=list)
    urge: list[int] = field(default_factory=list)
    kill: list[int] = field(default_factory=list)
    withdraw: list[tuple[Watched, Over]] = field(default_factory=list)
    end: list[tuple[Watched, Over]] = field(default_factory=list)
    words: list[tuple[Watched, str]] = field(default_factory=list)
    look_up: list[Watched] = field(default_factory=list)
    ask_nodes: list[Watched] = field(default_factory=list)


class Watch:
    """Looks at one allocation after the other, at one moment.

    Args:
        queue: What Slurm's queue shows.
        asked_s: When the queue was asked, as `monotonic_s`.
        monotonic_s: The time, for lengths.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        records: Records,
        queue: SlurmQueue,
        *,
        asked_s: float,
        now_s: float,
        monotonic_s: float,
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._queue = queue
        self._asked_s = asked_s
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self.deeds = Deeds()

    def see(self, one: Watched) -> AllocationSeen | None:
        """Returns how an allocation stands; None when nothing of it was submitted yet.

        Args:
            one: The allocation; what is remembered of it changes.
        """
        names = one.place.names()
        if one.over is None and "ended.json" in names:
            one.over = self._records.read(Over, one.place.path / "ended.json")
        if one.over is not None:
            return self._ended(one, one.over)
        if one.asked is None and "asked.json" in names:
            one.asked = self._records.read(Asked, one.place.path / "asked.json")
        if one.submitted is None and "job.json" in names:
            one.submitted = self._records.read(Submitted, one.place.path / "job.json")
        jobs = self._queue.by_allocation.get(one.allocation, ())
        begun = one.place.text("begun") if "begun" in names and one.number is None else ""
        if begun == WITHDRAWN:  # By one who died before writing down the end.
            return self._over(one, Over(ended_s=self._now_s, exit_code=None, reason="withdrawn", agent_lost=False))
        if "begun" not in names:
            return self._waiting(one, jobs)
        if one.begun_s is None:
            one.begun_s = self._monotonic_s
        if begun.isdigit():
            one.number = int(begun)
        elif one.number is None and self._asked_s > one.begun_s:  # Nobody is about to write it any more.
            alive = [job.number for job in jobs if job.stage is Stage.ALIVE]
            known = [one.submitted.number] if one.submitted else []
            one.number = next(iter(alive + known), None)
        if one.number is not None:
            self._cancel(job for job in jobs if job.number != one.number and job.stage is Stage.WAITING)
        return self._begun(one, _numbered(jobs, one.number), names)

    # ------------------------------------------------------------ before it begins

    def _waiting(self, one: Watched, jobs: tuple[SlurmJob, ...]) -> AllocationSeen | None:
        known = _numbered(jobs, one.submitted.number if one.submitted else None)
        # Of jobs nobody wrote down only those count that may begin: one that is over without having begun never will.
        live = [job for job in jobs if job.stage is not Stage.OVER]
        if not live and known is not None:
            return self._never_began(one, known)
        if not live and one.submitted is None:
            return None  # A launch is on its way, or was cut short; whoever wants it repeats it.
        if not live:
            reason = "Slurm shows nothing of the job it took"
            if self._missing_for_s(one) < FORGOTTEN_S:
                return self._seen(one, AllocationPhase.PENDING, reason=reason)
            return self._withdraw(one, reason)
        one.missing_s = None
        job = min(live, key=lambda job: (job.stage, job.number))
        one.holds = job.stage is not Stage.WAITING
        self._cancel(other for other in live if other is not job and other.stage is Stage.WAITING)
        if job.stage is Stage.WAITING:
            return self._queued(one, job)
        if job.stage is Stage.LEAVING:
            return self._seen(one, AllocationPhase.STOPPING, reason=state_words(job.state))
        if job.state == "RUNNING":
            return self._seen(one, AllocationPhase.RUNNING)
        return self._seen(one, AllocationPhase.PENDING, reason=state_words(job.state))

    def _queued(self, one: Watched, job: SlurmJob) -> AllocationSeen:
        since_s = self._now_s - (one.asked.at_s if one.asked else self._now_s)
        limit_s = self._cluster.queue_wait_s_max
        if not self._cluster.delegated and job.reason.startswith(NODE_REASONS):
            limit_s = min(limit_s, PINNED_WAIT_S_MAX)
        reason = waits_for(job.reason)
        if since_s >= limit_s or job.reason in STUCK:  # It may begin right now; once withdrawn, it is cancelled.
            return self._withdraw(one, f"waited {since_s:.0f} s: {reason}")
        return self._seen(one, AllocationPhase.PENDING, reason=reason)

    def _never_began(self, one: Watched, job: SlurmJob) -> AllocationSeen:
        taken = job.state in TAKEN
        said = one.place.log_tail()
        reason = f"{state_words(job.state)}; it wrote {said!r}" if said else state_words(job.state)
        return self._withdraw(one, reason, taken=taken)

    def _withdraw(self, one: Watched, reason: str, *, taken: bool = True) -> AllocationSeen:
        """Ends what never began, if it still has not begun when that is decided."""
        self.deeds.withdraw.append(
            (one, Over(ended_s=self._now_s, exit_code=None, reason=reason, agent_lost=not taken, taken=taken))
        )
        return self._seen(one, AllocationPhase.STOPPING, reason=reason, taken=taken)

    # ------------------------------------------------------------ since it has begun

    def _begun(self, one: Watched, job: SlurmJob | None, names: frozenset[str]) -> AllocationSeen:
        running = job is not None and job.stage is Stage.ALIVE
        gone = one.place.gone(surely=not running)
        if not one.hosts and "hosts" in names:
            one.hosts = _hosts(one, one.place.text("hosts"))
        _listen(one, _failed(gone)[:WORDS_READ_MAX])
        word = one.place.text("word")
        if len(gone.codes) >= len(one.claim.nodes):
            return self._conclude(one, gone, word, job.state if job else "")
        if job is not None and job.stage in (Stage.ALIVE, Stage.LEAVING):
            one.missing_s, one.holds = None, True
            self._press(one, word)
            stopping = bool(word) or bool(gone.taken) or job.stage is Stage.LEAVING
            return self._seen(
                one,
                AllocationPhase.STOPPING if stopping else AllocationPhase.RUNNING,
                reason=_live_reason(one, gone, job),
                gone=gone,
                taken=bool(gone.taken) and not word,
            )
        if job is not None and job.stage is Stage.WAITING:
            assert one.begun_s is not None
            if self._asked_s <= one.begun_s:  # It began since.
                return self._seen(one, AllocationPhase.STOPPING if word else AllocationPhase.RUNNING)
            self.deeds.cancel.append(job.number)  # Requeued: it would find that it has begun, and end.
            one.state = REQUEUED
        elif job is not None:
            one.state = job.state
        elif one.state is None:
            self.deeds.look_up.append(one)
            if self._missing_for_s(one) < FORGOTTEN_S:
                phase = AllocationPhase.STOPPING if word else AllocationPhase.RUNNING
                return self._seen(one, phase, reason="Slurm does not show its job", gone=gone)
            one.state = FORGOTTEN
        return self._dead(one, gone, word, one.state)

    def _dead(self, one: Watched, gone: Gone, word: str, state: str) -> AllocationSeen:
        """Waits for the agents of a job that is over, as far as they left no word."""
        one.holds = False
        if one.dead_s is None:
            one.dead_s = self._monotonic_s
        if word:  # An agent that nobody can reach may use its grace to the end.
            one.dead_s = max(one.dead_s, self._kill_at_s(one, word))
        waited_s = self._monotonic_s - one.dead_s
        if one.answered or waited_s >= FENCE_S:
            return self._conclude(one, gone, word, state)
        if waited_s >= 0 and not word.startswith("kill"):
            self.deeds.words.append((one, KILL_ASKED if word else KILL_LOST))
        if state not in ("NODE_FAIL", FORGOTTEN):
            self.deeds.ask_nodes.append(one)
        left = len(one.claim.nodes) - len(gone.codes)
        return self._seen(
            one, AllocationPhase.STOPPING, reason=f"{state_words(state)}; {left} agents left no word yet", gone=gone
        )

    def _conclude(self, one: Watched, gone: Gone, word: str, state: str) -> AllocationSeen:
        lost = [index for index in range(len(one.claim.nodes)) if gone.codes.get(index, 1)]
        silent = len(gone.codes) < len(one.claim.nodes)
        if one.absent:  # Of those that left no word, the ones on machines that answer were ended by Slurm.
            lost = [index for index in lost if index in gone.codes or one.machines[index] in one.absent]
        stopped = bool(word) and word != KILL_LOST
        # A task notes that Slurm asked it to end only where nobody here had done so before.
        taken = bool(gone.taken) or (not stopped and (state.partition(" ")[0] in TAKEN or state == REQUEUED))
        first = next((index for index in lost if index in gone.codes), None)
        if not lost:
            _listen(one, (0,))
        said = _agent_words(one, gone, 0 if first is None and not silent else first)
        if taken:
            said = f"Slurm {gone.taken}" if gone.taken else state_words(state)
        elif silent and not stopped:
            told = state_words(state) if state else "Slurm knows nothing of its job any more"
            said = "; ".join(filter(None, (told, said or one.place.log_tail())))
        code = None if first is None else _exit_code(one, gone, first)
        over = Over(
            ended_s=self._now_s,
            exit_code=code if first is not None or silent else 0,
            reason=said,
            agent_lost=bool(lost) or silent,
            lost_nodes=() if taken else tuple(one.claim.nodes[index] for index in lost),
            taken=taken,
            hosts=one.hosts,
        )
        return self._over(one, over)

    def _press(self, one: Watched, word: str) -> None:
        """Sees to it that agents that were asked to end do so in time."""
        if not word or one.number is None:
            return
        if one.kill_at_s is None:
            self.deeds.urge.append(one.number)
        if self._monotonic_s < self._kill_at_s(one, word):
            return
        if one.killed_s is None or word != KILL_ASKED:
            self.deeds.words.append((one, KILL_ASKED))
            self.deeds.urge.append(one.number)
            one.killed_s = self._monotonic_s
        elif self._monotonic_s - one.killed_s >= FORCE_AFTER_S:
            self.deeds.kill.append(one.number)
            one.killed_s = self._monotonic_s

    def _kill_at_s(self, one: Watched, word: str) -> float:
        """Returns until when agents that were asked to end have; anew where another controller asked."""
        if one.kill_at_s is None:
            seconds = word.partition(" ")[2]
            one.kill_at_s = self._monotonic_s + (float(seconds) if seconds.replace(".", "", 1).isdigit() else 0.0)
        return one.kill_at_s

    # ------------------------------------------------------------ what is shown

    def _over(self, one: Watched, over: Over) -> AllocationSeen:
        self.deeds.end.append((one, over))
        return self._ended(one, over)

    def _ended(self, one: Watched, over: Over) -> AllocationSeen:
        one.holds = False
        for job in self._queue.by_allocation.get(one.allocation, ()):
            lingers = job.stage is Stage.ALIVE and self._now_s - over.ended_s >= LINGER_S
            if lingers or job.stage is Stage.WAITING:
                self.deeds.cancel.append(job.number)
        return AllocationSeen(
            allocation=one.allocation,
            phase=AllocationPhase.ENDED,
            nodes=one.claim.nodes,
            exit_code=over.exit_code,
            reason=over.reason,
            agent_lost=over.agent_lost,
            lost_nodes=over.lost_nodes,
            taken=over.taken,
            hosts=over.hosts,
            job_id=one.claim.job_id,
        )

    def _seen(
        self, one: Watched, phase: AllocationPhase, *, reason: str = "", gone: Gone | None = None, taken: bool = False
    ) -> AllocationSeen:
        failed = _failed(gone) if gone else ()
        return AllocationSeen(
            allocation=one.allocation,
            phase=phase,
            nodes=one.claim.nodes,
            reason=reason,
            agent_lost=bool(failed),
            lost_nodes=tuple(one.claim.nodes[index] for index in failed),
            taken=taken,
            hosts=one.hosts,
            job_id=one.claim.job_id,
        )

    def _missing_for_s(self, one: Watched) -> float:
        if one.missing_s is None:
            one.missing_s = self._monotonic_s
        return self._monotonic_s - one.missing_s

    def _cancel(self, jobs: Iterable[SlurmJob]) -> None:
        self.deeds.cancel += [job.number for job in jobs]


def _numbered(jobs: tuple[SlurmJob, ...], number: int | None) -> SlurmJob | None:
    """Returns the job of this number among an allocation's; by number alone it might be anybody's.

    A controller of Slurm that was killed has forgotten its last jobs, and gives their numbers anew.
    """
    return next((job for job in jobs if job.number == number), None)


def _listen(one: Watched, indexes: tuple[int, ...]) -> None:
    """Reads the last words of agents that are gone, each once."""
    for index in indexes:
        if index not in one.words and (words := one.place.last_words(index)) is not None:
            one.words[index] = words


def _failed(gone: Gone) -> tuple[int, ...]:
    return tuple(index for index, code in gone.codes.items() if code)


def _hosts(one: Watched, text: str) -> tuple[str, ...]:
    """Returns the machines in rank order, where a delegated cluster chose them; none until all are told."""
    if one.asked is None or all(one.asked.hosts):
        return ()
    try:
        found = [host for line in text.splitlines() for host in expand_hosts(line)]
    except ValueError:
        return ()
    if len(found) != len(one.asked.tasks):
        return ()
    by_rank: Mapping[int, str] = dict(zip(one.asked.tasks, found, strict=True))
    return tuple(by_rank[index] for index in range(len(found)))


def _exit_code(one: Watched, gone: Gone, index: int) -> int:
    words = one.words.get(index)
    return words.exit_code if words else gone.codes[index]


def _agent_words(one: Watched, gone: Gone, index: int | None) -> str:
    """Returns what an agent said, or how it ended where it said nothing."""
    if index is None:
        return ""
    words, code = one.words.get(index), gone.codes[index]
    ended = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    said = words.reason if words else f"{ended}, without a last word"
    return f"agent on {one.claim.nodes[index]}: {said}" if said else ""


def _live_reason(one: Watched, gone: Gone, job: SlurmJob) -> str:
    if gone.taken:
        return f"Slurm {gone.taken}"
    if job.state != "RUNNING":
        return state_words(job.state)
    failed = _failed(gone)
    return _agent_words(one, gone, failed[0]) if failed else ""
