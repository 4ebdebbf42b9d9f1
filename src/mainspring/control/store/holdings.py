"""Allocations: the queries that read them, and how they make up an attempt's grants.

An allocation is what an engine starts and stops as one, so it is also what is counted and paid. It never changes: an
attempt grows by one more, and shrinks by ending one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sqlalchemy as sa

from mainspring.control.store.records import ATTEMPT_LIVE, BETWEEN, chunks, read_text
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import allocations, attempts
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName, RoleName
from mainspring.domain.job import JobSpec, Option, Overrides, Role
from mainspring.domain.life import AllocationState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.wire import RankPlace

ALLOCATION_LIVE = tuple(state.value for state in AllocationState if not ended(state))
PARTS_KEPT = 8_192  # Texts read once: the parts of a few of the largest attempts.
KEPT = (AllocationState.GRANTED, AllocationState.LAUNCHED)  # Those that are meant to go on.


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """One allocation, but for its part of the grants, which is read apart because it never changes.

    `place` counts the attempt's allocations, `agent_first` and `rank_first` are numbers in the attempt. `came_s` is
    when the last of its agents came, `ended_s` until when it is counted, None while it is; `lost` tells that an agent
    of it ended otherwise than well. `queued` is what it waits for in its cluster's own queue, "" once it has left that,
    None when it never was there; `hosts` names the machines behind its nodes, where its cluster chose them, () where
    those are its nodes.
    """

    id: AllocationId
    attempt: AttemptId
    place: int
    cluster: ClusterName
    state: AllocationState
    launched_s: float | None
    stopped_s: float | None
    agent_first: int
    rank_first: int
    nodes: int
    dollars_per_hour: float
    granted_s: float
    came_s: float | None
    ended_s: float | None
    lost: bool
    queued: str | None
    hosts: tuple[str, ...]


ALLOCATION_ROWS = RowMapping(AllocationRecord, allocations)
_IN_ORDER = (allocations.c.attempt_id, allocations.c.place)
_GRANTS = (
    sa.select(allocations.c.attempt_id, allocations.c.part)
    .where(sa.not_(allocations.c.released), allocations.c.attempt_id.in_(sa.bindparam("some", expanding=True)))
    .order_by(*_IN_ORDER)
)
_HELD = (
    sa.select(sa.func.aggregate_strings(allocations.c.part, BETWEEN))
    .join(attempts, allocations.c.attempt_id == attempts.c.id)
    .where(attempts.c.state.in_(ATTEMPT_LIVE), sa.not_(allocations.c.released))
)
_LIVE = ALLOCATION_ROWS.select.where(allocations.c.state.in_(ALLOCATION_LIVE)).order_by(*_IN_ORDER)


def allocation_by_id(connection: sa.Connection, allocation: AllocationId) -> AllocationRecord | None:
    """Returns one allocation, or None."""
    return next(iter(allocations_by_id(connection, [allocation])), None)


def live_allocations(connection: sa.Connection) -> tuple[AllocationRecord, ...]:
    """Returns every allocation that is not gone, in order of attempt and place."""
    return ALLOCATION_ROWS.read(connection, _LIVE)


def live_allocations_of(connection: sa.Connection, wanted: Iterable[AttemptId]) -> tuple[AllocationRecord, ...]:
    """Returns every allocation of some attempts that is not gone, in no particular order.

    Args:
        wanted: Ids of the attempts.
    """
    return tuple(
        one
        for some in chunks(wanted)
        for one in ALLOCATION_ROWS.read(connection, _LIVE.where(allocations.c.attempt_id.in_(some)))
    )


def allocations_by_id(connection: sa.Connection, wanted: Iterable[AllocationId]) -> tuple[AllocationRecord, ...]:
    """Returns some allocations, in no particular order."""
    return tuple(
        one
        for some in chunks(wanted)
        for one in ALLOCATION_ROWS.read(connection, ALLOCATION_ROWS.select.where(allocations.c.id.in_(some)))
    )


def allocations_of(connection: sa.Connection, attempt: AttemptId) -> tuple[AllocationRecord, ...]:
    """Returns an attempt's allocations, also those that are gone, in order of place."""
    return allocations_of_each(connection, [attempt]).get(attempt, ())


def allocations_of_each(
    connection: sa.Connection, wanted: Iterable[AttemptId]
) -> Mapping[AttemptId, tuple[AllocationRecord, ...]]:
    """Returns the allocations of some attempts, also those that are gone, each attempt's in order of place.

    Args:
        wanted: Ids of the attempts.
    """
    found: dict[AttemptId, list[AllocationRecord]] = {}
    for some in chunks(wanted):
        query = ALLOCATION_ROWS.select.where(allocations.c.attempt_id.in_(some)).order_by(*_IN_ORDER)
        for one in ALLOCATION_ROWS.read(connection, query):
            found.setdefault(one.attempt, []).append(one)
    return {attempt: tuple(own) for attempt, own in found.items()}


def bereaved(connection: sa.Connection, wanted: Iterable[AttemptId]) -> frozenset[AttemptId]:
    """Returns those of some attempts of which an agent was lost.

    Args:
        wanted: Ids of the attempts.
    """
    return frozenset(
        AttemptId(attempt)
        for some in chunks(wanted)
        for attempt in connection.execute(
            sa.select(allocations.c.attempt_id).where(allocations.c.attempt_id.in_(some), allocations.c.lost)
        ).scalars()
    )


def parts(connection: sa.Connection, wanted: Iterable[AllocationId]) -> Mapping[AllocationId, Grant]:
    """Returns what some allocations hold; it never changes.

    Args:
        wanted: Ids of the allocations.
    """
    found = {}
    for some in chunks(wanted):
        query = sa.select(allocations.c.id, allocations.c.part).where(allocations.c.id.in_(some))
        for row in connection.execute(query):
            found[AllocationId(row.id)] = _part(row.part)
    return found


def grants(connection: sa.Connection, wanted: Iterable[AttemptId]) -> Mapping[AttemptId, tuple[Grant, ...]]:
    """Returns what some attempts hold, or held last, one grant a role."""
    held: dict[AttemptId, list[Grant]] = {attempt: [] for attempt in wanted}
    for some in chunks(held):
        for row in connection.execute(_GRANTS, {"some": some}):
            held[AttemptId(row.attempt_id)].append(_part(row.part))
    return {attempt: merged(own) for attempt, own in held.items()}


def held_parts(connection: sa.Connection) -> tuple[Grant, ...]:
    """Returns what attempts that have not ended hold, part by part, in no order; in one row, as `tenants`."""
    return tuple(map(_part, filter(None, (connection.execute(_HELD).scalar() or "").split(BETWEEN))))


@lru_cache(maxsize=PARTS_KEPT)
def _part(text: str) -> Grant:
    """Returns what a text holds; each agent that registers reads the parts of its whole attempt."""
    return read_text(Grant, text)


def allocation_of_rank(connection: sa.Connection, attempt: AttemptId, rank: int) -> AllocationRecord:
    """Returns the allocation in which a rank lives, or has lived.

    Args:
        attempt: The rank's attempt.
        rank: Its number in the attempt.

    Raises:
        NotFound: The attempt has no such rank.
    """
    own = allocations_of(connection, attempt)
    held = parts(connection, [one.id for one in own])
    for one in own:
        if one.rank_first <= rank < one.rank_first + sum(held[one.id].ranks):
            return one
    last = max((one.rank_first + sum(held[one.id].ranks) for one in own), default=0) - 1
    raise NotFound("find a rank", on=attempt, got=f"rank {rank}", wanted=f"0 to {last}")


# ---------------------------------------------------------------- grants and their parts, pure


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationChange:
    """How a role of a live attempt gets what a plan wants: the allocations that end, and the parts it gets beside."""

    dropped: tuple[AllocationId, ...]
    added: tuple[Grant, ...]


def merged(held: Iterable[Grant]) -> tuple[Grant, ...]:
    """Returns one grant a role, in order of their first parts; nodes keep their order too.

    Args:
        held: Parts, in order of place.
    """
    by_role: dict[RoleName, list[Grant]] = {}
    for part in held:
        by_role.setdefault(part.role, []).append(part)
    return tuple(own[0] if len(own) == 1 else _together(own) for own in by_role.values())


def _together(own: Sequence[Grant]) -> Grant:
    milli: dict[NodeName, int] = {}
    ranks: dict[NodeName, int] = {}
    for part in own:
        for node, some_milli, some_ranks in zip(part.nodes, part.chip_milli, part.ranks, strict=True):
            milli[node] = milli.get(node, 0) + some_milli
            ranks[node] = ranks.get(node, 0) + some_ranks
    return Grant(
        role=own[0].role,
        option=own[0].option,
        cluster=own[0].cluster,
        nodes=tuple(milli),
        chip_milli=tuple(milli.values()),
        ranks=tuple(ranks.values()),
    )


def ranks_per_replica(grant: Grant, option: Option) -> int:
    """Returns how many ranks one replica is: more than 1 when it is larger than a node.

    Args:
        grant: What the role was granted.
    """
    return max(1, -(-option.chip_milli // max(1, grant.chip_milli[0] // grant.ranks[0])))


def ranks_min(role: Role, grant: Grant) -> int:
    """Returns the fewest ranks that a role can run with.

    Args:
        grant: What it was granted.
    """
    option = role.options[grant.option]
    return (option.replicas_min - role.spares) * ranks_per_replica(grant, option)


def running(spec: JobSpec, overrides: Overrides | None, held: Sequence[Grant]) -> JobSpec:
    """Returns what plans may make of an attempt that runs: of an elastic role what was said since, as far as it goes.

    Its lead was told the fewest replicas that it can run with, and would end with fewer: what is below that counts from
    the next attempt on. So does all that is said of a role that cannot change its size.

    Args:
        spec: What is to run now.
        overrides: What was said since it was submitted.
        held: What the attempt holds.
    """
    sizes = []
    options = {role.name: role.options for role in spec.roles}
    for size in overrides.sizes if overrides is not None else ():
        for grant in (each for each in held if each.role == size.role):
            replicas = sum(grant.ranks) // ranks_per_replica(grant, options[grant.role][grant.option])
            if size.spec_least == size.spec_most:
                sizes.append(replace(size, least=replicas, most=replicas))
            else:
                floor = min(size.spec_least, replicas)
                sizes.append(replace(size, least=max(size.least, floor), most=max(size.most, floor)))
    return spec.sized(sizes)


def split(grant: Grant, option: Option) -> tuple[Grant, ...]:
    """Returns the parts a grant is launched in: what the role cannot do without, then each further node by itself.

    So what an elastic role can give up are whole allocations. A role that never changes its size is one part, and so is
    one whose replicas share chips: no plan changes those.

    Args:
        grant: What a plan grants.
    """
    if option.replicas_min == option.replicas or grant.shared:
        return (grant,)
    least = option.replicas_min * ranks_per_replica(grant, option)
    first = 0
    while first < len(grant.nodes) and sum(grant.ranks[:first]) < least:
        first += 1
    bounds = [(0, first), *((place, place + 1) for place in range(first, len(grant.nodes)))]
    return tuple(_cut(grant, begin, end) for begin, end in bounds)


def _cut(grant: Grant, begin: int, end: int) -> Grant:
    return Grant(
        role=grant.role,
        option=grant.option,
        cluster=grant.cluster,
        nodes=grant.nodes[begin:end],
        chip_milli=grant.chip_milli[begin:end],
        ranks=grant.ranks[begin:end],
    )


def change(held: Mapping[AllocationId, Grant], wanted: Grant) -> AllocationChange | None:
    """Returns how a role gets from what it holds to what a plan wants, None when some allocation would have to change.

    Args:
        held: The parts of the role that go on, in order of place.
        wanted: All the role has afterwards.
    """
    spare = {node: ranks for part in merged(held.values()) for node, ranks in zip(part.nodes, part.ranks, strict=True)}
    added: list[Grant] = []
    for place, (node, ranks) in enumerate(zip(wanted.nodes, wanted.ranks, strict=True)):
        spare[node] = spare.get(node, 0) - ranks
        if spare[node] < 0:
            part = _cut(wanted, place, place + 1)
            milli = part.chip_milli[0] // ranks * -spare[node]
            added.append(_with(part, chip_milli=milli, ranks=-spare[node]))
            spare[node] = 0
    dropped: list[AllocationId] = []
    for allocation, part in reversed(list(held.items())):
        if all(spare[node] >= ranks for node, ranks in zip(part.nodes, part.ranks, strict=True)):
            dropped.append(allocation)
            for node, ranks in zip(part.nodes, part.ranks, strict=True):
                spare[node] -= ranks
    return None if any(spare.values()) else AllocationChange(dropped=tuple(dropped), added=tuple(added))


def _with(part: Grant, *, chip_milli: int, ranks: int) -> Grant:
    return Grant(
        role=part.role,
        option=part.option,
        cluster=part.cluster,
        nodes=part.nodes,
        chip_milli=(chip_milli,),
        ranks=(ranks,),
    )


def layout(held: Sequence[tuple[AllocationRecord, Grant]], *, only: int | None = None) -> tuple[RankPlace, ...]:
    """Returns where every rank of an attempt lives.

    Agents are numbered over all allocations' nodes in order, ranks over all agents; so rank 0 lives with agent 0, and
    the ranks of one role are neighbours until the role grows.

    Args:
        held: The attempt's allocations with what they hold, in order of place.
        only: Just this agent's ranks, unless None.
    """
    sizes: dict[RoleName, int] = {}
    for _, part in held:
        sizes[part.role] = sizes.get(part.role, 0) + sum(part.ranks)
    places: list[RankPlace] = []
    seen: dict[RoleName, int] = {}
    for one, part in held:
        first = one.rank_first
        for agent, count in enumerate(part.ranks, start=one.agent_first):
            before = seen.get(part.role, 0)
            seen[part.role] = before + count
            if only in (None, agent):
                places += [
                    RankPlace(
                        rank=first + each,
                        role=part.role,
                        role_rank=before + each,
                        role_size=sizes[part.role],
                        agent=agent,
                    )
                    for each in range(count)
                ]
            first += count
    return tuple(places)
