"""Services: policies that answer requests, for as long as somebody wants them to; asked for, changed, and shown.

A service is a spec of a job of kind `service`, and how many jobs are made of it: each is one replica.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from mainspring.domain.answers.steering import check_reason
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import JobKind, JobSpec
from mainspring.domain.life import JobState

SERVICE_REPLICAS_MAX = 256  # Of one service: at 50 requests a second each, a fleet of over 10,000 robots.
SERVICES_MAX = 1_000  # The loop looks at all of them every tick.
REQUESTS_EACH = 2.0  # Under way at a replica, on average: one is answered while the next arrives.
REQUESTS_EACH_MAX = 1_000.0


@message("NewScale")
class NewScale:
    """How many replicas a service is to have.

    Args:
        replicas: At least so many.
        replicas_max: At most so many, as requests come; 0 for no more than `replicas`.
        requests_each: How many requests under way a replica is to have on average, above which there are more replicas.
        reason: Why, for people.
    """

    replicas: int
    replicas_max: int = 0
    requests_each: float = REQUESTS_EACH
    reason: str = ""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            InvalidInput: One is out of its range.
        """
        check_reason("scale a service", self.reason)
        most = self.replicas_max or self.replicas
        if not 1 <= self.replicas <= most <= SERVICE_REPLICAS_MAX:
            got, wanted = f"{self.replicas} to {most} replicas", f"1 to {SERVICE_REPLICAS_MAX}, rising"
            raise InvalidInput("scale a service", got=got, wanted=wanted)
        if not 0 < self.requests_each <= REQUESTS_EACH_MAX:
            got, wanted = f"{self.requests_each:g}", f"over 0, to {REQUESTS_EACH_MAX:g}"
            raise InvalidInput("scale a service", on="field 'requests_each'", got=got, wanted=wanted)

    @property
    def most(self) -> int:
        """Returns the most replicas."""
        return self.replicas_max or self.replicas


@message("NewService")
class NewService:
    """A service to be: its spec's name is its own."""

    spec: JobSpec
    scale: NewScale

    def __post_init__(self) -> None:
        """Checks the spec.

        Raises:
            InvalidInput: It is not that of a service.
        """
        check_served(self.spec)


@message("NewVersion")
class NewVersion:
    """Another spec for a service: its replicas are replaced one by one, and it goes back where the new ones fail."""

    spec: JobSpec
    reason: str = ""

    def __post_init__(self) -> None:
        """Checks the spec.

        Raises:
            InvalidInput: It is not that of a service.
        """
        check_served(self.spec)
        check_reason("update a service", self.reason)


def check_served(spec: JobSpec) -> None:
    """Returns if a spec may be a service's.

    Raises:
        InvalidInput: It is a job of another kind, or one that comes after others.
    """
    if spec.kind is not JobKind.SERVICE:
        raise InvalidInput("serve a spec", on=spec.name, got=f"kind {spec.kind.value}", wanted="kind service")
    if spec.after:
        raise InvalidInput(
            "serve a spec", on=spec.name, got="jobs to come after", wanted="none: a service does not end"
        )


class ServicePhase(str, Enum):
    """Where a service stands."""

    SERVING = "serving"  # As many replicas answer as are wanted.
    STARTING = "starting"  # Fewer do.
    UPDATING = "updating"  # Replicas of another version replace those of the one before.


@message("ReplicaView")
class ReplicaView:
    """One replica, as last heard of: its job, its version, where it is called and what it has to do.

    `silent_s` is how long ago it last said so, None before it has.
    """

    job: JobId
    version: int
    state: JobState
    cluster: ClusterName | None = None
    node: NodeName | None = None
    address: str = ""
    ready: bool = False
    in_flight: int = 0
    answered: int = 0
    missed: int = 0
    silent_s: float | None = None
    reason: str = ""


@message("ReplicaAddress")
class ReplicaAddress:
    """Where a replica is called, and how: for those who may.

    Args:
        ticket: What it asks to be shown, good for hours; see `domain.wire.tickets`.
        certificate: What to trust there and nothing else, as PEM text; "" where it speaks no TLS.
    """

    job: JobId
    address: str
    ready: bool
    ticket: str = field(default="", repr=False)
    certificate: str = ""


@message("ServiceView")
class ServiceView:
    """A service and its replicas, the oldest first.

    Args:
        wanted: How many replicas it is to have now, by what there is to do.
        version: Counts its specs.
        version_before: The version that is being replaced, and returned to where the new one fails; None for none.
        reason: What became of it last, for people.
        address: Where robots call it: at the proxy beside the server that answers; "" where there is none.
    """

    name: str
    team: TeamName
    owner: str
    made_s: float
    scale: NewScale
    wanted: int
    version: int
    version_before: int | None
    phase: ServicePhase
    reason: str
    spec: JobSpec
    members: tuple[ReplicaView, ...] = ()
    address: str = ""

    @property
    def ready(self) -> int:
        """Returns how many replicas answer."""
        return sum(one.ready for one in self.members)
