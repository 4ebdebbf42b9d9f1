"""What several messages share: small facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NodeName

Detail = Mapping[str, str | int | float | bool]

NO_LONGER_HELD = "no longer in the arena"  # Why a share is not stored whose snapshot newer ones have overwritten.
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: "I was asked to stop and have saved; run me again".
CERTIFICATE_LENGTH_MAX = 8_192  # One with a key of RSA of 4,096 bits takes 2,500; our own 500.
ADDRESS_LENGTH_MAX = 255  # Of a host name (RFC 1035) with its scheme and port, near enough.
COUNT_MAX = (1 << 53) - 1  # What JSON's numbers keep exactly.
_ADDRESS = re.compile(r"wss?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


@message("AtRisk")
class AtRisk:
    """Steps whose work would be lost now, and how long they took (0.0 while no step was timed).

    `steps` and `seconds` with a rank: since the newest step that is whole in memory or durable. `durable_steps` and
    `durable_seconds` with all nodes: since the newest durable step.
    """

    steps: int
    seconds: float
    durable_steps: int
    durable_seconds: float


@message("Serving")
class Serving:
    """What a replica of a service tells of itself: where it is called, and its load; counts are of its process.

    Args:
        address: Where it listens: "ws://host:port". Its agent puts the host there that others reach it by.
        ready: Whether it answers: loaded, warmed up, and not about to leave.
        in_flight: Requests under way or waiting.
        answered: Requests answered so far.
        missed: Requests so far that were not answered within their deadline.
        silent_s: How long ago it said so; filled in by its lead.
        certificate: What a client is to trust there and nothing else, as PEM text; "" where it speaks no TLS.
    """

    address: str
    ready: bool
    in_flight: int = 0
    answered: int = 0
    missed: int = 0
    silent_s: float = 0.0
    certificate: str = ""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        address = self.address
        plain = len(address) <= ADDRESS_LENGTH_MAX and _ADDRESS.fullmatch(address) is not None
        if not plain:
            got, wanted = repr(address[:80]), "ws://host:port, as clients reach it"
            raise InvalidInput("tell of a replica", on="field 'address'", got=got, wanted=wanted)
        if len(self.certificate) > CERTIFICATE_LENGTH_MAX:
            got, wanted = f"{len(self.certificate)} letters", f"one certificate, up to {CERTIFICATE_LENGTH_MAX}"
            raise InvalidInput("tell of a replica", on="field 'certificate'", got=got, wanted=wanted)
        for name, count in (("in_flight", self.in_flight), ("answered", self.answered), ("missed", self.missed)):
            if not 0 <= count <= COUNT_MAX:
                wanted = f"0 to {COUNT_MAX}"
                raise InvalidInput("tell of a replica", on=f"field {name!r}", got=str(count), wanted=wanted)

    def at(self, host: str) -> Serving:
        """Returns the same of a replica that others reach by a host's name or address."""
        scheme, port = self.address.split("://")[0], self.address.rpartition(":")[2]
        return replace(self, address=f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")


@message("RankStatus")
class RankStatus:
    """One rank, as last seen; one that serves says how."""

    rank: int
    node: NodeName
    pid: int
    alive: bool
    step: int
    serving: Serving | None = None


@message("StepSample")
class StepSample:
    """One step report as it is kept: when the step was finished, its metrics, what time before it went into."""

    step: int
    time_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
