"""Elastic roles: replicas they can do without, given up before anyone ends, and growth into idle room."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from mainspring.domain.ids import AttemptId
from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.domain.plan import Grant, Resize
from mainspring.planner.displace.reclaimable import Parts, ReclaimableCapacity, Things
from mainspring.planner.facts.policy import HOUR_S, Policy
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers, Snapshot
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.place.pool import Picked, Pool
from mainspring.planner.place.topology import Ask, choose, most
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.limits import Charge

GROWTHS_MAX = 64  # In one plan; each is a restart.
GROWTH_PAYS_S = HOUR_S  # Within which the replicas won must make up for the restart.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elastic:
    """A role of a live attempt that can run with other numbers of replicas."""

    row: int
    role: int
    grant: Grant
    option: Option
    first: int  # Its first row among the things held.

    @property
    def nodes_per_replica(self) -> int:
        """Returns how many nodes one replica takes; more than 1 when it is larger than each of them."""
        return max(1, -(-self.option.chip_milli // max(1, self.grant.chip_milli[0] // self.grant.ranks[0])))

    @property
    def replicas(self) -> int:
        """Returns how many it has."""
        return sum(self.grant.ranks) // self.nodes_per_replica

    @property
    def is_short(self) -> bool:
        """Returns whether it has fewer than it is to have at least."""
        return self.replicas < self.option.replicas_min


def _elastic(snapshot: Snapshot, rows: Integers, *, sized: bool = False) -> Iterator[_Elastic]:
    """Yields the elastic roles of some live attempts that hold whole chips, or cores alone.

    Args:
        sized: Whether people have said other sizes of them: then one that has not the size it is to have is elastic.
    """
    live = snapshot.live
    shapes = live.shape[rows]
    able = [shape for shape in np.unique(shapes).tolist() if sized or _can_change(snapshot, shape)]
    for row in rows[np.isin(shapes, able)].tolist() if able else ():
        options = {role.name: role.options for role in snapshot.shapes[int(live.shape[row])].roles}
        first = int(np.searchsorted(live.held_by, row))
        for number, grant in enumerate(live.grants[row]):
            option = options[grant.role][grant.option]
            shares = 0 < option.chip_milli < MILLI
            found = _Elastic(row=row, role=number, grant=grant, option=option, first=first)
            misfits = sized and not option.replicas_min <= found.replicas <= option.replicas
            if (option.replicas_min < option.replicas or misfits) and not shares:
                yield found
            first += sum(grant.ranks) if shares else len(grant.nodes)


def _can_change(snapshot: Snapshot, shape: int) -> bool:
    return any(
        option.replicas_min < option.replicas for role in snapshot.shapes[shape].roles for option in role.options
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spare:
    """What an elastic role gives up together."""

    of: _Elastic
    held: tuple[int, ...]  # Rows among the things held, each once.
    ranks: tuple[int, ...]  # How many of each.


def _spares(elastic: _Elastic, open_held: Flags) -> list[_Spare]:
    """Returns what an elastic role can give up: single replicas, or groups, all at once.

    Those on the nodes with most of them first: that opens most room in one place.
    """
    grant, each = elastic.grant, elastic.nodes_per_replica
    if each > 1:
        starts = range(len(grant.nodes) - each, -1, -each)
        pieces = [tuple(range(start, start + each)) for start in starts]
    else:
        places = sorted(range(len(grant.nodes)), key=lambda place: (-grant.ranks[place], -place))
        pieces = [(place,) for place in places for _ in range(grant.ranks[place])]
    pieces = [piece for piece in pieces if all(open_held[elastic.first + place] for place in piece)]
    pieces = pieces[: max(0, elastic.replicas - elastic.option.replicas_min)]
    group = elastic.option.group
    if group:
        pieces = pieces[: len(pieces) - len(pieces) % group]
        pieces = [tuple(place for piece in pieces for place in piece)] if pieces else []
    spares = []
    for piece in pieces:
        counts = {place: piece.count(place) for place in piece}
        held = tuple(elastic.first + place for place in counts)
        spares.append(_Spare(of=elastic, held=held, ranks=tuple(counts.values())))
    return spares


def parts_of(ground: ReclaimableCapacity, eligible: Flags, price: Floats, restart: Floats | None) -> Parts:
    """Returns what could be given up on some nodes: whole attempts, then what elastic ones can do without.

    Args:
        eligible: By live row: whether it may be touched.
        price: By live row: what ending it costs.
        restart: By live row: what changing its size costs; None where no role is to shrink.
    """
    live = ground.live
    open_held = (live.held_node != NONE) & ground.inside[live.held_node]
    held = np.flatnonzero(open_held & eligible[live.held_by])
    holders = live.held_by[held]
    rows = holders[np.flatnonzero(np.diff(holders, prepend=-1))]
    things = Things(
        part=np.searchsorted(rows, holders),
        node=live.held_node[held],
        whole=live.held_whole[held],
        cpu=live.held_cpu_milli[held],
        memory=live.held_memory_mib[held],
        chip=live.held_chip[held],
        share=live.held_share_milli[held],
    )
    spares: list[_Spare] = []
    prices: list[float] = []
    for elastic in () if restart is None else _elastic(ground.room.snapshot, rows):
        assert restart is not None
        own = _spares(elastic, open_held)
        spares += own
        prices += [float(restart[elastic.row]) / max(1, len(own))] * len(own)
    parts = Parts(live=rows, role=np.full(len(rows), NONE, dtype=np.int64), price=price[rows], things=things)
    return _with_spares(parts, held, spares, prices) if spares else parts


def _with_spares(parts: Parts, held: Integers, spares: list[_Spare], prices: list[float]) -> Parts:
    """Returns parts, and what elastic roles give up apart from the rest of their attempts."""
    things = parts.things
    whole, cpu, memory = things.whole.copy(), things.cpu.copy(), things.memory.copy()
    added: list[tuple[int, ...]] = []
    ranks_of: dict[int, int] = {}
    for number, spare in enumerate(spares, start=len(parts)):
        grant = spare.of.grant
        for row, ranks in zip(spare.held, spare.ranks, strict=True):
            place = int(np.searchsorted(held, row))
            # The thing shrinks by what was split off before, so each rank takes its share of what is left.
            left = ranks_of.get(row, grant.ranks[row - spare.of.first])
            ranks_of[row] = left - ranks
            amounts = [int(column[place]) * ranks // left for column in (whole, cpu, memory)]
            for column, amount in zip((whole, cpu, memory), amounts, strict=True):
                column[place] -= amount
            added.append((number, int(things.node[place]), *amounts))
    columns = np.array(added, dtype=np.int64).T
    none, zero = np.full(len(added), NONE, dtype=np.int64), np.zeros(len(added), dtype=np.int64)
    return Parts(
        live=np.append(parts.live, [spare.of.row for spare in spares]),
        role=np.append(parts.role, [spare.of.role for spare in spares]),
        price=np.append(parts.price, prices),
        things=Things(
            part=np.append(things.part, columns[0]),
            node=np.append(things.node, columns[1]),
            whole=np.append(whole, columns[2]),
            cpu=np.append(cpu, columns[3]),
            memory=np.append(memory, columns[4]),
            chip=np.append(things.chip, none),
            share=np.append(things.share, zero),
        ),
    )


def resizes(ground: ReclaimableCapacity, parts: Parts, shrunk: Integers) -> tuple[Resize, ...]:
    """Returns what elastic roles keep.

    Args:
        parts: What could be given up.
        shrunk: Numbers of the parts given up, none of them a whole attempt.
    """
    snapshot, live = ground.room.snapshot, ground.live
    made = []
    for elastic in _elastic(snapshot, np.unique(parts.live[shrunk])):
        own = shrunk[(parts.live[shrunk] == elastic.row) & (parts.role[shrunk] == elastic.role)]
        if not len(own):
            continue
        grant = elastic.grant
        things = parts.things.where(np.isin(parts.things.part, own))
        ranks = list(grant.ranks)
        for place in range(len(grant.nodes)):
            mine = things.node == live.held_node[elastic.first + place]
            lost = int(things.whole[mine].sum()) * MILLI if grant.chip_milli[place] else int(things.cpu[mine].sum())
            held = grant.chip_milli[place] or int(live.held_cpu_milli[elastic.first + place])
            ranks[place] -= round(lost * grant.ranks[place] / held)
        left = _kept(grant, ranks)
        replicas = sum(left.ranks) // elastic.nodes_per_replica
        made.append(
            Resize(
                attempt=live.attempts[elastic.row],
                job=live.jobs[elastic.row],
                role=grant.role,
                replicas=replicas,
                grant=left,
                reason=f"shrinks from {elastic.replicas} to {replicas} replicas so that nobody need end",
            )
        )
    return tuple(made)


def shrink(snapshot: Snapshot, rows: Integers) -> tuple[Resize, ...]:
    """Returns which elastic roles give up what they have beyond the size that people said of them.

    Their last nodes go, which came last: the lead and what the role cannot do without are on the first.

    Args:
        rows: Live attempts that may be touched.
    """
    live = snapshot.live
    made: list[Resize] = []
    for elastic in _elastic(snapshot, rows[live.sized[rows]], sized=True):
        if elastic.replicas <= elastic.option.replicas:
            continue
        left, grant = elastic.option.replicas * elastic.nodes_per_replica, elastic.grant
        ranks = [min(own, max(0, left - sum(grant.ranks[:place]))) for place, own in enumerate(grant.ranks)]
        made.append(
            Resize(
                attempt=live.attempts[elastic.row],
                job=live.jobs[elastic.row],
                role=grant.role,
                replicas=elastic.option.replicas,
                grant=_kept(grant, ranks),
                reason=f"shrinks from {elastic.replicas} to {elastic.option.replicas} replicas, as was asked",
            )
        )
    return tuple(made)


def _kept(grant: Grant, ranks: Sequence[int]) -> Grant:
    """Returns what a role holds with fewer ranks on its nodes; nodes left with none go."""
    kept = [place for place in range(len(ranks)) if ranks[place]]
    return Grant(
        role=grant.role,
        option=grant.option,
        cluster=grant.cluster,
        nodes=tuple(grant.nodes[place] for place in kept),
        chip_milli=tuple(grant.chip_milli[place] // grant.ranks[place] * ranks[place] for place in kept),
        ranks=tuple(ranks[place] for place in kept),
    )


def grow(
    room: FreeCapacity,
    policy: Policy,
    now_s: float,
    *,
    crowded: Collection[int],
    ending: Collection[AttemptId],
    entitlement: Entitlement,
) -> tuple[Resize, ...]:
    """Returns which elastic roles grow into idle room, where the replicas won soon make up for the restart.

    One that has fewer than people said of it grows whatever that costs, and however lately it changed.

    Args:
        room: What is free; what they grow into is taken.
        policy: Says what a restart costs, and how long an attempt is left alone.
        crowded: Clusters where jobs wait for room: nothing grows there.
        ending: Attempts that end or change in this plan.
        entitlement: What teams may hold, everything this plan grants included; what they grow into is charged.
    """
    snapshot = room.snapshot
    live, clusters = snapshot.live, snapshot.clusters
    open_ = np.append(clusters.answering & ~clusters.delegated, False)  # The last: unknown.
    for cluster in crowded:
        open_[cluster] = False
    left_alone = now_s - np.maximum(live.granted_s, live.resized_s) >= policy.runtime_min_s
    free = ~live.stopping & open_[live.cluster]
    rows = np.flatnonzero(free & left_alone & ~live.sized)
    said = np.flatnonzero(free & live.sized)
    made: list[Resize] = []
    grown: set[int] = set()
    for elastic in chain(_elastic(snapshot, said, sized=True), _elastic(snapshot, rows)):
        if len(made) == GROWTHS_MAX:
            break
        if not (left_alone[elastic.row] or elastic.is_short):
            continue
        if elastic.row in grown or live.attempts[elastic.row] in ending:
            continue
        resize = _grown(room, policy, now_s, elastic, entitlement)
        if resize is not None:
            grown.add(elastic.row)
            made.append(resize)
    return tuple(made)


def _grown(
    room: FreeCapacity, policy: Policy, now_s: float, elastic: _Elastic, entitlement: Entitlement
) -> Resize | None:
    live, row = room.snapshot.live, elastic.row
    pool = _pool(room, elastic)
    wanted = elastic.option.replicas - elastic.replicas
    if pool is None or wanted <= 0 or pool.units_per_replica != elastic.nodes_per_replica:
        return None
    caps = _beside(room, pool, elastic)
    fits = min(wanted, most(caps, pool.tree, _ask(pool, 0)) // pool.units_per_replica)
    team, step = int(live.team[row]), pool.together

    def too_many(groups: int) -> bool:
        return entitlement.bar(team, _charge(room, pool, groups * step)) is not None

    more = step * bisect_left(range(1, fits // step + 1), True, key=too_many)
    pays_s = min(GROWTH_PAYS_S, max(0.0, float(live.ends_s[row]) - now_s))
    pays = elastic.is_short or more * pays_s >= (elastic.replicas + more) * policy.restart_s
    if more <= 0 or not pays:
        return None
    chosen = choose(caps, pool.tree, _ask(pool, more * pool.units_per_replica))
    if chosen is None:
        return None
    picked = Picked(rows=pool.rows[chosen.rows], units=chosen.units)
    room.take(pool, picked)
    entitlement.charge(team, _charge(room, pool, more))
    replicas = elastic.replicas + more
    return Resize(
        attempt=live.attempts[row],
        job=live.jobs[row],
        role=elastic.grant.role,
        replicas=replicas,
        grant=_joined(room, elastic, picked),
        reason=f"grows from {elastic.replicas} to {replicas} replicas into idle room",
    )


def _pool(room: FreeCapacity, elastic: _Elastic) -> Pool | None:
    """Returns where a role may grow: on the chips it has, though it would have started on any."""
    snapshot, option = room.snapshot, elastic.option
    node = int(snapshot.live.held_node[elastic.first])
    if option.chip == ANY_CHIP and option.chips:
        if node == NONE:
            return None
        option = replace(option, chip=snapshot.chips[int(snapshot.nodes.chip[node])])
    return room.pool(int(snapshot.live.cluster[elastic.row]), option)


def _beside(room: FreeCapacity, pool: Pool, elastic: _Elastic) -> Integers:
    """Returns the units each node has idle room for, in the domain of the level that holds the role already."""
    live, tree = room.snapshot.live, pool.tree
    caps = np.where(room.hold[pool.rows] == 0, pool.caps(room.whole, room.cpu, room.memory), 0)
    depth = tree.depth(pool.closeness.within)
    if depth <= 0:
        return caps
    own = np.isin(pool.rows, live.held_node[elastic.first : elastic.first + len(elastic.grant.nodes)])
    ids = np.arange(len(pool.rows)) if depth == tree.bottom else tree.domain[:, depth - 1]
    return np.where(np.isin(ids, ids[own]) & (ids != NONE), caps, 0)


def _ask(pool: Pool, units: int) -> Ask:
    known = pool.closeness
    return Ask(units=units, group_units=known.group_units, group_within=known.group_within, whole=known.whole)


def _charge(room: FreeCapacity, pool: Pool, replicas: int) -> Charge:
    milli = pool.charge_milli(replicas)
    chip = int(room.snapshot.nodes.chip[pool.rows[0]])
    dollars = pool.dollars_per_chip_hour * milli / MILLI
    return Charge(chips=((chip, milli),) if milli else (), dollars_per_hour=dollars, duration_s=HOUR_S)


def _joined(room: FreeCapacity, elastic: _Elastic, picked: Picked) -> Grant:
    """Returns what a role holds once more ranks have joined: old nodes keep their places, new ones follow."""
    grant, names = elastic.grant, room.snapshot.nodes.names
    milli = grant.chip_milli[0] // grant.ranks[0]
    ranks = dict(zip(grant.nodes, grant.ranks, strict=True))
    for node, units in zip(picked.rows.tolist(), picked.units.tolist(), strict=True):
        ranks[names[node]] = ranks.get(names[node], 0) + units
    return Grant(
        role=grant.role,
        option=grant.option,
        cluster=grant.cluster,
        nodes=tuple(ranks),
        chip_milli=tuple(count * milli for count in ranks.values()),
        ranks=tuple(ranks.values()),
    )
