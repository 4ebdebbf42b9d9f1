"""What agents of a small world do together: come, ask again, begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import AllocationId, JobId, NodeName
from mainspring.domain.wire import Orders, Register
from mainspring.planner import Policy

if TYPE_CHECKING:
    from tests.control.conftest import World

SWIFT = Policy(runtime_min_s=2.0, cooldown_s=5.0, restart_s=1.0, checkpoint_s=1.0)


def live(world: World, job: JobId) -> dict[AllocationId, LaunchOrder]:
    """The allocations of the newest attempt that were not asked to end, as their cluster took them."""
    cluster = world.clusters[world.job(job).attempts[-1].cluster]
    running = {name for name, seen in cluster.running().items() if seen.phase.value == "running"}
    return {name: order for name, order in world.orders_of(job).items() if name in running}


def come(world: World, job: JobId, *, lost_epoch: int = 0, twice: bool = True) -> dict[NodeName, Orders]:
    """Lets every agent that lives register; returns their last orders, by node."""
    answers: dict[NodeName, Orders] = {}
    for _ in range(1 + twice):
        for name, order in live(world, job).items():
            for node in order.nodes:
                answers[node] = ask(world, name, order, node, lost_epoch=lost_epoch)
    return answers


def ask(world: World, name: AllocationId, order: LaunchOrder, node: NodeName, *, lost_epoch: int = 0) -> Orders:
    call = Register(allocation=name, node=node, address=f"{node}:1", lost_epoch=lost_epoch)
    return world.control.register(call, world.control.people.caller(order.token))


def begin(world: World, job: JobId) -> dict[NodeName, Orders]:
    world.tick(2)
    orders = come(world, job)
    assert all(each.ready for each in orders.values())
    world.beat(job)
    return orders
