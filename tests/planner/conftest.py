"""Small fleets and specs for tests of the planner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import ChipName, ClusterName, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role, Tier

MakeInventory = Callable[..., Inventory]
MakeSpec = Callable[..., JobSpec]


def _inventory(
    name: str,
    *,
    nodes: int = 4,
    chips: int = 8,
    chip: str = "h100",
    price: float = 2.0,
    rack_size: int = 2,
    foreign: dict[int, int] | None = None,
    unready: tuple[int, ...] = (),
) -> Inventory:
    rows = tuple(
        Node(
            name=NodeName(f"n{index:03}"),
            chip=ChipName(chip),
            chips=chips,
            domains=(("rack", f"r{index // rack_size:03}"),),
            condition=NodeCondition.DOWN if index in unready else NodeCondition.READY,
            foreign_chip_milli=(foreign or {}).get(index, 0),
        )
        for index in range(nodes)
    )
    return Inventory(
        cluster=ClusterName(name),
        engine="local",
        simulated=True,
        dollars_per_chip_hour={ChipName(chip): price},
        nodes=rows,
    )


def _spec(
    *options: Option, team: str = LAB, tier: Tier = Tier.STANDARD, others: dict[str, Option] | None = None
) -> JobSpec:
    roles = [Role(command=("true",), options=options)]
    roles += [
        Role(name=RoleName(name), command=("true",), options=(option,)) for name, option in (others or {}).items()
    ]
    return JobSpec(name="job", team=TeamName(team), tier=tier, roles=tuple(roles))


@pytest.fixture
def inventory() -> MakeInventory:
    """Makes the inventory of one cluster of equal nodes."""
    return _inventory


@pytest.fixture
def spec() -> MakeSpec:
    """Makes the spec of a job with one role, or several."""
    return _spec
