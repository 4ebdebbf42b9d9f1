"""Messages of a rank and its agent to each other, over a Unix socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.domain.release import Unknown
from mainspring.domain.wire.facts import Detail, Serving

# After a rank's socket: where its agent hands it files, if there. Asked by the path it was told and a line end.
FILES_SUFFIX = ".files"
# After a rank's socket: where its agent gives credentials to read views by, if there. `ViewWanted` is asked there, once
# a connection; the answer is `StoreCredentials` or `ViewRefused`.
VIEWS_SUFFIX = ".views"

METRIC_NAME_LENGTH_MAX = 128  # Longer than any that people read; the rest of a longer one is left out.


@message("Hello")
class Hello:
    """A process's first message. The answer, `Welcome`, comes when a rank is free for it: a standby waits for one.

    Args:
        pid: The process that speaks.
        standby: Whether a spare process of this program may be started ahead: all it does before it joins may be done
            by a process that is perhaps never needed.
        reconnects: Whether the process can go on as a rank of another generation (see `NextGeneration`).
    """

    pid: int
    standby: bool = False
    reconnects: bool = False


@message("Welcome")
class Welcome:
    """Who the rank is. `coordinator` is the JAX coordination service ("host:port"), "" when the world is 1.

    `rank` counts within the role and generation, `local_ranks` are those on this node. `snapshot_every` is the number
    of steps between snapshots that the lead finds best: every rank saves the steps it divides. `shrunk_size` is how
    many ranks the role goes on with once a node is lost and none stands by, 0 when it does not.
    """

    job: JobId
    attempt: AttemptId
    role: RoleName
    rank: int
    world_size: int
    local_rank: int
    generation: int
    coordinator: str
    arena_path: str
    local_ranks: tuple[int, ...] = (0,)
    snapshot_every: int = 1
    shrunk_size: int = 0


@message("StepReport")
class StepReport:
    """Progress: the last step finished, its metrics, and what the time since the last report went into.

    `seconds` holds what the rank itself measured, by `goodput.TimeUse` ("compile", "data", "snapshot", "restore"); the
    rest of the time since the last report was steps. The step was finished `ago_s` before this was sent. `not_finite`
    names metrics whose newest value was no finite number.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    ago_s: float = 0.0
    not_finite: tuple[str, ...] = ()


class Then(str, Enum):
    """What a process does once it has saved because it was asked to stop."""

    EXIT = "exit"  # With `EXIT_PREEMPTED`.
    REJOIN = "rejoin"  # Ask for the `NextGeneration`, where the process can; else as above.


@message("ProfileWanted")
class ProfileWanted:
    """Somebody wants to know what the next `steps` steps spend their time on; the same `id` is the same wish."""

    id: str
    steps: int


@message("StepReply")
class StepReply:
    """The agent's answer. `stop`: finish step `stop_at` (-1: the one under way), save it, then leave.

    All ranks are told the same `stop_at`, chosen late enough that none is past it when it learns of it. `profile` is
    the newest that is wanted of this rank.
    """

    stop: bool = False
    stop_at: int = -1
    grace_s: float = 0.0
    then: Then = Then.EXIT
    snapshot_every: int = 1
    profile: ProfileWanted | None = None


@message("ProfileBegin")
class ProfileBegin:
    """Asks for files to leave a profile in, by name; the answer is a `ProfileSlot`."""

    id: str
    names: tuple[str, ...]


@message("ProfileSlot")
class ProfileSlot:
    """Where the files of a profile may be written, in the order of their names; none, for a reason."""

    paths: tuple[str, ...] = ()
    reason: str = ""


@message("ProfileCommit")
class ProfileCommit:
    """The files of a profile are whole; or there is none, for a reason."""

    id: str
    failure: str = ""


@message("ServingReport")
class ServingReport:
    """A replica of a service tells where it is called and what it has to do; the answer is a `StepReply`."""

    serving: Serving


@message("NextGeneration")
class NextGeneration:
    """A process that reconnects has left generation `after` (it failed in it, or was asked to leave).

    The answer is the next generation's `Welcome`, when that starts. A process that is not wanted any more is ended.
    """

    after: int


@message("SnapshotBegin")
class SnapshotBegin:
    """Asks for room in the arena; the answer (`SnapshotSlot`) waits until there is some."""

    step: int
    size_bytes: int


@message("SnapshotSlot")
class SnapshotSlot:
    """Where the snapshot may be written. `offset` is -1 when no room came in time or it can never fit."""

    offset: int
    reason: str = ""


class Part(str, Enum):
    """What an array is for: weights can be published alone, optimizer state can be dropped and rebuilt."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@message("Shard")
class Shard:
    """One block of one array: `start` and `shape` place it in the array of `global_shape`.

    `file` is "" inside an arena slot; `offset` counts from the start of the slot or file. `crc32c` is -1 until
    computed: of the shard's bytes where `page_bytes` is 0, else of its pages' crc32c, little-endian, 4 bytes a page.
    `once` tells that this copy is the one to store (replicas are saved once); `elsewhere` that a rank on another node
    holds the same block, so that it needs no copy there. `part` says what the array is for.
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
    elsewhere: bool = False
    part: Part = Part.OTHER
    page_bytes: int = 0


@message("SnapshotCommit")
class SnapshotCommit:
    """The slot holds a whole snapshot; from here on it outlives the rank. `state` is the program's own small facts."""

    step: int
    offset: int
    shards: tuple[Shard, ...]
    state: Detail = field(default_factory=dict)


@message("RestoreRequest")
class RestoreRequest:
    """Asks for the state this generation resumes from; the answer is a `RestorePlan` with shards from number `since`.

    `everywhere` asks for what other nodes and the store hold too, where the answer without it does not suffice.
    """

    everywhere: bool = False
    since: int = 0


@message("RestorePlan")
class RestorePlan:
    """Where the state lies: `step` -1 when there is none.

    A shard's `file` is an absolute path the rank can map, or "": its bytes must be asked for with `FetchPieces`, which
    names it by its number in the whole list. `total` is that list's length; what did not fit is asked for with `since`.
    """

    step: int
    shards: tuple[Shard, ...] = ()
    state: Detail = field(default_factory=dict)
    source: str = ""
    total: int = 0


@message("Piece")
class Piece:
    """A run of one shard's bytes: `shard` is its number in the restore plan's list, `offset` counts in the shard."""

    shard: int
    offset: int
    size_bytes: int


@message("FetchPieces")
class FetchPieces:
    """Asks for bytes other nodes or the store hold; the answer is `PiecesFetched` or `FetchFailed`."""

    pieces: tuple[Piece, ...]


@message("PiecesFetched")
class PiecesFetched:
    """The bytes, verified, in a file the rank can map: piece by piece, at 64-byte aligned `offsets`."""

    file: str
    offsets: tuple[int, ...]


@message("FetchFailed")
class FetchFailed:
    """The bytes cannot be had, or (`corrupt`) are not what they should be: this generation cannot go on."""

    reason: str
    corrupt: bool


@message("ViewWanted")
class ViewWanted:
    """Asks for credentials to read a view by, which the job's spec names: its first, or new ones before those end.

    `view` is "" for the checkpoints and releases that the spec names under `reads` and `evaluates`.
    """

    view: str


@message("ViewRefused")
class ViewRefused:
    """There are none for it; `unnamed` where the job's spec names nothing of the kind."""

    reason: str
    unnamed: bool = False


@message("ResultReport")
class ResultReport:
    """Facts the program wants kept as its job's result."""

    values: Detail


@message("UpsetReport")
class UpsetReport:
    """A step of the program went wrong (`upset`: "not_finite", "spike"), and `answer` is what it does about that.

    `to_step` is the step whose state it goes back to, -1 for none.
    """

    step: int
    upset: str
    answer: str
    words: str = ""
    to_step: int = -1


@message("StepTried")
class StepTried:
    """Devices did the same work of a step more than once: `again` the same ones, else each its neighbour's too.

    `equal` tells that all came to the same. Where they did not, `ranks` are whose devices are at fault, or may be, of
    the role, and `device` is what people call it; `certain` tells that they stand alone, each against two that agree.
    `agreed_step` is the newest step whose state came of work on which all agreed, -1 where none is known. `given_up`
    tells that no more is checked: the program does not repeat itself.
    """

    step: int
    equal: bool
    again: bool = False
    ranks: tuple[int, ...] = ()
    device: str = ""
    certain: bool = False
    agreed_step: int = -1
    given_up: bool = False


@message("Done")
class Done:
    """Acknowledges a message that has no other answer; between agent and lead, shows on a quiet line that one lives."""


RankRequest = (
    StepReport
    | ServingReport
    | SnapshotBegin
    | SnapshotCommit
    | RestoreRequest
    | FetchPieces
    | ResultReport
    | UpsetReport
    | StepTried
    | ProfileBegin
    | ProfileCommit
    | Unknown
)
"""What a rank may ask its agent in a generation; between two of them a process asks for the `NextGeneration`."""

RankResponse = Welcome | StepReply | SnapshotSlot | ProfileSlot | RestorePlan | PiecesFetched | FetchFailed | Done
"""What its agent may answer."""
