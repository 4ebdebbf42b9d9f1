"""Every message between the processes of a run, and every kind of event.

Rank <-> agent over a Unix socket (`session`), agent <-> lead over TCP (`node`), agent and lead <-> controller over HTTP
(`control`); what people's tools and the controller say to each other is in `answers`. Streams carry frames
(`codec.frame`). A field may be added with a default; anything else is a new version. Times are seconds since the Unix
epoch unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.fleet import AgentExit as AgentExit
from mainspring.domain.fleet import AgentOrder as AgentOrder
from mainspring.domain.ids import AllocationId, AttemptId, JobId, NodeName, RoleName
from mainspring.domain.job import Code
from mainspring.domain.life import AttemptState

Detail = Mapping[str, str | int | float | bool]

EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: "I was asked to stop and have saved; run me again".


# ---------------------------------------------------------------- rank <-> agent
@message
class Hello:
    """A rank's first message: the process that speaks."""

    pid: int


@message
class Welcome:
    """Who the rank is. `coordinator` is the JAX coordination service ("host:port"), "" when the world is 1."""

    job: JobId
    attempt: AttemptId
    role: RoleName
    rank: int
    world_size: int
    local_rank: int
    generation: int
    coordinator: str
    arena_path: str


@message
class StepReport:
    """Progress: the last step finished, with its metrics, and seconds blocked by snapshots since the last report."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    snapshot_blocked_s: float = 0.0


@message
class StepReply:
    """The agent's answer: whether the program should save and exit, and how long it has."""

    stop: bool = False
    grace_s: float = 0.0


@message
class SnapshotBegin:
    """Asks for room in the arena; the answer (`SnapshotSlot`) waits until there is some."""

    step: int
    size_bytes: int


@message
class SnapshotSlot:
    """Where the snapshot may be written. `offset` is -1 when no room came in time or it can never fit."""

    offset: int
    reason: str = ""


@message
class Shard:
    """One block of one array: `start` and `shape` place it in the array of `global_shape`.

    `file` is "" inside an arena slot; `offset` counts from the start of the slot or file. `crc32c` is -1 until
    computed.
    `once` tells that this copy is the one to store (replicas are saved once).
    """

    path: str
    dtype: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    size_bytes: int
    file: str = ""
    crc32c: int = -1
    once: bool = True


@message
class SnapshotCommit:
    """The slot holds a whole snapshot; from here on it outlives the rank. `state` is the program's own small facts."""

    step: int
    offset: int
    shards: tuple[Shard, ...]
    state: Detail = field(default_factory=dict)


@message
class RestoreRequest:
    """Asks for the state this generation resumes from; the answer is a `RestorePlan`."""


@message
class RestorePlan:
    """Where the state lies: `step` -1 when there is none. Files are absolute paths the rank can map."""

    step: int
    shards: tuple[Shard, ...] = ()
    state: Detail = field(default_factory=dict)
    source: str = ""


@message
class ResultReport:
    """Facts the program wants kept as its job's result."""

    values: Detail


@message
class Done:
    """Acknowledges a message that has no other answer; between agent and lead, shows on a quiet line that one lives."""


# ---------------------------------------------------------------- agent <-> lead
@message
class AgentJoin:
    """An agent reports for duty: its place, and the steps its arena holds for each of its ranks."""

    attempt: AttemptId
    epoch: int
    agent: int
    node: NodeName
    token: str = field(repr=False)
    arena_steps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@message
class PrepareGeneration:
    """Lead -> agent: end every rank of older generations, and make `step` ready to restore (-1: start fresh)."""

    generation: int
    step: int
    source: str


@message
class GenerationPrepared:
    """Agent -> lead: old ranks are gone; whether the step is ready, or why not.

    `masters` gives, for each role whose rank 0 lives here, where that rank may listen ("host:port").
    """

    generation: int
    agent: int
    ready: bool
    reason: str = ""
    corrupt: bool = False
    masters: Mapping[str, str] = field(default_factory=dict)


@message
class StartRanks:
    """Lead -> agent: start your ranks, with each role's JAX service and the place where its rank 0 may listen."""

    generation: int
    coordinators: Mapping[str, str]
    masters: Mapping[str, str] = field(default_factory=dict)


@message
class RankStarted:
    """Agent -> lead: a rank's process lives."""

    generation: int
    rank: int
    pid: int


@message
class RankExited:
    """Agent -> lead: a rank's process ended; `exit_code` is negative for a signal. `last_words` quotes its output."""

    generation: int
    rank: int
    exit_code: int
    last_words: str = ""


@message
class RankProgress:
    """Agent -> lead: a rank's newest step report."""

    generation: int
    rank: int
    step: int
    time_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    snapshot_blocked_s: float = 0.0


@message
class RankResult:
    """Agent -> lead: a rank's result; `sequence` counts from 1 in the agent's life, so repeats are dropped."""

    rank: int
    values: Detail
    sequence: int


@message
class SnapshotTaken:
    """Agent -> lead: a rank's snapshot is whole in its arena."""

    rank: int
    step: int


@message
class StoreStep:
    """Lead -> agent: every rank's arena holds this step; make your ranks' shares durable."""

    step: int


@message
class ShardsStored:
    """Agent -> lead: a rank's share of a step is durable in the object store; the lead writes the manifest."""

    rank: int
    step: int
    shards: tuple[Shard, ...]
    state: Detail = field(default_factory=dict)


@message
class StoreFailed:
    """Agent -> lead: a share could not be made durable; training goes on."""

    rank: int
    step: int
    reason: str


@message
class EndAgent:
    """Lead -> agent: the attempt is over; make durable what the arena holds, end ranks within the grace, and exit."""

    grace_s: float
    reason: str


@message
class AgentDrained:
    """Agent -> lead: no rank lives and nothing waits to be stored."""

    agent: int


# ---------------------------------------------------------------- agent, lead <-> controller
@message
class Register:
    """An agent's first call: which allocation and node it serves, and where a lead on it would listen."""

    allocation: AllocationId
    node: NodeName
    address: str


@message
class RankPlace:
    """Where one rank lives. `rank` is unique in the attempt; `role_rank` counts within the role."""

    rank: int
    role: RoleName
    role_rank: int
    role_size: int
    agent: int


@message
class RoleOrders:
    """What one role's ranks run."""

    role: RoleName
    command: tuple[str, ...]
    environment: Mapping[str, str]


@message
class Orders:
    """What the attempt is and who leads it. `ready` is false while agents are missing: ask again.

    `ranks` are all for the lead, its own for any other agent. Earlier attempts came to `furthest_step`, -1 for none.
    """

    ready: bool
    attempt: AttemptId
    job: JobId
    epoch: int
    agent: int
    agents: int
    lead: bool
    lead_address: str
    ranks: tuple[RankPlace, ...]
    roles: tuple[RoleOrders, ...]
    code: Code
    objects_url: str
    restarts_max: int
    lease_s: float
    heartbeat_s: float
    furthest_step: int = -1


class EventKind(str, Enum):
    """Every kind of event, with the details it carries in parentheses."""

    JOB_SUBMITTED = "job_submitted"  # (name, team)
    JOB_MOVED = "job_moved"  # (before, after, reason)
    ATTEMPT_GRANTED = "attempt_granted"  # (cluster, nodes, plan, number, step): the furthest of earlier attempts
    ATTEMPT_ENDED = "attempt_ended"  # (outcome, reason)
    ATTEMPT_STOPPING = "attempt_stopping"  # (cause, reason)
    STOP_REQUESTED = "stop_requested"  # (by, for_job): by a person, or by a plan that needs the room for another job
    MOVE_WANTED = "move_wanted"  # (what, source, target, size_bytes): the job waits until it lies there
    PROVISION_WANTED = "provision_wanted"  # (cluster, offer, nodes, reason): the job waits for nodes one could order
    GENERATION_PREPARING = "generation_preparing"  # (generation, cause)
    GENERATION_RESUMED = "generation_resumed"  # (generation, step, source)
    GENERATION_STEPPING = "generation_stepping"  # (generation, step): its first step report
    CAUGHT_UP = "caught_up"  # (generation, step): passed the furthest step before this generation
    RANK_EXITED = "rank_exited"  # (generation, rank, exit_code, step, last_words)
    AGENT_LOST = "agent_lost"  # (agent, node)
    CHECKPOINT_DURABLE = "checkpoint_durable"  # (step, size_bytes)
    CHECKPOINT_FAILED = "checkpoint_failed"  # (step, reason)
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"  # (step, reason): passed over for an older one
    RESULT = "result"  # (the program's own facts)
    LEAD_ENDED = "lead_ended"  # (outcome, reason, step, snapshot_blocked_s)


@message
class LeadEvent:
    """An event as the lead saw it; `sequence` counts from 1 within the attempt and epoch, so repeats are dropped."""

    sequence: int
    time_s: float
    kind: EventKind
    detail: Detail = field(default_factory=dict)


@message
class RankStatus:
    """One rank, as last seen."""

    rank: int
    node: NodeName
    pid: int
    alive: bool
    step: int


@message
class Heartbeat:
    """The lead's report on the whole attempt, every `heartbeat_s`; events repeat until acknowledged."""

    attempt: AttemptId
    epoch: int
    generation: int
    step: int
    metrics: Mapping[str, float]
    ranks: tuple[RankStatus, ...]
    events: tuple[LeadEvent, ...]
    outcome: AttemptState | None = None
    reason: str = ""


@message
class HeartbeatReply:
    """The controller's answer. `fenced`: this attempt or epoch is over; end everything at once."""

    acknowledged: int
    fenced: bool = False
