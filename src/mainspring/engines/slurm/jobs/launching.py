"""Batch jobs for orders: the share of each node, the files its agents find, the words for sbatch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from mainspring.domain.codec import encode
from mainspring.domain.fleet import AgentOrder, LaunchOrder
from mainspring.engines.common.kind import JobUsers
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.hosts import CPU
from mainspring.engines.slurm.cluster.inventory import Machine, Stock
from mainspring.engines.slurm.jobs.folder import Asked
from mainspring.engines.slurm.jobs.script import Share, Submission, environment_text, in_order, sbatch_words, script

# A time limit for a job whose length is known: Slurm's backfill starts short jobs sooner, and a job that reaches its
# limit only loses its place. Half as long again covers what estimates are off by, the rest a start and restores.
DURATION_FACTOR = 1.5
DURATION_MARGIN_S = 900.0
NOTICE_PART_MAX = 0.25  # Of a time limit; a notice as long as the limit would come at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything a submission needs.

    Args:
        files: What the folder must hold before, by name.
    """

    asked: Asked
    files: Mapping[str, str]
    words: tuple[str, ...]
    script: str


@final
class Launching:
    """Prepares submissions.

    Args:
        agent_command: Program and first words of an agent on its nodes.
        environment: Every variable an agent gets beside those of its node.
        users: Whose ranks run as whom, None where all run under the account that submits them.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        stock: Stock,
        *,
        agent_command: tuple[str, ...],
        environment: Mapping[str, str],
        users: JobUsers | None,
    ) -> None:
        self._cluster = cluster
        self._stock = stock
        self._agent_command = agent_command
        self._environment = environment_text(environment)
        self._users = users
        self._scratch = cluster.scratch.rstrip("/")
        self._base = f"{self._scratch}/mainspring-{os.getuid()}"

    def prepare(self, order: LaunchOrder, folder: str, *, now_s: float) -> Prepared:
        """Returns what to submit for an order.

        Args:
            order: The order.

        Raises:
            NotFound: A node of the order does not exist here.
            NotAllowed: Its team has no user for its ranks to run as.
            Unavailable: Slurm does not answer.
        """
        cluster, stock = self._cluster, self._stock
        machines = [stock.machine(node) for node in order.nodes]
        shares = tuple(self._share(order, index, machine) for index, machine in enumerate(machines))
        tasks = in_order(shares)
        partitions = sorted({share.partition for share in shares})
        qos = cluster.qos.get(order.tier.value, "")
        time_s = self._time_s(order, partitions, qos)
        submission = Submission(
            allocation=order.allocation,
            folder=folder,
            job=order.job,
            account=next((cluster.accounts[team] for team in order.teams if team in cluster.accounts), ""),
            qos=qos,
            time_s=time_s,
            notice_s=cluster.notice_s if time_s is None else min(cluster.notice_s, time_s * NOTICE_PART_MAX),
        )
        hosts = [machines[index].name or "-" for index in tasks]
        orders = [self._order(order, index, folder) for index in tasks]
        return Prepared(
            asked=Asked(
                partitions=tuple(share.partition for share in shares),
                hosts=tuple(share.host for share in shares),
                chips=tuple(_chips(milli) for milli in order.chip_milli),
                cpus=tuple(share.cpus for share in shares),
                memory_mib=tuple(
                    machine.memory_mib if share.whole else share.memory_mib
                    for share, machine in zip(shares, machines, strict=True)
                ),
                tasks=tasks,
                at_s=now_s,
            ),
            files={
                "orders.jsonl": "".join(f"{encode(each).decode()}\n" for each in orders),
                "agents": "".join(
                    f"{each.index} {host} {each.run_as} {each.shared_dir}\n"
                    for each, host in zip(orders, hosts, strict=True)
                ),
                "environment": self._environment,
            },
            words=sbatch_words(submission, shares),
            script=script(
                submission,
                base=self._base,
                taken_s=min(stock.grace_s(partition, qos) for partition in partitions),
                agent_command=self._agent_command,
            ),
        )

    def _share(self, order: LaunchOrder, index: int, machine: Machine) -> Share:
        """Returns what to ask for on one node: where nothing particular is wanted, as much of it as of its chips."""
        chips, on_cpus = _chips(order.chip_milli[index]), machine.chip == CPU
        cpus, memory_mib = math.ceil(order.cpu_milli[index] / 1_000), order.memory_mib[index]
        whole = chips >= machine.chips > 0 and not cpus and not memory_mib
        part = chips / machine.chips if machine.chips else 0.0
        cpus = max(cpus or int(machine.cpus * part), chips if on_cpus else 0, 1)
        if not chips:
            part = cpus / max(machine.cpus, 1)
        return Share(
            host=machine.name,
            partition=self._cluster.tier_partitions.get(order.tier.value, machine.partition),
            gres_type=machine.gres_type,
            gpus=0 if on_cpus else chips,
            cpus=min(cpus, max(machine.cpus, 1)),
            memory_mib=0 if whole else memory_mib or int(machine.memory_mib * min(part, 1.0)),
            whole=whole,
        )

    def _time_s(self, order: LaunchOrder, partitions: list[str], qos: str) -> float | None:
        limits = [self._stock.time_max_s(partition, qos) for partition in partitions]
        limits += [self._cluster.time_limit_s or None]
        if self._cluster.delegated and order.duration_s is not None:
            limits.append(order.duration_s * DURATION_FACTOR + DURATION_MARGIN_S)
        return min((limit for limit in limits if limit is not None), default=None)

    def _order(self, order: LaunchOrder, index: int, folder: str) -> AgentOrder:
        return AgentOrder(
            allocation=order.allocation,
            attempt=order.attempt,
            role=order.role,
            node=order.nodes[index],
            index=index,
            chip_milli=order.chip_milli[index],
            controller=order.controller,
            controllers_beside=order.controllers_beside,
            job_id=order.job_id,
            log_form=order.log_form,
            token=order.token,
            work_dir=f"{self._base}/{order.allocation}-{index}",
            report_dir=f"{folder}/node-{index}",
            run_as=self._users.of(order) if self._users is not None else "",
            shared_dir=self._shared_dir(order, index) if self._users is not None else "",
        )

    def _shared_dir(self, order: LaunchOrder, index: int) -> str:
        return f"{self._scratch}/mainspring-{JobUsers.folder_name(order, index, where=self._cluster.shared)}"


def _chips(milli: int) -> int:
    """Returns whole chips: Slurm gives no parts of one."""
    return math.ceil(milli / 1_000)
