"""Messages of agents and leads to the controller, over HTTP, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput, InvalidMessage, nearest
from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ids import AllocationId, AttemptId, JobId, NodeName, RoleName, SecretName
from mainspring.domain.job import Code
from mainspring.domain.life import AttemptState
from mainspring.domain.release import Unknown
from mainspring.domain.wire.events import TOLD_BY_CONTROLLER, TOLD_BY_LEADS
from mainspring.domain.wire.events.leads import UnknownWordEvent
from mainspring.domain.wire.events.marks import listed
from mainspring.domain.wire.facts import AtRisk, Detail, RankStatus
from mainspring.domain.wire.node import RankPlace

ATTEMPT_HEADER = "Mainspring-Attempt"  # Of every call of an agent: which attempt's its token is.
HEALTH_BATCH_MAX = 500  # Events of one call: a quarter of a megabyte.


@message("Register")
class Register:
    """An agent's first call: which allocation and node it serves, and where a lead on it would listen.

    `lost_epoch` is the epoch whose lead the agent has lost, 0 when it has not: the controller may name another.
    """

    allocation: AllocationId
    node: NodeName
    address: str
    lost_epoch: int = 0


@message("RoleOrders")
class RoleOrders:
    """What one role's ranks run, and how few or many of its places may run it.

    `spares` places stand by; the role runs with at least `ranks_min` ranks, in multiples of `group` (0: any number).
    `memory_mib` bounds each rank's memory where the node can (0: no bound). `secrets` are given to it as variables,
    `secret_files` as files.
    """

    role: RoleName
    command: tuple[str, ...]
    environment: Mapping[str, str]
    spares: int = 0
    ranks_min: int = 0
    group: int = 0
    memory_mib: int = 0
    secrets: tuple[SecretName, ...] = ()
    secret_files: tuple[SecretName, ...] = ()

    def size(self, live: int, *, full: int) -> int:
        """Returns how many ranks the role runs with so many places, 0 when it cannot run.

        Args:
            live: Places that can be counted on.
            full: How many ranks it has when none is missing.
        """
        if self.ranks_min == 0:
            return full if live >= full else 0
        size = min(live, max(full, live - self.spares))
        size -= size % self.group if self.group else 0
        return size if size >= max(1, self.ranks_min) else 0


@message("Orders")
class Orders:
    """What the attempt is and who leads it. `ready` is false while agents are missing: ask again.

    `ranks` are all places for the lead, its own for any other agent. Earlier attempts came to `furthest_step`, -1 for
    none; this is attempt number `number` of its job. `hang_s` is the longest silence between two steps, 0 to learn it.
    `begins_from` is the checkpoint ("NAME@STEP", or "NAME" for its newest) to begin from while the job has none, or "".
    `environment_passed` names variables of the agent, such as "NAME" or "PREFIX_*", that ranks get beside the usual.
    `secrets` are the values, by name, of what this agent's own role is given: nowhere else do they travel.
    By `peers_secret` the attempt's agents know each other; it is told before the orders are ready, and nowhere else.
    With `store_credentials` an agent asks for credentials of the object store, and uses no others.
    `generation` is the newest that a lead before has told of: this one's come after it, though all agents be new.
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
    number: int = 1
    hang_s: float = 0.0
    inputs: tuple[str, ...] = ()
    begins_from: str = ""
    environment_passed: tuple[str, ...] = ()
    secrets: Mapping[SecretName, str] = field(default_factory=dict, repr=False)
    peers_secret: str = field(default="", repr=False)
    store_credentials: bool = False
    generation: int = 0


@message("CredentialsWanted")
class CredentialsWanted:
    """An agent with orders asks for credentials of the object store: its first, or new ones before those end."""

    allocation: AllocationId


@message("ViewCredentialsWanted")
class ViewCredentialsWanted:
    """An agent asks for what its ranks may read one view by, which their job's spec names.

    `view` is "" for the checkpoints and releases that it names: never for what the agent itself may do.
    """

    allocation: AllocationId
    view: str


@message("StoreCredentials")
class StoreCredentials:
    """Credentials for what one attempt may do with the object store, good for `lasts_s` from now.

    `options` say where the store is, as `objects.open_store` takes them.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    lasts_s: float
    options: Mapping[str, str] = field(default_factory=dict)


@message("LeadEvent")
class LeadEvent:
    """An event as the lead saw it; `sequence` counts from 1 within the attempt and epoch, so repeats are dropped."""

    sequence: int
    time_s: float
    kind: str
    detail: Detail = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what only the controller tells."""
        assert self.kind not in TOLD_BY_CONTROLLER

    def known(self, *, newer: bool) -> LeadEvent:
        """Returns itself; of a kind that this release does not know, the event that shows what was said.

        Args:
            newer: Whether the lead's release is newer.

        Raises:
            InvalidMessage: The kind is not known, and the lead is not newer.
        """
        if self.kind in TOLD_BY_LEADS:
            return self
        said = Unknown.cut(self.kind, listed(self.detail))
        if not newer:
            raise InvalidMessage("accept an event", got=repr(said.kind), wanted=nearest(said.kind, TOLD_BY_LEADS))
        shown = UnknownWordEvent(word=said.kind, words=said.words)
        return replace(self, kind=shown.kind, detail=shown.detail)


@message("Heartbeat")
class Heartbeat:
    """The lead's report on the whole attempt, every `heartbeat_s`; events repeat until acknowledged.

    `seconds` is the lead's ledger since it began to lead: node-seconds by `goodput.TimeUse`, which add up to its time
    with its nodes. `agent` is the lead's number, at `address`: a store that went back in time may have forgotten it.
    """

    attempt: AttemptId
    epoch: int
    generation: int
    step: int
    metrics: Mapping[str, float]
    ranks: tuple[RankStatus, ...]
    events: tuple[LeadEvent, ...]
    outcome: AttemptState | Unknown | None = None
    reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    at_risk: AtRisk | None = None
    agent: int | None = None
    address: str = ""


@message("ProfileAsked")
class ProfileAsked:
    """Somebody wants some ranks profiled; it is said again and again, and done once for each `id`."""

    id: str
    steps: int
    ranks: tuple[int, ...]
    asked_s: float


@message("HeartbeatReply")
class HeartbeatReply:
    """The controller's answer. `fenced`: this attempt or epoch is over; end everything at once.

    `gone` are agents that an engine has seen end, and their ranks with them: nobody need wait for their leases.
    `stacks` counts how often people have asked where its ranks stand.
    `profile` is what was last asked of the attempt's ranks, while that is fresh.
    """

    acknowledged: int
    fenced: bool = False
    gone: tuple[int, ...] = ()
    stacks: int = 0
    profile: ProfileAsked | None = None


@message("HealthBatch")
class HealthBatch:
    """What a watcher of machines saw. Whoever gets no answer says all of it again: an event is known by its source."""

    events: tuple[HealthEvent, ...]

    def __post_init__(self) -> None:
        """Checks how many there are.

        Raises:
            InvalidInput: None, or too many for one call.
        """
        if not 1 <= len(self.events) <= HEALTH_BATCH_MAX:
            got, wanted = f"{len(self.events)} events", f"1 to {HEALTH_BATCH_MAX} in a call"
            raise InvalidInput("take events of health", got=got, wanted=wanted, next_step="send them in several calls")


@message("HealthTaken")
class HealthTaken:
    """A whole batch is in the store: `taken` events by this call, `repeated` before it."""

    taken: int
    repeated: int = 0
