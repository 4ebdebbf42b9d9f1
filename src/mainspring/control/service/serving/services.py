"""Services: asked for, changed and shown. What follows, replica by replica, is the loop's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

import sqlalchemy as sa

from mainspring.control.loop.services.step import is_ready, stop_replicas
from mainspring.control.service.submits import Submits
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.services.records import (
    ReplicaRecord,
    Service,
    Version,
    every_service,
    forget_service,
    replicas_of,
    service_named,
    write_service,
)
from mainspring.control.store.settings import AgentAccess
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, calls_secret, sight
from mainspring.domain.answers import (
    SERVICES_MAX,
    NewScale,
    NewService,
    NewVersion,
    ReplicaAddress,
    ReplicaView,
    ServicePhase,
    ServiceView,
)
from mainspring.domain.answers.steering import check_reason
from mainspring.domain.codec import alike
from mainspring.domain.errors import Conflict, InvalidInput, LimitReached, NotFound, nearest
from mainspring.domain.ids import TeamName
from mainspring.domain.life import ended
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right
from mainspring.domain.wire.events.jobs import ServiceChangedEvent
from mainspring.domain.wire.tickets import TICKET_S, new_ticket

SHOWN_ENDED = 4  # Replicas that have ended, the newest: why a service does not start is in their words.


@final
class Services:
    """What may be said of services, and asked. Used by many threads.

    Args:
        submits: Says whose specs may be submitted by whom.
        access: Has the controller's own secret, from which replicas have theirs, and where the proxy is.
        wake: Told that there is something to do.
    """

    def __init__(
        self, store: Store, submits: Submits, clock: Clock, wake: Callable[[], None], access: AgentAccess
    ) -> None:
        self._store = store
        self._submits = submits
        self._clock = clock
        self._wake = wake
        self._access = access

    def require_data(self, asked: NewService | NewVersion, caller: Caller) -> None:
        """Returns if the data that a spec names may be read; asks the object store, so no writer waits for it.

        Raises:
            MainspringError: See `Submits.submit`.
        """
        self._submits.require_data(asked.spec, caller)

    def make(self, asked: NewService, caller: Caller = LAB_ITSELF) -> ServiceView:
        """Returns a new service; its replicas start one by one.

        Raises:
            NotAllowed: The caller may not submit jobs of its team.
            NotFound: There is no such team, checkpoint or secret.
            ImpossibleJob: No cluster could ever run a replica.
            Conflict: There is a service of that name.
            LimitReached: There are too many.
        """
        now_s, spec = self._clock.now_s(), asked.spec
        if not self._store.joining:
            self.require_data(asked, caller)
        with self._store.write() as connection:
            self._submits.require(connection, spec, caller)
            if service_named(connection, spec.name) is not None:
                step = f"ms service update {spec.name}, or another --name"
                raise Conflict("serve", on=f"service {spec.name!r}", got="one that is there already", next_step=step)
            if len(every_service(connection)) >= SERVICES_MAX:
                raise LimitReached("serve", got=f"{SERVICES_MAX} services", next_step="ms service stop")
            service = Service(
                name=spec.name,
                team=spec.team,
                owner=caller.holder,
                made_s=now_s,
                scale=asked.scale,
                wanted=asked.scale.replicas,
                version=Version(number=1, spec=spec, since_s=now_s),
                reason="made",
            )
            self._say(connection, service, caller, "serve", f"{asked.scale.replicas} replicas")
        return self.service(service.name, caller)

    def services(self, caller: Caller = LAB_ITSELF, *, team: TeamName | None = None) -> tuple[ServiceView, ...]:
        """Returns the services that somebody may see, in order of name.

        Args:
            team: Only this team's, unless None.
        """
        with self._store.read() as connection:
            seen = sight(connection, caller)
            known = [one for one in every_service(connection) if seen is None or one.team in seen]
            return tuple(self._view(connection, one) for one in known if team in (None, one.team))

    def service(self, name: str, caller: Caller = LAB_ITSELF) -> ServiceView:
        """Returns one service.

        Raises:
            NotFound: There is none of that name for the caller.
        """
        with self._store.read() as connection:
            return self._view(connection, _named(connection, name, caller))

    def replicas(self, name: str, caller: Caller = LAB_ITSELF) -> tuple[ReplicaAddress, ...]:
        """Returns where the replicas of a service may be called and how, the oldest first.

        Raises:
            NotFound: There is no service of that name for the caller.
            NotAllowed: The caller may not call it.
        """
        with self._store.read() as connection:
            service = _named(connection, name, caller)
            caller.require(connection, Right.CALL_SERVICES, service.team)
            records = replicas_of(connection, service.name)
        now_s = self._clock.now_s()
        return tuple(self._address(one, now_s) for one in records if one.serving and not ended(one.job.state))

    def _address(self, record: ReplicaRecord, now_s: float) -> ReplicaAddress:
        assert record.serving is not None
        assert record.attempt is not None
        return ReplicaAddress(
            job=record.job.id,
            address=record.serving.address,
            ready=is_ready(record, now_s),
            ticket=new_ticket(calls_secret(self._access.key, record.attempt), now_s + TICKET_S),
            certificate=record.serving.certificate,
        )

    def scale(self, name: str, asked: NewScale, caller: Caller = LAB_ITSELF) -> ServiceView:
        """Gives a service another number of replicas, or other bounds of it.

        Raises:
            NotFound: There is no service of that name for the caller.
            NotAllowed: The caller may not.
        """
        with self._store.write() as connection:
            service = _named(connection, name, caller)
            caller.require(connection, Right.STEER_JOBS, service.team, owner=service.owner)
            scale = replace(asked, reason="")
            wanted = min(max(service.wanted, scale.replicas), scale.most)
            if scale != service.scale:
                after = replace(service, scale=scale, wanted=wanted)
                size = f"{scale.replicas}" if scale.most == scale.replicas else f"{scale.replicas} to {scale.most}"
                self._say(connection, after, caller, "scale a service", f"{size} replicas", asked.reason)
        return self.service(name, caller)

    def update(self, name: str, asked: NewVersion, caller: Caller = LAB_ITSELF) -> ServiceView:
        """Gives a service another spec: its replicas are replaced one by one, and it goes back where new ones fail.

        Raises:
            NotFound: There is no service of that name for the caller, or no such checkpoint or secret.
            NotAllowed: The caller may not.
            InvalidInput: The spec has another name or team.
            ImpossibleJob: No cluster could ever run a replica.
            Conflict: Another update is under way.
        """
        now_s, spec = self._clock.now_s(), asked.spec
        if not self._store.joining:
            self.require_data(asked, caller)
        with self._store.write() as connection:
            service = _named(connection, name, caller)
            caller.require(connection, Right.STEER_JOBS, service.team, owner=service.owner)
            self._submits.require(connection, spec, caller)
            if (spec.name, spec.team) != (service.name, service.team):
                got, wanted = f"{spec.name} of team {spec.team}", f"{service.name} of team {service.team}"
                raise InvalidInput("update a service", on=name, got=got, wanted=wanted)
            if spec != service.version.spec:
                if service.before is not None:
                    got = f"version {service.version.number} on its way"
                    raise Conflict("update a service", on=name, got=got, next_step=f"wait, or ms service stop {name}")
                number = service.versions + 1
                version = Version(number=number, spec=spec, since_s=now_s)
                words = f"version {number} replaces version {service.version.number}"
                after = replace(service, version=version, before=service.version, versions=number)
                self._say(connection, after, caller, "update a service", words, asked.reason)
        return self.service(name, caller)

    def stop(self, name: str, caller: Caller = LAB_ITSELF, *, reason: str = "") -> ServiceView:
        """Ends a service with all its replicas, and returns it as it was.

        Raises:
            NotFound: There is no service of that name for the caller.
            NotAllowed: The caller may not.
        """
        check_reason("stop a service", reason)
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            service = _named(connection, name, caller)
            caller.require(connection, Right.STOP_JOBS, service.team, owner=service.owner)
            before = self._view(connection, service)
            records = {one.job.id: one for one in replicas_of(connection, name)}
            ledger, words = StateWriter(connection, now_s), f"service {name} was stopped by {caller}"
            stop_replicas(ledger, records, dict.fromkeys(records, words))
            forget_service(connection, name)
            ledger.event(ServiceChangedEvent(service=name, change="stopped", by=str(caller)), job=None)
            target = f"{name}: {reason}" if reason else name
            note(connection, caller, "stop a service", target, team=service.team, now_s=now_s)
        self._wake()
        return before

    def _say(
        self, connection: sa.Connection, after: Service, caller: Caller, action: str, words: str, reason: str = ""
    ) -> None:
        """Writes what is said of a service, and tells of it."""
        now_s = self._clock.now_s()
        told = f"{words}: {reason}" if reason else words
        write_service(connection, replace(after, reason=told))
        event = ServiceChangedEvent(service=after.name, change=told, by=str(caller))
        StateWriter(connection, now_s).event(event, job=None)
        note(connection, caller, action, f"{after.name}: {told}", team=after.team, now_s=now_s)
        self._wake()

    def _view(self, connection: sa.Connection, service: Service) -> ServiceView:
        members = self._members(connection, service)
        own = [one for one in members if one.ready and one.version == service.version.number]
        phase = ServicePhase.SERVING if len(own) >= service.wanted else ServicePhase.STARTING
        shown = {
            "version": service.version.number,
            "version_before": None if service.before is None else service.before.number,
            "phase": phase if service.before is None else ServicePhase.UPDATING,
            "spec": service.version.spec,
            "members": members,
            "address": f"{self._access.proxy_url}/v1/services/{service.name}" if self._access.proxy_url else "",
        }
        return ServiceView(**alike(ServiceView, service) | shown)

    def _members(self, connection: sa.Connection, service: Service) -> tuple[ReplicaView, ...]:
        records = replicas_of(connection, service.name)
        over = [one.job.id for one in records if ended(one.job.state)][:-SHOWN_ENDED]
        now_s = self._clock.now_s()
        return tuple(_replica(one, now_s) for one in records if one.job.id not in over)


def _named(connection: sa.Connection, name: str, caller: Caller) -> Service:
    seen, found = sight(connection, caller), service_named(connection, name)
    if found is not None and (seen is None or found.team in seen):
        return found
    names = [one.name for one in every_service(connection) if seen is None or one.team in seen]
    raise NotFound(
        "find a service",
        on=repr(name[:80]),
        wanted=nearest(name[:80], names) if names else "",
        next_step="ms service ls",
    )


def _replica(record: ReplicaRecord, now_s: float) -> ReplicaView:
    serving, rank = record.serving, record.rank
    return ReplicaView(
        job=record.job.id,
        version=record.version,
        state=record.job.state,
        cluster=record.cluster,
        node=None if rank is None else rank.node,
        address="" if serving is None else serving.address,
        ready=is_ready(record, now_s),
        in_flight=0 if serving is None else serving.in_flight,
        answered=0 if serving is None else serving.answered,
        missed=0 if serving is None else serving.missed,
        silent_s=record.silent_s(now_s),
        reason=record.job.reason,
    )
