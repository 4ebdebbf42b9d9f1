"""Binding limits: what stands in a job's way, as data and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mainspring.domain.ids import NodeName
from mainspring.domain.job import ANY_CHIP, Option
from mainspring.domain.plan import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingLimit:
    """What stands in the way.

    Args:
        where: The cluster or team whose limit it is.
        short_by: How many chips are missing; 0 when chips are not the matter.
        text: One clause for people.
    """

    limit: Limit
    where: str
    short_by: float
    text: str

    @property
    def reason(self) -> str:
        """Returns it as one sentence that says where."""
        if self.limit in (Limit.QUOTA, Limit.BUDGET, Limit.SEARCH, Limit.DEPENDENCY, Limit.PAUSED) or not self.where:
            return self.text
        return f"{self.where}: {self.text}"


def amount(wanted: Option, replicas: int) -> str:
    """Returns a request as people say it: "64 h100", "4 x 8 h100 of 80 GiB or more", "2 x 16 cores".

    Args:
        replicas: How many of its replicas.
    """
    if wanted.chips == 0:
        return f"{replicas} x {wanted.cpus:g} {'core' if wanted.cpus == 1 else 'cores'}"
    any_chip = "chip" if wanted.chips < 1 or (wanted.chips == 1 and replicas == 1) else "chips"
    chip = any_chip if wanted.chip == ANY_CHIP else wanted.chip
    least = f" of {wanted.chip_memory_gib:g} GiB or more" if wanted.chip_memory_gib else ""
    return (f"{replicas} {chip}" if wanted.chips == 1 else f"{replicas} x {wanted.chips:g} {chip}") + least


def together(wanted: Option) -> str:
    """Returns how close together an option wants its replicas: " in one rack", or ""."""
    words = "" if wanted.within in (None, "cluster") else f" in one {wanted.within}"
    if wanted.group:
        words += f", each {wanted.group} in one {wanted.group_within}"
    return words


NAMED_MAX = 4  # Of many nodes; the others are counted.


def listed(nodes: Sequence[NodeName]) -> str:
    """Returns nodes as people list them: "n0, n1 and 3 more"."""
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    return ", ".join(nodes[:NAMED_MAX]) + more
