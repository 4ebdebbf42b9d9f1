"""Every option of a shape on every cluster: what it costs, what stands in its way, where the gang would stand.

A `Choice` is one option of one role on one cluster; a `Site` is one choice for each role, all on one cluster. What no
plan can change (a chip the cluster lacks, nodes that are down) bars a choice for good; quota and free chips are
weighed each time a job's turn comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np

from mainspring.domain.ids import ChipName
from mainspring.domain.job import MILLI, Option
from mainspring.domain.plan import Limit
from mainspring.planner.order import Ledger
from mainspring.planner.place import Block, Picked, Pool
from mainspring.planner.snapshot import RoleShape, Shape, Snapshot

COMBINATIONS_MAX = 64  # Of the roles' options on one cluster; 3 roles of 4 options each are all tried.
_SCORE_EQUAL = 1e-9  # Dollars: prices are quoted to about 1e-4.
# A limit that time lifts binds before one that people must lift.
_SEVERITY = {Limit.CAPACITY: 0, Limit.TOPOLOGY: 0, Limit.QUOTA: 0, Limit.BUDGET: 0, Limit.HEALTH: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What stands in the way.

    Args:
        limit: Which limit.
        where: The cluster or team whose limit it is.
        short_by: How many chips are missing; 0 when chips are not the matter.
        text: One clause for people.
    """

    limit: Limit
    where: str
    short_by: float
    text: str

    @property
    def severity(self) -> int:
        """Returns 0 when time may lift it, more when it takes people."""
        return _SEVERITY.get(self.limit, 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """One option of one role on one cluster.

    Args:
        role: Index of the role.
        option: Index of the option in its role.
        cluster: Index of the cluster.
        wanted: The option itself.
        pool: Where its replicas would go; None when the cluster has no such chip.
        replicas: How many would start: all, or the most the cluster's ready nodes could hold when the role is elastic.
        dollars_per_chip_hour: Price of one of its chips.
        bar: What bars it whatever the plan does, or None.
    """

    role: int
    option: int
    cluster: int
    wanted: Option
    pool: Pool | None
    replicas: int
    dollars_per_chip_hour: float
    bar: Bar | None

    @property
    def charge_milli(self) -> int:
        """Returns what it would take, the rest of whole nodes included."""
        if self.pool is None:
            return self.replicas * self.wanted.chip_milli
        return self.replicas * self.pool.units_per_replica * self.pool.unit_milli

    @property
    def dollars_per_hour(self) -> float:
        """Returns the price of all its chips, per hour."""
        return self.dollars_per_chip_hour * self.charge_milli / MILLI

    @property
    def dollars_per_work(self) -> float:
        """Returns the price of one chip-hour of useful work."""
        return self.dollars_per_chip_hour / self.wanted.speed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """One choice for each role, all on one cluster.

    Args:
        cluster: Index of the cluster.
        choices: One for each role, in the job's order.
        dollars_per_work: Price of one chip-hour of useful work, all roles together: the score.
        charge_milli: What it would take.
    """

    cluster: int
    choices: tuple[Choice, ...]
    dollars_per_work: float
    charge_milli: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """A site with room for the whole gang.

    Args:
        site: The site.
        picked: Nodes for each role, in the job's order.
        stranded_milli: What is left free on the nodes picked: less is less broken up.
    """

    site: Site
    picked: tuple[Picked, ...]
    stranded_milli: int


@dataclass(slots=True, kw_only=True)
class Work:
    """The work budget: how many placements may be examined, and how many were."""

    placements_max: int
    placements: int = 0

    @property
    def spent(self) -> bool:
        """Returns whether nothing is left."""
        return self.placements >= self.placements_max


def amount(wanted: Option, replicas: int) -> str:
    """Returns a request as people say it: "64 h100", "4 x 8 h100".

    Args:
        wanted: The option.
        replicas: How many of its replicas.
    """
    if wanted.chips == 1:
        return f"{replicas} {wanted.chip}"
    return f"{replicas} x {wanted.chips:g} {wanted.chip}"


class Fleet:
    """The nodes as blocks and pools, made when first asked for and kept while a plan is made."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._chip_row = {chip: row for row, chip in enumerate(snapshot.chips)}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._pools: dict[tuple[int, ChipName, int, str | None], Pool | None] = {}

    def pool(self, cluster: int, option: Option) -> Pool | None:
        """Returns where an option's replicas would go on a cluster; None when it has no such chip.

        Args:
            cluster: Index of the cluster.
            option: The option.
        """
        key = (cluster, option.chip, option.chip_milli, option.within)
        if key not in self._pools:
            self._pools[key] = self._new_pool(cluster, option)
        return self._pools[key]

    def choices(self, roles: Iterable[RoleShape]) -> tuple[Choice, ...]:
        """Returns every option of every role on every cluster, cheapest work first, barred ones last.

        Args:
            roles: What a shape asks for.
        """
        found = [
            self._choice(row, index, cluster, option)
            for cluster in range(len(self.snapshot.clusters.names))
            for row, role in enumerate(roles)
            for index, option in enumerate(role.options)
        ]
        return tuple(sorted(found, key=_choice_order))

    def sites(self, choices: tuple[Choice, ...], role_count: int) -> tuple[Site, ...]:
        """Returns the ways to place all roles on one cluster that nothing bars, best score first, then by cluster.

        Args:
            choices: See `choices`.
            role_count: How many roles there are.
        """
        found = []
        for cluster in range(len(self.snapshot.clusters.names)):
            ways = [
                [choice for choice in choices if choice.cluster == cluster and choice.role == row and not choice.bar]
                for row in range(role_count)
            ]
            found += [_site(cluster, combination) for combination in islice(product(*ways), COMBINATIONS_MAX)]
        return tuple(sorted(found, key=lambda site: site.dollars_per_work))

    def _new_pool(self, cluster: int, option: Option) -> Pool | None:
        chip = self._chip_row.get(option.chip)
        if chip is None:
            return None
        block = self._blocks.get((cluster, chip))
        if block is None:
            block = self._blocks[cluster, chip] = Block(self.snapshot, cluster, chip)
        return Pool(block, self.snapshot.levels, option) if len(block.node) else None

    def _choice(self, role: int, index: int, cluster: int, option: Option) -> Choice:
        clusters = self.snapshot.clusters
        pool = self.pool(cluster, option)
        price = 0.0 if pool is None else float(clusters.dollars_per_chip_hour[cluster, self._chip_row[option.chip]])
        bar = _lasting_bar(clusters.names[cluster], pool, option, answering=bool(clusters.answering[cluster]))
        return Choice(
            role=role,
            option=index,
            cluster=cluster,
            wanted=option,
            pool=pool,
            replicas=option.replicas if pool is None or bar else min(option.replicas, pool.room_usable),
            dollars_per_chip_hour=price,
            bar=bar,
        )


def _choice_order(choice: Choice) -> tuple[int, float, int, int, int]:
    severity = -1 if choice.bar is None else choice.bar.severity
    return severity, choice.dollars_per_work, choice.cluster, choice.role, choice.option


def _lasting_bar(cluster: str, pool: Pool | None, option: Option, *, answering: bool) -> Bar | None:
    fewest = option.replicas_min
    if pool is None:
        return Bar(limit=Limit.IMPOSSIBLE, where=cluster, short_by=fewest * option.chips, text=f"has no {option.chip}")
    if not pool.level_known:
        return Bar(limit=Limit.IMPOSSIBLE, where=cluster, short_by=0.0, text=f"has no level {option.within!r}")
    if pool.room_ever < fewest:
        return Bar(
            limit=Limit.IMPOSSIBLE,
            where=cluster,
            short_by=(fewest - pool.room_ever) * option.chips,
            text=f"needs {amount(option, fewest)}{_together(option)}, at most {pool.room_ever} could ever fit",
        )
    if not answering:
        return Bar(limit=Limit.HEALTH, where=cluster, short_by=0.0, text="the cluster is not answering")
    if pool.room_usable < fewest:
        down = int(np.count_nonzero(pool.block.usable_total < pool.block.total))
        return Bar(
            limit=Limit.HEALTH,
            where=cluster,
            short_by=(fewest - pool.room_usable) * option.chips,
            text=f"needs {amount(option, fewest)}{_together(option)}, but {down} of {len(pool.block.node)} nodes with "
            f"{option.chip} are not ready",
        )
    return None


def _together(option: Option) -> str:
    return "" if option.within in (None, "cluster") else f" in one {option.within}"


def _site(cluster: int, choices: tuple[Choice, ...]) -> Site:
    asked: dict[int, int] = {}
    for choice in choices:
        assert choice.pool is not None
        asked[id(choice.pool.block)] = asked.get(id(choice.pool.block), 0) + choice.charge_milli
    if any(choice.pool and asked[id(choice.pool.block)] > choice.pool.block.usable_milli for choice in choices):
        # Elastic roles that could each fill the cluster must leave room for one another.
        choices = tuple(replace(choice, replicas=choice.wanted.replicas_min) for choice in choices)
    work = sum(choice.charge_milli / MILLI * choice.wanted.speed for choice in choices)
    return Site(
        cluster=cluster,
        choices=choices,
        dollars_per_work=sum(choice.dollars_per_hour for choice in choices) / work,
        charge_milli=sum(choice.charge_milli for choice in choices),
    )


def quota_bar(ledger: Ledger, team: int, charge_milli: int) -> Bar | None:
    """Returns the team limit that a grant would break, if any.

    Args:
        ledger: What teams hold.
        team: Index of the team that would be charged.
        charge_milli: What the grant would take.
    """
    over = ledger.overdraft(team, charge_milli)
    if over is None:
        return None
    return Bar(
        limit=Limit.QUOTA,
        where=over.team,
        short_by=over.short_milli / MILLI,
        text=f"team {over.team} may hold {over.milli_max / MILLI:g} chips and holds {over.used_milli / MILLI:g}; "
        f"{charge_milli / MILLI:g} more are {over.short_milli / MILLI:g} too many",
    )


def room_bar(cluster: str, choice: Choice) -> Bar | None:
    """Returns what keeps a choice from the chips free now, if anything.

    Args:
        cluster: Name of its cluster.
        choice: A choice without a lasting bar.
    """
    assert choice.pool is not None
    room = choice.pool.room
    if room >= choice.replicas:
        return None
    wanted, block = choice.wanted, choice.pool.block
    needs = f"needs {amount(wanted, choice.replicas)}{_together(wanted)}"
    short_by = (choice.replicas - room) * wanted.chips
    held = f" ({block.held_milli / MILLI:g} held for {block.held_for[0]})" if block.held_milli else ""
    if choice.pool.room_apart >= choice.replicas:
        text = f"{needs}, the roomiest {wanted.within} has room for {room} of {choice.replicas}"
        return Bar(limit=Limit.TOPOLOGY, where=cluster, short_by=short_by, text=text + held)
    text = f"{needs}, {block.free_milli / MILLI:g} free of {block.usable_milli / MILLI:g}{held}"
    if block.free_milli >= choice.charge_milli:
        text += f", too broken up: room for {room} of {choice.replicas}"
    return Bar(limit=Limit.CAPACITY, where=cluster, short_by=short_by, text=text)


def stand(fleet: Fleet, site: Site, work: Work) -> Standing | Bar:
    """Returns where the whole gang would stand now, or what is in its way. Takes nothing.

    Args:
        fleet: What is free.
        site: One choice for each role.
        work: Counts placements examined.
    """
    order = sorted(range(len(site.choices)), key=lambda row: -site.choices[row].wanted.chip_milli)
    picked: dict[int, Picked] = {}
    bar, stranded = None, 0
    for row in order:
        choice = site.choices[row]
        assert choice.pool is not None
        work.placements += 1
        found = choice.pool.pick(choice.replicas)
        if found is None:
            bar = room_bar(fleet.snapshot.clusters.names[site.cluster], choice)
            break
        picked[row] = found
        if len(order) > 1:
            choice.pool.block.take(found.rows, found.units * choice.pool.unit_milli)
            stranded += int(choice.pool.block.free[found.rows].sum())
        else:
            stranded += int((choice.pool.block.free[found.rows] - found.units * choice.pool.unit_milli).sum())
    if len(order) > 1:
        for row, found in picked.items():
            pool = site.choices[row].pool
            assert pool is not None
            pool.block.take(found.rows, -found.units * pool.unit_milli)
        if bar and picked:
            bar = replace(bar, text=f"{bar.text}, beside the job's other roles")
    if bar:
        return bar
    return Standing(site=site, picked=tuple(picked[row] for row in range(len(order))), stranded_milli=stranded)


def best_standing(
    fleet: Fleet, sites: tuple[Site, ...], shape: Shape, ledger: Ledger, work: Work
) -> Standing | dict[int, Bar]:
    """Returns the best site with room now, or what is in the way at each site, by its index.

    Best is the least score; among equals the least left broken up, then the first cluster by name.

    Args:
        fleet: What is free.
        sites: See `Fleet.sites`.
        shape: The shape they are of.
        ledger: What teams hold.
        work: Ends the search when it is spent; then the sites not reached are missing from the answer.
    """
    best: Standing | None = None
    bars: dict[int, Bar] = {}
    for index, site in enumerate(sites):
        if best and site.dollars_per_work > best.site.dollars_per_work + _SCORE_EQUAL:
            break
        bar = quota_bar(ledger, shape.team, site.charge_milli)
        if bar is None:
            if work.spent:
                break
            found = stand(fleet, site, work)
            if isinstance(found, Standing):
                if best is None or found.stranded_milli < best.stranded_milli:
                    best = found
                continue
            bar = found
        bars[index] = bar
    return best or bars
