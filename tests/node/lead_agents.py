"""An attempt's orders, and the places of its ranks."""

from __future__ import annotations

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.domain.job import Code

MAIN = RoleName("main")
LEASE_S = 10.0
HEARTBEAT_S = 1.0
STEP_S = 0.2


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
    generation: int = 0,
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
        generation=generation,
    )


def places(agent: int, per_agent: int, size: int) -> tuple[wire.RankPlace, ...]:
    numbers = range(agent * per_agent, (agent + 1) * per_agent)
    return tuple(wire.RankPlace(rank=rank, role=MAIN, role_rank=rank, role_size=size, agent=agent) for rank in numbers)
