"""What runs on clusters beyond what the store knows: listed, and adopted or ended when an operator says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import sqlalchemy as sa

from mainspring.control.state.fleet import FleetView
from mainspring.control.store.audit import note
from mainspring.control.store.holdings import allocations_by_id
from mainspring.control.store.records import jobs_by_id
from mainspring.control.store.restores.adopting import adopt
from mainspring.control.store.restores.attestations import Attestation, read_attestation
from mainspring.control.store.restores.held import all_held, settle_held
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import Adopted, HeldOnes, HeldView, NotAdopted
from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable, nearest
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId
from mainspring.domain.job import LAB, MILLI
from mainspring.domain.ports import Clock, Engine
from mainspring.domain.team import Right


@final
class Restores:
    """What is held of one store. Every call may be repeated.

    Args:
        wake: Told that there is something to do.
        engines: The clusters, by name.
        key: What attestations are signed with.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[], None],
        engines: Mapping[ClusterName, Engine],
        fleet: FleetView,
        key: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._engines = engines
        self._fleet = fleet
        self._key = key

    def held(self, caller: Caller = LAB_ITSELF) -> tuple[HeldView, ...]:
        """Returns what is held, in order of cluster and id: all of it, for anybody."""
        with self._store.read() as connection:
            return tuple(one for one in all_held(connection) if one.holds_job)

    def waiting(self) -> int:
        """Returns how many allocations of what is held wait for an operator."""
        return sum(not one.settled_by for one in self.held())

    def end(self, asked: HeldOnes, caller: Caller = LAB_ITSELF) -> tuple[HeldView, ...]:
        """Ends what is held, with the usual grace, and lets its jobs start then; returns all that is held.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: Nothing of that name is held; then nothing is ended.
        """
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            chosen = [one.allocation for one in _chosen(connection, asked, "end what is held") if not one.settled_by]
            settle_held(connection, chosen, str(caller))
            for allocation in chosen:
                note(connection, caller, "end what is held", allocation, team=LAB, now_s=self._clock.now_s())
        self._wake()
        return self.held(caller)

    def adopt(self, asked: HeldOnes, caller: Caller = LAB_ITSELF) -> Adopted:
        """Adopts what is held and runs: its attempts go on, whole, as those of their jobs; nothing is started anew.

        Returns:
            What was adopted, and what cannot be, with the reason; that stays held.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: Nothing of that name is held; then nothing is adopted.
        """
        with self._store.read() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            named = _chosen(connection, asked, "adopt what is held")
            chosen = {one.allocation: one for one in named if one.holds_job}
            wanted = {one.job for one in chosen.values()}
            whole = [one for one in all_held(connection) if one.allocation in chosen or (one.job and one.job in wanted)]
        reasons: dict[AllocationId, str] = {}
        of_attempt: dict[AttemptId, list[Attestation]] = {}
        for one in whole:
            try:
                attested = self._attested(one)
            except MainspringError as error:
                reasons[one.allocation] = str(error)
            else:
                of_attempt.setdefault(attested.attempt.id, []).append(attested)
        adopted: list[Attestation] = []
        # The newest attempt of a job first: what was given up before, and runs on out of reach, is not its attempt.
        for held in sorted(of_attempt.values(), key=lambda held: (held[0].job.id, -held[0].attempt.number)):
            try:
                self._adopt(held, caller)
            except MainspringError as error:
                reasons |= {one.allocation.id: str(error) for one in held}
            else:
                adopted += held
        self._wake()
        done = {one.job.id for one in adopted}  # What is over of the same jobs is settled with it.
        left = [one.allocation for one in chosen.values() if not (one.over and one.job in done)]
        return Adopted(
            adopted=tuple(sorted(one.allocation.id for one in adopted)),
            refused=tuple(NotAdopted(allocation=name, reason=reasons[name]) for name in left if name in reasons),
        )

    def _attested(self, one: HeldView) -> Attestation:
        """Returns what its engine keeps of an allocation, if we said so ourselves."""
        attempted = "adopt what is held"
        if one.over or one.settled_by:
            got = "one that is over" if one.over else f"one that {one.settled_by} has ended"
            raise Conflict(attempted, on=one.allocation, got=got, wanted="one that runs")
        engine = self._engines.get(one.cluster)
        if engine is None or one.cluster not in self._fleet.seen():
            raise Unavailable(attempted, on=one.allocation, got=f"cluster {one.cluster}, which does not answer")
        attested = read_attestation(engine.attestation(one.allocation), self._key)
        if attested.allocation.id != one.allocation or attested.allocation.cluster != one.cluster:
            got = f"what was attested of {attested.allocation.id} on {attested.allocation.cluster}"
            raise Conflict(attempted, on=one.allocation, got=got, next_step="ms restore --end")
        return attested

    def _adopt(self, held: Sequence[Attestation], caller: Caller) -> None:
        seen = self._fleet.seen()[held[0].attempt.cluster].inventory
        room = {node.name: node.chips * MILLI for node in seen.nodes}
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            still = {one.allocation for one in all_held(connection) if not one.settled_by}
            if any(one.allocation.id not in still for one in held):
                raise Conflict("adopt what is held", on=held[0].attempt.id, got="what somebody has settled meanwhile")
            adopt(connection, held, room=None if seen.delegated else room, by=str(caller), now_s=now_s)
            for one in held:
                note(connection, caller, "adopt what is held", one.allocation.id, team=LAB, now_s=now_s)


def _chosen(connection: sa.Connection, asked: HeldOnes, attempted: str) -> list[HeldView]:
    """Returns what is held of some allocations or jobs; nothing of those that the store knows again.

    Raises:
        NotFound: Nothing is held of one, and the store does not know it.
    """
    known = all_held(connection)
    named = {name: None for one in known for name in (one.allocation, one.job)}
    others = [name for name in asked.allocations if name not in named]
    settled = {one.id for one in allocations_by_id(connection, others)}
    settled_jobs = jobs_by_id(connection, [JobId(name) for name in others])
    for name in others:
        if name not in settled and JobId(name) not in settled_jobs:
            wanted = nearest(name[:80], named)
            raise NotFound(attempted, on=name[:80], wanted=wanted, next_step="ms restore lists it")
    these = frozenset(map(str, asked.allocations))
    return [one for one in known if asked.all or one.allocation in these or one.job in these]
