"""Messages of agents to their lead and to each other, over TCP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.ids import AttemptId, NodeName, RoleName
from mainspring.domain.release import Unknown as Unknown
from mainspring.domain.wire.facts import Detail, Serving, StepSample
from mainspring.domain.wire.rank import Done, Shard, StepTried, Then, UpsetReport

SEGMENT_BYTES = 256 << 20  # Sent again, at most, for each that was under way when a line broke: 2 s of 1 Gbit/s.


@message("RankPlace")
class RankPlace:
    """Where one rank lives. `rank` numbers the place: unique in the attempt, and the place's for its whole life.

    `role_rank` and `role_size` are what its program sees in one generation (in `Orders`: in the first one, as if no
    place stood by).
    """

    rank: int
    role: RoleName
    role_rank: int
    role_size: int
    agent: int


@message("Holding")
class Holding:
    """One rank's snapshot in some agent's memory: the rank's own agent's, or a peer's copy.

    A copy holds the blocks no other node's snapshot of the step has; an empty copy counts. A step of a generation is
    whole when for every rank from 0 to `role_size` of every role, some agent holds its snapshot or its copy.
    """

    step: int
    generation: int
    rank: int
    role: RoleName
    role_rank: int
    role_size: int
    copied: bool = False


@message("AgentJoin")
class AgentJoin:
    """An agent reports for duty: its places (an agent that was added brings new ones), and what its memory holds.

    `address` is where other agents reach it, `generation` the newest it knows.
    """

    attempt: AttemptId
    epoch: int
    agent: int
    node: NodeName
    address: str = ""
    generation: int = 0
    places: tuple[RankPlace, ...] = ()
    holdings: tuple[Holding, ...] = ()


@message("Holder")
class Holder:
    """An agent that holds part of the step to resume from: its address and what it holds of it."""

    agent: int
    address: str
    holdings: tuple[Holding, ...]


@message("PrepareGeneration")
class PrepareGeneration:
    """Lead -> agent: leave older generations, and make `step` ready to restore (-1: nothing of this job's own).

    Ranks that reconnect are waited for, for `reconnect_s`, then ended like the others. `source` is "arena" (snapshots
    of generation `taken_in`, which `holders` hold), "store", or "" for a fresh start. With `begins_from` ("NAME@STEP")
    ranks are given that checkpoint, of another job or an import. `places` are the agent's ranks in this generation,
    none for an agent that stands by; `peer` is the address its snapshots are copied to, "" for none.
    """

    generation: int
    step: int
    source: str
    taken_in: int = 0
    reconnect_s: float = 0.0
    places: tuple[RankPlace, ...] = ()
    holders: tuple[Holder, ...] = field(default=(), metadata={"shared": True})
    peer: str = ""
    begins_from: str = ""


@message("GenerationPrepared")
class GenerationPrepared:
    """Agent -> lead: older generations are left here; whether the step is ready, or why not.

    `masters` gives, for each role whose rank 0 lives here, where that rank may listen ("host:port").
    """

    generation: int
    agent: int
    ready: bool
    reason: str = ""
    corrupt: bool = False
    masters: Mapping[str, str] = field(default_factory=dict)


@message("StartRanks")
class StartRanks:
    """Lead -> agent: start your ranks, with each role's JAX service and the place where its rank 0 may listen."""

    generation: int
    coordinators: Mapping[str, str]
    masters: Mapping[str, str] = field(default_factory=dict)
    snapshot_every: int = 1


@message("StandbyAllowed")
class StandbyAllowed:
    """Agent -> lead -> all other agents: a spare process of the role may be started ahead (see `Hello.standby`)."""

    role: RoleName


@message("RankStarted")
class RankStarted:
    """Agent -> lead: a rank's process lives: a new one, one that stood by, or one that reconnected (`how`)."""

    generation: int
    rank: int
    pid: int
    how: str = "started"


@message("RankExited")
class RankExited:
    """Agent -> lead: a rank's process ended; `exit_code` is negative for a signal. `last_words` quotes its output."""

    generation: int
    rank: int
    exit_code: int
    last_words: str = ""


@message("RankLeft")
class RankLeft:
    """Agent -> lead: a rank that reconnects has left the generation: it failed with `words`, or as asked ("")."""

    generation: int
    rank: int
    words: str = ""


@message("RankProgress")
class RankProgress:
    """Agent -> lead: a rank's newest step report, with all it measured since the one told before.

    `samples` are the reports since then one by one, of each role's first rank alone: what others report is the same
    or a part of it, and would be as many times as much to keep.
    """

    generation: int
    rank: int
    step: int
    time_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[StepSample, ...] = ()


@message("RankServing")
class RankServing:
    """Agent -> lead: what a rank that serves told of itself last."""

    generation: int
    rank: int
    serving: Serving


@message("RankResult")
class RankResult:
    """Agent -> lead: a rank's result; `sequence` counts from 1 in the agent's life, so repeats are dropped."""

    rank: int
    values: Detail
    sequence: int


@message("RankUpset")
class RankUpset:
    """Agent -> lead: a step of a rank's program went wrong; `sequence` counts with those of its results."""

    rank: int
    report: UpsetReport
    sequence: int


@message("RankTried")
class RankTried:
    """Agent -> lead: a rank tells of work done more than once; `sequence` counts with those of its results."""

    generation: int
    rank: int
    report: StepTried
    sequence: int


@message("SnapshotTaken")
class SnapshotTaken:
    """Agent -> lead: a snapshot, or a peer's copy of one, is whole in this agent's memory.

    `cost_s` is what snapshots took of the agent's node since it last told, beside the time they blocked ranks: seconds
    in which all its cores were busy, or its bytes to a peer on their way.
    """

    holding: Holding
    cost_s: float = 0.0


@message("SnapshotPace")
class SnapshotPace:
    """Lead -> agent: how many steps there shall be between snapshots from now on."""

    every: int


@message("LeaveAt")
class LeaveAt:
    """Lead -> agent: tell every rank to finish step `step`, save, and leave (-1: the step under way)."""

    generation: int
    step: int
    grace_s: float
    then: Then


@message("AgentLeaving")
class AgentLeaving:
    """Agent -> lead: this node's engine takes it away in `grace_s` seconds."""

    agent: int
    grace_s: float


@message("DumpStacks")
class DumpStacks:
    """Lead -> agent: the generation makes no progress; say where each of its ranks is."""

    generation: int


@message("StacksDumped")
class StacksDumped:
    """Agent -> lead: where a rank is: its process state as /proc gives it ("S", "R", "T", "D"; "" when it is gone).

    `top` names the innermost frame of its main thread ("file:line function", "" when unknown); `stacks` all threads.
    """

    generation: int
    rank: int
    process_state: str
    top: str = ""
    stacks: str = ""


@message("TakeProfile")
class TakeProfile:
    """Lead -> agent: have these ranks profile their next steps."""

    generation: int
    id: str
    steps: int
    ranks: tuple[int, ...]


@message("ProfileKept")
class ProfileKept:
    """Agent -> lead: a rank's profile is in the object store, or (`failure`) there is none."""

    rank: int
    id: str
    names: tuple[str, ...] = ()
    size_bytes: int = 0
    failure: str = ""


@message("StoreStep")
class StoreStep:
    """Lead -> agent: the step is whole in memory; make your ranks' shares of it, taken in `taken_in`, durable."""

    step: int
    taken_in: int = 0


@message("ShareStored")
class ShareStored:
    """Agent -> lead: a rank's share of a step is durable; the lead writes the manifest when it has all.

    `file` has `size_bytes` bytes; its index, `index_bytes` at `index_offset` with checksum `index_crc32c`, lists its
    shards; its data lie in objects of `segment_bytes`. A rank with nothing to store has no file ("").

    `replicas` are checksums of what it has in common with other ranks, which is stored once: equal wherever
    `replicas_of`, which says what that is, is equal; 0 for nothing.
    """

    rank: int
    step: int
    file: str = ""
    size_bytes: int = 0
    index_offset: int = 0
    index_bytes: int = 0
    index_crc32c: int = 0
    segment_bytes: int = SEGMENT_BYTES
    state: Detail = field(default_factory=dict)
    replicas_of: int = 0
    replicas: tuple[int, ...] = ()


@message("StoreFailed")
class StoreFailed:
    """Agent -> lead: a share could not be made durable; training goes on."""

    rank: int
    step: int
    reason: str


@message("RestoreFailed")
class RestoreFailed:
    """Agent -> lead: a rank of the generation cannot have its state; `corrupt` when bytes are not what they were."""

    generation: int
    rank: int
    reason: str
    corrupt: bool


@message("EndAgent")
class EndAgent:
    """Lead -> agent: the attempt is over, or goes on without you: end ranks within the grace, and exit.

    With `fenced` it is this lead that is over: end ranks at once, and register anew; there may be another lead.
    """

    grace_s: float
    reason: str
    fenced: bool = False


@message("AgentDrained")
class AgentDrained:
    """Agent -> lead: no rank lives and nothing waits to be stored."""

    agent: int


AgentToLead = (
    StandbyAllowed
    | GenerationPrepared
    | RankStarted
    | RankExited
    | RankLeft
    | RankProgress
    | RankServing
    | RankResult
    | RankUpset
    | RankTried
    | SnapshotTaken
    | StacksDumped
    | ProfileKept
    | ShareStored
    | StoreFailed
    | RestoreFailed
    | AgentLeaving
    | AgentDrained
    | Done
    | Unknown
)
"""What an agent may tell its lead, once it has said `AgentJoin`."""

LeadToAgent = (
    PrepareGeneration
    | StartRanks
    | StandbyAllowed
    | SnapshotPace
    | LeaveAt
    | DumpStacks
    | TakeProfile
    | StoreStep
    | EndAgent
    | Done
    | Unknown
)
"""What a lead may tell an agent."""


# ---------------------------------------------------------------- agent <-> agent
class LineUse(str, Enum):
    """What an agent calls another for: to join it, which leads, or to bring and fetch snapshots."""

    JOIN = "join"
    PEER = "peer"


@message("AgentChallenge")
class AgentChallenge:
    """The first word on a connection, said by the agent that was called: its nonce, 64 hexadecimal digits."""

    nonce: str


@message("AgentProof")
class AgentProof:
    """What the caller answers: a nonce of its own, its proof that it knows the peers' secret, what it calls for."""

    nonce: str
    proof: str = field(repr=False)
    use: LineUse


@message("AgentWelcome")
class AgentWelcome:
    """The called agent's proof. After it the caller joins, or asks as a peer, one request at a time."""

    proof: str = field(repr=False)


@message("CopyBegin")
class CopyBegin:
    """Offers a copy of a rank's snapshot. After `Done`, `size_bytes` raw bytes; after those, once verified, `Done`."""

    holding: Holding
    shards: tuple[Shard, ...]
    size_bytes: int
    state: Detail = field(default_factory=dict)


@message("IndexRequest")
class IndexRequest:
    """Asks for the shards of a step taken in a generation that the other holds; the answer is an `Index`."""

    step: int
    taken_in: int
    since: int = 0


@message("IndexEntry")
class IndexEntry:
    """One shard in a peer's memory, and whose snapshot it is of; its `offset` counts in that snapshot's bytes."""

    rank: int
    copied: bool
    shard: Shard


@message("Index")
class Index:
    """The answer: entries from number `since`, and how many there are in all. `states` are the facts, by place."""

    entries: tuple[IndexEntry, ...]
    total: int
    states: Mapping[str, Detail] = field(default_factory=dict)


@message("BytesRequest")
class BytesRequest:
    """Asks for bytes of a snapshot; the answer is `BytesFollow` and the raw bytes.

    `checksums` asks for bytes of its table instead: its pages' crc32c, little-endian, shard by shard, 4 bytes a page.
    """

    step: int
    taken_in: int
    rank: int
    copied: bool
    offset: int
    size_bytes: int
    checksums: bool = False


@message("BytesFollow")
class BytesFollow:
    """`size_bytes` raw bytes follow; fewer than asked for when the snapshot is gone."""

    size_bytes: int


PeerRequest = CopyBegin | IndexRequest | BytesRequest | Unknown
"""What an agent may ask another, once both are proved; the answers are `Done`, `Index` and `BytesFollow`."""
