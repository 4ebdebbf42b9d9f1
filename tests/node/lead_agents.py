"""What a cluster in memory is made of: an attempt's orders, agents, and ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.domain.job import Code

MAIN = RoleName("main")
LEASE_S = 10.0
TICK_S = 0.25
PROGRESS_S = 0.5
HEARTBEAT_S = 1.0
STEP_S = 0.2
START_S = 1.5
NOTICE_S = 0.04
BLOCKED_S = 0.002


def orders(
    agents: int,
    *,
    per_agent: int = 1,
    spares: int = 0,
    ranks_min: int = 0,
    group: int = 0,
    restarts_max: int = 8,
    furthest_step: int = -1,
    hang_s: float = 0.0,
    epoch: int = 1,
    begins_from: str = "",
) -> wire.Orders:
    return wire.Orders(
        ready=True,
        attempt=AttemptId("attempt-1"),
        job=JobId("job-1"),
        epoch=epoch,
        agent=0,
        agents=agents,
        lead=True,
        lead_address="127.0.0.1:1",
        ranks=tuple(place for agent in range(agents) for place in places(agent, per_agent, agents * per_agent)),
        roles=(
            wire.RoleOrders(
                role=MAIN, command=("true",), environment={}, spares=spares, ranks_min=ranks_min, group=group
            ),
        ),
        code=Code(),
        objects_url="",
        restarts_max=restarts_max,
        lease_s=LEASE_S,
        heartbeat_s=HEARTBEAT_S,
        furthest_step=furthest_step,
        hang_s=hang_s,
        begins_from=begins_from,
    )


def places(agent: int, per_agent: int, size: int) -> tuple[wire.RankPlace, ...]:
    numbers = range(agent * per_agent, (agent + 1) * per_agent)
    return tuple(wire.RankPlace(rank=rank, role=MAIN, role_rank=rank, role_size=size, agent=agent) for rank in numbers)


@dataclass
class Rank:
    place: wire.RankPlace
    generation: int
    step: int
    every: int
    stepping: bool = False  # Whether its program has come up.
    stopped: bool = False
    leave_at: int | None = None
    then: wire.Then = wire.Then.EXIT
    told: int = -2
    blocked_s: float = 0.0  # By snapshots, since it told.

    @property
    def holding(self) -> wire.Holding:
        """What its agent holds once it has left a snapshot of its step."""
        where = self.place
        return wire.Holding(
            step=self.step,
            generation=self.generation,
            rank=where.rank,
            role=where.role,
            role_rank=where.role_rank,
            role_size=where.role_size,
        )


@dataclass
class Agent:
    number: int
    places: tuple[wire.RankPlace, ...]
    alive: bool = True
    line: int = 0  # Counts connections; 0 while none is up.
    cut: bool = False
    heard_s: float = 0.0
    generation: int = 0
    order: wire.PrepareGeneration | None = None
    started: bool = False
    leaving_s: float | None = None
    ranks: dict[int, Rank] = field(default_factory=dict)
    own: dict[int, list[wire.Holding]] = field(default_factory=dict)
    copies: dict[int, list[wire.Holding]] = field(default_factory=dict)
    exits: dict[int, wire.RankExited | wire.RankLeft] = field(default_factory=dict)
    prepared: wire.GenerationPrepared | None = None
    damaged: set[tuple[int, int]] = field(default_factory=set)

    @property
    def holdings(self) -> tuple[wire.Holding, ...]:
        return tuple(one for held in (self.own, self.copies) for kept in held.values() for one in kept)
