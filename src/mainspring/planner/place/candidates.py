"""Every option of a shape on every cluster: what it costs, and what bars it whatever the plan does.

An `OptionOnCluster` is one option of one role on one cluster; a `CandidatePlacement` is one of these for each role, all
on one cluster. Its score is the price of one chip-hour of useful work there, the risk of losing nodes included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby, islice, product
from math import inf

import numpy as np

from mainspring.domain.fleet import NodeRef
from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.domain.plan import Candidate, Limit
from mainspring.planner.facts.policy import HOUR_S, Policy
from mainspring.planner.facts.reasons import BindingLimit, amount, listed, together
from mainspring.planner.facts.snapshot import NONE, Flags, Shape, Snapshot
from mainspring.planner.place.chip_memory import memory_words, too_little
from mainspring.planner.place.free_capacity import FreeCapacity, Picked, Pool
from mainspring.planner.quota.limits import Charge

COMBINATIONS_MAX = 64  # Of the roles' options on one cluster; 3 roles of 4 options each are all tried.
BUDGET_DURATION_S = HOUR_S  # What a job of unknown duration is taken to cost when a budget is asked.
GIB = 1 << 30
WORDS_MAX = 200  # Of what a cluster says of its nodes; a reason is a line.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OptionOnCluster:
    """One option of one role on one cluster.

    Args:
        role: Index of the role.
        option: Index of the option in its role.
        cluster: Index of the cluster.
        pool: Where its replicas would go; None when the cluster has nothing of the kind.
        replicas: How many would start.
        chip: Index of the chip charged, `NONE` for cores alone.
        dollars_per_chip_hour: Price of one of its chips.
        bar: What bars it whatever the plan does, or None.
        shunned: Whether only nodes that its job avoids could take it now.
    """

    role: int
    option: int
    cluster: int
    wanted: Option
    pool: Pool | None
    replicas: int
    chip: int
    dollars_per_chip_hour: float
    bar: BindingLimit | None
    shunned: bool = False

    @property
    def charge_milli(self) -> int:
        """Returns what it would take, the rest of whole nodes included."""
        if self.pool is None:
            return self.replicas * self.wanted.chip_milli
        return self.pool.charge_milli(self.replicas)

    @property
    def dollars_per_hour(self) -> float:
        """Returns the price of all its chips, per hour."""
        return self.dollars_per_chip_hour * self.charge_milli / MILLI

    @property
    def dollars_per_work(self) -> float:
        """Returns the price of one chip-hour of useful work."""
        return self.dollars_per_chip_hour / self.wanted.speed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidatePlacement:
    """One choice for each role, all on one cluster.

    Args:
        index: Its place in its menu.
        cluster: Index of the cluster.
        choices: One for each role, in the job's order.
        dollars_per_work: Price of one chip-hour of useful work, all roles together: the score.
        charge: What it would take.
        bytes_to_move: What must be brought there first.
    """

    index: int
    cluster: int
    choices: tuple[OptionOnCluster, ...]
    dollars_per_work: float
    charge: Charge
    bytes_to_move: int

    @property
    def by_size(self) -> list[int]:
        """Returns the places of its choices, those with the largest replicas first."""
        if len(self.choices) == 1:
            return [0]
        return sorted(range(len(self.choices)), key=lambda place: -self.choices[place].wanted.chip_milli)


@dataclass(slots=True, kw_only=True, eq=False)
class CandidateSet:
    """What a shape can choose from, and what was learned of it while a plan is made.

    Args:
        shape: The shape.
        choices: Every option of every role on every cluster, best first, barred ones last.
        sites: The ways to place all roles on one cluster that nothing bars, best score first.
        tied: The same, those of equal price together.
        costs: For each site: how much the last place found there left broken up.
        closed_from_s: For each site: jobs that run at least this long find no room there any more.
        told: For each site somebody started at: what was weighed against it.
    """

    shape: Shape
    choices: tuple[OptionOnCluster, ...]
    sites: tuple[CandidatePlacement, ...]
    tied: tuple[tuple[CandidatePlacement, ...], ...]
    costs: list[float]
    closed_from_s: list[float]
    told: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)


def menu(room: FreeCapacity, policy: Policy, shape: Shape) -> CandidateSet:
    """Returns what a shape can choose from.

    A shape that avoids nodes does so while others could run it as things stand, were they free; else it leaves alone
    only those that it shuns, and where it cannot run without these nothing is left to choose.

    Args:
        policy: What the lab decides.
        shape: The shape.
    """
    found = _menu(room, policy, shape)
    if shape.avoids and not _could_run(room, policy, found):
        shape = replace(shape, avoids=shape.shuns)
        found = _menu(room, policy, shape)
        away = {site.cluster for site in found.sites} & _clusters_of(room.snapshot, shape.shuns)
        if away and not _could_run(room, policy, found):
            choices = tuple(_shun(room.snapshot, choice, shape, away) for choice in found.choices)
            found = replace(found, choices=choices, sites=(), tied=())
    return found


def _clusters_of(snapshot: Snapshot, nodes: Iterable[NodeRef]) -> set[int]:
    names = {at.cluster for at in nodes}
    return {cluster for cluster, name in enumerate(snapshot.clusters.names) if name in names}


def _could_run(room: FreeCapacity, policy: Policy, found: CandidateSet) -> bool:
    """Returns whether some cluster could hold all roles together, were its nodes free."""
    if len(found.shape.roles) == 1 or not found.sites:
        return bool(found.sites)
    sites = _menu(room.emptied, policy, found.shape).sites
    return any(stand_at(room.emptied, site, None) is not None for site in sites)


def _menu(room: FreeCapacity, policy: Policy, shape: Shape) -> CandidateSet:
    snapshot = room.snapshot
    clusters = range(len(snapshot.clusters.names))
    found = [
        _choice(room, shape, row, index, cluster, option)
        for cluster in clusters
        for row, role in enumerate(shape.roles)
        for index, any_option in enumerate(role.options)
        for option in _by_chip(snapshot, cluster, any_option)
    ]
    missing = _bytes_to_move(snapshot, shape)
    sites: list[CandidatePlacement] = []
    for cluster in clusters:
        ways = [
            [choice for choice in found if choice.cluster == cluster and choice.role == row and not choice.bar]
            for row in range(len(shape.roles))
        ]
        sites += [
            _site(snapshot, policy, cluster, combination, missing[cluster])
            for combination in islice(product(*ways), COMBINATIONS_MAX)
        ]
    sites.sort(key=lambda site: (site.dollars_per_work, site.bytes_to_move))
    sites = [replace(site, index=index) for index, site in enumerate(sites)]
    return CandidateSet(
        shape=shape,
        choices=tuple(sorted(found, key=_choice_order)),
        sites=tuple(sites),
        tied=tuple(tuple(tied) for _, tied in groupby(sites, key=lambda site: round(site.dollars_per_work, 9))),
        costs=[-inf] * len(sites),
        closed_from_s=[inf] * len(sites),
    )


def _by_chip(snapshot: Snapshot, cluster: int, option: Option) -> list[Option]:
    """Returns an option for each chip type it may run on: a gang is of one type, and is as fast as its chips' value."""
    if option.chip != ANY_CHIP or not option.chips:
        return [option]
    chips = np.unique(snapshot.nodes.chip[snapshot.nodes.cluster == cluster]).tolist()
    by_chip = [
        replace(option, chip=snapshot.chips[chip], speed=option.speed * float(snapshot.chip_value[chip]))
        for chip in chips
        if snapshot.chip_value[chip] > 0
    ]
    return by_chip or [option]


def _bytes_to_move(snapshot: Snapshot, shape: Shape) -> list[int]:
    rows = [snapshot.data.names.index(name) for name in shape.inputs if name in snapshot.data.names]
    if not rows:
        return [0] * len(snapshot.clusters.names)
    missing = np.where(snapshot.data.present[rows], 0, snapshot.data.size_bytes[rows][:, None])
    return [int(size) for size in missing.sum(axis=0)]


def _choice(room: FreeCapacity, shape: Shape, role: int, index: int, cluster: int, option: Option) -> OptionOnCluster:
    snapshot = room.snapshot
    pool = room.pool(cluster, option, shape.avoids)
    bar = lasting_bar(snapshot, cluster, pool, option)
    shunned = False
    if bar is not None and shape.avoids:
        shunned = lasting_bar(snapshot, cluster, room.pool(cluster, option), option) is None
        bar = _shunned(snapshot, cluster, shape) if shunned else bar
    usable = option.replicas if pool is None or bar else min(option.replicas, pool.room_usable)
    return OptionOnCluster(
        role=role,
        option=index,
        cluster=cluster,
        wanted=option,
        pool=pool,
        replicas=usable - usable % option.group if option.group else usable,
        chip=NONE if pool is None or not len(pool.rows) else int(snapshot.nodes.chip[pool.rows[0]]),
        dollars_per_chip_hour=0.0 if pool is None else pool.dollars_per_chip_hour,
        bar=bar,
        shunned=shunned,
    )


def _shun(snapshot: Snapshot, choice: OptionOnCluster, shape: Shape, away: Set[int]) -> OptionOnCluster:
    """Returns a choice that would fit by itself, barred where its job's other roles need nodes that it shuns."""
    if choice.bar or choice.cluster not in away:
        return choice
    return replace(choice, bar=_shunned(snapshot, choice.cluster, shape), shunned=True)


def _shunned(snapshot: Snapshot, cluster: int, shape: Shape) -> BindingLimit:
    name = snapshot.clusters.names[cluster]
    nodes = [at.node for at in shape.avoids if at.cluster == name]
    text = f"was lost on {listed(nodes)}, and nothing else could run it: tried there again after a pause"
    return BindingLimit(limit=Limit.HEALTH, where=name, short_by=0.0, text=text)


# A limit that time lifts binds before one that people must lift.
_SEVERITY = {Limit.CAPACITY: 0, Limit.TOPOLOGY: 0, Limit.QUOTA: 0, Limit.BUDGET: 0, Limit.HEALTH: 1}


def severity(bar: BindingLimit | None) -> int:
    """Returns -1 without a bar, 0 when time may lift it, more when it takes people.

    Args:
        bar: What stands in the way.
    """
    return -1 if bar is None else _SEVERITY.get(bar.limit, 2)


def _choice_order(choice: OptionOnCluster) -> tuple[int, float, int, int, int]:
    return severity(choice.bar), choice.dollars_per_work, choice.cluster, choice.role, choice.option


def lasting_bar(snapshot: Snapshot, cluster: int, pool: Pool | None, option: Option) -> BindingLimit | None:
    """Returns what keeps an option from a cluster whatever the plan does, if anything.

    Args:
        cluster: Index of the cluster.
        pool: Where its replicas would go.
    """
    name = snapshot.clusters.names[cluster]
    fewest = option.replicas_min
    if pool is not None and pool.room_usable >= fewest and snapshot.clusters.answering[cluster]:
        return None
    if pool is None:
        what = f"{option.chip} slice {option.slice}" if option.slice else option.chip
        chip = snapshot.chips.index(option.chip) if option.chip in snapshot.chips else NONE
        there = bool(((snapshot.nodes.cluster == cluster) & (snapshot.nodes.chip == chip)).any())
        text = f"has no {what}" + (" that it may use" if there else "")
        if option.chip == ANY_CHIP:
            text = "has no nodes that it may use"
        divides = snapshot.nodes.divides[snapshot.nodes.cluster == cluster].any()
        if there and 0 < option.chip_milli < MILLI and not divides:
            text = "shares no chip between replicas; ask for whole ones"
        text = too_little(snapshot, cluster, option) or text + memory_words(snapshot, cluster, option)
        return BindingLimit(limit=Limit.IMPOSSIBLE, where=name, short_by=round(fewest * option.chips, 3), text=text)
    if not pool.level_known:
        levels = " or ".join(repr(level) for level in dict.fromkeys((option.within, option.group_within)) if level)
        return BindingLimit(limit=Limit.IMPOSSIBLE, where=name, short_by=0.0, text=f"has no level {levels}")
    if pool.room_ever < fewest:
        return BindingLimit(
            limit=Limit.IMPOSSIBLE,
            where=name,
            short_by=round((fewest - pool.room_ever) * option.chips, 3),
            text=f"needs {amount(option, fewest)}{together(option)}, at most {pool.room_ever} could ever fit"
            + memory_words(snapshot, cluster, option),
        )
    if not snapshot.clusters.answering[cluster]:
        return BindingLimit(limit=Limit.HEALTH, where=name, short_by=0.0, text="the cluster is not answering")
    nodes = snapshot.nodes
    leaving = (nodes.leaves_s[pool.rows] < inf) | (nodes.avoided_s[pool.rows] > -inf)
    rows = pool.rows[~nodes.ready[pool.rows] | leaving]
    lost = len(rows)
    avoided = (nodes.avoided_s[pool.rows] > -inf).any()
    said = Counter(filter(None, (nodes.words[row] for row in rows.tolist())))
    words = f"not ready{', about to leave or avoided for what was lost there' if avoided else ' or about to leave'}"
    those = f"{lost} of {len(pool.rows)} nodes" + ("" if option.chip == ANY_CHIP else f" with {option.chip}")
    return BindingLimit(
        limit=Limit.HEALTH,
        where=name,
        short_by=round((fewest - pool.room_usable) * option.chips, 3),
        text=f"needs {amount(option, fewest)}{together(option)}, but {those} {'is' if lost == 1 else 'are'} {words}"
        + memory_words(snapshot, cluster, option)
        + "".join(f": {most[:WORDS_MAX]}" for most, _ in said.most_common(1)),
    )


def _site(
    snapshot: Snapshot, policy: Policy, cluster: int, choices: tuple[OptionOnCluster, ...], missing: int
) -> CandidatePlacement:
    if len(choices) > 1 and any(choice.replicas > choice.wanted.replicas_min for choice in choices):
        # Elastic roles that could each fill the cluster must leave room for one another.
        asked: dict[int, int] = {}
        for choice in choices:
            asked[choice.chip] = asked.get(choice.chip, 0) + choice.charge_milli
        nodes = snapshot.nodes
        for chip, milli in asked.items():
            usable = nodes.ready & (nodes.cluster == cluster) & (nodes.chip == chip)
            if milli > int(nodes.chips[usable].sum()) * MILLI:
                choices = tuple(replace(choice, replicas=choice.wanted.replicas_min) for choice in choices)
                break
    charge = charge_of(choices)
    work = sum(choice.charge_milli / MILLI * choice.wanted.speed for choice in choices)
    nodes_used = sum(max(1.0, choice.charge_milli / MILLI / 8) for choice in choices)
    # Each node lost stops the whole gang: what it did since its last checkpoint, and a restart, are paid again.
    lost = float(snapshot.clusters.losses_per_node_hour[cluster]) * nodes_used
    risk = 1.0 + lost * (policy.checkpoint_s + policy.restart_s) / HOUR_S
    moved = missing / GIB * policy.dollars_per_gib_moved
    cores = sum(choice.replicas * choice.wanted.speed for choice in choices)
    return CandidatePlacement(
        index=0,
        cluster=cluster,
        choices=choices,
        dollars_per_work=(charge.dollars_per_hour * risk + moved) / (work or cores),
        charge=charge,
        bytes_to_move=missing,
    )


def charge_of(choices: Iterable[OptionOnCluster]) -> Charge:
    """Returns what choices take together.

    Args:
        choices: One for each role.
    """
    chips: dict[int, int] = {}
    dollars = 0.0
    for choice in choices:
        dollars += choice.dollars_per_hour
        if choice.charge_milli:
            chips[choice.chip] = chips.get(choice.chip, 0) + choice.charge_milli
    return Charge(chips=tuple(sorted(chips.items())), dollars_per_hour=dollars, duration_s=BUDGET_DURATION_S)


def admitted(
    site: CandidatePlacement, bar_of: Callable[[Charge], BindingLimit | None]
) -> CandidatePlacement | BindingLimit:
    """Returns a site as far as its team's limits let it go: elastic roles with fewer replicas where all are too many.

    Args:
        bar_of: Returns what keeps the team from taking that much, None when nothing does; never less of more.

    Returns:
        The site, or what bars even the fewest replicas that it can run with.
    """
    bar = bar_of(site.charge)
    if bar is None:
        return site
    choices = [replace(one, replicas=min(one.replicas, one.wanted.replicas_min)) for one in site.choices]
    if not any(fewest.replicas < one.replicas for fewest, one in zip(choices, site.choices, strict=True)):
        return bar
    if (bar := bar_of(charge_of(choices))) is not None:
        return bar
    for row, whole in enumerate(site.choices):
        choices[row] = _most(choices, row, whole, bar_of)
    return replace(site, choices=tuple(choices), charge=charge_of(choices))


def _most(
    choices: Sequence[OptionOnCluster],
    row: int,
    whole: OptionOnCluster,
    bar_of: Callable[[Charge], BindingLimit | None],
) -> OptionOnCluster:
    """Returns one role's choice with the most replicas that its team may have beside those of the other roles."""
    fewest, step = choices[row], 1 if whole.pool is None else whole.pool.together

    def of(groups: int) -> OptionOnCluster:
        return replace(fewest, replicas=fewest.replicas + groups * step)

    def too_many(groups: int) -> bool:
        return bar_of(charge_of([*choices[:row], of(groups), *choices[row + 1 :]])) is not None

    return of(bisect_left(range(1, (whole.replicas - fewest.replicas) // step + 1), True, key=too_many))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GangPlacement:
    """Where a whole gang would stand.

    Args:
        picked: Nodes of each role, in the job's order.
        replicas: How many of each role; fewer than the site's where an elastic role finds less room.
    """

    site: CandidatePlacement
    picked: tuple[Picked, ...]
    replicas: tuple[int, ...]

    def cost(self, room: FreeCapacity) -> float:
        """Returns how much it breaks up: compares sites of equal price."""
        parts = zip(self.site.choices, self.picked, strict=True)
        return sum(room.cost(choice.pool, picked) for choice, picked in parts if choice.pool is not None)


def stand_at(room: FreeCapacity, site: CandidatePlacement, holds: Flags | None) -> GangPlacement | None:
    """Returns where the whole gang would stand now, or None. Takes nothing.

    An elastic role starts with what there is; it grows when room comes free. Where that leaves no room for the other
    roles, all of them start with the fewest they can run with.

    Args:
        site: One choice for each role.
        holds: Which reservations' nodes may be used; None for none of them.
    """
    wanted = [choice.replicas for choice in site.choices]
    fewest = [min(choice.replicas, choice.wanted.replicas_min) for choice in site.choices]
    found = _stand(room, site, wanted, holds)
    if found is None and len(wanted) > 1 and fewest != wanted:
        found = _stand(room, site, fewest, holds)
    return found


def _stand(
    room: FreeCapacity, site: CandidatePlacement, wanted: Sequence[int], holds: Flags | None
) -> GangPlacement | None:
    several = len(site.choices) > 1
    order = site.by_size
    mark = room.mark() if several else 0
    picked: dict[int, Picked] = {}
    replicas: dict[int, int] = {}
    for row in order:
        choice, count = site.choices[row], wanted[row]
        assert choice.pool is not None
        found = room.stand(choice.pool, count, holds)
        if found is None and choice.wanted.replicas_min < count:
            count = room.fits(choice.pool, count, holds)
            if count >= choice.wanted.replicas_min:
                found = room.stand(choice.pool, count, holds)
        if found is None:
            break
        picked[row], replicas[row] = found, count
        if several:
            room.take(choice.pool, found)
    if several:
        room.rollback(mark)
    if len(picked) < len(order):
        return None
    rows = range(len(order))
    return GangPlacement(
        site=site, picked=tuple(picked[row] for row in rows), replicas=tuple(replicas[row] for row in rows)
    )
