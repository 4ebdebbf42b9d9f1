"""What becomes of a service's replicas: a pure function of how they are, called every tick.

Replicas start one by one. While a version replaces another, the next of it starts only once those before it have
answered for a while, and one of the older is stopped for each; where one of it fails, the service goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mainspring.control.store.services.records import Service
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState, ended
from mainspring.domain.ports import Backoff

GATE_S = 5.0  # For so long a new version's replica must have answered before the next is replaced.
READY_S = 1_200.0  # From its grant until it answers: the slowest compilations of large models, as for a first step.
SILENT_S = 60.0  # A replica that answered, and says nothing for so long, hangs: others answer meanwhile.
ROOM_S = 60.0  # So long a new version's replica waits for room beside the older ones; then one of these makes room.
# How Kubernetes starts a container again (CrashLoopBackOff: 10 s, doubled, at most 5 min).
AGAIN = Backoff(first_s=10.0, cap_s=300.0)
MISSED_MIN = 5  # Fewer missed deadlines say nothing of a version.
MISSED_RATIO = 0.05  # Of its requests, beyond what the version before misses: then the new one is too slow.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSeen:
    """One replica.

    Args:
        made_s: When its job was made.
        ended_s: When its job ended, None while it has not.
        granted_s: When it was given its place, None while it has none.
        ready_s: Since when it answers, None while it does not.
        silent_s: How long ago it last told of itself, None before it has.
        answered: How many requests it has answered.
        missed: How many it has not, in time.
        reason: What became of it, in words.
        asked: Whether somebody has asked it to end.
    """

    job: JobId
    version: int
    state: JobState
    made_s: float
    ended_s: float | None = None
    granted_s: float | None = None
    ready_s: float | None = None
    silent_s: float | None = None
    answered: int = 0
    missed: int = 0
    reason: str = ""
    asked: bool = False

    @property
    def failed(self) -> bool:
        """Returns whether it ended though nobody wanted it to."""
        return self.state in (JobState.FAILED, JobState.SUCCEEDED) and not self.asked

    @property
    def alive(self) -> bool:
        """Returns whether it is one of those there are to be."""
        return self.state is not JobState.STOPPING and not ended(self.state)

    @property
    def hangs(self) -> bool:
        """Returns whether it has told of itself, and does not any more."""
        return self.granted_s is not None and self.silent_s is not None and self.silent_s > SILENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done.

    Args:
        service: As it is from now on.
        start: Whether a replica of its version is to be made.
        stop: Replicas to be stopped, and why.
    """

    service: Service
    start: bool = False
    stop: tuple[tuple[JobId, str], ...] = ()


def decide(service: Service, replicas: Sequence[ReplicaSeen], now_s: float) -> Decision:
    """Returns what is to be done for a service now.

    Args:
        service: How many replicas it wants, and of which version.
        replicas: Those there are, the oldest first; those that ended lately too.
    """
    own = [one for one in replicas if one.version == service.version.number]
    others = [one for one in replicas if one.version != service.version.number and one.alive]
    if service.before is not None:
        failure = _failure(service, own, others, now_s)
        if failure:
            return Decision(service=service.returned(failure, now_s))
    alive = [one for one in own if one.alive]
    ready = [one for one in alive if _stands(one, now_s, gate_s=GATE_S if others else 0.0)]
    if service.before is not None and len(ready) >= service.wanted and not others:
        words = f"version {service.version.number} answers"
        return Decision(service=replace(service, before=None, reason=words))
    stop = [(one.job, f"nothing was heard of it for {one.silent_s:.0f} s") for one in alive if one.hangs]
    stop += [(one.job, f"did not answer within {READY_S:.0f} s") for one in alive if _is_late(one, now_s)]
    stop += _excess(service, alive)
    stop += [
        (one.job, f"replaced by version {service.version.number}")
        for one in _replaced(service, ready, own, others, now_s)
    ]
    return Decision(service=service, start=_starts(service, own, alive, others, now_s), stop=tuple(dict(stop).items()))


def _stands(one: ReplicaSeen, now_s: float, *, gate_s: float) -> bool:
    return one.ready_s is not None and now_s - one.ready_s >= gate_s


def _is_late(one: ReplicaSeen, now_s: float) -> bool:
    return (
        one.granted_s is not None and one.ready_s is None and one.silent_s is None and now_s - one.granted_s > READY_S
    )


def _starts(
    service: Service,
    own: Sequence[ReplicaSeen],
    alive: Sequence[ReplicaSeen],
    others: Sequence[ReplicaSeen],
    now_s: float,
) -> bool:
    """Returns whether the next replica is to be made."""
    if len(alive) >= service.wanted:
        return False
    waits = [one for one in alive if one.granted_s is None or (others and not _stands(one, now_s, gate_s=GATE_S))]
    return not waits and now_s >= _again_s(own)


def _again_s(own: Sequence[ReplicaSeen]) -> float:
    """Returns from when on a replica may be made: later with each in a row that ended by itself."""
    failed = 0
    last_s = -1.0
    for one in reversed(own):
        if one.ready_s is not None:
            break
        if one.failed:
            failed += 1
            last_s = max(last_s, one.ended_s or one.made_s)
    return last_s + AGAIN.wait_s(failed) if failed else -1.0


def _excess(service: Service, alive: Sequence[ReplicaSeen]) -> list[tuple[JobId, str]]:
    """Returns the replicas beyond those wanted: first those that do not answer yet, then the youngest."""
    order = sorted(alive, key=lambda one: (one.granted_s is None, one.ready_s is None, one.made_s), reverse=True)
    beyond = max(0, len(alive) - service.wanted)
    return [(one.job, f"{service.wanted} replicas are enough") for one in order[:beyond]]


def _replaced(
    service: Service,
    ready: Sequence[ReplicaSeen],
    own: Sequence[ReplicaSeen],
    others: Sequence[ReplicaSeen],
    now_s: float,
) -> list[ReplicaSeen]:
    """Returns the replicas of other versions to stop: those that answer only as far as others do in their place."""
    idle = [one for one in others if one.ready_s is None]
    busy = [one for one in others if one.ready_s is not None]
    spare = min(len(busy), max(0, len(ready) + len(busy) - service.wanted))
    roomless = [one for one in own if one.alive and one.granted_s is None and now_s - one.made_s > ROOM_S]
    if roomless and not spare and busy and len(ready) + len(busy) > 1:
        spare = 1
    return [*idle, *busy[:spare]]


def _failure(service: Service, own: Sequence[ReplicaSeen], others: Sequence[ReplicaSeen], now_s: float) -> str:
    """Returns why a new version is not to go on, "" while nothing speaks against it."""
    for one in own:
        if one.made_s < service.version.since_s:
            continue  # Of an earlier time in which this version was tried.
        if one.failed:
            return f"{one.job} ended: {one.reason or one.state.value}"
        if one.alive and (_is_late(one, now_s) or one.hangs):
            return f"{one.job} does not answer"
    ratio, before = _missed(own), _missed(others)
    if sum(one.missed for one in own) >= MISSED_MIN and ratio > before + MISSED_RATIO:
        return f"it misses {ratio:.0%} of its deadlines, the version before {before:.0%}"
    return ""


def _missed(replicas: Sequence[ReplicaSeen]) -> float:
    missed = sum(one.missed for one in replicas)
    return missed / max(1, missed + sum(one.answered for one in replicas))
