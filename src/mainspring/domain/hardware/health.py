"""Health events: what somebody who watches machines saw, where, and what it asks for. Facts; nobody's verdict.

Who watches says what it saw once, under its own number, and may say it again: an event is known by its source. That
something is well again is an event too. Whether a node is well follows from its events, and is stored nowhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NO_JOB, ClusterName, JobId, NodeName, checked_name
from mainspring.domain.job import NO_NODE

VERSION = 1  # Of the form of an event: a field that comes later has a default, and changes nothing of this.
CODES_MAX = 16
CODE_LENGTH_MAX = 32
PART_LENGTH_MAX = 128  # A device's UUID has 40 letters, a path of domains a few names.
MESSAGE_LENGTH_MAX = 1_000
CONDITIONS = "conditions"  # The source of what others say of a node through its cluster.
STRAGGLER, REPLICAS = "straggler", "replicas"  # Checks of leads: who is slower than the others, and who differs,
QUIET, SDC = "quiet", "sdc"  # and who is not heard of, and whose device computes wrongly (silent data corruption).
TIME_S_MAX = 1e11
SEQUENCE_MAX = 1 << 53  # What JSON holds exactly.
_PLAIN = re.compile(r"[\x21-\x7e]+")


class ScopeKind(str, Enum):
    """What a health event is about."""

    DEVICE = "device"
    NODE = "node"
    LINK = "link"
    DOMAIN = "domain"
    SLICE = "slice"
    JOB = "job"


class Repair(str, Enum):
    """What would help, the least first."""

    NONE = "none"
    RESTART_RANKS = "restart ranks"
    RESET_DEVICE = "reset device"
    RESTART_NODE = "restart node"
    CALL_PEOPLE = "call people"

    @property
    def rank(self) -> int:
        """Returns 0 for what takes nothing, more for what takes more."""
        return _REPAIR_RANKS[self]


_REPAIR_RANKS = {repair: rank for rank, repair in enumerate(Repair)}


class Strategy(str, Enum):
    """Whether what follows is done, or only told beside what was done without it."""

    SHADOW = "shadow"
    ACT = "act"


class HealthState(str, Enum):
    """How a node is, as far as its events tell; the worst last."""

    SOUND = "sound"
    SUSPECT = "suspect"
    FAILED = "failed"

    @property
    def rank(self) -> int:
        """Returns 0 for the best."""
        return _STATE_RANKS[self]


_STATE_RANKS = {state: rank for rank, state in enumerate(HealthState)}


def _require(held: bool, field_name: str, got: object, wanted: str) -> None:  # noqa: FBT001
    if not held:
        raise InvalidInput("accept a health event", on=f"field {field_name!r}", got=repr(got)[:200], wanted=wanted)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scope:
    """What an event is about.

    Args:
        cluster: Where.
        node: Of a device, a node or a link, "" of others.
        part: Which device or link of the node (a UUID, a bus address, a port), or which domain, slice or job; "" of a
            node as a whole.
    """

    kind: ScopeKind
    cluster: ClusterName
    node: NodeName = NO_NODE
    part: str = ""

    def __post_init__(self) -> None:
        """Checks that it names what its kind needs, and nothing else.

        Raises:
            InvalidInput: It does not.
        """
        checked_name(self.cluster, "cluster")
        of_node = self.kind in (ScopeKind.DEVICE, ScopeKind.NODE, ScopeKind.LINK)
        _require(bool(self.node) == of_node, "node", self.node, "a node for devices, nodes and links, else none")
        if self.node:
            checked_name(self.node, "node")
        _require(bool(self.part) == (self.kind is not ScopeKind.NODE), "part", self.part, "one, but of a whole node")
        plain = not self.part or (len(self.part) <= PART_LENGTH_MAX and _PLAIN.fullmatch(self.part) is not None)
        _require(plain, "part", self.part, f"up to {PART_LENGTH_MAX} visible letters")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HealthSource:
    """Who saw something, and by which of its words it is known again.

    Args:
        name: The kind of watcher ("agent", "kernel-log").
        session: One life of it; drawn anew when it starts.
        sequence: Counts what it said in that life.
    """

    name: str
    session: str
    sequence: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "source of health events")
        checked_name(self.session, "session of a source")
        _require(0 <= self.sequence <= SEQUENCE_MAX, "sequence", self.sequence, "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """What was seen once.

    Args:
        at_s: When, in seconds since the Unix epoch.
        check: What was looked at ("xid", "nvlink", "disk").
        healthy: Whether all was well: it takes back what the same watcher said of the same check and scope before.
        codes: The maker's words for it, such as numbers of Xid.
        fatal: Whether what it is about is of no use until something is done.
        message: For people.
        repair: What the watcher, or the maker, thinks would help.
        strategy: Whether anything may follow from it but words.
        job: What ran there, "" where nobody knows.
    """

    version: int = VERSION
    source: HealthSource
    at_s: float
    scope: Scope
    check: str
    healthy: bool = False
    codes: tuple[str, ...] = ()
    fatal: bool = False
    message: str = ""
    repair: Repair = Repair.NONE
    strategy: Strategy = Strategy.SHADOW
    job: JobId = NO_JOB

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range, or it says both that all is well and that it is not.
        """
        _require(self.version == VERSION, "version", self.version, f"{VERSION}")
        _require(0 <= self.at_s <= TIME_S_MAX, "at_s", self.at_s, "seconds since the Unix epoch")
        checked_name(self.check, "check")
        _require(len(self.codes) <= CODES_MAX, "codes", len(self.codes), f"up to {CODES_MAX}")
        for code in self.codes:
            plain = len(code) <= CODE_LENGTH_MAX and _PLAIN.fullmatch(code) is not None
            _require(plain, "codes", code, f"1 to {CODE_LENGTH_MAX} visible letters each")
        _require(len(self.message) <= MESSAGE_LENGTH_MAX, "message", len(self.message), f"<= {MESSAGE_LENGTH_MAX}")
        _require(not (self.healthy and self.fatal), "healthy", self.healthy, "no fatal event that all is well")

    @property
    def order(self) -> tuple[float, HealthSource]:
        """Returns by what events are put in order: when, then who said it."""
        return self.at_s, self.source
