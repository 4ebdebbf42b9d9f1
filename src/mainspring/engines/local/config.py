"""Settings of a cluster that this machine pretends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import ChipName, ClusterName, NodeName, checked_name
from mainspring.domain.job import CHIP_MEMORY_GIB_MAX

NODES_MAX = 1_024  # Each is a process of this machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A cluster to pretend.

    Args:
        name: Its name; nodes are called `<name>-<number>`.
        chip: Type of every chip.
        dollars_per_chip_hour: Price of one chip.
        racks: How many racks the nodes are spread over, in name order; 0 for no level of racks.
        cpus_per_node: CPU cores that work may use on each node; None when nobody counts them.
        memory_gib_per_node: Host memory that work may use on each node; None when nobody counts it.
        chip_memory_gib: Memory of each chip; None for what is published of such chips.
        simulated: False when the chips are what this machine really has.
    """

    kind: ClassVar[str] = "local"
    delegated: ClassVar[bool] = False

    name: ClusterName
    chip: ChipName
    chips_per_node: int
    nodes: int
    dollars_per_chip_hour: float
    racks: int = 0
    cpus_per_node: float | None = None
    memory_gib_per_node: float | None = None
    chip_memory_gib: float | None = None
    simulated: bool = True

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        checked_name(self.name, "cluster")
        checked_name(self.chip, "chip")
        for name, value, least, most in (
            ("chips_per_node", self.chips_per_node, 1, 1_024),
            ("nodes", self.nodes, 1, NODES_MAX),
            ("dollars_per_chip_hour", self.dollars_per_chip_hour, 0, 1e6),
            ("racks", self.racks, 0, self.nodes),
            ("cpus_per_node", self.cpus_per_node or 0, 0, 1e6),
            ("memory_gib_per_node", self.memory_gib_per_node or 0, 0, 1e7),
            ("chip_memory_gib", self.chip_memory_gib or 0, 0, CHIP_MEMORY_GIB_MAX),
        ):
            if not least <= value <= most:
                raise InvalidInput(
                    "pretend a cluster", on=f"{self.name}, {name}", got=str(value), wanted=f"{least} to {most:g}"
                )

    @property
    def node_names(self) -> tuple[NodeName, ...]:
        """Returns the names of its nodes, in order."""
        width = len(str(self.nodes - 1))
        return tuple(NodeName(f"{self.name}-{index:0{width}}") for index in range(self.nodes))
