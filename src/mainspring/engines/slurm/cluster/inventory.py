"""Inventory of a Slurm cluster: nodes, their place and condition, what others use, and what we may still ask for.

A look costs four commands however large the cluster is, and four more every `SLOW_S`. Everything is read from text
that is there whole, or the look fails: half of a cluster is never shown as all of it.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isinf
from typing import Protocol

from mainspring.domain.errors import MainspringError, NotFound, Unavailable, nearest
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import NodeName
from mainspring.domain.job import Tier
from mainspring.domain.ports import Clock
from mainspring.engines.common.names import our_name
from mainspring.engines.common.records import Cordon
from mainspring.engines.slurm.cluster.commands import Refused
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.hosts import OWNER, Host, HostState, Machine, read_host
from mainspring.engines.slurm.cluster.limits import (
    ASSOCIATION_FORMAT,
    QOS_FORMAT,
    Database,
    Limits,
    least,
    read_database,
    read_limits,
)
from mainspring.engines.slurm.cluster.places import Partition, Place, read_partitions, read_places, read_reserved
from mainspring.engines.slurm.cluster.slots import Amount, SlotHolding, by_node, make_buckets, make_node, used_of
from mainspring.engines.slurm.cluster.text import duration_s, records, unreadable

__all__ = ["Asks", "Machine", "Ours", "SlotHolding", "Stock"]

SLOW_S = 300.0  # Settings, topology and the database's QOS change when an operator reconfigures.
KILL_WAIT_S = 30.0  # Slurm's default for KillWait.


class Asks(Protocol):
    """What runs Slurm's commands."""

    def run(self, *words: str, attempted: str) -> str:
        """Returns what a command wrote.

        Args:
            attempted: What it is for, for messages.

        Raises:
            Unavailable: No answer, or none yet.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What of the cluster is ours.

    Args:
        holdings: One for each node of each live allocation.
        cordons: Our own, by node.
        refusals: Slurm's words, by partition, where it lately refused what we asked.
    """

    holdings: tuple[SlotHolding, ...] = ()
    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What changes rarely."""

    read_s: float
    kill_wait_s: float
    preempts_by_qos: bool
    limits_hold: bool
    place_of: Mapping[str, Place]
    database: Database


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the last look found."""

    machine_of: Mapping[NodeName, Machine]
    partitions: Mapping[str, Partition]
    limits: Limits
    settings: _Settings


class Stock:
    """Reads the nodes of a cluster.

    Args:
        commands: What runs Slurm's commands.
    """

    def __init__(self, cluster: SlurmCluster, commands: Asks, clock: Clock) -> None:
        self._cluster = cluster
        self._commands = commands
        self._clock = clock
        self._user_number = os.geteuid()
        self._last: _Known | None = None
        self._leaving_s: dict[str, float] = {}

    def look(self, ours: Ours) -> Inventory:
        """Returns the cluster as it is now.

        Args:
            ours: What of it is ours. Jobs that begin or end while Slurm is asked may be counted for others once.

        Raises:
            Unavailable: Slurm does not answer, or not in a way that can be read.
        """
        settings = self._read_settings()
        partitions = self._read_partitions()
        hosts = self._read_hosts(partitions)
        limits = self._read_limits(settings)
        reserved = read_reserved(self._ask("reservation"), now_s=self._clock.now_s(), on=self._cluster.name)
        hosts = [replace(host, standing=reserved.standing(host)) for host in hosts]
        nodes = (self._slots if self._cluster.delegated else self._nodes)(
            hosts, ours, _Known(machine_of={}, partitions=partitions, limits=limits, settings=settings)
        )
        return Inventory(
            cluster=self._cluster.name,
            engine=OWNER,
            simulated=self._cluster.simulated,
            dollars_per_chip_hour=self._cluster.dollars_per_chip_hour,
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            delegated=self._cluster.delegated,
            losses_per_node_hour=self._cluster.losses_per_node_hour,
        )

    def machine(self, node: NodeName) -> Machine:
        """Returns what stands behind a node or slot; looks when it never has.

        Args:
            node: Our name of it.

        Raises:
            NotFound: There is none of that name.
            Unavailable: Slurm does not answer.
        """
        machines = self._known().machine_of
        if node not in machines:
            raise NotFound("use a node of Slurm", on=self._cluster.name, got=node, wanted=nearest(node, machines))
        return machines[node]

    def grace_s(self, partition: str, qos: str) -> float:
        """Returns how long a job is given between Slurm's first word that it must end and its end by force.

        Args:
            partition: The job's.
            qos: The job's; "" for the default one.

        Raises:
            Unavailable: Slurm does not answer.
        """
        known = self._known()
        if known.settings.preempts_by_qos:
            return known.limits.grace_s(qos) or known.settings.kill_wait_s
        return known.partitions[partition].grace_s or known.settings.kill_wait_s

    def time_max_s(self, partition: str, qos: str) -> float | None:
        """Returns the longest time a job may ask for, None where there is no limit.

        Args:
            partition: The job's.
            qos: The job's; "" for the default one.

        Raises:
            Unavailable: Slurm does not answer.
        """
        known = self._known()
        longest = min(known.partitions[partition].time_max_s, known.limits.time_max_s(qos))
        return None if isinf(longest) else longest

    def _known(self) -> _Known:
        if self._last is None:
            self.look(Ours())
        assert self._last is not None
        return self._last

    def _ask(self, what: str, *more: str) -> str:
        # Hidden partitions and nodes that are yet to come count too: so nothing that is missing goes unnoticed.
        words = ("scontrol", "--oneliner", "--details", "--all", "--future", "show", what, *more)
        return self._commands.run(*words, attempted=f"read {what} of Slurm")

    def _read_settings(self) -> _Settings:
        now_s = self._clock.monotonic_s()
        old = self._last.settings if self._last else None
        if old and now_s - old.read_s < SLOW_S:
            return old
        text = self._ask("config")
        config = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in text.split("\n"))}
        if "SLURM_VERSION" not in config:
            raise unreadable("read the settings of Slurm", got=text, wanted="SLURM_VERSION", on=self._cluster.name)
        accounting = "slurmdbd" in config.get("AccountingStorageType", "")
        wait_s = duration_s(config.get("KillWait", ""))
        return _Settings(
            read_s=now_s,
            kill_wait_s=KILL_WAIT_S if wait_s is None else wait_s,
            preempts_by_qos="qos" in config.get("PreemptType", ""),
            limits_hold=bool({"limits", "safe"} & set(config.get("AccountingStorageEnforce", "").lower().split(","))),
            place_of=self._read_places(),
            database=self._read_database(old.database if old else Database()) if accounting else Database(),
        )

    def _read_places(self) -> Mapping[str, Place]:
        try:
            return read_places(self._ask("topology"), on=self._cluster.name)
        except Refused:  # Releases differ in whether it is an error to have none.
            return {}

    def _read_database(self, old: Database) -> Database:
        """Returns what only the database tells; what it told before while it is away: the cluster runs on without."""
        words = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
        user = f"user={_user_name(self._user_number)}"
        try:
            qos = self._commands.run(*words, "qos", f"format={QOS_FORMAT}", attempted="read the QOS of Slurm")
            ours = self._commands.run(
                *words, "association", user, f"format={ASSOCIATION_FORMAT}", attempted="read our accounts in Slurm"
            )
        except MainspringError:
            return old
        return read_database(qos, ours)

    def _read_limits(self, settings: _Settings) -> Limits:
        if not settings.limits_hold:
            return Limits(database=settings.database)
        text = self._ask("assoc_mgr", f"users={_user_name(self._user_number)}", "flags=assoc,qos")
        return read_limits(text, user_number=self._user_number, database=settings.database, on=self._cluster.name)

    def _read_partitions(self) -> dict[str, Partition]:
        partitions = read_partitions(self._ask("partition"), on=self._cluster.name)
        for name in self._cluster.partitions:
            if name not in partitions:
                raise Unavailable(
                    "read the partitions of Slurm",
                    on=self._cluster.name,
                    got=f"no {name!r}",
                    wanted=nearest(name, partitions),
                )
        return {name: partitions[name] for name in self._cluster.partitions}

    def _read_hosts(self, partitions: Mapping[str, Partition]) -> list[Host]:
        """Returns every machine of our partitions, by name."""
        attempted, on = "read the nodes of Slurm", self._cluster.name
        hosts: dict[str, Host] = {}
        told: set[str] = set()
        for line in records(self._ask("node"), "NodeName", attempted=attempted, on=on):
            try:
                host = read_host(line, self._cluster.partitions, self._cluster.chips, self._cluster.chip_memory_gib)
            except (KeyError, ValueError) as error:
                raise unreadable(attempted, got=line, wanted=f"a whole record ({error!r})", on=on) from error
            told.add(line[len("NodeName=") :].partition(" ")[0])
            if host:
                hosts[host.machine.name] = host
        missing = sorted({name for partition in partitions.values() for name in partition.hosts} - told)
        if missing:
            raise Unavailable(
                attempted,
                on=on,
                got=f"{len(told)} of them, without {', '.join(missing[:8])}",
                wanted=f"{len(missing)} more, which its partitions have",
            )
        return [self._dated(hosts[name]) for name in sorted(hosts)]

    def _dated(self, host: Host) -> Host:
        """Returns the same, with when it began to leave: when that was first seen, where Slurm does not say."""
        name, standing = host.machine.name, host.standing
        if not standing.leaving:
            self._leaving_s.pop(name, None)
        elif standing.leaves_s is None:
            return replace(
                host, standing=replace(standing, leaves_s=self._leaving_s.setdefault(name, self._clock.now_s()))
            )
        return host

    def _nodes(self, hosts: list[Host], ours: Ours, known: _Known) -> tuple[Node, ...]:
        """Returns machines as nodes, and keeps what stands behind them."""
        held = by_node(holding for holding in ours.holdings if holding.host)
        machines: dict[NodeName, Machine] = {}
        nodes = []
        for host in hosts:
            machine = host.machine
            name = NodeName(our_name(machine.name, machines))
            machines[name] = machine
            closed = known.partitions[machine.partition].closed or ours.refusals.get(machine.partition, "")
            standing = _held_back(host.standing, closed, ours.cordons.get(name))
            foreign = used_of(host).less(held.get(name, Amount()))
            nodes.append(
                make_node(name, machine, standing, foreign, domains=known.settings.place_of.get(machine.name, ()))
            )
        self._last = replace(known, machine_of=machines)
        return tuple(nodes)

    def _slots(self, hosts: list[Host], ours: Ours, known: _Known) -> tuple[Node, ...]:
        """Returns slots as nodes, and keeps what stands behind them."""
        cluster = self._cluster
        buckets = make_buckets(hosts, ours.holdings)
        waiting = sum(max(0, bucket.waiting - bucket.free) for bucket in buckets)
        qos = [*cluster.qos.values(), *([""] if len(cluster.qos) < len(Tier) else [])]
        machines: dict[NodeName, Machine] = {}
        nodes: list[Node] = []
        for bucket in buckets:
            partition = known.partitions[bucket.machine.partition]
            accounts = {"", *cluster.accounts.values()}
            room = known.limits.room(
                partition=partition.name, partition_qos=partition.qos, accounts=sorted(accounts), qos=qos
            )
            room = least([room, {"node": partition.nodes_max}])
            found = bucket.nodes(
                queued=max(0, cluster.queued_nodes_max - waiting),
                room=room,
                closed=partition.closed or ours.refusals.get(partition.name, ""),
            )
            machines |= dict.fromkeys((node.name for node in found), bucket.machine)
            nodes += found
        self._last = replace(known, machine_of=machines)
        return tuple(nodes)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError as error:
        raise Unavailable(
            "read our limits in Slurm",
            got=f"user number {number}, which has no name",
            next_step="run the engine as a user that Slurm knows",
        ) from error


def _held_back(standing: HostState, closed: str, cordon: Cordon | None) -> HostState:
    """Returns the same, unless the partition takes nothing or we keep work off the node ourselves."""
    if standing.condition is not NodeCondition.READY or not (closed or cordon):
        return standing
    owner, words = (OWNER, closed) if closed or not cordon else (cordon.owner, cordon.reason)
    return replace(standing, condition=NodeCondition.CORDONED, owner=owner, words=words)
