"""Inputs and effects of the lead's state machine: plain values, so that it can be tested without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mainspring.domain import wire
from mainspring.domain.ids import NodeName
from mainspring.domain.wire import AgentToLead, Detail, Holding, LeadToAgent, RankPlace, ShareStored
from mainspring.domain.wire.events.leads import AgentHeardEvent, AgentQuietEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One reading of both clocks.

    Args:
        now_s: Seconds since the Unix epoch, for events.
        monotonic_s: Seconds that never go back, for limits.
    """

    now_s: float
    monotonic_s: float


# ---------------------------------------------------------------- news


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """An agent's line is up.

    Args:
        address: Where other agents reach it, "" when they cannot.
        generation: The newest generation it knows.
        holdings: What its memory holds, all of it.
    """

    agent: int
    node: NodeName
    address: str = ""
    generation: int = 0
    places: tuple[RankPlace, ...] = ()
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An agent's line is gone; it may come back."""

    agent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message from an agent."""

    agent: int
    message: AgentToLead


@dataclass(frozen=True, slots=True, kw_only=True)
class FellQuiet:
    """An agent has not been heard of for a while, too short to go on without it; or, `again`, is after all."""

    agent: int
    again: bool = False

    def told(self, node: str) -> AgentQuietEvent | AgentHeardEvent:
        """Returns what is told of it."""
        return (AgentHeardEvent if self.again else AgentQuietEvent)(agent=self.agent, node=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The engine has told the lead's own agent to stop.

    Args:
        grace_s: How long ranks have to save and exit.
    """

    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableSeen:
    """What the object store holds, in answer to `FindDurable`.

    Args:
        steps: Steps with a manifest; None when the store did not answer.
        begins_from: The checkpoint to begin from while there is no such step, with its step where it has one.
    """

    steps: tuple[int, ...] | None
    reason: str = ""
    begins_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorsUp:
    """Coordination services run, in answer to `StartCoordinators`.

    Args:
        addresses: What ranks are told, by role.
    """

    generation: int
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWritten:
    """A step's manifest is durable, in answer to `WriteManifest`.

    Args:
        size_bytes: Bytes of all its shares.
        failure: Why it is not durable after all, "" when it is.
    """

    step: int
    size_bytes: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The controller has answered a heartbeat, and did not fence this lead.

    Args:
        sent_s: When that heartbeat was sent, on the monotonic clock.
        gone: Agents that an engine has seen end, and their ranks with them.
        stacks: How often people have asked where ranks stand.
        profile: What somebody wants to know of ranks.
    """

    sent_s: float
    gone: tuple[int, ...] = ()
    stacks: int = 0
    profile: wire.ProfileAsked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


News: TypeAlias = (
    Joined | Left | Said | FellQuiet | StopAsked | DurableSeen | CoordinatorsUp | ManifestWritten | Acknowledged | Tick
)


# Of what an agent says: what counts only of a rank that runs in this generation, and only of a place that is its own.
OF_A_RUN = (
    wire.RankStarted
    | wire.RankProgress
    | wire.RankServing
    | wire.RankExited
    | wire.RankLeft
    | wire.RestoreFailed
    | wire.StacksDumped
)
OF_A_PLACE = wire.RankResult | wire.RankUpset | wire.RankTried | wire.ProfileKept | wire.ShareStored | wire.StoreFailed

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send a message to an agent; nothing happens when its line is down."""

    agent: int
    message: LeadToAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class FindDurable:
    """Claim the job's state for this lead, then list the durable steps; answer with `DurableSeen`.

    Args:
        withdraw_after: Later steps than this are not to be trusted, and are no longer durable then; None for none.
    """

    withdraw_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCoordinators:
    """Start this generation's coordination services; answer with `CoordinatorsUp`.

    Args:
        sizes: How many ranks each role has.
    """

    generation: int
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteManifest:
    """Make a step durable whose shares are all stored; answer with `ManifestWritten`.

    Args:
        generation: The generation its snapshots were taken in.
        parent_step: The durable step this lead began from, -1 for none of the job's own.
        begins_from: The checkpoint of another name that it began from, "" for none.
        shares: Every rank's share, by place.
        replace: Whether a manifest already there is known to be damaged.
        trusted: The durable step that stays however old it is, for devices agreed on what came after; -1 for none.
    """

    step: int
    generation: int
    parent_step: int
    begins_from: str
    shares: tuple[ShareStored, ...]
    state: Detail
    replace: bool
    trusted: int = -1


Effect: TypeAlias = Tell | FindDurable | StartCoordinators | WriteManifest
