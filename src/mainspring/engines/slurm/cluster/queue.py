"""Slurm's queue: rows of squeue and sacct, and what every state and reason of theirs means here.

Source: job_states and job_state_flags in slurm.h, job_reason_string in slurm_protocol_defs.c of Slurm 22.05 to 25.05;
squeue(1), JOB STATE CODES and JOB REASON CODES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import AllocationId

NAME = "mainspring."  # What the name of each of our jobs begins with; its allocation's id follows.
# A name is the last column: an operator may rename a job to anything.
QUEUE_FORMAT = "%i|%T|%r|%j"
HISTORY_FORMAT = "JobID,State"
QUOTED_MAX = 80
_JOB = re.compile(r"([0-9]+)(?:\+[0-9]+|_\S+)?")  # Of a job, a component, or tasks of an array.


class Stage(IntEnum):
    """Where a job stands, from what counts most for a job of several components on."""

    ALIVE = 0  # Its nodes are given, and its script runs or is about to.
    LEAVING = 1  # Slurm ends what is left of it.
    WAITING = 2
    OVER = 3


_STAGES = {
    Stage.WAITING: "PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD",
    Stage.ALIVE: "RUNNING SUSPENDED CONFIGURING POWER_UP_NODE STOPPED RESIZING SIGNALING STAGE_OUT EXPEDITING"
    " UPDATE_DB",
    Stage.LEAVING: "COMPLETING",
    Stage.OVER: "COMPLETED FAILED CANCELLED TIMEOUT PREEMPTED DEADLINE REVOKED NODE_FAIL BOOT_FAIL OUT_OF_MEMORY"
    " LAUNCH_FAILED RECONFIG_FAIL",
}
_STAGE = {state: stage for stage, states in _STAGES.items() for state in states.split()}
# Ends that nobody here wanted and no node is to blame for.
TAKEN = {
    "CANCELLED": "cancelled by somebody else",
    "TIMEOUT": "its time limit was reached",
    "PREEMPTED": "preempted for other work",
    "DEADLINE": "its deadline in Slurm was reached",
    "REVOKED": "revoked, since it began in another cluster",
}
_STATE_WORDS = {
    **TAKEN,
    "FAILED": "its script failed",
    "NODE_FAIL": "one of its nodes failed",
    "BOOT_FAIL": "one of its nodes did not boot",
    "OUT_OF_MEMORY": "it ran out of memory",
    "LAUNCH_FAILED": "it could not be launched",
    "RECONFIG_FAIL": "its nodes could not be set up",
    "SUSPENDED": "suspended",
    "STOPPED": "stopped by a signal",
    "CONFIGURING": "its nodes are being made ready",
    "POWER_UP_NODE": "its nodes are powering up",
    "REQUEUED": "put back into the queue",
    "REQUEUE_HOLD": "put back into the queue, and held",
    "REQUEUE_FED": "put back into the queue of its federation",
    "SPECIAL_EXIT": "put back into the queue, and held",
    "RESV_DEL_HOLD": "held, since its reservation is gone",
}
_REASON_WORDS = {
    "None": "to be looked at by Slurm's scheduler",
    "Priority": "jobs that come before it",
    "Resources": "room that is in use",
    "Dependency": "other jobs",
    "DependencyNeverSatisfied": "other jobs, for ever",
    "BeginTime": "its earliest start",
    "JobHeldUser": "somebody to release it: its owner holds it",
    "JobHeldAdmin": "somebody to release it: an operator holds it",
    "Licenses": "licences",
    "ReqNodeNotAvail": "a node that is down, drained or reserved",
    "NodeDown": "a node that is down",
    "Reservation": "its reservation",
    "ReservationDeleted": "its reservation, which is gone",
    "Prolog": "its prolog",
    "Cleaning": "what is left of its last start to go",
    "JobArrayTaskLimit": "other tasks of its array",
    "FrontEndDown": "a front end that is down",
    "PartitionDown": "its partition, which is down",
    "PartitionInactive": "its partition, which takes no new work now",
    "PartitionNodeLimit": "nothing: it asks for more nodes than its partition allows, or for some that are down",
    "PartitionTimeLimit": "nothing: it asks for more time than its partition allows",
    "BadConstraints": "nothing: no nodes are as it asks",
    "InvalidAccount": "nothing: its account is not valid",
    "InvalidQOS": "nothing: its QOS is not valid",
    "AccountNotAllowed": "nothing: its partition does not take its account",
    "AccountingPolicy": "a limit of its account",
    "QOSNotAllowed": "nothing: its QOS is not allowed here",
    "BurstBufferResources": "burst buffers",
    "BurstBufferStageIn": "its burst buffer to be filled",
}
# Waits that, where we name the nodes, mean that the nodes are not what the plan took them for.
NODE_REASONS = ("ReqNodeNotAvail", "NodeDown", "BadConstraints", "PartitionNodeLimit", "PartitionDown", "Reserv")
# After these nothing but a person lets a job go on; Slurm itself sets the first when a launch failed.
STUCK = ("launch failed requeued held",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job of ours as Slurm shows it.

    Args:
        number: Slurm's id; of the first component, where it has several.
        allocation: What it is for, as its name tells; "" where that tells nothing.
        state: Slurm's word; of the component that counts most.
        reason: Slurm's word.
    """

    number: int
    allocation: AllocationId
    state: str
    reason: str = ""

    @property
    def stage(self) -> Stage:
        """Returns where it stands; of a state nobody heard of nothing is concluded."""
        return stage_of(self.state)


def stage_of(state: str) -> Stage:
    """Returns where a job in this state stands.

    Args:
        state: Slurm's word; sacct adds who cancelled it.
    """
    return _STAGE.get(state.partition(" ")[0], Stage.ALIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmQueue:
    """Every job of this user.

    Args:
        by_number: By Slurm's id.
        by_allocation: By the allocation that its name tells, the oldest first.
    """

    by_number: Mapping[int, SlurmJob]
    by_allocation: Mapping[AllocationId, tuple[SlurmJob, ...]]


def read_queue(text: str) -> SlurmQueue:
    """Returns the jobs of this user.

    Args:
        text: What `squeue -h --me --states=all -o QUEUE_FORMAT` wrote; a name may go on over several lines.

    Raises:
        Unavailable: It is not that.
    """
    rows: dict[int, list[SlurmJob]] = {}
    for line in text.splitlines():
        columns = line.split("|", 3)
        match = _JOB.fullmatch(columns[0])
        if match is None and rows:
            continue  # The rest of a name that holds line breaks.
        if match is None or len(columns) < 4:
            raise Unavailable("read Slurm's queue", on="squeue", got=repr(line[:QUOTED_MAX]), wanted=QUEUE_FORMAT)
        _, state, reason, name = columns
        rows.setdefault(int(match[1]), []).append(
            SlurmJob(
                number=int(match[1]),
                allocation=AllocationId(name.removeprefix(NAME) if name.startswith(NAME) else ""),
                state=state,
                reason=reason,
            )
        )
    by_number = {number: _joined(rows[number]) for number in sorted(rows)}
    by_allocation: dict[AllocationId, tuple[SlurmJob, ...]] = {}
    for job in by_number.values():
        if job.allocation:
            by_allocation[job.allocation] = (*by_allocation.get(job.allocation, ()), job)
    return SlurmQueue(by_number=by_number, by_allocation=by_allocation)


def _joined(components: list[SlurmJob]) -> SlurmJob:
    """Returns the one job that these components are."""
    # Of components that are over, one that ended otherwise than well tells how the job did.
    return min(components, key=lambda component: (component.stage, component.state == "COMPLETED"))


def read_history(text: str) -> Mapping[int, str]:
    """Returns the states of jobs that Slurm's queue no longer knows.

    Args:
        text: What `sacct -nPX -o HISTORY_FORMAT` wrote.
    """
    states: dict[int, str] = {}
    for line in text.splitlines():
        number, _, state = line.partition("|")
        match = _JOB.match(number)
        if match is not None and state:
            known = states.get(int(match[1]), "COMPLETED")
            states[int(match[1])] = known if known != "COMPLETED" else state
    return states


def waits_for(reason: str) -> str:
    """Returns what a job waits for, in plain words after Slurm's own.

    Args:
        reason: Slurm's word.
    """
    word = reason.split(",")[0].strip("()")
    plain = _REASON_WORDS.get(word, "")
    for start, meaning in (("QOS", "a limit of its QOS"), ("Assoc", "a limit of its account"), ("Max", "a limit")):
        if not plain and word.startswith(start):
            plain = meaning
    return f"Slurm: {reason}: {plain}" if plain else f"Slurm: {reason}"


def state_words(state: str) -> str:
    """Returns what a state says of a job, in plain words after Slurm's own.

    Args:
        state: Slurm's word.
    """
    plain = _STATE_WORDS.get(state.partition(" ")[0])
    return f"Slurm: {state}: {plain}" if plain else f"Slurm: {state}"
