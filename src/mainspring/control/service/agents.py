"""Agent service: orders for agents that register, acknowledgements for leads that report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import sqlalchemy as sa

from mainspring.control.service.secrets import secrets_named, with_secrets
from mainspring.control.service.traces.telling import parent_of
from mainspring.control.store.holdings import (
    KEPT,
    AllocationRecord,
    allocations_of,
    layout,
    live_allocations_of,
    parts,
    ranks_min,
    ranks_per_replica,
)
from mainspring.control.store.ledger import StateWriter, StopCause
from mainspring.control.store.records import (
    AttemptRecord,
    JobRecord,
    attempt_by_id,
    furthest_step,
    jobs_by_id,
    specs,
    text_of,
)
from mainspring.control.store.restores.adopting import recall_agents
from mainspring.control.store.restores.postings import posting
from mainspring.control.store.rows import Prepared, change_row
from mainspring.control.store.schema import agents, allocations, attempts, events, jobs
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import Settings
from mainspring.control.store.tokens import Caller, peers_secret
from mainspring.domain.errors import Conflict, InvalidMessage, NotFound, Unavailable, nearest
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AllocationId
from mainspring.domain.job import JobKind, JobSpec
from mainspring.domain.life import AttemptState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.release import Unknown
from mainspring.domain.wire import (
    Heartbeat,
    HeartbeatReply,
    LeadEvent,
    Orders,
    Register,
    RoleOrders,
)
from mainspring.domain.wire.events.attempts import LeadNamedEvent
from mainspring.domain.wire.events.leads import ResultEvent, UnknownWordEvent
from mainspring.domain.wire.telemetry import TRACEPARENT_VARIABLE, place_of_attempt
from mainspring.domain.wire.tickets import SERVICE_SECRET

ADDRESS_LENGTH_MAX = 255
PROFILE_FRESH_S = 30.0  # A wish is told with each heartbeat for so long; by then a lead that lives has heard it.
LEDGER_S_MAX = 1e13  # Of one use: every node of the largest cluster, for a year and a half.
UNKNOWN_KEPT_MAX = 100  # Words of one attempt's newer peers: enough to see what they are.
_OF_ATTEMPT = agents.c.attempt_id == sa.bindparam("attempt")
_GONE = Prepared(sa.select(agents.c.agent).where(_OF_ATTEMPT, agents.c.gone).order_by(agents.c.agent))
FIRST_LEAD = 0  # The first node of the first allocation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What orders are made by.

    Args:
        settings: How often leads report, and how long agents live without one.
        objects_url: Where code snapshots and checkpoints are.
        key: What the secrets of attempts are made from.
        environment_passed: Variables of agents that ranks get beside the usual.
        listens_since_s: Since when this controller hears leads: one that was not heard before may well live.
        keys: What secrets are kept under.
        store_credentials: Whether agents are to ask for credentials of the object store.
    """

    settings: Settings
    objects_url: str
    key: str = field(repr=False)
    environment_passed: tuple[str, ...] = ()
    now_s: float
    listens_since_s: float
    keys: SecretKeys
    store_credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gang:
    """What goes on of an attempt, as an agent that registers finds it: its allocations in order of place, and parts."""

    allocations: tuple[AllocationRecord, ...]
    parts: Mapping[AllocationId, Grant]

    @property
    def size(self) -> int:
        """Returns how many agents there are to be."""
        return sum(one.nodes for one in self.allocations)


def register(
    connection: sa.Connection, call: Register, caller: Caller, *, rules: Rules, known: bool = False
) -> Orders | None:
    """Returns an agent's orders: ready once every agent of the attempt has come, and from then on at once.

    An agent that has lost its lead is told to lead itself when the lead has been silent here for a lease too, and of
    nobody else who does; else it is sent back to the one that reports.

    Args:
        connection: From `Store.write`; from `Store.read` will do when the agent is `known`.
        call: What the agent says.
        caller: Whose token it showed.
        rules: What orders are made by.
        known: Only look: None when there is something to write down.

    Raises:
        NotFound: No such allocation, or the node is not in it.
        Conflict: The allocation is stopping or gone, the attempt has lost too many leads, or a secret is gone that an
            agent which comes later is to be given.
        InvalidMessage: The address is too long.
    """
    if not 0 < len(call.address) <= ADDRESS_LENGTH_MAX:
        raise InvalidMessage("register an agent", got=f"{len(call.address)} letters", wanted="its address")
    where = posting(connection, call.allocation, caller)
    attempt = where.attempt
    if where.allocation.state not in KEPT:
        raise Conflict("register an agent", on=call.allocation, got=f"one that is {where.allocation.state.value}")
    own = sorted(live_allocations_of(connection, [attempt.id]), key=lambda one: one.place)
    kept = tuple(one for one in own if one.state in KEPT)
    gang = _Gang(allocations=kept, parts=parts(connection, [one.id for one in kept]))
    agent = where.allocation.agent_first + _place(gang.parts[call.allocation], call)
    fresh = _address(connection, attempt, agent) != call.address
    formed = attempt.epoch == 0 and call.lost_epoch == 0 and _all_came(connection, attempt, gang, agent)
    leads = not formed and _succeeds(attempt, call, rules)
    waited = bool(where.allocation.queued)
    if known and (fresh or formed or leads or waited):
        return None
    if waited:
        StateWriter(connection, rules.now_s).leave_queue(where.allocation)
    if fresh:
        connection.execute(sa.delete(agents).where(agents.c.attempt_id == attempt.id, agents.c.agent == agent))
        connection.execute(sa.insert(agents).values(attempt_id=attempt.id, agent=agent, address=call.address))
    if fresh and where.allocation.came_s is None:
        _note_arrival(connection, where.allocation, rules.now_s)
    if formed:
        attempt = _name_first(connection, attempt, rules.now_s)
    if leads:
        attempt = _name_another(connection, attempt, agent, gang, call.lost_epoch, rules)
    orders = _orders(connection, attempt, agent, gang, rules)
    if call.lost_epoch > attempt.epoch:  # Named in a time that the store forgot: one of then leads still, or this one.
        orders = replace(orders, ready=False, lead=False, ranks=(), roles=())
    names = secrets_named(orders, gang.parts[call.allocation].role)
    if not names:
        return orders
    return with_secrets(connection, rules.keys, orders, names, call, key=rules.key, now_s=rules.now_s, known=known)


def _address(connection: sa.Connection, attempt: AttemptRecord, agent: int) -> str | None:
    query = sa.select(agents.c.address).where(agents.c.attempt_id == attempt.id, agents.c.agent == agent)
    return connection.execute(query).scalar()


def _all_came(connection: sa.Connection, attempt: AttemptRecord, gang: _Gang, agent: int) -> bool:
    """Returns whether every agent has come, with the one that calls."""
    others = (agents.c.attempt_id == attempt.id, agents.c.agent != agent)
    count = connection.execute(sa.select(sa.func.count()).select_from(agents).where(*others)).scalar_one()
    if count + 1 < gang.size:  # A thousand agents ask often until the last has come: counting is all they cost.
        return False
    came = {agent, *connection.execute(sa.select(agents.c.agent).where(*others)).scalars()}
    return all(each in came for one in gang.allocations for each in range(one.agent_first, one.agent_first + one.nodes))


def _note_arrival(connection: sa.Connection, allocation: AllocationRecord, now_s: float) -> None:
    """Writes when the last agent of an allocation has come."""
    first, last = allocation.agent_first, allocation.agent_first + allocation.nodes - 1
    own = (agents.c.attempt_id == allocation.attempt, agents.c.agent.between(first, last))
    came = connection.execute(sa.select(sa.func.count()).select_from(agents).where(*own)).scalar_one()
    if came == allocation.nodes:
        connection.execute(sa.update(allocations).where(allocations.c.id == allocation.id).values(came_s=now_s))


def _orders(connection: sa.Connection, attempt: AttemptRecord, agent: int, gang: _Gang, rules: Rules) -> Orders:
    spec = specs(connection, [attempt.job])[attempt.job]
    held = [(one, gang.parts[one.id]) for one in gang.allocations]
    ready, lead = attempt.epoch > 0, agent == attempt.lead
    earlier = attempt.number if attempt.epoch > 1 else attempt.number - 1  # A lead before may have told of steps too.
    job = jobs_by_id(connection, [attempt.job])[attempt.job]
    spec = spec.sized(job.overrides.fewest()) if job.overrides is not None else spec
    environment = {**_array_place(job), **_traced(connection, attempt, spec, rules)}
    return Orders(
        ready=ready,
        attempt=attempt.id,
        job=attempt.job,
        epoch=attempt.epoch,
        agent=agent,
        agents=gang.size,
        lead=lead,
        lead_address=(_address(connection, attempt, attempt.lead) or "") if ready else "",
        ranks=layout(held, only=None if lead else agent) if ready else (),
        roles=_roles(spec, _granted(connection, attempt, gang, len(spec.roles)), environment) if ready else (),
        code=spec.code,
        objects_url=rules.objects_url,
        restarts_max=spec.restarts_max,
        lease_s=rules.settings.lease_s,
        heartbeat_s=rules.settings.heartbeat_s,
        furthest_step=furthest_step(connection, attempt.job, until=earlier),
        number=attempt.number,
        inputs=spec.inputs,
        begins_from=spec.begins_from,
        environment_passed=rules.environment_passed,
        peers_secret=peers_secret(rules.key, attempt.id),
        store_credentials=rules.store_credentials,
        generation=attempt.generation,
    )


def _granted(connection: sa.Connection, attempt: AttemptRecord, gang: _Gang, roles: int) -> list[Grant]:
    """Returns what roles were granted: of one that has nothing left, what it had."""
    held = [gang.parts[one.id] for one in gang.allocations]
    if len({part.role for part in held}) < roles:
        held += parts(connection, [one.id for one in allocations_of(connection, attempt.id)]).values()
    return held


def _roles(spec: JobSpec, held: Sequence[Grant], environment: Mapping[str, str]) -> tuple[RoleOrders, ...]:
    granted = {part.role: part for part in reversed(held)}
    made = []
    for role in spec.roles:
        part = granted[role.name]
        option = role.options[part.option]
        each = ranks_per_replica(part, option)
        made.append(
            RoleOrders(
                role=role.name,
                command=role.command,
                environment={**role.environment, **environment},
                spares=role.spares * each,
                ranks_min=ranks_min(role, part),
                group=option.group * each if option.group or each > 1 else 0,
                memory_mib=option.memory_mib // each,
                secrets=role.secrets,
                secret_files=(*role.secret_files, *([SERVICE_SECRET] if spec.kind is JobKind.SERVICE else ())),
            )
        )
    return tuple(made)


# ---------------------------------------------------------------- leads


def _name_first(connection: sa.Connection, attempt: AttemptRecord, now_s: float) -> AttemptRecord:
    named: dict[str, object] = {"epoch": 1, "lead": FIRST_LEAD, "led_s": now_s, "heard_s": now_s}
    return _named(connection, attempt, named)


def _succeeds(attempt: AttemptRecord, call: Register, rules: Rules) -> bool:
    """Returns whether who calls is to lead: the lead it has lost is the newest, and nobody here hears of it either."""
    if call.lost_epoch < max(1, attempt.epoch):
        return False
    heard_s = max(rules.listens_since_s, attempt.granted_s if attempt.heard_s is None else attempt.heard_s)
    return rules.now_s - heard_s >= rules.settings.lease_s


def _name_another(
    connection: sa.Connection, attempt: AttemptRecord, agent: int, gang: _Gang, lost_epoch: int, rules: Rules
) -> AttemptRecord:
    if attempt.epoch >= rules.settings.leads_max:
        raise Conflict(
            "name another lead", on=attempt.id, got=f"{attempt.epoch} leads lost", wanted="fewer", next_step="end"
        )
    heard_s = attempt.granted_s if attempt.heard_s is None else attempt.heard_s
    silent_s = max(0.0, rules.now_s - heard_s)
    # What nobody told of since: the nodes stood idle for want of a lead.
    closed = _ledgers_closed(attempt, {TimeUse.RECOVERY.value: silent_s * gang.size})
    epoch = lost_epoch + 1  # The store's own, or one of a time that it forgot.
    reason = f"agent {attempt.lead}, which led, has not been heard of for {silent_s:.0f} s"
    told = LeadNamedEvent(epoch=epoch, agent=agent, reason=reason)
    StateWriter(connection, rules.now_s).event(told, job=attempt.job, attempt=attempt.id)
    named: dict[str, object] = {"epoch": epoch, "lead": agent, "heard_s": rules.now_s, "events_seen": 0}
    named["led_s"] = rules.now_s if attempt.led_s is None else attempt.led_s
    return _named(connection, attempt, named | closed)


def _named(connection: sa.Connection, attempt: AttemptRecord, columns: Mapping[str, object]) -> AttemptRecord:
    connection.execute(sa.update(attempts).where(attempts.c.id == attempt.id).values(columns))
    current = attempt_by_id(connection, attempt.id)
    assert current is not None
    return current


def heartbeat(connection: sa.Connection, beat: Heartbeat, now_s: float) -> HeartbeatReply:
    """Writes what a lead reports, by a connection of `Store.write`, and returns what it need not repeat.

    Raises:
        InvalidMessage: Its outcome is not one an attempt can end with.
        Unavailable: The store does not know its attempt: it went back in time, and the lead goes on as it does while
            nobody answers, until an operator settles what becomes of it.
    """
    outcome = None if isinstance(beat.outcome, Unknown) else beat.outcome
    if outcome is not None and not ended(outcome):
        raise InvalidMessage("accept a heartbeat", on="field 'outcome'", got=outcome.value, wanted="an end")
    attempt = attempt_by_id(connection, beat.attempt)
    if attempt is None:
        raise Unavailable("report on an attempt", on=beat.attempt, got="one that the store does not know")
    if ended(attempt.state) or beat.epoch < attempt.epoch or not beat.epoch:
        return HeartbeatReply(acknowledged=0, fenced=True)
    ledger = StateWriter(connection, now_s)
    if beat.epoch > attempt.epoch:
        attempt = _recalled(ledger, attempt, beat)
    if attempt.state is AttemptState.GRANTED:
        ledger.run_attempt(attempt, jobs_by_id(connection, [attempt.job])[attempt.job])
    seen = _write_events(ledger, attempt, beat.events)
    if isinstance(beat.outcome, Unknown):  # Its engine will see it end.
        _write_unknown(ledger, attempt, UnknownWordEvent(word=beat.outcome.kind, words=beat.reason), now_s)
    columns: dict[str, object] = {"events_seen": seen, "heard_s": now_s}
    given = {use.value: min(beat.seconds.get(use.value, 0.0), LEDGER_S_MAX) for use in TimeUse}
    told = {use: seconds for use, seconds in given.items() if seconds > 0}
    if sum(told.values()) >= sum(attempt.seconds.values()):  # One that came late tells what was known before.
        columns["seconds"] = text_of(told)
        if told and attempt.epoch == 1 and not attempt.seconds:
            columns["led_s"] = _began_s(connection, attempt, sum(told.values()), now_s)
    if (beat.generation, beat.step) >= (attempt.generation, attempt.step):
        columns |= {"generation": beat.generation, "step": beat.step, "ranks": text_of(beat.ranks)}
        columns["at_risk"] = text_of(beat.at_risk) if beat.at_risk is not None else None
        if beat.step >= 0:  # Until an attempt steps, its job stands where the ones before have left it.
            change_row(connection, jobs, attempt.job, {"step": beat.step, "metrics": text_of(beat.metrics)})
    if outcome is not None and attempt.outcome is None:
        columns["outcome"] = outcome.value
    change_row(connection, attempts, attempt.id, columns)
    if outcome is not None:
        current = attempt_by_id(connection, attempt.id)
        assert current is not None
        # A lead ends so only when its engine asks it to: nobody here has, unless the attempt is stopping already.
        taken = outcome is AttemptState.CANCELLED and current.state is not AttemptState.STOPPING
        cause = StopCause.TAKEN if taken else StopCause.OUTCOME
        reason = beat.reason or f"its lead reported {outcome.value}"
        ledger.stop_attempt(current, cause, f"cluster {attempt.cluster} took it back: {reason}" if taken else reason)
    wish = attempt.profile if attempt.profile and now_s - attempt.profile.asked_s < PROFILE_FRESH_S else None
    return HeartbeatReply(acknowledged=seen, gone=_gone(connection, attempt), stacks=attempt.stacks_asked, profile=wish)


def _recalled(ledger: StateWriter, attempt: AttemptRecord, beat: Heartbeat) -> AttemptRecord:
    """Returns an attempt whose lead was named before the store went back in time, and is its lead all the same."""
    kept = [one for one in live_allocations_of(ledger.connection, [attempt.id]) if one.state in KEPT]
    everyone = [agent for one in kept for agent in range(one.agent_first, one.agent_first + one.nodes)]
    lead = beat.agent if beat.agent in everyone else attempt.lead
    reason = f"it leads already, and the store knew of {attempt.epoch} leads"
    told = LeadNamedEvent(epoch=beat.epoch, agent=lead, reason=reason)
    ledger.event(told, job=attempt.job, attempt=attempt.id)
    recall_agents(ledger, attempt, everyone, {lead: beat.address[:ADDRESS_LENGTH_MAX]} if beat.address else {})
    led_s = attempt.granted_s if attempt.led_s is None else attempt.led_s
    named = {"epoch": beat.epoch, "lead": lead, "events_seen": 0, "led_s": led_s, "heard_s": ledger.now_s}
    return _named(ledger.connection, attempt, named | _ledgers_closed(attempt))


def _ledgers_closed(attempt: AttemptRecord, more: Mapping[str, float] = MappingProxyType({})) -> dict[str, object]:
    """Returns the columns of an attempt whose lead's account is over, with what nobody told of."""
    before = dict(attempt.seconds_before)
    for use, seconds in (*attempt.seconds.items(), *more.items()):
        before[use] = before.get(use, 0.0) + seconds
    return {"seconds": "{}", "seconds_before": text_of(before)}


def _gone(connection: sa.Connection, attempt: AttemptRecord) -> tuple[int, ...]:
    return tuple(_GONE.run(connection, attempt=attempt.id).scalars())


def _began_s(connection: sa.Connection, attempt: AttemptRecord, told_s: float, now_s: float) -> float:
    """Returns when the first lead began, by the first word of its ledger: it came a while after it was named."""
    nodes = sum(one.nodes for one in live_allocations_of(connection, [attempt.id]) if one.state in KEPT)
    assert attempt.led_s is not None
    return max(attempt.led_s, now_s - told_s / max(1, nodes))


def _write_events(ledger: StateWriter, attempt: AttemptRecord, told: Sequence[LeadEvent]) -> int:
    """Writes the events not seen yet and returns the last sequence seen."""
    seen = attempt.events_seen
    for event in sorted(told, key=lambda one: one.sequence):
        if event.sequence <= seen:
            continue
        seen = event.sequence
        time_s = max(attempt.granted_s, min(event.time_s, ledger.now_s))  # By a clock that may be anything.
        if event.kind == UnknownWordEvent.kind:
            _write_unknown(ledger, attempt, event, time_s)
            continue
        ledger.event(event, job=attempt.job, attempt=attempt.id, time_s=time_s)
        if event.kind == ResultEvent.kind:
            result = dict(jobs_by_id(ledger.connection, [attempt.job])[attempt.job].result) | dict(event.detail)
            ledger.connection.execute(sa.update(jobs).where(jobs.c.id == attempt.job).values(result=text_of(result)))
    return seen


def _write_unknown(
    ledger: StateWriter, attempt: AttemptRecord, told: LeadEvent | UnknownWordEvent, time_s: float
) -> None:
    """Writes what a newer peer said and nobody here knows, unless enough of it is written."""
    own = (events.c.job_id == attempt.job, events.c.attempt_id == attempt.id, events.c.kind == UnknownWordEvent.kind)
    count = ledger.connection.execute(sa.select(sa.func.count()).select_from(events).where(*own)).scalar_one()
    if count < UNKNOWN_KEPT_MAX:
        ledger.event(told, job=attempt.job, attempt=attempt.id, time_s=time_s)


def _array_place(job: JobRecord) -> Mapping[str, str]:
    """Returns what a program of an array is told of its place in it."""
    if job.array is None:
        return {}
    return {"MAINSPRING_ARRAY_INDEX": str(job.array_index), "MAINSPRING_ARRAY_COUNT": str(job.array_count)}


def _traced(connection: sa.Connection, attempt: AttemptRecord, spec: JobSpec, rules: Rules) -> Mapping[str, str]:
    """Returns what a program's own spans hang under: the attempt's where that is told, else what its job came with."""
    if any(TRACEPARENT_VARIABLE in role.environment for role in spec.roles):
        return {}  # It was given one by name.
    parent = parent_of(connection, attempt.job)
    told = bool(rules.settings.traces.endpoint)
    place = place_of_attempt(attempt.job, attempt.id, parent=parent) if told else parent
    return {} if place is None else {TRACEPARENT_VARIABLE: str(place)}


def _place(part: Grant, call: Register) -> int:
    if call.node not in part.nodes:
        wanted = nearest(call.node, part.nodes)
        raise NotFound("register an agent", on=call.allocation, got=f"node {call.node[:80]!r}", wanted=wanted)
    return part.nodes.index(call.node)
